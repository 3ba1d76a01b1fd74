//! The loop of the latency commands: one message after the other, with the time of each.

use std::time::{Duration, Instant};

use qp::{Completion, WcStatus};

use super::args::{Connection, Tool, Verb};
use super::bandwidth::now;
use super::progress::Progress;
use super::report::Delays;
use super::session::{RECEIVE, Session};
use super::stall::Stall;
use super::trouble;
use crate::cmd::Failure;

/// How often it is looked whether the other end is still there.
const LOOK: Duration = Duration::from_millis(100);
/// Polls in vain between two looks at the clock.
const IDLE: u32 = 1024;
const POLL: usize = 16;
const EVENT_WAIT: Duration = Duration::from_millis(100);

/// One end of a latency test of one size.
pub(super) struct Run<'a, 'b> {
    session: &'a Session<'b>,
    size: u32,
    iters: u64,
    /// Messages of which one is told of when it completes.
    cq_mod: u64,
    until: Option<Instant>,
    times: Vec<Instant>,
    /// Sends that have completed, and receives.
    completed: u64,
    received: u64,
    completions: Vec<Completion>,
    /// When it was last looked.
    looked: Instant,
    stall: Stall,
    /// Polls in vain since it was last looked.
    idle: u32,
    progress: Progress,
}

impl<'a, 'b> Run<'a, 'b> {
    pub(super) fn new(session: &'a Session<'b>, size: u32) -> Self {
        let args = session.args;
        let iters = args.duration.map_or(u64::from(args.iters(session.tool)), |_| u64::MAX);
        // READs and atomics are waited for one by one.
        let is_one_way = matches!(session.tool.verb, Verb::Send | Verb::Write);
        let cq_mod = if is_one_way { args.cq_mod(session.tool, size).into() } else { 1 };
        Self {
            session,
            size,
            iters,
            cq_mod,
            until: None,
            times: Vec::new(),
            completed: 0,
            received: 0,
            completions: Vec::with_capacity(POLL),
            looked: now(),
            stall: Stall::default(),
            idle: 0,
            progress: Progress::begin(if args.duration.is_some() { 0 } else { iters }),
        }
    }

    /// Runs to the end; gives the times between messages, and also, where it did not come to its end, why.
    pub(super) fn run(mut self) -> (Delays, Result<(), Failure>) {
        let args = self.session.args;
        self.until = args.duration.map(|seconds| now() + Duration::from_secs(seconds.into()));
        let Tool { verb, .. } = self.session.tool;
        let ended = match verb {
            Verb::Send => self.send(),
            Verb::Write => self.write(),
            Verb::Read | Verb::Atomic => self.ask(),
        };
        self.progress.end();
        // A message and its answer are two; a READ is one.
        let ways = if matches!(verb, Verb::Send | Verb::Write) { 2 } else { 1 };
        (Delays::new(self.size, &self.times, ways), ended)
    }

    /// Sends and receives in turns; the client first.
    fn send(&mut self) -> Result<(), Failure> {
        let client = self.session.is_client();
        let depth = u64::from(self.session.args.rx_depth(self.session.tool));
        let mut sent = 0;
        while sent < self.iters {
            if !client && !self.has_received(sent + 1)? {
                break;
            }
            self.post(sent)?;
            sent += 1;
            if client && !self.has_received(sent)? {
                break;
            }
            if sent - 1 + depth < self.iters {
                self.session.post_recv(0, sent - 1 + depth, self.session.longest())?;
            }
        }
        self.finish(sent)
    }

    /// Waits for so many messages; false where the time was over before.
    fn has_received(&mut self, count: u64) -> Result<bool, Failure> {
        while self.received < count {
            if self.is_over() {
                return Ok(false);
            }
            self.poll()?;
        }
        Ok(true)
    }

