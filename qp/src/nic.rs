//! The sans-IO NIC: verbs objects behind, packets and time in front.
//!
//! Calls come in four kinds, and any order is legal:
//! - commands of the program: `create_*`, `modify_qp`, `post_*`, `poll_cq`, …;
//! - input: [`Nic::handle_burst`] with packets that arrived, [`Nic::handle_timeout`] when time has passed;
//! - output: [`Nic::poll_transmit`] until it returns false, [`Nic::poll_event`] until `None`;
//! - [`Nic::poll_timeout`], last: when to call [`Nic::handle_timeout`] at the latest.
//!
//! It reads no clock, does no I/O, and with the same seed and input makes the same bytes.

use std::collections::VecDeque;

use rand_core::{RngCore, SeedableRng};
use transport::{Access, Completion, Counters, Ctx, Datagram, Effects, PdId};
use wire::batch::Caps;
use wire::{Gid, Instant, LKey, Mtu, NetHeader, Qpn, ip};

use crate::cq::{Cq, CqId};
use crate::error::{CreateError, DestroyError, ModifyQpError};
use crate::event::{Drops, Event, Tracer};
use crate::mr::{MrError, MrInfo, MrTable};
use crate::pair::{QpInit, QueuePair, flush_receive};
use crate::sched::{Ready, Timers};
use crate::state::{AddressVector, AttrMask, ModifyLimits, PostRule, QpAttr, QpState, QpType};
use crate::table::QpTable;
use crate::wr::{AhId, PostError, QpCap, RecvWr, SendLimits, SendTo, SendWr};

mod path;
mod settle;
#[cfg(test)]
mod tests;

/// What a NIC is told when it is made.
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// The port's GID table.
    pub gids: Vec<Gid>,
    /// Largest path MTU of the port.
    pub active_mtu: Mtu,
    /// What its packet I/O can do.
    pub caps: Caps,
    /// Seed of everything that is random.
    pub seed: u64,
}

/// The most completions a completion queue can be made for.
pub const MAX_CQE: usize = 1 << 22;

/// READs and atomics that a queue pair can have open, either way.
pub const MAX_RD_ATOMIC: u8 = 128;

/// A NIC without I/O.
pub struct Nic {
    config: NicConfig,
    pds: Vec<bool>,
    memory: MrTable,
    cqs: Vec<Option<Cq>>,
    /// Address handles: their domain and where they lead.
    ahs: Vec<Option<(PdId, AddressVector)>>,
    qps: QpTable,
    ready: Ready,
    timers: Timers,
    /// Reused for every call into an engine; empty between calls but for the counters.
    out: Effects,
    events: VecDeque<Event>,
    drops: Drops,
    ip_id: u16,
    tracer: Option<Box<dyn Tracer>>,
}

impl Nic {
    /// A NIC with nothing on it.
    #[must_use]
    pub fn new(config: NicConfig) -> Self {
        let mut rng = rand_pcg::Pcg32::seed_from_u64(config.seed);
        #[expect(clippy::cast_possible_truncation, reason = "any 16 bits do")]
        let ip_id = rng.next_u32() as u16;
        Self {
            config,
            pds: Vec::new(),
            memory: MrTable::new(),
            cqs: Vec::new(),
            ahs: Vec::new(),
            qps: QpTable::default(),
            ready: Ready::default(),
            timers: Timers::default(),
            out: Effects::default(),
            events: VecDeque::new(),
            drops: Drops::default(),
            ip_id,
            tracer: None,
        }
    }

    /// How it was made.
    #[must_use]
    pub const fn config(&self) -> &NicConfig {
        &self.config
    }

    /// Lets `tracer` watch.
    pub fn set_tracer(&mut self, tracer: Box<dyn Tracer>) {
        self.tracer = Some(tracer);
    }

