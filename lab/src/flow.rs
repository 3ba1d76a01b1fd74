//! The program of one flow: which messages it posts, and when.
//!
//! A message is several WRITEs of one piece of memory, over and over: its bytes do not matter. [`super::host`] calls it,
//! and has the queue pair; nothing here knows packets.

use std::collections::VecDeque;

use wire::{Duration, Instant, Qpn};

/// What a flow sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Bytes of a message, and how many there are; `None` for one that does not end.
    pub(crate) messages: Option<(u64, u32)>,
    /// Time from one message to the next.
    pub(crate) period: Option<Duration>,
    /// When the first begins.
    pub(crate) start: Instant,
    /// From when on it posts nothing more.
    pub(crate) stop: Instant,
    /// Whether message n waits for n of another flow.
    pub(crate) follows: bool,
    /// Whether others wait for its messages.
    pub(crate) announces: bool,
    /// Bytes of a work request.
    pub(crate) chunk: u32,
    /// Work requests that may wait.
    pub(crate) depth: u32,
}

/// A flow under way.
#[derive(Debug)]
pub(crate) struct Flow {
    plan: Plan,
    /// The queue pair that sends.
    pub(crate) qpn: Qpn,
    /// Messages begun.
    begun: u32,
    /// Messages of the flow that it follows.
    followed: u32,
    /// Bytes of the message under way that are not posted.
    left: u64,
    /// Work requests that wait.
    waiting: u32,
    /// When each message that is not complete was begun.
    open: VecDeque<Instant>,
    /// Its queue pair sends no more.
    failed: bool,
}

/// A work request that a flow wants posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) bytes: u32,
    /// Whether it ends a message.
    pub(crate) is_last: bool,
}

impl Flow {
    pub(crate) const fn new(plan: Plan, qpn: Qpn) -> Self {
        Self { plan, qpn, begun: 0, followed: 0, left: 0, waiting: 0, open: VecDeque::new(), failed: false }
    }

