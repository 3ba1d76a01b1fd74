//! Congestion control: the seam of a rate controller, and the parameters of DCQCN.
//!
//! Pure and clock-free: whoever drives it hands in the time. The controller of DCQCN itself is still to come;
//! a device without one sends as fast as its window lets it.

#![forbid(unsafe_code)]

mod params;

pub use params::{Params, ParamsError};

use wire::{Duration, Instant};

/// Decides how fast one queue pair may send.
pub trait RateController: Send {
    /// A congestion notification for this queue pair arrived.
    fn on_cnp(&mut self, now: Instant);

    /// `bytes` on the wire were handed to the packet path.
    fn on_sent(&mut self, now: Instant, bytes: u32);

    /// `bytes` were acknowledged, `rtt` after they were sent.
    fn on_ack(&mut self, now: Instant, bytes: u32, rtt: Duration);

    /// When a packet of `bytes` on the wire may leave at the earliest.
    fn earliest_departure(&self, now: Instant, bytes: u32) -> Instant;

    /// When [`RateController::handle_timeout`] has to be called.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Does what is due at `now`.
    fn handle_timeout(&mut self, now: Instant);
}
