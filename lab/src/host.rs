//! A host: a NIC on one cable, and the flows that it sends.
//!
//! [`super::run`] calls it when something has come, its cable is free or its time has come. It packs nothing and decides
//! nothing that the NIC would.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use dcqcn::{CcConfig, Rate};
use fabric::{Fabric, Frame, Node};
use qp::{
    Access, AddressVector, AttrMask, Completion, CqId, MrInfo, Nic, NicConfig, PdId, Profile, QpAttr, QpCap,
    QpInit, QpState, QpType, RecvWr, SendWr, Sge, WcStatus,
};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::opcode::Kind;
use wire::{Bth, Gid, Instant, Mtu, Qpn, RKey, RnrTimer, VirtAddr};
use zerocopy::FromBytes;

use crate::flow::{Flow, Piece};
use crate::meter::Meter;
use crate::run::{Observer, RunError};
use crate::scenario::{FlowSetup, QpSetup};

/// Bytes of paused priorities that may wait at the cable: a few packets, so that one does not keep those of other
/// priorities in the NIC.
const PARKED: u64 = 10_000;
/// Receives of a queue pair to which messages come that somebody waits for.
pub(crate) const RECEIVES: u32 = 64;
/// Nobody waits longer for a peer that has no receive.
const RNR_TIMER: u8 = 12;

/// What a host is made with.
pub(crate) struct HostConfig<'a> {
    pub(crate) number: usize,
    pub(crate) node: Node,
    pub(crate) gid: Gid,
    pub(crate) seed: u64,
    pub(crate) line: Rate,
    pub(crate) cc: &'a CcConfig,
    pub(crate) qp: &'a QpSetup,
    /// Work requests that all its flows together may have.
    pub(crate) work: usize,
}

/// A flow that a host sends.
#[derive(Clone, Copy, Debug)]
struct Outgoing {
    flow: usize,
    /// Where the peer lets it write.
    va: VirtAddr,
    rkey: RKey,
}

/// A host.
pub(crate) struct Host {
    pub(crate) node: Node,
    pub(crate) nic: Nic,
    gid: Gid,
    pd: PdId,
    send_cq: CqId,
    recv_cq: CqId,
    /// What messages are read from, and written to.
    memory: MrInfo,
    /// Flows that it sends.
    out: Vec<Outgoing>,
    /// Places in `out`, by the peer's queue pair and its address.
    by_peer: BTreeMap<(Qpn, Gid), usize>,
    /// Places in `out`, by its own queue pair.
    by_own: BTreeMap<Qpn, usize>,
    /// Flows that come here, by its own queue pair.
    into: BTreeMap<Qpn, usize>,
    /// When a flow of its begins something.
    program: Option<Instant>,
    /// When it is to be called again, at the latest.
    pub(crate) wake: Option<Instant>,
    completions: Vec<Completion>,
}

/// The address of host `number`.
pub(crate) fn address(number: usize) -> Gid {
    let [.., b, c, d] = (number + 1).to_be_bytes();
    Gid::from(IpAddr::from(Ipv4Addr::new(10, b, c, d)))
}

/// What hosts work with, one at a time.
pub(crate) struct Desk<'a> {
    pub(crate) fabric: &'a mut Fabric,
    pub(crate) flows: &'a mut [Flow],
    /// For each flow, those that follow it.
    pub(crate) followers: &'a [Vec<usize>],
    pub(crate) meter: &'a mut Meter,
    pub(crate) batch: &'a mut TxBatch,
    pub(crate) burst: &'a mut RxBurst,
    /// Who wants to see the packets, where this is the host whose packets are seen.
    pub(crate) capture: Option<&'a mut dyn Observer>,
}

/// The mark of a work request: its flow, its bytes, and whether it ends a message.
fn mark(flow: usize, piece: Piece) -> u64 {
    (flow as u64) << 32 | u64::from(piece.bytes) << 1 | u64::from(piece.is_last)
}

/// What is in the mark.
fn unmark(mark: u64) -> (usize, u64, bool) {
    ((mark >> 32) as usize, mark >> 1 & 0x7FFF_FFFF, mark & 1 == 1)
}

impl Host {
    /// A host without flows.
    pub(crate) fn new(config: &HostConfig<'_>) -> Result<Self, RunError> {
        let caps = Caps {
            max_segments: 1,
            max_bytes: 65_000,
            ip_id: IpIdRule::Ours,
            sees_ip_header: true,
            window: config.qp.window,
            credit: u32::MAX,
            src_port: None,
        };
        let seed = config.seed.wrapping_mul(0x1_0001).wrapping_add(config.number as u64);
        let basic = NicConfig::new(vec![config.gid], Mtu::B4096, caps, seed, Profile::Strict);
        let mut nic = Nic::new(NicConfig { cc: config.cc.clone(), line_rate: config.line, ..basic });
        let pd = nic.alloc_pd();
        let (send_cq, recv_cq) = (nic.create_cq(config.work)?, nic.create_cq(config.work)?);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = nic.reg_mr(pd, vec![0; config.qp.chunk as usize], access)?;
        Ok(Self {
            node: config.node,
            nic,
            gid: config.gid,
            pd,
            send_cq,
            recv_cq,
            memory,
            out: Vec::new(),
            by_peer: BTreeMap::new(),
            by_own: BTreeMap::new(),
            into: BTreeMap::new(),
            program: None,
            wake: None,
            completions: Vec::new(),
        })
    }

