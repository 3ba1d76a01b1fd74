//! One end of the connection: a NIC with its objects, and the model that its completions are held against.

use std::net::Ipv4Addr;
use std::ops::Range;

use qp::state::rnr_timer;
use qp::{
    Access, AddressVector, AttrMask, Completion, CqId, MrInfo, Nic, NicConfig, PostError, Profile, QpAttr,
    QpCap, QpInit, QpState, QpType, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus,
};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::{Gid, Instant, Mtu, Psn, Qpn};

use super::Work;
use super::link::Sent;
use super::model::{Arrival, Claim, Model, Posted, apply};

/// Bytes that data are sent from; peers may only read them.
const SOURCE: usize = 16 * 1024;
/// Bytes that data are put to.
const TARGET: usize = 128 * 1024;
/// The first bytes of the target region are the word for atomics.
const WORD: usize = 8;
/// The last bytes of the target region are the buffer of all receives.
const MAX_LEN: usize = 5000;
const RECEIVE_AT: usize = TARGET - MAX_LEN;
/// What the target region holds before anything arrives.
const BLANK: u8 = 0xB1;

/// Attributes and sizes of one end.
pub(super) struct Limits {
    pub(super) mtu: Mtu,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) window: u32,
    pub(super) max_segments: usize,
}

/// What the peer has to know of an end.
pub(super) struct Address {
    gid: Gid,
    qpn: Qpn,
}

pub(super) struct End {
    nic: Nic,
    qpn: Qpn,
    send_cq: CqId,
    recv_cq: CqId,
    source: MrInfo,
    target: MrInfo,
    attr: QpAttr,
    /// First byte of the target region that nothing has claimed.
    free: usize,
    model: Model,
    received: u64,
    /// The packet that was taken in last came alone.
    alone: bool,
}

