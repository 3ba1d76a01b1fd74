//! The notification point: which marked packets make a CNP, and when.
//!
//! Used by the receiver of packets, after they have passed admission: what fails its ICRC or names no queue pair never
//! gets here. It decides; its owner builds and sends the CNP.

use std::collections::VecDeque;

use wire::ip::Ecn;
use wire::opcode::{Kind, Transport};
use wire::{Duration, Gid, Instant, NetHeader, Packet, Qpn};

use crate::params::{CnpScope, NpMode, Params};

/// A packet that came with a mark, as far as the CNP for it is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// Who sent it: where the CNP goes.
    pub from: Gid,
    /// Whom it was sent to: where the CNP comes from.
    pub to: Gid,
    /// The queue pair that received it.
    pub local: Qpn,
    /// The queue pair that sent it, where the packet says so, as datagrams do. For connected queue pairs it is the
    /// peer of `local`.
    pub sender: Option<Qpn>,
}

impl Marked {
    /// What is needed of `packet` for a CNP, whether marked or not.
    #[must_use]
    pub fn of(packet: &Packet<'_>) -> Self {
        Self {
            from: packet.net.src_gid(),
            to: packet.net.dst_gid(),
            local: packet.bth().dest_qp(),
            sender: packet.deth().map(wire::ext::Deth::src_qp),
        }
    }
}

/// What a notification point did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NpCounts {
    /// Packets that came with a mark, whether they make a CNP or not (`np_ecn_marked_roce_packets`).
    pub ecn_marked: u64,
    /// CNPs that it said to send (`np_cnp_sent`).
    pub cnp_sent: u64,
    /// Times that it forgot a scope whose interval was still running, since more than
    /// [`Params::cnp_flows`] were at once.
    pub forgotten_early: u64,
}

/// The notification point of one port.
#[derive(Debug)]
pub struct Np {
    params: Params,
    /// Sets of [`WAYS`] entries; a scope has its place in one of them. Empty where nothing needs to be remembered.
    table: Vec<Entry>,
    /// Entries with a mark that waits for the end of its window, in the order that they are answered in: the first is
    /// due first.
    waiting: VecDeque<usize>,
    counts: NpCounts,
}

/// Entries of a set.
const WAYS: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    scope: Option<Scope>,
    /// When the last CNP was sent, or the mark that waits came.
    last: Instant,
    /// The mark that waits.
    mark: Option<Marked>,
}

/// What has an interval of its own.
type Scope = (Option<Qpn>, Option<Gid>, Option<Gid>);

impl Np {
    /// A notification point. All memory it ever needs is taken here: about 128 bytes for each of
    /// [`Params::cnp_flows`].
    #[must_use]
    pub fn new(params: &Params) -> Self {
        let entries = match params.cnp_scope {
            _ if params.cnp_interval == Duration::ZERO => 0,
            CnpScope::Port => WAYS,
            _ => (params.cnp_flows as usize).next_multiple_of(WAYS),
        };
        Self {
            params: *params,
            table: vec![Entry::default(); entries],
            // One place for each entry, taken here so that none is needed later.
            waiting: match params.np_mode {
                NpMode::Immediate => VecDeque::new(),
                NpMode::Window => VecDeque::with_capacity(entries),
            },
            counts: NpCounts::default(),
        }
    }

    /// What it did so far.
    #[must_use]
    pub const fn counts(&self) -> NpCounts {
        self.counts
    }

    /// Takes a packet that passed admission at `now`; returns for what to send a CNP at once.
    pub fn on_packet(&mut self, now: Instant, packet: &Packet<'_>) -> Option<Marked> {
        if packet.net.ecn() != Ecn::Ce {
            return None;
        }
        self.counts.ecn_marked += 1;
        if !self.answers(packet) {
            return None;
        }
        self.on_marked(now, Marked::of(packet))
    }

    /// Takes a mark that is to be answered, at `now`; returns for what to send a CNP at once.
    pub fn on_marked(&mut self, now: Instant, mark: Marked) -> Option<Marked> {
        // Rule R-CNP-3.
        let interval = self.params.cnp_interval;
        if interval == Duration::ZERO {
            self.counts.cnp_sent += 1;
            return Some(mark);
        }
        let entry = self.entry(now, self.scope(&mark));
        match self.params.np_mode {
            NpMode::Immediate => {
                let entry = &mut self.table[entry];
                let is_new = entry.scope.is_none();
                if !is_new && now.since(entry.last) < interval {
                    return None;
                }
                *entry = Entry { scope: Some(scope_of(self.params.cnp_scope, &mark)), last: now, mark: None };
                self.counts.cnp_sent += 1;
                Some(mark)
            }
            NpMode::Window => {
                if self.table[entry].mark.is_none() {
                    self.table[entry] = Entry { scope: Some(self.scope(&mark)), last: now, mark: Some(mark) };
                    // Time does not run backwards; where a caller's does, the mark is answered with those before it.
                    self.waiting.push_back(entry);
                }
                None
            }
        }
    }