    fn create_qp(&mut self, qp_type: QpType, sends: u32, receives: u32) -> Result<Qpn, RunError> {
        let cap = QpCap { max_send_wr: sends, max_recv_wr: receives, ..QpCap::default() };
        let init = QpInit { cap, ..QpInit::new(qp_type, self.pd, self.send_cq, self.recv_cq) };
        Ok(self.nic.create_qp(init)?)
    }

    fn connect(
        &mut self,
        qpn: Qpn,
        peer: (Gid, Qpn),
        setup: &FlowSetup,
        qp: &QpSetup,
    ) -> Result<(), RunError> {
        let addr = AddressVector {
            dgid: peer.0,
            traffic_class: setup.priority << 5,
            // A label gives the port; without one, queue pairs have ports of their own.
            flow_label: u32::from(!setup.has_own_port),
            ..AddressVector::default()
        };
        let attr = QpAttr {
            access: Access::REMOTE_WRITE,
            addr,
            path_mtu: setup.mtu,
            dest_qpn: peer.1,
            min_rnr_timer: RnrTimer::new(RNR_TIMER).unwrap_or_default(),
            timeout: qp.timeout,
            retry_cnt: qp.retry_count,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let mask = AttrMask::to_enter(setup.qp_type, state);
            self.nic.modify_qp(Instant::ZERO, qpn, &QpAttr { state, ..attr }, mask)?;
        }
        Ok(())
    }

    /// Makes the queue pairs of flow `index` at its sender and its receiver and connects them; gives the one that sends.
    pub(crate) fn join(
        [from, to]: [&mut Self; 2],
        index: usize,
        setup: &FlowSetup,
        qp: &QpSetup,
        is_followed: bool,
    ) -> Result<Qpn, RunError> {
        let sender = from.create_qp(setup.qp_type, qp.depth, 1)?;
        let receiver = to.create_qp(setup.qp_type, 1, RECEIVES)?;
        from.connect(sender, (to.gid, receiver), setup, qp)?;
        to.connect(receiver, (from.gid, sender), setup, qp)?;
        if let Some(rate) = setup.initial {
            from.nic.start_at_rate(Instant::ZERO, sender, rate, rate);
        }
        if is_followed {
            for _ in 0..RECEIVES {
                to.nic.post_recv(Instant::ZERO, receiver, RecvWr::new(0, &[]))?;
            }
        }
        from.by_peer.insert((receiver, to.gid), from.out.len());
        from.by_own.insert(sender, from.out.len());
        from.out.push(Outgoing { flow: index, va: to.memory.addr, rkey: to.memory.rkey });
        to.into.insert(receiver, index);
        Ok(sender)
    }

    /// All flows are there.
    pub(crate) fn begin(&mut self, flows: &[Flow]) {
        self.wait_for_program(Instant::ZERO, flows);
        self.wake = self.program;
    }

    fn wait_for_program(&mut self, now: Instant, flows: &[Flow]) {
        self.program = self.out.iter().filter_map(|out| flows[out.flow].poll_timeout(now)).min();
    }

    /// The queue pair of one of its flows, as congestion control sees it.
    pub(crate) fn cc_state(&self, now: Instant, qpn: Qpn) -> Option<qp::CcState> {
        self.nic.cc_state(now, qpn)
    }

    /// Does everything that it can do at `now`.
    pub(crate) fn drive(&mut self, now: Instant, desk: &mut Desk<'_>) {
        let mut has_news = self.receive(now, desk);
        if self.nic.poll_timeout().is_some_and(|at| at <= now) {
            self.nic.handle_timeout(now);
            has_news = true;
        }
        if self.program.is_some_and(|at| at <= now) {
            for at in 0..self.out.len() {
                if desk.flows[self.out[at].flow].poll_timeout(now).is_some_and(|at| at <= now) {
                    self.pump(now, at, desk.flows);
                }
            }
            self.wait_for_program(now, desk.flows);
        }
        if has_news {
            self.complete(now, desk);
        }
        self.transmit(now, desk);
        // What needs no acknowledgement is complete when it has left, and makes room for more.
        while self.nic.cq_len(self.send_cq) > 0 {
            self.complete(now, desk);
            self.transmit(now, desk);
        }
        self.wake = self.nic.poll_timeout().into_iter().chain(self.program).min();
    }