impl End {
    pub(super) fn new(host: u8, limits: &Limits) -> Self {
        let caps = Caps {
            max_segments: limits.max_segments,
            max_bytes: 60_000,
            ip_id: IpIdRule::Ours,
            sees_ip_header: true,
            window: limits.window,
            credit: limits.window.saturating_mul(2),
            src_port: None,
        };
        let gid = Ipv4Addr::new(10, 0, 0, host).into();
        let mut nic = Nic::new(NicConfig::new(vec![gid], Mtu::B4096, caps, host.into(), Profile::Strict));
        let pd = nic.alloc_pd();
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let source = must(nic.reg_mr(pd, source_bytes(host), Access::REMOTE_READ));
        let target = must(nic.reg_mr(pd, target_bytes(), Access::LOCAL_WRITE | remote));
        let send_cq = must(nic.create_cq(4096));
        let recv_cq = must(nic.create_cq(4096));
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 64, ..QpCap::default() };
        let init = QpInit { cap, ..QpInit::new(QpType::Rc, pd, send_cq, recv_cq) };
        let qpn = must(nic.create_qp(init));
        let attr = QpAttr {
            access: remote,
            path_mtu: limits.mtu,
            max_rd_atomic: limits.max_rd_atomic,
            max_dest_rd_atomic: limits.max_dest_rd_atomic,
            min_rnr_timer: must(rnr_timer(3)),
            timeout: limits.timeout,
            retry_cnt: limits.retry_cnt,
            rnr_retry: limits.rnr_retry,
            ..QpAttr::default()
        };
        let model = Model::default();
        Self {
            nic,
            qpn,
            send_cq,
            recv_cq,
            source,
            target,
            attr,
            free: WORD,
            model,
            received: 0,
            alone: false,
        }
    }

    pub(super) fn address(&self) -> Address {
        Address { gid: self.nic.config().gids[0], qpn: self.qpn }
    }

    pub(super) fn connect(&mut self, peer: &Address, sq_psn: Psn, rq_psn: Psn) {
        self.attr = QpAttr {
            addr: AddressVector { dgid: peer.gid, ..AddressVector::default() },
            dest_qpn: peer.qpn,
            sq_psn,
            rq_psn,
            ..self.attr
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let attr = QpAttr { state, ..self.attr };
            let mask = AttrMask::to_enter(QpType::Rc, state);
            must(self.nic.modify_qp(Instant::ZERO, self.qpn, &attr, mask));
        }
    }

    fn state(&self) -> QpState {
        self.nic.query_qp(self.qpn).map_or(QpState::Err, |(attr, _)| attr.state)
    }

    /// Goes to `state`, where that is a transition from the present one.
    pub(super) fn go_to(&mut self, now: Instant, state: QpState) {
        let attr = QpAttr { state, ..self.attr };
        let from = self.state();
        let done = self.nic.modify_qp(now, self.qpn, &attr, AttrMask::STATE);
        assert_eq!(
            done.is_ok(),
            state == QpState::Err || from != QpState::Err,
            "{from} to {state}: {done:?}"
        );
    }

    pub(super) fn post_recv(&mut self, now: Instant) {
        let sge = Sge {
            addr: self.target.addr.wrapping_add(RECEIVE_AT as u64),
            length: len32(MAX_LEN),
            lkey: self.target.lkey,
        };
        let wr_id = self.model.wr_id();
        match self.nic.post_recv(now, self.qpn, RecvWr::new(wr_id.value(), &[sge])) {
            Ok(()) => self.model.receives.push_back(wr_id),
            Err(error) => assert_eq!(error, PostError::QueueFull(64)),
        }
    }

    /// Posts a receive where a live queue pair has none.
    pub(super) fn keep_receiving(&mut self, now: Instant) {
        if self.model.receives.is_empty() && self.state() != QpState::Err {
            self.post_recv(now);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "they are the fields of one step")]
    pub(super) fn post_send(
        &mut self,
        now: Instant,
        peer: &mut Self,
        work: Work,
        len: u16,
        at: u16,
        flags: SendFlags,
        inline: bool,
    ) {
        let atomic = matches!(work, Work::CmpSwap | Work::FetchAdd);
        let len = if atomic { 8 } else { usize::from(len) % (MAX_LEN + 1) };
        let at = usize::from(at) % (SOURCE - MAX_LEN);
        // The side whose memory is changed, but for SENDs, which go to the buffer of all receives.
        let changes = match work {
            Work::Write | Work::WriteImm => Some(&mut *peer),
            Work::Read | Work::CmpSwap | Work::FetchAdd => Some(&mut *self),
            Work::Send | Work::SendImm => None,
        };
        let Some(target) = changes.map_or(Some(0..0), |end| end.claim(len)) else { return };
        let near = |info: &MrInfo, at: usize| Sge {
            addr: info.addr.wrapping_add(at as u64),
            length: len32(len),
            lkey: info.lkey,
        };
        let from = [near(&self.source, at)];
        let to = [near(&self.target, target.start)];
        let (va, rkey) = match work {
            Work::Read => (peer.source.addr.wrapping_add(at as u64), peer.source.rkey),
            Work::CmpSwap | Work::FetchAdd => (peer.target.addr, peer.target.rkey),
            _ => (peer.target.addr.wrapping_add(target.start as u64), peer.target.rkey),
        };
        let wr_id = self.model.wr_id();
        let imm = imm_of(wr_id.value());
        // Small operands, so that comparisons sometimes match.
        let operands = (at as u64 % 4, at as u64 / 4 % 4);
        let id = wr_id.value();
        let mut wr = match work {
            Work::Send => SendWr::send(id, &from),
            Work::SendImm => SendWr::send_imm(id, &from, imm),
            Work::Write => SendWr::write(id, &from, va, rkey),
            Work::WriteImm => SendWr::write_imm(id, &from, va, rkey, imm),
            Work::Read => SendWr::read(id, &to, va, rkey),
            Work::CmpSwap => SendWr::cmp_swap(id, to[0], va, rkey, operands.0, operands.1),
            Work::FetchAdd => SendWr::fetch_add(id, to[0], va, rkey, operands.0),
        };
        wr.flags = flags;
        let content = match work {
            Work::Read => peer.source_at(at, len),
            _ => self.source_at(at, len),
        };
        if inline && len <= 236 && !matches!(wr.op, SendOp::Read { .. }) && !atomic {
            wr.data = SendData::Inline(content.clone().into());
        }
        match self.nic.post_send(now, self.qpn, wr) {
            Ok(()) => {}
            Err(PostError::QueueFull(64)) => return,
            Err(PostError::NoReadDepth) => {
                assert_eq!(self.attr.max_rd_atomic, 0);
                return;
            }
            Err(error) => panic!("{work:?}: {error}"),
        }
        let with_imm = matches!(work, Work::SendImm | Work::WriteImm);
        if with_imm || work == Work::Send {
            let is_send = work != Work::WriteImm;
            peer.model.arrivals.push_back(Arrival {
                imm: with_imm.then_some(imm),
                content: is_send.then(|| content.clone()),
                len: len32(len),
            });
        }
        let signaled = flags.contains(SendFlags::SIGNALED);
        let posted = Posted { wr_id, work, len: len32(len), signaled, content, operands, target };
        self.model.sends.push_back(posted);
    }

    /// Takes `len` bytes of the target region, each for one work request only; `None` where no room is left.
    fn claim(&mut self, len: usize) -> Option<Range<usize>> {
        let start = self.free;
        let end = start.checked_add(len).filter(|end| *end <= RECEIVE_AT)?;
        self.free = end;
        Some(start..end)
    }

    fn source_at(&self, at: usize, len: usize) -> Vec<u8> {
        must(self.nic.mr_bytes(self.source.lkey, at, len)).to_vec()
    }

    fn target_at(&self, at: usize, len: usize) -> &[u8] {
        must(self.nic.mr_bytes(self.target.lkey, at, len))
    }

    pub(super) fn transmit(&mut self, now: Instant, out: &mut Vec<Sent>) {
        let mut batch = TxBatch::new();
        while self.nic.poll_transmit(now, &mut batch) {
            assert!(!batch.is_empty());
            out.extend(batch.iter().map(|(net, body)| (net, body.to_vec())));
            assert!(out.len() < 100_000, "the NIC sends without end");
        }
        while self.nic.poll_event().is_some() {}
    }

    /// Takes packets in; each is counted, and dropped for one reason at most.
    pub(super) fn receive(&mut self, now: Instant, packets: &[Sent]) {
        let mut burst = RxBurst::new();
        for (net, body) in packets {
            burst.push(*net, HeaderKnowledge::Seen, body);
        }
        let before = self.nic.drops().total();
        self.nic.handle_burst(now, &burst);
        self.alone = packets.len() == 1;
        self.received += packets.len() as u64;
        assert_eq!(self.nic.counters().rcvd_pkts, self.received);
        assert!(self.nic.drops().total() - before <= packets.len() as u64);
    }

    pub(super) fn pass_time(&mut self, now: Instant) {
        self.nic.handle_timeout(now);
        assert!(self.nic.poll_timeout().is_none_or(|at| at > now), "a timer that was handled is due again");
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.nic.poll_timeout()
    }

    /// Holds everything that has completed against the model.
    pub(super) fn collect(&mut self, peer: &mut Self, hostile: bool) {
        let mut done = Vec::new();
        self.nic.poll_cq(self.recv_cq, usize::MAX, &mut done);
        for wc in done.drain(..) {
            self.received(&wc, hostile);
        }
        self.nic.poll_cq(self.send_cq, usize::MAX, &mut done);
        for wc in done {
            self.sent(&wc, peer, hostile);
        }
    }

    /// A receive has completed: it is the oldest (rule R-CQE-14), and has what the peer sent next.
    fn received(&mut self, wc: &Completion, hostile: bool) {
        assert_eq!(Some(wc.wr_id), self.model.receives.pop_front(), "{wc:?}");
        assert_eq!(wc.qp_num, self.qpn);
        if wc.status != WcStatus::Success {
            assert!(wc.status == WcStatus::WrFlushErr || hostile && !self.model.recv_failed, "{wc:?}");
            assert_eq!(wc.byte_len, 0);
            self.model.recv_failed = true;
            return;
        }
        assert!(!self.model.recv_failed, "{wc:?} after an error");
        if hostile {
            return;
        }
        let Some(arrival) = self.model.arrivals.pop_front() else { panic!("{wc:?} was never sent") };
        assert_eq!((wc.byte_len, wc.imm), (arrival.len, arrival.imm));
        let opcode = if arrival.content.is_some() { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
        assert_eq!(wc.opcode, opcode);
        // All receives share one buffer, so the content is there only until the next packet.
        if let Some(content) = arrival.content.filter(|_| self.alone) {
            assert_eq!(self.target_at(RECEIVE_AT, content.len()), content);
        }
    }

    /// A send has completed: those before it that are not signalled have succeeded, and it is next (rules R-CQE-2,
    /// R-CQE-3, R-CQE-6).
    fn sent(&mut self, wc: &Completion, peer: &mut Self, hostile: bool) {
        loop {
            let Some(posted) = self.model.sends.pop_front() else { panic!("{wc:?} completes nothing") };
            if posted.wr_id != wc.wr_id {
                assert!(!posted.signaled && !self.model.send_failed, "{posted:?} is passed over by {wc:?}");
                self.succeeded(posted, peer, hostile);
                continue;
            }
            assert_eq!((wc.qp_num, wc.opcode), (self.qpn, opcode_of(posted.work)));
            if wc.status == WcStatus::Success {
                assert!(posted.signaled && !self.model.send_failed, "{wc:?}");
                assert_eq!(wc.byte_len, posted.len);
                self.succeeded(posted, peer, hostile);
            } else {
                self.failed(posted, wc, peer, hostile);
            }
            return;
        }
    }

    fn failed(&mut self, posted: Posted, wc: &Completion, peer: &mut Self, hostile: bool) {
        assert_eq!(wc.byte_len, 0);
        let flushed = wc.status == WcStatus::WrFlushErr;
        assert!(flushed || !self.model.send_failed, "{wc:?} after an error");
        let honest = matches!(wc.status, WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr);
        assert!(flushed || honest || hostile, "{wc:?}");
        assert_eq!(self.state(), QpState::Err);
        self.model.send_failed = true;
        self.leave(posted, peer, false);
    }

    fn succeeded(&mut self, posted: Posted, peer: &mut Self, hostile: bool) {
        if !matches!(posted.work, Work::CmpSwap | Work::FetchAdd) {
            self.leave(posted, peer, true);
        } else if !hostile {
            // The atomics of one queue pair are executed once each, in order (rules R-RSP-6 and R-RSP-34).
            let found = peer.model.word;
            peer.model.word = apply(posted.work, posted.operands, found);
            let content = found.to_ne_bytes().to_vec();
            self.model.claims.push(Claim { range: posted.target, content, done: true });
        }
    }

    /// Notes the bytes that a send has changed, or may have.
    fn leave(&mut self, posted: Posted, peer: &mut Self, done: bool) {
        let claims = match posted.work {
            Work::Write | Work::WriteImm => &mut peer.model.claims,
            Work::Read => &mut self.model.claims,
            Work::CmpSwap | Work::FetchAdd => {
                peer.model.undecided.push((posted.work, posted.operands));
                return;
            }
            Work::Send | Work::SendImm => return,
        };
        claims.push(Claim { range: posted.target, content: posted.content, done });
    }

    /// Nothing is on its way and no timer runs: what has not completed never will. What is left has
    /// completed silently, or it would have been flushed.
    pub(super) fn come_to_rest(&mut self, peer: &mut Self, hostile: bool) {
        for posted in core::mem::take(&mut self.model.sends) {
            assert!(!posted.signaled, "{posted:?} never completed");
            self.succeeded(posted, peer, hostile);
        }
        let failed = self.state() == QpState::Err;
        assert!(self.model.receives.is_empty() || !failed, "a receive was not flushed");
    }

    /// Every byte is what it was, or what a work request has put there.
    pub(super) fn check_memory(&self, hostile: bool) {
        let host = self.nic.config().gids[0].raw()[15];
        assert!(self.source_at(0, SOURCE) == source_bytes(host), "the source has changed");
        if hostile {
            return;
        }
        let bytes = self.target_at(0, TARGET);
        let mut expected = vec![BLANK; TARGET];
        for claim in &self.model.claims {
            for (at, new) in claim.range.clone().zip(&claim.content) {
                // Of a work request that failed any part may have been done.
                if claim.done || bytes[at] == *new {
                    expected[at] = *new;
                }
            }
        }
        expected[RECEIVE_AT..].copy_from_slice(&bytes[RECEIVE_AT..]);
        expected[..WORD].copy_from_slice(&bytes[..WORD]);
        assert!(bytes == expected, "the target holds what nobody has put there");
        assert!(self.model.may_hold(u64::from_ne_bytes(must(bytes[..WORD].try_into()))));
    }
}

/// The peer's receive buffer, the word and all else that nothing has been put to.
fn target_bytes() -> Vec<u8> {
    let mut bytes = vec![BLANK; TARGET];
    bytes[..WORD].fill(0);
    bytes
}

/// Bytes without a period, other ones for each host.
fn source_bytes(host: u8) -> Vec<u8> {
    let mut x = u32::from(host) << 8 | 1;
    (0..SOURCE)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x.to_be_bytes()[1]
        })
        .collect()
}

const fn opcode_of(work: Work) -> WcOpcode {
    match work {
        Work::Send | Work::SendImm => WcOpcode::Send,
        Work::Write | Work::WriteImm => WcOpcode::RdmaWrite,
        Work::Read => WcOpcode::RdmaRead,
        Work::CmpSwap => WcOpcode::CompSwap,
        Work::FetchAdd => WcOpcode::FetchAdd,
    }
}

/// Immediate data that name their work request.
fn imm_of(wr_id: u64) -> [u8; 4] {
    let [.., a, b] = wr_id.to_be_bytes();
    [0xA5, a, b, 0x5A]
}

fn len32(len: usize) -> u32 {
    must(u32::try_from(len))
}

/// What cannot fail in this harness, whatever the input.
fn must<T, E: core::fmt::Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}
