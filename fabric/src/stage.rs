//! Puts the injector's verdicts into effect: packets go in, and what the faults leave of them comes out, later
//! or in another order. [`crate::Network`] has one per node; a real back end can be wrapped in one as well.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use wire::{Bth, Duration, Gid, Instant, NetHeader, Qpn};
use zerocopy::FromBytes;

use crate::faults::{Direction, FaultSpec};
use crate::frame::Frame;
use crate::injector::{FaultCounts, Injector, Verdict};

/// How long a reordered packet waits for one to overtake it.
pub const MAX_HOLD: Duration = Duration::from_micros(200);

/// The faulty last metre of one device, both directions.
pub struct Stage {
    injector: Injector,
    lanes: [Lane; 2],
}

#[derive(Default)]
struct Lane {
    ready: BinaryHeap<Reverse<Timed>>,
    /// Reordered packets, each waiting for the next of its flow.
    held: Vec<Held>,
    pushed: u64,
}

struct Held {
    flow: Option<(Gid, Qpn)>,
    give_up: Instant,
    copies: usize,
    delay: Duration,
    frame: Frame,
}

/// A packet that may go on from `at`; those of one instant in the order in which they came.
struct Timed {
    at: Instant,
    order: u64,
    frame: Frame,
}

impl Stage {
    /// A stage with these faults.
    #[must_use]
    pub fn new(specs: impl IntoIterator<Item = FaultSpec>, seed: u64) -> Self {
        Self { injector: Injector::new(specs, seed), lanes: Default::default() }
    }

    /// Replaces the faults; counts and random numbers go on.
    pub fn set_faults(&mut self, specs: impl IntoIterator<Item = FaultSpec>) {
        self.injector.set_faults(specs);
    }

    /// What was done so far in `direction`.
    #[must_use]
    pub fn counts(&self, direction: Direction) -> FaultCounts {
        self.injector.counts(direction)
    }

    /// Takes a packet that passes at `now`.
    pub fn push(&mut self, now: Instant, direction: Direction, frame: Frame) {
        let verdict = self.injector.decide(direction, &frame.net, &frame.body);
        self.apply(now, direction, &verdict, || frame);
    }

    /// Decides about a packet that passes at `now`. True where it goes on at once and as it is, which is left to the
    /// caller; else what the faults leave of it comes out of [`Stage::pop`]. `owned` makes a copy of it then.
    pub fn lets_pass(
        &mut self,
        now: Instant,
        direction: Direction,
        net: &NetHeader,
        body: &[u8],
        owned: impl FnOnce() -> Frame,
    ) -> bool {
        let verdict = self.injector.decide(direction, net, body);
        // A packet that is held waits for this one.
        if verdict == Verdict::default() && self.lanes[direction as usize].held.is_empty() {
            return true;
        }
        self.apply(now, direction, &verdict, owned);
        false
    }

    fn apply(
        &mut self,
        now: Instant,
        direction: Direction,
        verdict: &Verdict,
        owned: impl FnOnce() -> Frame,
    ) {
        if verdict.drop {
            return;
        }
        let mut frame = owned();
        verdict.corrupt_body(&mut frame.body);
        let lane = &mut self.lanes[direction as usize];
        let flow = flow_of(&frame);
        let copies = if verdict.duplicate { 2 } else { 1 };
        let overtaken = lane.held.iter().position(|held| held.flow == flow);
        if verdict.reorder && overtaken.is_none() {
            let give_up = now + MAX_HOLD;
            lane.held.push(Held { flow, give_up, copies, delay: verdict.delay, frame });
            return;
        }
        lane.enqueue(now + verdict.delay, copies, frame);
        if let Some(held) = overtaken.map(|at| lane.held.remove(at)) {
            lane.enqueue(now + held.delay, held.copies, held.frame);
        }
    }

    /// The next packet of `direction` that may go on at `now`.
    pub fn pop(&mut self, now: Instant, direction: Direction) -> Option<Frame> {
        let lane = &mut self.lanes[direction as usize];
        while let Some(at) = lane.held.iter().position(|held| held.give_up <= now) {
            let held = lane.held.remove(at);
            lane.enqueue(held.give_up + held.delay, held.copies, held.frame);
        }
        let Reverse(next) = lane.ready.peek()?;
        if next.at > now {
            return None;
        }
        lane.ready.pop().map(|Reverse(timed)| timed.frame)
    }

    /// When [`Stage::pop`] will next have something for `direction`; it may be in the past.
    #[must_use]
    pub fn poll_timeout(&self, direction: Direction) -> Option<Instant> {
        let lane = &self.lanes[direction as usize];
        let ready = lane.ready.peek().map(|Reverse(timed)| timed.at);
        let held = lane.held.iter().map(|held| held.give_up).min();
        ready.into_iter().chain(held).min()
    }
}

impl Lane {
    fn enqueue(&mut self, at: Instant, copies: usize, frame: Frame) {
        for frame in std::iter::repeat_n(frame, copies) {
            self.ready.push(Reverse(Timed { at, order: self.pushed, frame }));
            self.pushed += 1;
        }
    }
}

/// Only a packet of the same flow can overtake another in a way that its receiver could notice.
fn flow_of(frame: &Frame) -> Option<(Gid, Qpn)> {
    let (bth, _) = Bth::ref_from_prefix(&frame.body).ok()?;
    Some((frame.net.dst_gid(), bth.dest_qp()))
}

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Timed {}

#[cfg(test)]
#[path = "stage_tests.rs"]
mod tests;