    /// Counters.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.out.counters
    }

    /// Packets dropped, by reason.
    #[must_use]
    pub const fn drops(&self) -> &Drops {
        &self.drops
    }

    // ---- protection domains and memory ----

    /// Makes a protection domain.
    pub fn alloc_pd(&mut self) -> PdId {
        let index = self.pds.iter().position(|used| !used).unwrap_or_else(|| {
            self.pds.push(false);
            self.pds.len() - 1
        });
        self.pds[index] = true;
        PdId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// Ends a protection domain.
    ///
    /// # Errors
    /// Where it does not exist, or regions or queue pairs still belong to it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), DestroyError> {
        if !self.has_pd(pd) {
            return Err(DestroyError::NoSuchObject);
        }
        if self.memory.uses(pd)
            || self.ahs.iter().flatten().any(|(of, _)| *of == pd)
            || self.qps.iter().any(|pair| pair.init.pd == pd)
        {
            return Err(DestroyError::Busy);
        }
        self.pds[pd.0 as usize] = false;
        Ok(())
    }

    fn has_pd(&self, pd: PdId) -> bool {
        self.pds.get(pd.0 as usize).copied().unwrap_or(false)
    }

    /// Registers memory; the NIC owns its bytes until it is deregistered.
    ///
    /// # Errors
    /// Rights that do not go together, no such domain, or no key left.
    pub fn reg_mr(&mut self, pd: PdId, bytes: Vec<u8>, access: Access) -> Result<MrInfo, MrError> {
        if !self.has_pd(pd) {
            return Err(MrError::NoPd);
        }
        self.memory.register(pd, bytes, access)
    }

    /// Ends a registration and gives the bytes back. Its key fails from now on, also for READs being answered.
    ///
    /// # Errors
    /// Where no region has this key.
    pub fn dereg_mr(&mut self, lkey: LKey) -> Result<Vec<u8>, MrError> {
        self.memory.deregister(lkey)
    }

    /// Bytes of a region.
    ///
    /// # Errors
    /// Where no region has this key, or the range is not inside.
    pub fn mr_bytes(&self, lkey: LKey, offset: usize, len: usize) -> Result<&[u8], MrError> {
        self.memory.bytes(lkey, offset, len)
    }

    /// Bytes of a region, to be changed by their owner.
    ///
    /// # Errors
    /// As [`Nic::mr_bytes`].
    pub fn mr_bytes_mut(&mut self, lkey: LKey, offset: usize, len: usize) -> Result<&mut [u8], MrError> {
        self.memory.bytes_mut(lkey, offset, len)
    }

    // ---- address handles ----

    /// Makes an address handle: where datagrams can be sent.
    ///
    /// # Errors
    /// An address that no packet can go to.
    pub fn create_ah(&mut self, pd: PdId, addr: AddressVector) -> Result<AhId, ModifyQpError> {
        if !self.has_pd(pd) {
            return Err(ModifyQpError::NoPd);
        }
        self.route(Qpn::GSI, Qpn::GSI, &addr)?;
        let index = self.ahs.iter().position(Option::is_none).unwrap_or_else(|| {
            self.ahs.push(None);
            self.ahs.len() - 1
        });
        self.ahs[index] = Some((pd, addr));
        Ok(AhId(u32::try_from(index).unwrap_or(u32::MAX)))
    }

    /// Ends an address handle. Datagrams that were posted still go there.
    ///
    /// # Errors
    /// Where it does not exist.
    pub fn destroy_ah(&mut self, ah: AhId) -> Result<(), DestroyError> {
        let slot = self.ahs.get_mut(ah.0 as usize).ok_or(DestroyError::NoSuchObject)?;
        slot.take().map(|_| ()).ok_or(DestroyError::NoSuchObject)
    }

    // ---- completion queues ----

    /// Makes a completion queue for `depth` completions.
    ///
    /// # Errors
    /// Where `depth` is 0 or above [`MAX_CQE`].
    pub fn create_cq(&mut self, depth: usize) -> Result<CqId, CreateError> {
        if depth == 0 || depth > MAX_CQE {
            return Err(CreateError::CqDepth { given: depth, max: MAX_CQE });
        }
        let index = self.cqs.iter().position(Option::is_none).unwrap_or_else(|| {
            self.cqs.push(None);
            self.cqs.len() - 1
        });
        self.cqs[index] = Some(Cq::new(depth));
        Ok(CqId(u32::try_from(index).unwrap_or(u32::MAX)))
    }

    /// Ends a completion queue.
    ///
    /// # Errors
    /// Where it does not exist or queue pairs use it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), DestroyError> {
        match self.cq_mut(cq) {
            None => Err(DestroyError::NoSuchObject),
            Some(queue) if queue.users > 0 => Err(DestroyError::Busy),
            Some(_) => {
                self.cqs[cq.0 as usize] = None;
                Ok(())
            }
        }
    }

    /// Moves up to `max` completions to `out`; returns how many.
    pub fn poll_cq(&mut self, cq: CqId, max: usize, out: &mut Vec<Completion>) -> usize {
        self.cq_mut(cq).map_or(0, |queue| queue.poll(max, out))
    }

    /// Completions that wait to be polled.
    #[must_use]
    pub fn cq_len(&self, cq: CqId) -> usize {
        self.cqs.get(cq.0 as usize).and_then(Option::as_ref).map_or(0, Cq::len)
    }

    /// Asks for one [`Event::CqReady`] at the next completion, or the next solicited one or error.
    pub fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) {
        if let Some(queue) = self.cq_mut(cq) {
            queue.arm(solicited_only);
        }
    }

    fn cq_mut(&mut self, cq: CqId) -> Option<&mut Cq> {
        self.cqs.get_mut(cq.0 as usize)?.as_mut()
    }

    // ---- queue pairs ----

    /// Makes a queue pair in RESET.
    ///
    /// # Errors
    /// What of `init` is not possible.
    pub fn create_qp(&mut self, init: QpInit) -> Result<Qpn, CreateError> {
        if matches!(init.qp_type, QpType::XrcIni | QpType::XrcTgt) {
            return Err(CreateError::QpType(init.qp_type));
        }
        if !self.has_pd(init.pd) {
            return Err(CreateError::NoPd);
        }
        if !init.cap.fits(&QpCap::MAX) {
            return Err(CreateError::Cap { max: QpCap::MAX });
        }
        if self.cq_mut(init.send_cq).is_none() || self.cq_mut(init.recv_cq).is_none() {
            return Err(CreateError::NoCq);
        }
        let (caps, mtu) = (self.config.caps, self.config.active_mtu);
        let make = |qpn| QueuePair::new(qpn, init, &caps, mtu);
        let qpn = if init.qp_type == QpType::Gsi {
            self.qps.insert_gsi(make).ok_or(CreateError::GsiTaken)?
        } else {
            self.qps.insert(make).ok_or(CreateError::TableFull)?
        };
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(queue) = self.cq_mut(cq) {
                queue.users += 1;
            }
        }
        Ok(qpn)
    }

    /// Changes attributes of a queue pair, and its state where the mask says so.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<(), ModifyQpError> {
        let limits = self.modify_limits();
        let (caps, active_mtu) = (self.config.caps, self.config.active_mtu);
        let pair = self.qps.get(qpn).ok_or(ModifyQpError::NoSuchQp)?;
        let from = pair.state();
        let merged = pair.attr.modified(pair.init.qp_type, attr, mask, &limits)?;
        let net = if mask.intersects(AttrMask::AV | AttrMask::DEST_QPN) && merged.state != QpState::Reset {
            Some(self.route(qpn, merged.dest_qpn, &merged.addr)?)
        } else {
            None
        };
        let Some(pair) = self.qps.get_mut(qpn) else { return Err(ModifyQpError::NoSuchQp) };
        if merged.state == QpState::Err {
            pair.enter_error(now, &mut self.memory, &mut self.out);
        } else {
            pair.apply(merged, net, &caps, active_mtu);
        }
        self.settle(now, qpn);
        if merged.state == QpState::Reset {
            self.forget_completions(qpn);
        }
        self.trace_state(now, qpn, from, merged.state);
        Ok(())
    }

    /// The largest attribute values.
    #[must_use]
    pub fn modify_limits(&self) -> ModifyLimits {
        ModifyLimits {
            active_mtu: self.config.active_mtu,
            max_rd_atomic: MAX_RD_ATOMIC,
            max_dest_rd_atomic: MAX_RD_ATOMIC,
            gid_table_len: self.config.gids.len(),
            pkey_table_len: 1,
            ports: 1,
        }
    }

    /// Attributes as they were configured, and the state it is in (rule R-QPS-16).
    #[must_use]
    pub fn query_qp(&self, qpn: Qpn) -> Option<(QpAttr, QpInit)> {
        self.qps.get(qpn).map(|pair| (pair.attr, pair.init))
    }

    /// Ends a queue pair; its completions that were not polled go with it.
    ///
    /// # Errors
    /// Where it does not exist.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), DestroyError> {
        let pair = self.qps.remove(qpn).ok_or(DestroyError::NoSuchObject)?;
        if let Some(at) = pair.timer {
            self.timers.remove(at, qpn);
        }
        self.forget_completions_of(&pair);
        for cq in [pair.init.send_cq, pair.init.recv_cq] {
            if let Some(queue) = self.cq_mut(cq) {
                queue.users -= 1;
            }
        }
        Ok(())
    }

    fn forget_completions(&mut self, qpn: Qpn) {
        if let Some(init) = self.qps.get(qpn).map(|pair| pair.init) {
            for cq in [init.send_cq, init.recv_cq] {
                if let Some(queue) = self.cq_mut(cq) {
                    queue.forget(qpn);
                }
            }
        }
    }

    fn forget_completions_of(&mut self, pair: &QueuePair) {
        for cq in [pair.init.send_cq, pair.init.recv_cq] {
            if let Some(queue) = self.cq_mut(cq) {
                queue.forget(pair.qpn);
            }
        }
    }

    /// Header of the packets of a connection.
    fn route(&self, qpn: Qpn, dest: Qpn, addr: &AddressVector) -> Result<NetHeader, ModifyQpError> {
        let AddressVector { dgid, sgid_index, hop_limit, traffic_class, flow_label, .. } = *addr;
        let sgid = self.config.gids.get(usize::from(sgid_index)).copied().unwrap_or(Gid::ZERO);
        if sgid == Gid::ZERO {
            return Err(ModifyQpError::EmptyGid(sgid_index));
        }
        if dgid == Gid::ZERO {
            return Err(ModifyQpError::NoDestination);
        }
        let port = self
            .config
            .caps
            .src_port
            .unwrap_or_else(|| ip::source_port(flow_label, qpn.value(), dest.value()));
        // Rule R-ADR-13: a hop limit of 0 or 1 would not pass a router.
        let hops = if hop_limit < 2 { 64 } else { hop_limit };
        NetHeader::v2(sgid.ip(), dgid.ip(), port, traffic_class, hops)
            .ok_or(ModifyQpError::Family { sgid, dgid })
    }

    // ---- work ----

    /// Posts a send.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, wr: SendWr) -> Result<(), PostError> {
        let pair = self.qps.get(qpn).ok_or(PostError::NoSuchQp)?;
        let rule = pair.state().post_send();
        if rule == PostRule::Refuse {
            return Err(PostError::State(pair.state()));
        }
        let limits = SendLimits {
            qp_type: pair.init.qp_type,
            cap: &pair.init.cap,
            sq_sig_all: pair.init.sq_sig_all,
            port_mtu: self.config.active_mtu,
        };
        let to = wr.to;
        let mut wqe = wr.check(&limits)?;
        if !pair.init.qp_type.is_connected() {
            wqe.datagram = Some(self.datagram(qpn, to)?);
        }
        let Some(pair) = self.qps.get_mut(qpn) else { return Err(PostError::NoSuchQp) };
        if wqe.op.has_response_data() && pair.params.max_rd_atomic == 0 {
            return Err(PostError::NoReadDepth);
        }
        if pair.engines.sends() >= pair.init.cap.max_send_wr as usize {
            return Err(PostError::QueueFull(pair.init.cap.max_send_wr));
        }
        pair.engines.post(wqe);
        if rule == PostRule::Flush {
            let mut ctx = Ctx { now, params: &pair.params, memory: &mut self.memory, out: &mut self.out };
            pair.engines.flush_sends(&mut ctx);
            self.settle(now, qpn);
        } else {
            self.schedule(qpn);
        }
        Ok(())
    }

    /// Where a datagram of `qpn` goes.
    fn datagram(&self, qpn: Qpn, to: Option<SendTo>) -> Result<Datagram, PostError> {
        let SendTo { ah, qpn: dest, qkey } = to.ok_or(PostError::NoAddress)?;
        let (pd, addr) = self.ahs.get(ah.0 as usize).copied().flatten().ok_or(PostError::NoSuchAh)?;
        if self.qps.get(qpn).is_none_or(|pair| pair.init.pd != pd) {
            return Err(PostError::NoSuchAh);
        }
        let net = self.route(qpn, dest, &addr).map_err(|_| PostError::NoSuchAh)?;
        Ok(Datagram { net, qpn: dest, qkey })
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Why it was not taken.
    pub fn post_recv(&mut self, now: Instant, qpn: Qpn, wr: RecvWr) -> Result<(), PostError> {
        let pair = self.qps.get_mut(qpn).ok_or(PostError::NoSuchQp)?;
        let wqe = wr.check(&pair.init.cap)?;
        match pair.state().post_recv() {
            PostRule::Refuse => Err(PostError::State(pair.state())),
            PostRule::Queue if pair.receives() >= pair.init.cap.max_recv_wr as usize => {
                Err(PostError::QueueFull(pair.init.cap.max_recv_wr))
            }
            PostRule::Queue => {
                pair.rq.push(wqe);
                Ok(())
            }
            PostRule::Flush => {
                flush_receive(qpn, &wqe, &mut self.out);
                self.settle(now, qpn);
                Ok(())
            }
        }
    }
}
