//! Congestion control of one queue pair: its rate controller, and the waits that it imposes on data.
//!
//! The NIC asks here before each turn how much may leave ([`Cc::budget`]), and says afterwards what has ([`Cc::sent`]).
//! Acknowledgements and NAKs are nobody's business here; who has no controller is never asked.

use dcqcn::{RateController, RateState};
use transport::Requester;
use wire::eth::ETHERNET_OVERHEAD;
use wire::{Duration, Instant, NetHeader, Psn};

use crate::engines::Engines;

/// What congestion control thinks of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CcState {
    /// Rate, target and alpha.
    pub rate: RateState,
    /// CNPs that it has heeded.
    pub cnps_handled: u64,
}

/// Congestion control of a queue pair.
#[derive(Debug)]
pub(crate) struct Cc {
    controller: Box<dyn RateController>,
    cnps_handled: u64,
    /// Data waits for this time.
    wait: Option<Instant>,
    /// The packet whose ACK tells the next round-trip time: one past its PSN, and when it left.
    probe: Option<(Psn, Instant)>,
    /// One past the newest PSN that has left.
    sent: Option<Psn>,
    /// The oldest PSN that was not acknowledged when a round-trip time was told last.
    acknowledged: Option<Psn>,
    /// When a packet last asked for an ACK.
    asked_at: Instant,
    /// What whoever watches was told last.
    told: RateState,
}

/// What a queue pair may add to a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Bytes that may leave in front of the last packet; `None` where no data may leave.
    allowed: Option<u64>,
    /// Bytes that have left, as they are on the wire.
    spent: u64,
    /// What a packet is longer by on the wire than its body.
    overhead: u64,
    /// Something was held back.
    held: bool,
    /// An ACK has not been asked for in so long that the timeout for it comes near.
    pub(crate) asks: bool,
}

/// An ACK is asked for when this part of the ACK timeout has passed without.
const ASK_EVERY: u64 = 8;

impl Budget {
    /// Of a queue pair without congestion control.
    pub(crate) const UNLIMITED: Self =
        Self { allowed: Some(u64::MAX), spent: 0, overhead: 0, held: false, asks: false };

    /// Whether a packet of data may leave.
    pub(crate) const fn allows(&mut self) -> bool {
        match self.allowed {
            Some(allowed) if self.spent <= allowed => true,
            _ => {
                self.held = true;
                false
            }
        }
    }

    /// Whether anything holds data back at all.
    pub(crate) fn is_limited(&self) -> bool {
        self.allowed != Some(u64::MAX)
    }

    /// Whether something was held back.
    pub(crate) const fn is_held(&self) -> bool {
        self.held
    }

    /// Whether data has left.
    pub(crate) const fn is_touched(&self) -> bool {
        self.spent > 0
    }

    /// A packet of data with a body of `len` bytes leaves.
    pub(crate) const fn spend(&mut self, len: usize) {
        self.spent += len as u64 + self.overhead;
    }
}

impl Cc {
    pub(crate) const fn new(controller: Box<dyn RateController>) -> Self {
        Self {
            controller,
            cnps_handled: 0,
            wait: None,
            probe: None,
            sent: None,
            acknowledged: None,
            asked_at: Instant::ZERO,
            told: RateState { rate: None, target: None, alpha: None, time_stage: 0, byte_stage: 0 },
        }
    }

    /// A CNP came; whether it means anything here.
    pub(crate) fn on_cnp(&mut self, now: Instant) -> bool {
        // Rule R-CNP-5.
        let handled = self.controller.on_cnp(now);
        self.cnps_handled += u64::from(handled);
        handled
    }

    /// What may leave at `now` on the way `net`; `timeout` is that for ACKs.
    pub(crate) fn budget(&mut self, now: Instant, net: &NetHeader, timeout: Option<Duration>) -> Budget {
        let quiet = now.since(self.asked_at).as_nanos();
        Budget {
            allowed: self.controller.allowance(now),
            spent: 0,
            overhead: (ETHERNET_OVERHEAD + net.len()) as u64,
            held: false,
            asks: timeout.is_some_and(|timeout| quiet > timeout.as_nanos() / ASK_EVERY),
        }
    }

    /// A turn of the queue pair is over; `more` says that another follows at once.
    pub(crate) fn sent(&mut self, now: Instant, budget: &Budget, engines: &Engines, more: bool) {
        if budget.spent > 0 {
            self.controller.on_sent(now, budget.spent);
            self.note_requests(now, engines);
        }
        self.wait = (budget.held && !more).then(|| {
            // The rate may rise while it waits.
            let departure = self.controller.earliest_departure(now);
            self.controller.poll_timeout().map_or(departure, |timer| timer.min(departure))
        });
    }

    fn note_requests(&mut self, now: Instant, engines: &Engines) {
        let Some(requester) = engines.requester() else { return };
        if self.sent.replace(requester.next_psn()) == Some(requester.next_psn()) {
            return;
        }
        if let Some(asked) = requester.asked() {
            self.asked_at = now;
            self.probe.get_or_insert((asked, now));
        }
    }

    /// An answer came: tells the round-trip time where it is known by it. `mtu` is that of the path.
    pub(crate) fn on_answer(&mut self, now: Instant, engines: &Engines, mtu: u32) {
        let Some((requester, (psn, left))) = engines.requester().zip(self.probe) else { return };
        let una = requester.oldest_unacknowledged();
        if requester.is_repeating() {
            // Whose ACK it will be is not known.
            self.probe = None;
        } else if psn.diff(una) <= 0 {
            self.probe = None;
            let packets = self.acknowledged.replace(una).map_or(0, |before| una.steps_from(before));
            self.controller.on_ack(now, u64::from(packets) * u64::from(mtu), now.since(left));
        }
    }

    /// Whether data waits for its time.
    pub(crate) const fn waits(&self) -> bool {
        self.wait.is_some()
    }

    /// When to call [`Cc::handle_timeout`]; only of a queue pair that has something to send.
    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.wait
    }

    /// Does what is due at `now`, after `engines` have.
    pub(crate) fn handle_timeout(&mut self, now: Instant, engines: &Engines) {
        if engines.requester().is_some_and(Requester::is_repeating) {
            // All of it may have been sent again before an answer comes: it would count the wait for the timeout.
            self.probe = None;
        }
        if self.wait.is_some_and(|wait| wait <= now) {
            self.wait = None;
            self.controller.handle_timeout(now);
        }
    }

    /// Begins at a rate; see [`RateController::start_at`].
    pub(crate) fn start_at(&mut self, now: Instant, current: dcqcn::Rate, target: dcqcn::Rate) {
        self.controller.start_at(now, current, target);
    }

    pub(crate) fn state(&self, now: Instant) -> CcState {
        CcState { rate: self.controller.state(now), cnps_handled: self.cnps_handled }
    }

    /// What it thinks, where the rate is not what it was when this was asked last.
    pub(crate) fn news(&mut self, now: Instant) -> Option<RateState> {
        let state = self.controller.state(now);
        let before = core::mem::replace(&mut self.told, state);
        (before.rate != state.rate).then_some(state)
    }
}
