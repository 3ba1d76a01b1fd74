//! Decides, packet by packet, which faults hit: [`crate::Stage`] and any back end wrapped in faults ask it.
//! It never touches a packet itself.

use std::collections::BTreeMap;

use rand_core::RngCore;
use rand_pcg::Pcg64;
use wire::{Duration, Gid, NetHeader, Packet, Psn, Qpn};

use crate::faults::{Address, Direction, FaultKind, FaultSpec, PacketKind, Probability, PsnRule, When};

/// What happens to one packet. Several may; a drop makes the rest moot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// It is lost.
    pub drop: bool,
    /// It is sent twice.
    pub duplicate: bool,
    /// This bit of the body (BTH to ICRC) is flipped: bit `n % 8` of byte `n / 8`.
    pub corrupt: Option<usize>,
    /// It is held back until the next packet of its flow has passed.
    pub reorder: bool,
    /// It is held back for this long.
    pub delay: Duration,
}

impl Verdict {
    /// Flips the bit that is to be flipped, where there is one.
    pub fn corrupt_body(&self, body: &mut [u8]) {
        if let Some(byte) = self.corrupt.and_then(|bit| body.get_mut(bit / 8)) {
            *byte ^= 1 << (self.corrupt.unwrap_or(0) % 8);
        }
    }
}

/// What was done to the packets of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Packets decided about.
    pub packets: u64,
    /// Of these, lost.
    pub dropped: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// One bit flipped.
    pub corrupted: u64,
    /// Held back behind the next.
    pub reordered: u64,
    /// Held back for a time.
    pub delayed: u64,
}

/// Packets that share a circle of PSNs, as far as a header shows it.
type Flow = (Direction, Gid, Qpn, PacketKind);

struct Fault {
    spec: FaultSpec,
    /// How often the packet of an address has passed, by flow.
    passes: BTreeMap<Flow, u32>,
}

/// The faults of one device or link: same specs, same seed and same packets give the same verdicts.
pub struct Injector {
    faults: Vec<Fault>,
    /// One stream of random numbers per direction, so that neither depends on how the two interleave.
    rng: [Pcg64; 2],
    first_psn: BTreeMap<Flow, Psn>,
    counts: [FaultCounts; 2],
}

impl Injector {
    /// An injector of `specs`.
    #[must_use]
    pub fn new(specs: impl IntoIterator<Item = FaultSpec>, seed: u64) -> Self {
        let mut injector = Self {
            faults: Vec::new(),
            rng: [1, 2].map(|stream| Pcg64::new(u128::from(seed), stream)),
            first_psn: BTreeMap::new(),
            counts: Default::default(),
        };
        injector.set_faults(specs);
        injector
    }

    /// Replaces the faults. Counts and random numbers go on; first PSNs and passes are seen anew.
    pub fn set_faults(&mut self, specs: impl IntoIterator<Item = FaultSpec>) {
        self.first_psn.clear();
        self.faults = specs.into_iter().map(|spec| Fault { spec, passes: BTreeMap::new() }).collect();
    }

    /// Whether it has no fault at all, so that nobody needs to ask.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// What was done so far in `direction`.
    #[must_use]
    pub fn counts(&self, direction: Direction) -> FaultCounts {
        self.counts[direction as usize]
    }

    /// Decides about the packet `net` and `body` (BTH to ICRC) that passes in `direction`.
    pub fn decide(&mut self, direction: Direction, net: &NetHeader, body: &[u8]) -> Verdict {
        let counts = &mut self.counts[direction as usize];
        counts.packets += 1;
        let rng = &mut self.rng[direction as usize];
        let addressed = |f: &Fault| f.spec.direction == direction && matches!(f.spec.when, When::At(_));
        let flow = self.faults.iter().any(addressed).then(|| flow_of(direction, net, body)).flatten();
        let mut verdict = Verdict::default();
        for Fault { spec, passes } in self.faults.iter_mut().filter(|f| f.spec.direction == direction) {
            let hit = match (spec.when, flow) {
                (When::Chance(p), _) => happens(rng, p),
                (When::At(address), Some((flow, psn))) => {
                    let first = *self.first_psn.entry(flow).or_insert(psn);
                    is_at(&address, flow, psn, first) && {
                        let passed = passes.entry(flow).or_insert(0);
                        *passed += 1;
                        *passed == address.pass
                    }
                }
                (When::At(_), None) => false,
            };
            // Where it would be corrupted is drawn for every hit, so that a drop does not shift what follows.
            if hit {
                match spec.kind {
                    FaultKind::Drop => verdict.drop = true,
                    FaultKind::Duplicate => verdict.duplicate = true,
                    FaultKind::Corrupt => verdict.corrupt = some_bit(rng, body.len()),
                    FaultKind::Reorder => verdict.reorder = true,
                    FaultKind::Delay => verdict.delay = verdict.delay + spec.delay,
                }
            }
        }
        if verdict.drop {
            verdict = Verdict { drop: true, ..Verdict::default() };
        }
        counts.dropped += u64::from(verdict.drop);
        counts.duplicated += u64::from(verdict.duplicate);
        counts.corrupted += u64::from(verdict.corrupt.is_some());
        counts.reordered += u64::from(verdict.reorder);
        counts.delayed += u64::from(verdict.delay > Duration::ZERO);
        verdict
    }
}

/// The flow and PSN of a packet; `None` for what has no PSN: malformed packets and CNPs.
fn flow_of(direction: Direction, net: &NetHeader, body: &[u8]) -> Option<(Flow, Psn)> {
    let packet = Packet::parse_body(*net, body).ok()?;
    let kind = match packet.info().kind {
        kind if kind.is_request() => PacketKind::Request,
        kind if kind.is_response() => PacketKind::Response,
        _ => return None,
    };
    Some(((direction, net.dst_gid(), packet.bth().dest_qp(), kind), packet.bth().psn()))
}

fn is_at(address: &Address, (_, _, qp, kind): Flow, psn: Psn, first: Psn) -> bool {
    let wanted = match address.psn {
        PsnRule::Absolute(psn) => psn,
        PsnRule::FromFirst(offset) => first.wrapping_add(offset),
    };
    psn == wanted && address.qp.is_none_or(|q| q == qp) && address.kind.is_none_or(|k| k == kind)
}

fn happens(rng: &mut Pcg64, p: Probability) -> bool {
    const RANGE: f64 = 4_294_967_296.0;
    f64::from(rng.next_u32()) < p.value() * RANGE
}

/// A bit of a body of `len` bytes that the ICRC covers: any but those of byte 4, which routers may change.
fn some_bit(rng: &mut Pcg64, len: usize) -> Option<usize> {
    const UNCOVERED: usize = 4;
    let covered = if len > UNCOVERED { len - 1 } else { len };
    let draw = usize::try_from(rng.next_u64().checked_rem(covered as u64 * 8)?).ok()?;
    Some(if draw / 8 >= UNCOVERED { draw + 8 } else { draw })
}

#[cfg(test)]
#[path = "injector_tests.rs"]
mod tests;
