//! Credit: how many packets all reliable queue pairs of a device may have in flight together.
//!
//! The NIC counts here what each has in flight, and lines those up that find too little left (rule R-REQ-48). Nothing
//! here knows packets or queue pairs; who is first in line is let go one at a time, and nobody passes it.

use std::collections::VecDeque;

use wire::Qpn;

/// The credit of a device.
#[derive(Debug)]
pub(crate) struct Credit {
    limit: u64,
    used: u64,
    /// Who found too little, oldest first. Some may have lost interest.
    line: VecDeque<Qpn>,
    /// Who was first in line, and has its turn before anybody else gets credit.
    granted: Option<Qpn>,
}

/// What the others leave of the credit to one queue pair, for one turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    limit: u64,
    others: u64,
    /// Others are in line before it.
    barred: bool,
}

/// Packets that who is first in line waits for, so that it sends a batch rather than a packet for every ACK.
const BATCH: u64 = 15;

impl Credit {
    pub(crate) fn new(limit: u32) -> Self {
        Self { limit: limit.max(1).into(), used: 0, line: VecDeque::new(), granted: None }
    }

    /// PSNs in flight.
    pub(crate) const fn used(&self) -> u64 {
        self.used
    }

    /// What a queue pair has in flight was `held` and is `now`.
    pub(crate) fn count(&mut self, held: &mut u32, now: u32) {
        self.used = self.used - u64::from(*held) + u64::from(now);
        *held = now;
    }

    /// What a queue pair that has `held` may have, now that it is its turn.
    pub(crate) fn share(&mut self, qpn: Qpn, held: u32) -> Share {
        let barred = match self.granted {
            Some(granted) => granted != qpn,
            None => !self.line.is_empty(),
        };
        Share { limit: self.limit, others: self.used - u64::from(held), barred }
    }

    /// The turn of a queue pair is over, or there is none by this number any more.
    pub(crate) fn turn_ends(&mut self, qpn: Qpn) {
        if self.granted == Some(qpn) {
            self.granted = None;
        }
    }

    /// Puts a queue pair into the line.
    pub(crate) fn line_up(&mut self, qpn: Qpn) {
        self.line.push_back(qpn);
    }

    /// Whether someone is in line and may be let go.
    pub(crate) fn is_awaited(&self) -> bool {
        self.granted.is_none() && !self.line.is_empty()
    }

    /// Lets the first in line go where there is enough. `need` says what each needs, `None` where it no longer does.
    pub(crate) fn grant(&mut self, mut need: impl FnMut(Qpn) -> Option<u32>) -> Option<Qpn> {
        while self.is_awaited() {
            let first = *self.line.front()?;
            if let Some(span) = need(first) {
                let enough = u64::from(span).max(BATCH.min(self.limit / 4));
                if self.used > 0 && self.used + enough > self.limit {
                    return None;
                }
                self.granted = Some(first);
            }
            self.line.pop_front();
        }
        self.granted
    }
}

impl Share {
    /// Whether a packet of `span` PSNs may leave beside `in_flight` of the same queue pair. Where nothing at all is in
    /// flight any one may.
    pub(crate) fn allows(&self, in_flight: u32, span: u32) -> bool {
        let used = self.others + u64::from(in_flight);
        span == 0 || !self.barred && (used == 0 || used + u64::from(span) <= self.limit)
    }

    /// Whether others are at work, who would have to wait for what this queue pair leaves in flight unasked.
    pub(crate) const fn is_shared(&self) -> bool {
        self.barred || self.others > self.limit / 16
    }

    /// Whether so much is in flight, `in_flight` of it of this queue pair, that nobody should leave it there unasked.
    pub(crate) const fn is_scarce(&self, in_flight: u32) -> bool {
        self.barred || self.others + in_flight as u64 > self.limit / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qpn(n: u32) -> Qpn {
        Qpn::new(n)
    }

    #[test]
    fn the_first_goes_even_where_its_packet_is_longer_than_the_credit() {
        let mut credit = Credit::new(4);
        let share = credit.share(qpn(1), 0);
        assert!(share.allows(0, 9) && share.allows(0, 4) && !share.allows(1, 4) && share.allows(1, 3));
        credit.count(&mut 0, 1);
        let share = credit.share(qpn(2), 0);
        assert!(!share.allows(0, 4) && share.allows(0, 3), "one packet is in flight");
        assert!(share.allows(0, 0), "what nobody counts always goes");
    }

    #[test]
    fn more_than_half_is_scarce() {
        let mut credit = Credit::new(10);
        credit.count(&mut 0, 3);
        let share = credit.share(qpn(1), 1);
        assert_eq!([3, 4].map(|own| share.is_scarce(own)), [false, true]);
    }

    #[test]
    fn the_line_is_served_in_order_and_nobody_passes_it() {
        let mut credit = Credit::new(60);
        let mut held = 0;
        credit.count(&mut held, 60);
        for n in 1..=3 {
            credit.line_up(qpn(n));
        }
        let wants = |_| Some(1);
        credit.count(&mut held, 46);
        assert_eq!(credit.grant(wants), None, "fourteen packets are no batch");
        assert!(!credit.share(qpn(9), 0).allows(0, 1), "others are in line");
        credit.count(&mut held, 45);
        assert_eq!(credit.grant(wants), Some(qpn(1)));
        assert!(!credit.is_awaited(), "one at a time");
        assert!(credit.share(qpn(1), 0).allows(0, 15) && !credit.share(qpn(2), 0).allows(0, 1));
        credit.turn_ends(qpn(2));
        assert!(!credit.is_awaited());
        credit.turn_ends(qpn(1));
        assert_eq!(
            credit.grant(|n| (n != qpn(2)).then_some(1)),
            Some(qpn(3)),
            "the second has lost interest"
        );
        credit.turn_ends(qpn(3));
        assert!(credit.share(qpn(9), 0).allows(0, 15), "nobody is in line");
    }

    #[test]
    fn a_long_packet_waits_until_there_is_room_or_nothing_in_flight() {
        let mut credit = Credit::new(8);
        let mut held = 0;
        credit.count(&mut held, 8);
        credit.line_up(qpn(1));
        for now in (3..8).rev() {
            credit.count(&mut held, now);
            assert_eq!(credit.grant(|_| Some(6)), None, "{now} in flight");
        }
        credit.count(&mut held, 2);
        assert_eq!(credit.grant(|_| Some(6)), Some(qpn(1)));
        credit.turn_ends(qpn(1));
        credit.line_up(qpn(1));
        credit.count(&mut held, 0);
        assert_eq!(credit.grant(|_| Some(100)), Some(qpn(1)));
    }
}
