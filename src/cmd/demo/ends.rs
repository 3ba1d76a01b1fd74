//! The demo's two ends: a queue pair each, connected, and memory to send from and to.

use driver_shim::{
    AddressHandle, CompletionQueue, ConnectOptions, Device, Endpoint, MemoryRegion, MemoryWindow, PreparedQp,
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
    peer: Peer,
    /// Where its receives wait, if not at the queue pair.
    srq: Option<SharedReceiveQueue>,
    /// What opens part of its memory, for one message at a time.
    pub(super) window: MemoryWindow,
}

/// Where the sends of an end go.
enum Peer {
    /// Where the queue pair is connected to.
    Connected,
    /// A queue pair, as datagrams.
    Datagram(AddressHandle, Qpn),
    /// A shared receive queue behind the target.
    Shared(Srqn),
}

impl End {
    /// Posts a send, to be sent when the device is driven next.
    pub(super) fn post_send(&self, wr: SendWr) -> Result<(), PostError> {
        self.qp.post_send_later(match &self.peer {
            Peer::Connected => wr,
            Peer::Datagram(ah, qpn) => ah.address(wr, *qpn, QKEY),
            Peer::Shared(srqn) => wr.for_srq(*srqn),
        })
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
    let (near, far) = (Parts::near(a, way)?, Parts::far(b, way)?);
    let (near_end, far_end) = (near.qp.endpoint(1), far.qp.endpoint(1));
    if way == Way::Ud {
        return Ok((near.activate(far_end)?, far.activate(near_end)?));
    }
    let options = ConnectOptions {
        path_mtu: a.active_mtu().min(b.active_mtu()),
        max_rd_atomic: READS,
        max_dest_rd_atomic: READS,
        access: RIGHTS,
        ..ConnectOptions::default()
    };
    let shared = far.srq.as_ref().filter(|_| way == Way::Xrc).map(SharedReceiveQueue::number);
    let near = near.connect(far_end, &options, shared.map_or(Peer::Connected, Peer::Shared))?;
    Ok((near, far.connect(near_end, &options, Peer::Connected)?))
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
    fn near(device: &Device, way: Way) -> Made<Self> {
        Self::make(device, |pd, cq| Ok((builder(pd, cq, way).build()?, None)))
    }

    fn far(device: &Device, way: Way) -> Made<Self> {
        Self::make(device, |pd, cq| {
            if way == Way::Xrc {
                let domain = device.alloc_xrcd();
                let srq = pd.create_xrc_srq(&domain, cq, DEPTH, 1)?;
                return Ok((domain.create_target()?, Some(srq)));
            }
            let srq = if way == Way::Srq { Some(pd.create_srq(DEPTH, 1)?) } else { None };
            let builder = builder(pd, cq, way);
            let builder = if let Some(srq) = &srq { builder.srq(srq) } else { builder };
            Ok((builder.build()?, srq))
        })
    }

    fn make(
        device: &Device,
        queue_pair: impl FnOnce(
            &ProtectionDomain,
            &CompletionQueue,
        ) -> Made<(PreparedQp, Option<SharedReceiveQueue>)>,
    ) -> Made<Self> {
        let pd = device.alloc_pd();
        let cq = device.create_cq(256)?;
        let mr = pd.register(vec![0; ROOM], RIGHTS)?;
        let window = pd.alloc_mw(MwType::Type2)?;
        let (qp, srq) = queue_pair(&pd, &cq)?;
        Ok(Self { pd, cq, mr, qp, srq, window })
    }

    fn connect(self, to: Endpoint, options: &ConnectOptions, peer: Peer) -> Made<End> {
        let Self { cq, mr, qp, srq, window, .. } = self;
        Ok(End { qp: qp.connect(to, options)?, cq, mr, peer, srq, window })
    }

    /// Readies it for datagrams, to `to`.
    fn activate(self, to: Endpoint) -> Made<End> {
        let Self { pd, cq, mr, qp, srq, window } = self;
        let addr = AddressVector { dgid: to.gid, sgid_index: 1, ..AddressVector::default() };
        let peer = Peer::Datagram(pd.create_ah(addr)?, to.qpn);
        Ok(End { qp: qp.activate(QKEY)?, cq, mr, peer, srq, window })
    }
}

fn builder(pd: &ProtectionDomain, cq: &CompletionQueue, way: Way) -> QpBuilder {
    pd.create_qp(way.qp_type(), cq, cq).max_send_wr(DEPTH).max_recv_wr(DEPTH).signal_all()
}
