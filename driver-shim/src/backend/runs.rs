//! Which ways take runs of packets as one frame or datagram. A back end asks before it sends a run, and tells of refusals.

use std::collections::HashMap;
use std::net::IpAddr;

use wire::{Duration, Instant};

/// How long packets to a destination go one by one once a run was refused. What refuses may be an interface that the
/// route no longer leads to, or a setting.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Most destinations that are remembered; where there are more, all are tried again.
const MOST: usize = 1024;

/// Segmentation offload of one device, by destination.
#[derive(Debug)]
pub(super) struct Runs {
    /// Asked for, and possible at all.
    on: bool,
    /// Until when destinations get no runs.
    refused: HashMap<IpAddr, Instant>,
    now: Instant,
}

impl Runs {
    /// Runs go everywhere where it is `on`, until they are refused, and nowhere otherwise.
    pub(super) fn new(on: bool) -> Self {
        Self { on, refused: HashMap::new(), now: Instant::ZERO }
    }

    /// Whether it is possible at all.
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// Tells the time.
    pub(super) fn poll(&mut self, now: Instant) {
        self.now = now;
    }

    /// Whether runs may be sent to `dst`.
    pub(super) fn may_go_to(&self, dst: IpAddr) -> bool {
        // Most often there are none, and this is asked for each batch.
        self.on && (self.refused.is_empty() || self.refused.get(&dst).is_none_or(|until| *until <= self.now))
    }

    /// A run to `dst` was refused, though its packets left one by one.
    pub(super) fn on_refusal(&mut self, dst: IpAddr) {
        if self.refused.len() >= MOST {
            self.refused.clear();
        }
        if self.refused.insert(dst, self.now + REFUSED_FOR).is_none() {
            tracing::warn!(%dst, "no segmentation offload on this way: sending packet by packet");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn a_refusal_is_of_one_way_and_for_a_while() {
        let mut runs = Runs::new(true);
        let goes = |runs: &Runs| [1, 2].map(|n| runs.may_go_to(host(n)));
        runs.poll(Instant::ZERO + Duration::from_secs(5));
        assert_eq!(goes(&runs), [true, true]);
        runs.on_refusal(host(1));
        assert_eq!(goes(&runs), [false, true]);
        runs.poll(Instant::ZERO + Duration::from_secs(5) + REFUSED_FOR);
        assert_eq!(goes(&runs), [true, true]);
        runs.on_refusal(host(1));
        assert_eq!(goes(&runs), [false, true], "it is refused still");
        assert!(!Runs::new(false).may_go_to(host(2)));
    }

    #[test]
    fn refusals_that_are_remembered_are_bounded() {
        let mut runs = Runs::new(true);
        for n in 0..=1024 {
            runs.on_refusal(host(n));
        }
        assert!(runs.may_go_to(host(0)), "forgotten");
        assert!(!runs.may_go_to(host(1024)));
    }
}
