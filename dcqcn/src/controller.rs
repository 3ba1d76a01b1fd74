//! The seam of congestion control: what a queue pair asks of an algorithm, and the algorithms by name.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use wire::{Duration, Instant};

use crate::config::CcConfig;
use crate::fixed::FixedRate;
use crate::rate::Rate;
use crate::rp::Rp;
use crate::timely::Timely;

/// Decides how fast one queue pair may send.
///
/// Its owner tells it of CNPs, acknowledgements and what was sent, as they happen, and asks before each packet or
/// batch. Nothing it does takes long or allocates. Time never goes back: a `now` before an earlier one counts as that.
///
/// Timers matter only while a queue pair waits to be allowed to send: it then waits until
/// [`RateController::earliest_departure`] or [`RateController::poll_timeout`], whichever is first, since the rate may
/// rise while it waits. One that has nothing to send needs no timer; what was due is made up for when it is used next.
pub trait RateController: Send + fmt::Debug {
    /// A congestion notification for this queue pair arrived; true where it means something to the algorithm.
    fn on_cnp(&mut self, now: Instant) -> bool;

    /// Packets of `bytes` together were handed to the packet path, all at once. Whatever its owner counts, the rate is
    /// of: on Ethernet count whole frames, for this is what a port's rate is of.
    fn on_sent(&mut self, now: Instant, bytes: u64);

    /// `bytes` were acknowledged, the last of them `rtt` after they were sent.
    fn on_ack(&mut self, now: Instant, bytes: u64, rtt: Duration);

    /// When the next packet or batch may leave at the earliest; `now` where it may already.
    fn earliest_departure(&mut self, now: Instant) -> Instant;

    /// How many bytes may leave at `now` in front of the last packet of a batch: `Some(0)` lets one packet pass, `None`
    /// none, and [`u64::MAX`] means that nothing limits the queue pair.
    fn allowance(&mut self, now: Instant) -> Option<u64>;

    /// When the rate changes next, if nothing happens before; never, for algorithms without timers.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Does what is due at `now`.
    fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
    }

    /// Begins at the rate `current` with `target` to go back to, as if congestion had brought it there at `now`: for
    /// simulations that start apart. Algorithms without a target ignore that.
    fn start_at(&mut self, now: Instant, current: Rate, target: Rate);

    /// What it thinks right before `now`, for whoever watches: watching changes nothing.
    fn state(&self, now: Instant) -> RateState;
}

/// What a [`RateController`] thinks of its queue pair's path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RateState {
    /// The rate; `None` where nothing limits it.
    pub rate: Option<Rate>,
    /// The rate that it goes back to, for algorithms that have one.
    pub target: Option<Rate>,
    /// Estimate of congestion, 0 to 1, for algorithms that have one.
    pub alpha: Option<f64>,
    /// Increases by the timer since the last cut.
    pub time_stage: u32,
    /// Increases by the byte counter since the last cut.
    pub byte_stage: u32,
}

/// The algorithms, as options and configurations name them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Algorithm {
    /// None: every queue pair sends as fast as its window lets it.
    #[default]
    Off,
    /// DCQCN ([`Rp`]).
    Dcqcn,
    /// A rate that never changes ([`FixedRate`]).
    Rate(Rate),
    /// TIMELY ([`Timely`]).
    Timely,
}

/// Text that names no algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no congestion control: {} is wanted, a rate of {}",
    Algorithm::FORMS.map(|(form, _)| form).join(" or "),
    Rate::RANGE
)]
#[non_exhaustive]
pub struct AlgorithmError {
    /// The text.
    pub text: String,
}

impl Algorithm {
    /// How each is written, and what it is.
    pub const FORMS: [(&'static str, &'static str); 4] = [
        ("off", "none"),
        ("dcqcn", "DCQCN: rates follow the marks of switches"),
        ("rate=200M", "each queue pair keeps this rate"),
        ("timely", "TIMELY: rates follow round-trip times"),
    ];

