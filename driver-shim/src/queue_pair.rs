//! Queue pairs: prepared, connected, posted to.

use qp::{
    Access, AddressVector, AttrMask, BadWr, CcState, CreateError, McastError, MwRange, PostError, QpAttr,
    QpCap, QpInit, QpState, QpType, Rate, RecvWr, SendFlags, SendWr,
};
use wire::{Gid, Mtu, Psn, QKey, Qpn, RKey, RnrTimer};

use crate::ah::{ConnectError, resolve};
use crate::cq::CompletionQueue;
use crate::device::Device;
use crate::mcast::AttachError;
use crate::mw::MemoryWindow;
use crate::pd::ProtectionDomain;
use crate::srq::SharedReceiveQueue;
use crate::xrc::XrcDomain;

/// Sizes of a queue pair that is being made.
#[must_use]
#[derive(Debug)]
pub struct QpBuilder {
    pd: ProtectionDomain,
    qp_type: QpType,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    srq: Option<SharedReceiveQueue>,
    cap: QpCap,
    sq_sig_all: bool,
}

impl QpBuilder {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        qp_type: QpType,
        send_cq: &CompletionQueue,
        recv_cq: &CompletionQueue,
    ) -> Self {
        Self {
            pd: pd.clone(),
            qp_type,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            srq: None,
            cap: QpCap::default(),
            sq_sig_all: false,
        }
    }

    /// Send work requests that may wait.
    pub fn max_send_wr(mut self, n: u32) -> Self {
        self.cap.max_send_wr = n;
        self
    }

    /// Receive work requests that may wait.
    pub fn max_recv_wr(mut self, n: u32) -> Self {
        self.cap.max_recv_wr = n;
        self
    }

    /// Pieces of memory in one work request.
    pub fn max_sge(mut self, n: u32) -> Self {
        self.cap.max_send_sge = n;
        self.cap.max_recv_sge = n;
        self
    }

    /// Bytes of an inline send.
    pub fn max_inline_data(mut self, n: u32) -> Self {
        self.cap.max_inline_data = n;
        self
    }

    /// Completes every send visibly.
    pub fn signal_all(mut self) -> Self {
        self.sq_sig_all = true;
        self
    }

    /// Takes receives from `srq` instead of a queue of its own.
    pub fn srq(mut self, srq: &SharedReceiveQueue) -> Self {
        self.srq = Some(srq.clone());
        self
    }

    /// Makes the queue pair, in RESET.
    ///
    /// # Errors
    /// What is not possible. A completion queue of another device is none of this one.
    pub fn build(self) -> Result<PreparedQp, CreateError> {
        let device = self.pd.device();
        if [&self.send_cq, &self.recv_cq].into_iter().any(|cq| !cq.device().is(device)) {
            return Err(CreateError::NoCq);
        }
        if self.srq.as_ref().is_some_and(|srq| !srq.device().is(device)) {
            return Err(CreateError::NoSrq);
        }
        let init = QpInit {
            cap: self.cap,
            sq_sig_all: self.sq_sig_all,
            srq: self.srq.as_ref().map(SharedReceiveQueue::number),
            ..QpInit::new(self.qp_type, self.pd.id(), self.send_cq.id(), self.recv_cq.id())
        };
        let device = device.clone();
        let Self { pd, send_cq, recv_cq, srq, .. } = self;
        PreparedQp::create(device, init, Needs::Verbs { pd, send_cq, recv_cq, _srq: srq })
    }
}

/// Where a peer finds a queue pair: what the two ends tell each other out of band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Queue pair number.
    pub qpn: Qpn,
    /// PSN of the first packet it sends.
    pub psn: Psn,
    /// Its GID.
    pub gid: Gid,
}

/// How to connect. The defaults are those of `ibv_rc_pingpong`, but that READs and atomics are allowed.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Index of the own GID.
    pub gid_index: u8,
    /// Path MTU; the same at both ends.
    pub path_mtu: Mtu,
    /// ACK timer code: 4.096 µs × 2^timeout, 0 for never.
    pub timeout: u8,
    /// Repeats without progress.
    pub retry_cnt: u8,
    /// Repeats after RNR NAKs without progress; 7 for ever.
    pub rnr_retry: u8,
    /// What an RNR NAK asks the peer to wait.
    pub min_rnr_timer: RnrTimer,
    /// READs and atomics open as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics the peer may have open.
    pub max_dest_rd_atomic: u8,
    /// What the peer may do.
    pub access: Access,
    /// TOS byte.
    pub traffic_class: u8,
    /// Flow label; 0 derives the source port from the QPNs.
    pub flow_label: u32,
    /// Time to live.
    pub hop_limit: u8,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            gid_index: 1,
            path_mtu: Mtu::B1024,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: RnrTimer::new(12).unwrap_or_default(),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
        }
    }
}

/// A queue pair that was made and not connected: it has a number, and receives can be posted.
#[derive(Debug)]
pub struct PreparedQp {
    qp: QueuePair,
    qp_type: QpType,
    psn: Psn,
}

