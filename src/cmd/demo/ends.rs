//! The demo's two ends: a queue pair each, connected, and memory to send from and to.

use driver_shim::{
    AddressHandle, CompletionQueue, ConnectOptions, Device, MemoryRegion, MemoryWindow, PreparedQp,
    ProtectionDomain, QpBuilder, QueuePair, SharedReceiveQueue,
};
use qp::{Access, AddressVector, MwType, PostError, RecvWr, SendWr};
use wire::{QKey, Qpn, Srqn};

use super::bench::{DEPTH, ROOM};
use super::plan::Way;
use crate::cmd::Failure;

const READS: u8 = 16;
const QKEY: QKey = QKey::new(0x1111_1111);

const RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::MW_BIND);

type Made<T> = Result<T, Box<dyn std::error::Error>>;

/// One end.
pub(super) struct End {
    pub(super) cq: CompletionQueue,
    pub(super) mr: MemoryRegion,
    qp: QueuePair,
    /// Where its receives are posted, if not to the queue pair.
    srq: Option<SharedReceiveQueue>,
    /// Where its datagrams go.
    peer: Option<(AddressHandle, Qpn)>,
    /// The far end's shared receive queue, which XRC names.
    remote_srqn: Option<Srqn>,
    /// What opens part of its memory, for one message at a time.
    pub(super) window: MemoryWindow,
}

impl End {
    /// Posts a send, to be sent when the device is driven next.
    pub(super) fn post_send(&self, wr: SendWr) -> Result<(), PostError> {
        let wr = match &self.peer {
            Some((ah, qpn)) => ah.address(wr, *qpn, QKEY),
            None => wr,
        };
        let wr = match self.remote_srqn {
            Some(srqn) => wr.for_srq(srqn),
            None => wr,
        };
        self.qp.post_send_later(wr)
    }

    pub(super) fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        match &self.srq {
            Some(srq) => srq.post_recv(wr),
            None => self.qp.post_recv(wr),
        }
    }

    pub(super) fn drive(&self) {
        self.cq.device().drive();
    }
}

/// The ends of a way: the near one asks, the far one answers.
///
/// # Errors
/// When they cannot be made or connected.
pub(super) fn connect(devices: &[Device; 2], way: Way) -> Result<(End, End), Failure> {
    pair(devices, way).map_err(|error| Failure::Failed(error.to_string()))
}

fn pair([a, b]: &[Device; 2], way: Way) -> Made<(End, End)> {
    let (near, far) = (Parts::make(a, way, false)?, Parts::make(b, way, true)?);
    let (near_end, far_end) = (near.qp.endpoint(1), far.qp.endpoint(1));
    if way == Way::Ud {
        return Ok((near.with_peer(far_end)?, far.with_peer(near_end)?));
    }
    let options = ConnectOptions {
        path_mtu: a.active_mtu().min(b.active_mtu()),
        max_rd_atomic: READS,
        max_dest_rd_atomic: READS,
        access: RIGHTS,
        ..ConnectOptions::default()
    };
    let (mut near, far) = (near.connect(far_end, &options)?, far.connect(near_end, &options)?);
    if way == Way::Xrc {
        near.remote_srqn = far.srq.as_ref().map(SharedReceiveQueue::number);
    }
    Ok((near, far))
}

/// What an end is made of before it is connected.
struct Parts {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    mr: MemoryRegion,
    qp: PreparedQp,
    srq: Option<SharedReceiveQueue>,
    window: MemoryWindow,
}

impl Parts {
    fn make(device: &Device, way: Way, is_far: bool) -> Made<Self> {
        let pd = device.alloc_pd();
        let cq = device.create_cq(256)?;
        let mr = pd.register(vec![0; ROOM], RIGHTS)?;
        let xrcd = device.alloc_xrcd();
        let srq = match way {
            Way::Shared => Some(pd.create_srq(DEPTH, 1)?),
            Way::Xrc if is_far => Some(pd.create_xrc_srq(&xrcd, &cq, DEPTH, 1)?),
            _ => None,
        };
        let qp = if way == Way::Xrc && is_far {
            xrcd.create_target()?
        } else {
            let builder = pd.create_qp(way.qp_type(), &cq, &cq);
            let builder = srq.iter().fold(builder, QpBuilder::srq);
            builder.max_send_wr(DEPTH).max_recv_wr(DEPTH).signal_all().build()?
        };
        let window = pd.alloc_mw(MwType::Type2)?;
        Ok(Self { pd, cq, mr, qp, srq, window })
    }

    fn connect(self, peer: driver_shim::Endpoint, options: &ConnectOptions) -> Made<End> {
        Ok(End {
            qp: self.qp.connect(peer, options)?,
            cq: self.cq,
            mr: self.mr,
            srq: self.srq,
            peer: None,
            remote_srqn: None,
            window: self.window,
        })
    }

    fn with_peer(self, peer: driver_shim::Endpoint) -> Made<End> {
        let qp = self.qp.activate(QKEY)?;
        let addr = AddressVector { dgid: peer.gid, sgid_index: 1, ..AddressVector::default() };
        let ah = self.pd.create_ah(addr)?;
        Ok(End {
            qp,
            cq: self.cq,
            mr: self.mr,
            srq: None,
            peer: Some((ah, peer.qpn)),
            remote_srqn: None,
            window: self.window,
        })
    }
}