    /// Whether [`Np::on_out_of_sequence`] ever says to send a CNP.
    #[must_use]
    pub const fn answers_gaps(&self) -> bool {
        self.params.nack_triggers_cnp
    }

    /// Takes a gap in the sequence of packets that is answered with a NAK; returns for what to send a CNP with it.
    pub fn on_out_of_sequence(&mut self, now: Instant, packet: &Packet<'_>) -> Option<Marked> {
        if !self.params.nack_triggers_cnp || !self.answers(packet) {
            return None;
        }
        self.on_marked(now, Marked::of(packet))
    }

    /// When [`Np::poll_cnp`] has something; never in [`NpMode::Immediate`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.front().map(|first| self.window_end(self.table[*first].last))
    }

    /// The next mark whose window is over at `now`: a CNP is to be sent for it.
    pub fn poll_cnp(&mut self, now: Instant) -> Option<Marked> {
        if self.poll_timeout().is_none_or(|due| due > now) {
            return None;
        }
        let entry = &mut self.table[self.waiting.pop_front()?];
        entry.last = now;
        self.counts.cnp_sent += 1;
        entry.mark.take()
    }

    /// The end of the window in which `at` is. Windows run freely, all together, from the epoch.
    fn window_end(&self, at: Instant) -> Instant {
        let window = self.params.cnp_interval.as_nanos();
        let windows = at.as_nanos() / window + 1;
        Instant::from_nanos(windows.saturating_mul(window))
    }

    /// Whether a mark on this packet is answered: data and READ responses tell of the path that a rate matters for.
    fn answers(&self, packet: &Packet<'_>) -> bool {
        // Rules R-CNP-2 and R-CNP-4.
        let info = packet.info();
        let is_data = info.kind.is_request() || info.kind == Kind::ReadResponse;
        let takes_part = match info.transport {
            Transport::Rc | Transport::Uc | Transport::Xrc => true,
            Transport::Ud => self.params.cnp_for_ud,
            Transport::Cnp => false,
        };
        let is_v2 = !matches!(packet.net, NetHeader::V1(_));
        is_data && takes_part && is_v2 && self.params.covers(packet.net.traffic_class())
    }

    fn scope(&self, mark: &Marked) -> Scope {
        scope_of(self.params.cnp_scope, mark)
    }

    /// The place of `scope` in the table: its own, else a free one of its set, else that of the oldest.
    fn entry(&mut self, now: Instant, scope: Scope) -> usize {
        let sets = self.table.len() / WAYS;
        let first = usize::try_from(hash(&scope) % sets as u64).unwrap_or(0) * WAYS;
        let set = &self.table[first..first + WAYS];
        if let Some(own) = set.iter().position(|entry| entry.scope == Some(scope)) {
            return first + own;
        }
        if let Some(free) = set.iter().position(|entry| entry.scope.is_none()) {
            return first + free;
        }
        // A CNP too soon for a scope that is forgotten does less harm than none for a new one.
        let oldest = (0..WAYS).min_by_key(|way| (set[*way].mark.is_some(), set[*way].last)).unwrap_or(0);
        let forgotten = &mut self.table[first + oldest];
        if forgotten.mark.is_some() || now.since(forgotten.last) < self.params.cnp_interval {
            self.counts.forgotten_early += 1;
        }
        if forgotten.mark.is_some() {
            self.waiting.retain(|at| *at != first + oldest);
        }
        *forgotten = Entry::default();
        first + oldest
    }
}

const fn scope_of(kind: CnpScope, mark: &Marked) -> Scope {
    match kind {
        CnpScope::Qp => (Some(mark.local), None, None),
        CnpScope::IpPair => (None, Some(mark.from), Some(mark.to)),
        CnpScope::DestIp => (None, Some(mark.from), None),
        CnpScope::Port => (None, None, None),
    }
}

/// Spreads scopes over the sets, the same in every run.
fn hash(&(qpn, from, to): &Scope) -> u64 {
    const MULTIPLIER: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;
    let words = [
        u128::from(qpn.map_or(0, Qpn::value)),
        from.map_or(0, |gid| u128::from_be_bytes(gid.raw())),
        to.map_or(0, |gid| u128::from_be_bytes(gid.raw())),
    ];
    let mut state: u128 = 1;
    for word in words {
        state = (state ^ word).wrapping_mul(MULTIPLIER);
        state ^= state >> 67;
    }
    (state >> 64) as u64
}

#[cfg(test)]
mod tests;