    /// Takes the packets that came; false where none did.
    fn receive(&mut self, now: Instant, desk: &mut Desk<'_>) -> bool {
        desk.burst.clear();
        while let Some((at, frame)) = desk.fabric.receive(self.node) {
            if let Some(capture) = &mut desk.capture {
                capture.packet(at, &frame);
            }
            if let Ok((bth, _)) = Bth::ref_from_prefix(&frame.body) {
                let qpn = bth.dest_qp();
                match bth.opcode().info().map(|info| info.kind) {
                    Some(Kind::Cnp) => {
                        if let Some(out) = self.by_own.get(&qpn) {
                            desk.meter.cnp(at, self.out[*out].flow);
                        }
                    }
                    Some(kind) if kind.is_request() => {
                        if let Some(flow) = self.into.get(&qpn) {
                            desk.meter.arrived(*flow, frame.wire_len());
                        }
                    }
                    _ => {}
                }
            }
            desk.burst.push(frame.net, HeaderKnowledge::Seen, &frame.body);
        }
        if desk.burst.is_empty() {
            return false;
        }
        self.nic.handle_burst(now, desk.burst);
        true
    }

    /// Takes what is complete, and lets the flows go on that waited for it.
    fn complete(&mut self, now: Instant, desk: &mut Desk<'_>) {
        while self.nic.poll_event().is_some() {}
        let mut completions = std::mem::take(&mut self.completions);
        self.nic.poll_cq(self.send_cq, usize::MAX, &mut completions);
        for wc in completions.drain(..) {
            let (index, bytes, is_last) = unmark(wc.wr_id.value());
            let flow = &mut desk.flows[index];
            let begun = flow.completed(is_last);
            if wc.status != WcStatus::Success {
                flow.fail();
                continue;
            }
            desk.meter.delivered(index, bytes);
            if let Some(begun) = begun {
                desk.meter.message(index, begun, now);
            }
            if let Some(out) = self.by_own.get(&wc.qp_num) {
                self.pump(now, *out, desk.flows);
            }
        }
        self.nic.poll_cq(self.recv_cq, usize::MAX, &mut completions);
        for wc in completions.drain(..) {
            let Some(flow) = self.into.get(&wc.qp_num).filter(|_| wc.status == WcStatus::Success) else {
                continue;
            };
            // It cannot fail: the receive that was taken has left its place, and a queue pair in error takes all.
            let _ = self.nic.post_recv(now, wc.qp_num, RecvWr::new(0, &[]));
            for follower in &desk.followers[*flow] {
                desk.flows[*follower].follow();
                if let Some(out) = self.by_own.get(&desk.flows[*follower].qpn) {
                    self.pump(now, *out, desk.flows);
                }
            }
        }
        self.completions = completions;
    }

    /// Posts what a flow wants posted.
    fn pump(&mut self, now: Instant, out: usize, flows: &mut [Flow]) {
        let Outgoing { flow: index, va, rkey } = self.out[out];
        let flow = &mut flows[index];
        while let Some(piece) = flow.next(now) {
            let sge = Sge { addr: self.memory.addr, length: piece.bytes, lkey: self.memory.lkey };
            let id = mark(index, piece);
            let wr = if piece.is_last && flow.announces() {
                SendWr::write_imm(id, &[sge], va, rkey, [0; 4])
            } else {
                SendWr::write(id, &[sge], va, rkey)
            };
            if self.nic.post_send(now, flow.qpn, wr.signaled()).is_err() {
                flow.fail();
            }
        }
        if let Some(at) = flow.poll_timeout(now)
            && self.program.is_none_or(|program| at < program)
        {
            self.program = Some(at);
        }
    }

    /// Sends what may leave: a packet at a time, whenever the cable is free, so that nothing waits behind the NIC's back.
    fn transmit(&mut self, now: Instant, desk: &mut Desk<'_>) {
        while desk.fabric.is_idle(self.node)
            && desk.fabric.backlog(self.node) < PARKED
            && self.nic.poll_transmit(now, desk.batch)
        {
            for (net, body) in desk.batch.iter() {
                let frame = Frame::new(net, body.to_vec());
                if let Some(capture) = &mut desk.capture {
                    capture.packet(now, &frame);
                }
                if let Ok((bth, _)) = Bth::ref_from_prefix(body)
                    && let Some(info) = bth.opcode().info()
                {
                    if info.kind == Kind::Cnp {
                        desk.meter.sent_cnp();
                    } else if info.kind.is_request()
                        && let Some(out) = self.by_peer.get(&(bth.dest_qp(), net.dst_gid()))
                    {
                        desk.meter.sent(self.out[*out].flow, bth.psn());
                    }
                }
                desk.fabric.send(now, self.node, frame);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_tell_what_was_posted() {
        for (flow, bytes, is_last) in [(0, 0, false), (4_095, 4 << 20, true), (16_383, 1, true)] {
            assert_eq!(unmark(mark(flow, Piece { bytes, is_last })), (flow, u64::from(bytes), is_last));
        }
    }
}