impl PreparedQp {
    fn create(device: Device, init: QpInit, needs: Needs) -> Result<Self, CreateError> {
        let qpn = device.engine().nic().create_qp(init)?;
        let psn = device.random_psn();
        Ok(Self { qp: QueuePair { qpn, device, needs }, qp_type: init.qp_type, psn })
    }

    /// An XRC target of `xrcd`.
    pub(crate) fn target(xrcd: &XrcDomain, init: QpInit) -> Result<Self, CreateError> {
        Self::create(xrcd.device().clone(), init, Needs::Target { _xrcd: xrcd.clone() })
    }

    /// What to tell the peer, with the GID at `gid_index` of the port's table ([`Device::gid`]): 0 is the link-local
    /// one, 1 the first IPv4 address, on loopback both the address itself. An index without a GID gives
    /// [`Gid::ZERO`], which no peer can connect to.
    #[must_use]
    pub fn endpoint(&self, gid_index: usize) -> Endpoint {
        let gid = self.qp.device().gid(gid_index).unwrap_or(Gid::ZERO);
        Endpoint { qpn: self.qp.qpn, psn: self.psn, gid }
    }

    /// Sets the PSN of the first packet it will send.
    #[must_use]
    pub fn with_psn(mut self, psn: Psn) -> Self {
        self.psn = psn;
        self
    }

    /// Takes a connected type to INIT, where receives can be posted before the peer knows of it.
    ///
    /// # Errors
    /// As [`QueuePair::modify`].
    pub fn init(&self, access: Access) -> Result<(), ConnectError> {
        let attr = QpAttr { state: QpState::Init, access, ..QpAttr::default() };
        self.step_with(&attr, AttrMask::ACCESS_FLAGS)
    }

    /// Takes a queue pair of datagrams, whose receives need 40 bytes in front for the network header, through INIT and
    /// RTR to RTS: it takes datagrams that carry `qkey`, and can
    /// send. The general services queue pair keeps its own key.
    ///
    /// # Errors
    /// As [`QueuePair::modify`].
    pub fn activate(self, qkey: QKey) -> Result<QueuePair, ConnectError> {
        let mut attr = QpAttr { state: QpState::Init, qkey, sq_psn: self.psn, ..QpAttr::default() };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            attr.state = state;
            let own = if state == QpState::Init { AttrMask::QKEY } else { AttrMask::empty() };
            self.step_with(&attr, own)?;
        }
        Ok(self.qp)
    }

    /// Posts a receive. Possible from INIT on.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        self.qp.post_recv(wr)
    }

    /// Connects to `peer`: through INIT (where it is not there yet) and RTR to RTS.
    ///
    /// # Errors
    /// An attribute that is not possible, or a peer that cannot be reached.
    pub fn connect(self, peer: Endpoint, options: &ConnectOptions) -> Result<QueuePair, ConnectError> {
        if self.qp.state() == QpState::Reset {
            self.init(options.access)?;
        }
        let mut attr = QpAttr {
            state: QpState::Rtr,
            addr: AddressVector {
                dgid: peer.gid,
                sgid_index: options.gid_index,
                hop_limit: options.hop_limit,
                traffic_class: options.traffic_class,
                flow_label: options.flow_label,
                sl: 0,
            },
            path_mtu: options.path_mtu,
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: options.max_dest_rd_atomic,
            min_rnr_timer: options.min_rnr_timer,
            ..QpAttr::default()
        };
        self.step(&attr)?;
        attr.state = QpState::Rts;
        attr.sq_psn = self.psn;
        attr.timeout = options.timeout;
        attr.retry_cnt = options.retry_cnt;
        attr.rnr_retry = options.rnr_retry;
        attr.max_rd_atomic = options.max_rd_atomic;
        self.step(&attr)?;
        Ok(self.qp)
    }

    /// To `attr.state`, with those of the attributes that the step needs.
    fn step(&self, attr: &QpAttr) -> Result<(), ConnectError> {
        self.step_with(attr, AttrMask::empty())
    }

    /// With `own` besides, which is refused where the queue pair is of another type.
    fn step_with(&self, attr: &QpAttr, own: AttrMask) -> Result<(), ConnectError> {
        self.qp.modify(attr, AttrMask::to_enter(self.qp_type, attr.state) | own)
    }

    /// The queue pair itself, to be taken through its states by hand.
    #[must_use]
    pub fn into_raw(self) -> QueuePair {
        self.qp
    }
}

/// A queue pair. It is destroyed when dropped.
#[derive(Debug)]
pub struct QueuePair {
    qpn: Qpn,
    device: Device,
    needs: Needs,
}

/// What a queue pair stands on: kept while it lives, so that any order of drops is legal.
#[derive(Debug)]
enum Needs {
    Verbs {
        pd: ProtectionDomain,
        send_cq: CompletionQueue,
        recv_cq: CompletionQueue,
        _srq: Option<SharedReceiveQueue>,
    },
    Target {
        _xrcd: XrcDomain,
    },
}

impl QueuePair {
    /// Its number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The device it is of.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its protection domain; `None` of an XRC target.
    #[must_use]
    pub fn pd(&self) -> Option<&ProtectionDomain> {
        match &self.needs {
            Needs::Verbs { pd, .. } => Some(pd),
            Needs::Target { .. } => None,
        }
    }