    /// Its name, without parameters.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Dcqcn => "dcqcn",
            Self::Rate(_) => "rate",
            Self::Timely => "timely",
        }
    }

    /// Whether it wants data packets to be ECN-capable, and marks to be answered.
    #[must_use]
    pub const fn uses_ecn(&self) -> bool {
        matches!(self, Self::Dcqcn)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(rate) => write!(f, "rate={rate}"),
            other => f.write_str(other.name()),
        }
    }
}

impl FromStr for Algorithm {
    type Err = AlgorithmError;

    fn from_str(text: &str) -> Result<Self, AlgorithmError> {
        let wrong = || AlgorithmError { text: text.to_owned() };
        match text.split_once('=') {
            Some(("rate", rate)) => rate.parse().map(Self::Rate).map_err(|_| wrong()),
            Some(_) => Err(wrong()),
            None => [Self::Off, Self::Dcqcn, Self::Timely]
                .into_iter()
                .find(|algorithm| algorithm.name() == text)
                .ok_or_else(wrong),
        }
    }
}

impl CcConfig {
    /// The controller of a new queue pair on a port of `line` rate; `None` where there is none.
    #[must_use]
    pub fn controller(&self, line: Rate) -> Option<Box<dyn RateController>> {
        match self.algorithm {
            Algorithm::Off => None,
            Algorithm::Dcqcn => Some(Box::new(Rp::new(Arc::clone(&self.params), line, self.burst))),
            Algorithm::Rate(rate) => Some(Box::new(FixedRate::new(rate, self.burst))),
            Algorithm::Timely => Some(Box::new(Timely::new(Arc::clone(&self.timely), line, self.burst))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_are_read_as_they_are_printed() {
        for (form, _) in Algorithm::FORMS {
            let algorithm: Algorithm = form.parse().unwrap();
            assert_eq!(algorithm.to_string(), form);
            assert!(form.starts_with(algorithm.name()));
        }
        assert_eq!("rate=0.2G".parse(), Ok(Algorithm::Rate(Rate::from_mbps(200.0))));
    }

    #[test]
    fn other_text_is_refused_with_what_is_wanted() {
        for text in ["", "on", "rate", "rate=", "rate=fast", "rate=0", "dcqcn=1", "DCQCN"] {
            let error = text.parse::<Algorithm>().unwrap_err().to_string();
            let wanted = "off or dcqcn or rate=200M or timely is wanted, a rate of 1k to 10000G";
            assert!(error.ends_with(wanted), "{error}");
        }
    }

    /// All algorithms hold up behind the seam: a queue pair that keeps asking never waits for ever, and only what is
    /// off or not limited lets everything pass.
    #[test]
    fn each_drives_a_queue_pair() {
        for (form, _) in Algorithm::FORMS {
            let algorithm = form.parse().unwrap();
            let config = CcConfig { algorithm, ..CcConfig::default() };
            let Some(mut controller) = config.controller(Rate::from_gbps(10.0)) else {
                assert_eq!(algorithm, Algorithm::Off);
                continue;
            };
            let mut now = Instant::ZERO;
            let mut sent = 0;
            for turn in 0..10_000u64 {
                if turn % 50 == 0 {
                    assert_eq!(controller.on_cnp(now), algorithm.uses_ecn());
                }
                if controller.allowance(now).is_some() {
                    controller.on_sent(now, 4_154);
                    controller.on_ack(now, 4_096, Duration::from_micros(60 + turn % 7));
                    sent += 1;
                }
                let wake = controller.earliest_departure(now);
                now = match controller.poll_timeout() {
                    Some(timer) if timer < wake => {
                        controller.handle_timeout(timer);
                        timer
                    }
                    _ => wake.max(now + Duration::from_nanos(100)),
                };
            }
            assert!(sent > 1_000, "{form}: {sent}");
            assert!(controller.state(now).rate.is_some(), "{form}");
        }
    }
}