    /// Writes into the other end's memory and looks for its writes in one's own: the last byte counts. The server writes
    /// first.
    fn write(&mut self) -> Result<(), Failure> {
        let session = self.session;
        let last = self.size as usize - 1;
        let (own, target) = (session.source(0) + last, session.target(0) + last);
        let (mut sent, mut seen) = (0_u64, 0_u64);
        let failed = |error: qp::MrError| Failure::Failed(error.to_string());
        let mut byte = [0];
        while (sent < self.iters || seen < self.iters) && !self.is_over() {
            if seen < self.iters && (sent > 0 || session.is_client()) {
                seen += 1;
                loop {
                    self.poll()?;
                    session.mr.read_at(target, &mut byte).map_err(failed)?;
                    if byte == seen.to_le_bytes()[..1] {
                        break;
                    }
                    if self.is_over() {
                        return self.finish(sent);
                    }
                }
            }
            if sent < self.iters {
                session.mr.write_at(own, &(sent + 1).to_le_bytes()[..1]).map_err(failed)?;
                self.post(sent)?;
                sent += 1;
            }
        }
        self.finish(sent)
    }

    /// READs or atomics, one at a time.
    fn ask(&mut self) -> Result<(), Failure> {
        let mut sent = 0;
        while sent < self.iters && !self.is_over() {
            self.post(sent)?;
            sent += 1;
            self.finish(sent)?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| now() >= until)
    }

    fn post(&mut self, number: u64) -> Result<(), Failure> {
        let session = self.session;
        while number - self.completed >= u64::from(session.args.tx_depth(session.tool)) {
            self.poll()?;
        }
        let wr = session.message(0, number, self.size, number)?;
        let signals = (number + 1).is_multiple_of(self.cq_mod) || number + 1 == self.iters;
        let wr = if signals { wr.signaled() } else { wr };
        self.times.push(now());
        self.progress.at(number);
        session.pairs[0].qp.post_send(wr).map_err(|error| Failure::Failed(error.to_string()))
    }

    /// Waits until `sent` sends have completed.
    fn finish(&mut self, sent: u64) -> Result<(), Failure> {
        let over = self.is_over();
        while self.completed < sent && !over {
            self.poll()?;
        }
        Ok(())
    }

    /// Takes completions.
    fn poll(&mut self) -> Result<(), Failure> {
        let session = self.session;
        self.completions.clear();
        if session.args.events {
            self.completions = session.cq.wait(POLL, EVENT_WAIT);
        } else {
            session.cq.poll_into(POLL, &mut self.completions);
        }
        for wc in &self.completions {
            if wc.status != WcStatus::Success {
                return Err(trouble::failed(&session.device, wc, self.completed));
            }
            if wc.wr_id.value() & RECEIVE != 0 {
                self.received += 1;
                session.on_receive(0);
            } else {
                self.completed = wc.wr_id.value() + 1;
            }
        }
        if self.completions.is_empty() {
            self.look()?;
        }
        Ok(())
    }

    /// Nothing has come: it may be that nothing will.
    fn look(&mut self) -> Result<(), Failure> {
        let session = self.session;
        if session.interrupt.is_set() {
            return Err(Failure::Failed(format!("interrupted after {} messages", self.times.len())));
        }
        // The clock is read only now and then: this is where one spins.
        self.idle += 1;
        if self.idle < IDLE && !session.args.events {
            return Ok(());
        }
        self.idle = 0;
        let at = now();
        if at - self.looked < LOOK {
            return Ok(());
        }
        self.looked = at;
        let messages = self.times.len() as u64;
        self.stall.look(&session.device, messages + self.completed + self.received);
        if self.stall.is_still() && session.exchange.is_closed() {
            return Err(trouble::gone(&session.device, messages));
        }
        if session.args.connection != Connection::Rc && self.until.is_none() && self.stall.is_stuck() {
            return Err(trouble::lost(&session.device, messages));
        }
        self.stall.check(session, messages, messages - self.completed < self.cq_mod)
    }
}