    /// When time alone lets it begin something, as seen at `now`.
    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let more = self.plan.messages.is_none_or(|(_, count)| self.begun < count);
        // Who is behind its clock, and has no room for more, waits for what is complete.
        let has_room = self.waiting < self.plan.depth;
        let waits = self.left == 0 && more && has_room && !self.failed;
        let by_clock = self.begun == 0 || self.plan.period.is_some();
        Some(self.due()).filter(|due| waits && by_clock && now.max(*due) < self.plan.stop)
    }

    /// When the next message may begin as far as time goes.
    fn due(&self) -> Instant {
        let periods = self.plan.period.map_or(0, |period| period.as_nanos() * u64::from(self.begun));
        self.plan.start + Duration::from_nanos(periods)
    }

    /// The next work request at `now`.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Piece> {
        if self.failed || self.waiting >= self.plan.depth || now >= self.plan.stop {
            return None;
        }
        if self.left == 0 {
            self.begin(now)?;
        }
        let bytes = u32::try_from(self.left).unwrap_or(u32::MAX).min(self.plan.chunk);
        if self.plan.messages.is_some() {
            self.left -= u64::from(bytes);
        }
        self.waiting += 1;
        Some(Piece { bytes, is_last: self.left == 0 })
    }

    fn begin(&mut self, now: Instant) -> Option<()> {
        if now < self.due() {
            return None;
        }
        match self.plan.messages {
            None => self.left = u64::MAX,
            Some((_, count)) if self.begun >= count => return None,
            Some(_) if self.plan.follows && self.followed < self.begun => return None,
            Some(_) if !self.plan.follows && self.plan.period.is_none() && !self.open.is_empty() => {
                return None;
            }
            Some((bytes, _)) => {
                self.left = bytes.max(1);
                self.open.push_back(now);
            }
        }
        self.begun += 1;
        Some(())
    }

    /// A work request is complete; gives when its message was begun where that is complete too.
    pub(crate) fn completed(&mut self, is_last: bool) -> Option<Instant> {
        self.waiting -= 1;
        if is_last { self.open.pop_front() } else { None }
    }

    /// The flow that it follows has brought a message.
    pub(crate) const fn follow(&mut self) {
        self.followed += 1;
    }

    /// Its queue pair has given up.
    pub(crate) const fn fail(&mut self) {
        self.failed = true;
    }

    /// Whether the receiver is told of the end of each message.
    pub(crate) const fn announces(&self) -> bool {
        self.plan.announces
    }

    /// Whether its queue pair has given up.
    pub(crate) const fn has_failed(&self) -> bool {
        self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan {
        messages: Some((150, 2)),
        period: None,
        start: Instant::from_nanos(10),
        stop: Instant::from_nanos(1_000),
        follows: false,
        announces: false,
        chunk: 100,
        depth: 8,
    };

    fn posted(flow: &mut Flow, now: u64) -> Vec<(u32, bool)> {
        std::iter::from_fn(|| flow.next(Instant::from_nanos(now)))
            .map(|piece| (piece.bytes, piece.is_last))
            .collect()
    }

    #[test]
    fn a_message_begins_when_the_one_before_is_complete() {
        let mut flow = Flow::new(PLAN, Qpn::new(5));
        assert_eq!(flow.poll_timeout(Instant::ZERO), Some(Instant::from_nanos(10)));
        assert_eq!(posted(&mut flow, 9), []);
        assert_eq!(posted(&mut flow, 10), [(100, false), (50, true)]);
        assert_eq!((flow.poll_timeout(Instant::from_nanos(10)), flow.completed(false)), (None, None));
        assert_eq!(posted(&mut flow, 11), []);
        assert_eq!(flow.completed(true), Some(Instant::from_nanos(10)));
        assert_eq!(posted(&mut flow, 30), [(100, false), (50, true)]);
        assert_eq!((flow.completed(false), flow.completed(true)), (None, Some(Instant::from_nanos(30))));
        assert_eq!(posted(&mut flow, 40), []);
    }

    #[test]
    fn bursts_begin_by_the_clock() {
        let plan = Plan { period: Some(Duration::from_nanos(20)), messages: Some((50, 3)), ..PLAN };
        let mut flow = Flow::new(plan, Qpn::new(5));
        assert_eq!(posted(&mut flow, 10), [(50, true)]);
        assert_eq!(flow.poll_timeout(Instant::from_nanos(10)), Some(Instant::from_nanos(30)));
        assert_eq!(posted(&mut flow, 50), [(50, true), (50, true)], "it does not wait for what is late");
        assert_eq!(flow.poll_timeout(Instant::from_nanos(50)), None);
    }

    #[test]
    fn who_is_behind_the_clock_waits_for_room_and_not_for_time() {
        let at = Instant::from_nanos;
        let plan = Plan { period: Some(Duration::from_nanos(1)), messages: Some((50, 9)), depth: 2, ..PLAN };
        let mut flow = Flow::new(plan, Qpn::new(5));
        assert_eq!(posted(&mut flow, 20), [(50, true), (50, true)]);
        assert_eq!(flow.poll_timeout(at(20)), None, "its time has come, but nothing can be posted");
        flow.completed(true);
        assert_eq!(flow.poll_timeout(at(20)), Some(at(12)));
        assert_eq!(flow.poll_timeout(at(1_000)), None, "it has stopped");
    }

    #[test]
    fn who_follows_waits_for_what_comes() {
        let mut flow = Flow::new(Plan { follows: true, messages: Some((50, 3)), ..PLAN }, Qpn::new(5));
        assert_eq!(posted(&mut flow, 10), [(50, true)]);
        flow.follow();
        assert_eq!(posted(&mut flow, 10), [(50, true)]);
        flow.follow();
        flow.follow();
        assert_eq!(posted(&mut flow, 10), [(50, true)]);
    }

    #[test]
    fn what_does_not_end_keeps_its_queue_full() {
        let mut flow = Flow::new(Plan { messages: None, depth: 3, ..PLAN }, Qpn::new(5));
        assert_eq!(posted(&mut flow, 10), [(100, false); 3]);
        assert_eq!(flow.completed(false), None);
        assert_eq!(posted(&mut flow, 20), [(100, false)]);
        assert_eq!((flow.completed(false), posted(&mut flow, 1_000)), (None, vec![]), "it has stopped");
        assert_eq!(posted(&mut flow, 999), [(100, false)]);
        flow.fail();
        assert_eq!((flow.completed(false), posted(&mut flow, 20), flow.has_failed()), (None, vec![], true));
    }
}
