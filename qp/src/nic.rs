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

use dcqcn::{Algorithm, CcConfig, Rate, RateController};
use rand_core::{RngCore, SeedableRng};
use transport::{Counters, Effects, PdId, Profile};
use wire::batch::Caps;
use wire::{Gid, Mtu, Qpn};

use crate::cq::Cq;
use crate::credit::Credit;
use crate::event::{Drops, Event, Tracer};
use crate::limits::Limits;
use crate::mr::MrTable;
use crate::sched::Ready;
use crate::slab::Slab;
use crate::srq::SrqTable;
use crate::state::{AddressVector, QpType};
use crate::table::{Lane, QpTable};
use crate::timer::Timers;

mod congestion;
mod cqs;
mod fill;
mod mcast;
mod objects;
mod pairs;
mod path;
mod port;
mod settle;
mod srqs;
#[cfg(test)]
mod tests;
mod work;
mod xrc;

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
    /// Whose behaviour it shows on the wire.
    pub profile: Profile,
    /// Congestion control of its queue pairs.
    pub cc: CcConfig,
    /// What the port can send, frames with preamble and gap counted: the highest rate of a queue pair.
    pub line_rate: Rate,
}

impl NicConfig {
    /// A NIC without congestion control.
    #[must_use]
    pub fn new(gids: Vec<Gid>, active_mtu: Mtu, caps: Caps, seed: u64, profile: Profile) -> Self {
        let (cc, line_rate) = (CcConfig::default(), Self::LINE_RATE);
        Self { gids, active_mtu, caps, seed, profile, cc, line_rate }
    }

    /// Congestion control of a new queue pair whose packets have this traffic class.
    pub(crate) fn controller(&self, qp_type: QpType, traffic_class: u8) -> Option<Box<dyn RateController>> {
        let takes_part = match self.cc.algorithm {
            Algorithm::Dcqcn => self.marks_ect(qp_type, traffic_class),
            // Datagrams have no round trips.
            Algorithm::Timely => qp_type.is_connected(),
            _ => qp_type != QpType::Gsi,
        };
        if takes_part { self.cc.controller(self.line_rate) } else { None }
    }

    /// Whether packets of such a queue pair say that they may be marked: where something comes of a mark.
    pub(crate) fn marks_ect(&self, qp_type: QpType, traffic_class: u8) -> bool {
        let params = &self.cc.params;
        let takes_part = qp_type.is_connected() || qp_type == QpType::Ud && params.cnp_for_ud;
        self.cc.algorithm.uses_ecn() && takes_part && params.covers(traffic_class)
    }

    /// Rate of a port whose own is not known: what Linux says of virtual links.
    pub const LINE_RATE: Rate = Rate::from_gbps(10.0);
}

/// The most completions a completion queue can be made for.
pub const MAX_CQE: usize = 1 << 22;

/// READs and atomics that a queue pair can have open, either way.
pub const MAX_RD_ATOMIC: u8 = 128;

/// A NIC without I/O.
pub struct Nic {
    config: NicConfig,
    pds: Slab<objects::Pd>,
    memory: MrTable,
    cqs: Slab<Cq>,
    /// Address handles: their domain and where they lead.
    ahs: Slab<(PdId, AddressVector)>,
    srqs: SrqTable,
    xrcds: Slab<xrc::Xrcd>,
    qps: QpTable,
    groups: mcast::Groups,
    notifier: congestion::Notifier,
    port: port::Port,
    ready: Ready,
    /// Bytes of a turn of a queue pair.
    quantum: i64,
    credit: Credit,
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
            quantum: crate::sched::quantum(&config.caps, config.active_mtu),
            credit: Credit::new(config.caps.credit),
            notifier: congestion::Notifier::new(&config.cc),
            config,
            pds: Slab::default(),
            memory: MrTable::new(),
            cqs: Slab::default(),
            ahs: Slab::default(),
            srqs: SrqTable::default(),
            xrcds: Slab::default(),
            qps: QpTable::new(Lane::ONLY),
            groups: mcast::Groups::default(),
            port: port::Port::default(),
            ready: Ready::default(),
            timers: Timers::default(),
            out: Effects::default(),
            events: VecDeque::new(),
            drops: Drops::default(),
            ip_id,
            tracer: None,
        }
    }

    /// Makes a NIC without queue pairs one of several that share its address: it has those of `lane`. Each has pairs,
    /// queues and memory of its own.
    ///
    /// # Panics
    /// Where it has queue pairs.
    pub fn set_lane(&mut self, lane: Lane) {
        assert!(self.qps.is_unused(), "numbers that were given do not change");
        self.qps = QpTable::new(lane);
    }

    /// How it was made.
    #[must_use]
    pub const fn config(&self) -> &NicConfig {
        &self.config
    }

    /// What it can hold.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        Limits::DEVICE
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

    /// Packets of all reliable queue pairs that have been sent and wait for an answer, READ responses that were asked
    /// for counted in; `Caps::credit` bounds them.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.credit.used()
    }

    /// What one queue pair has of [`Nic::in_flight`]; `None` where there is no such queue pair.
    #[must_use]
    pub fn in_flight_of(&self, qpn: Qpn) -> Option<u32> {
        self.qps.get(qpn).map(|pair| pair.engines.in_flight())
    }

    /// Packets dropped, by reason.
    #[must_use]
    pub const fn drops(&self) -> &Drops {
        &self.drops
    }
}