    /// Where its sends complete; `None` of an XRC target.
    #[must_use]
    pub fn send_cq(&self) -> Option<&CompletionQueue> {
        match &self.needs {
            Needs::Verbs { send_cq, .. } => Some(send_cq),
            Needs::Target { .. } => None,
        }
    }

    /// Where its receives complete; `None` of an XRC target.
    #[must_use]
    pub fn recv_cq(&self) -> Option<&CompletionQueue> {
        match &self.needs {
            Needs::Verbs { recv_cq, .. } => Some(recv_cq),
            Needs::Target { .. } => None,
        }
    }

    /// Posts a send, and sends: in this call or, with another [`Driver`](crate::Driver) than `Inline`, from the
    /// device's thread.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn post_send(&self, wr: SendWr) -> Result<(), PostError> {
        self.post_send_later(wr)?;
        self.device().engine().posted();
        Ok(())
    }

    /// Posts a send without driving the device, for callers that post several: the last one of them, or the
    /// next poll, sends them together.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn post_send_later(&self, wr: SendWr) -> Result<(), PostError> {
        let engine = self.device().engine();
        engine.nic().post_send(engine.now(), self.qpn, wr)
    }

    /// Binds a type 1 window to `range`, in the order of the send queue, where it completes as `flags` say. Gives the
    /// window's key from then on.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn bind_mw(
        &self,
        wr_id: u64,
        flags: SendFlags,
        window: &MemoryWindow,
        range: &MwRange,
    ) -> Result<RKey, PostError> {
        if !window.device().is(self.device()) {
            return Err(PostError::NoSuchWindow);
        }
        let engine = self.device().engine();
        let key = engine.nic().bind_mw(engine.now(), self.qpn, wr_id, flags, window.name(), range)?;
        engine.posted();
        Ok(key)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn post_recv(&self, wr: RecvWr) -> Result<(), PostError> {
        self.device().engine().post_recv(self.qpn, wr)
    }

    /// Posts sends in order, up to the first that is not taken, and sends as [`QueuePair::post_send`] does.
    ///
    /// # Errors
    /// The first that was not taken, and why. Those before it are posted.
    pub fn post_send_list(&self, wrs: impl IntoIterator<Item = SendWr>) -> Result<(), BadWr> {
        let engine = self.device().engine();
        let posted = engine.nic().post_send_list(engine.now(), self.qpn, wrs);
        engine.posted();
        posted
    }

    /// Posts receives in order, up to the first that is not taken.
    ///
    /// # Errors
    /// The first that was not taken, and why. Those before it are posted.
    pub fn post_recv_list(&self, wrs: impl IntoIterator<Item = RecvWr>) -> Result<(), BadWr> {
        self.device().engine().post_recv_list(self.qpn, wrs)
    }

    /// Makes a queue pair of datagrams a member of a multicast group: it takes what is sent to [`Qpn::MULTICAST`] at
    /// `group` with its queue key. What this device itself sends there does not come back to it.
    ///
    /// # Errors
    /// Where it is no UD queue pair or `group` no group, or the back end or the system does not let it.
    pub fn attach_mcast(&self, group: Gid) -> Result<(), AttachError> {
        self.device().engine().attach_mcast(self.qpn, group)
    }

    /// Ends a membership; dropping the queue pair ends all.
    ///
    /// # Errors
    /// Where there is none.
    pub fn detach_mcast(&self, group: Gid) -> Result<(), McastError> {
        self.device().engine().detach_mcast(self.qpn, group)
    }

    /// Changes attributes, and the state where the mask says so.
    ///
    /// # Errors
    /// What is not possible, or that the peer's address cannot be resolved; then nothing has changed.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), ConnectError> {
        if mask.contains(AttrMask::AV) {
            resolve(self.device(), attr.addr.dgid)?;
        }
        let engine = self.device().engine();
        engine.modify_qp(self.qpn, attr, mask)?;
        engine.drive();
        Ok(())
    }

    /// Attributes as configured, and the state it is in.
    #[must_use]
    pub fn query(&self) -> (QpAttr, QpCap) {
        let queried = self.device().engine().nic().query_qp(self.qpn);
        queried.map_or_else(Default::default, |(attr, init)| (attr, init.cap))
    }

    /// The state it is in.
    #[must_use]
    pub fn state(&self) -> QpState {
        self.query().0.state
    }

    /// What congestion control thinks of it now; `None` where nothing controls its rate.
    #[must_use]
    pub fn cc_state(&self) -> Option<CcState> {
        let engine = self.device().engine();
        let now = engine.now();
        engine.nic().cc_state(now, self.qpn)
    }

    /// The rate that it keeps now; `None` where nothing limits it.
    #[must_use]
    pub fn rate(&self) -> Option<Rate> {
        self.cc_state()?.rate.rate
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let ended = self.device().engine().destroy_qp(self.qpn);
        debug_assert!(ended.is_ok(), "{ended:?}");
    }
}
