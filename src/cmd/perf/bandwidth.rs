//! The loop of the bandwidth commands: keeps every queue pair's queue full, and counts what completes.

use std::time::{Duration, Instant};

use qp::{Completion, WcStatus};

use super::args::{Connection, Verb};
use super::progress::Progress;
use super::report::Measured;
use super::session::{RECEIVE, Session};
use super::stall::Stall;
use super::trouble;
use crate::cmd::Failure;

/// Above so many messages no peak is looked for.
const MOST_FOR_PEAK: u64 = 20_000;
/// How long an unreliable receiver waits for more once the sender is done.
const LATE: Duration = Duration::from_millis(200);
/// How often it is looked whether the other end is still there.
const LOOK: Duration = Duration::from_millis(100);
/// Completions taken at a time.
const POLL: usize = 64;
const EVENT_WAIT: Duration = Duration::from_millis(100);
/// Messages after which the device is driven while there are more to post: what comes first is on its way meanwhile.
const DRIVE_AFTER: u64 = 1024;
/// Bits of a completion's mark that count the messages of its queue pair; those above name the queue pair.
const COUNT_BITS: u32 = 44;

/// What one end of a bandwidth test does in one size.
pub(super) struct Run<'a, 'b> {
    session: &'a Session<'b>,
    size: u32,
    /// Bytes of each receive: those of the longest message of all sizes.
    room: u32,
    /// Messages of each queue pair; `u64::MAX` where time counts.
    iters: u64,
    cq_mod: u64,
    tx_depth: u64,
    sends: bool,
    receives: bool,
    pairs: Vec<Counts>,
    /// Queue pairs that may have room for more sends.
    roomy: Vec<usize>,
    sent: u64,
    received: u64,
    posted_at: Vec<Instant>,
    completed_at: Vec<Instant>,
    keeps_times: bool,
    span: Option<Span>,
    start: Option<Instant>,
    end: Option<Instant>,
    completions: Vec<Completion>,
    stall: Stall,
    progress: Progress,
}

/// Messages of one queue pair.
#[derive(Clone, Copy, Default)]
struct Counts {
    /// It is among those that may have room.
    is_roomy: bool,
    posted: u64,
    completed: u64,
    received: u64,
}

/// The times of `-D`, once it has begun.
struct Span {
    margin: Duration,
    sample: Duration,
    /// Messages when the sample began and ended.
    first: Option<(Instant, u64)>,
    last: Option<(Instant, u64)>,
}

impl<'a, 'b> Run<'a, 'b> {
    /// One that sends, or receives, or both.
    pub(super) fn new(session: &'a Session<'b>, size: u32, sends: bool, receives: bool) -> Self {
        let (args, tool) = (session.args, session.tool);
        let iters = if args.duration.is_some() { u64::MAX } else { u64::from(args.iters(tool)) };
        let all = iters.saturating_mul(session.pairs.len() as u64);
        let span = args.duration.map(|seconds| Span {
            margin: Duration::from_secs(args.margin().into()),
            sample: Duration::from_secs((seconds - 2 * args.margin()).into()),
            first: None,
            last: None,
        });
        Self {
            session,
            size,
            room: session.longest(),
            iters,
            cq_mod: args.cq_mod(tool, size).into(),
            tx_depth: args.tx_depth(tool).into(),
            sends,
            receives,
            pairs: vec![Counts { is_roomy: true, ..Counts::default() }; session.pairs.len()],
            roomy: (0..session.pairs.len()).rev().collect(),
            sent: 0,
            received: 0,
            posted_at: Vec::new(),
            completed_at: Vec::new(),
            keeps_times: sends && !args.no_peak && span.is_none() && all <= MOST_FOR_PEAK,
            progress: Progress::begin(if span.is_some() { 0 } else { all }),
            span,
            start: None,
            end: None,
            completions: Vec::with_capacity(POLL),
            stall: Stall::default(),
        }
    }

    /// Runs to the end; gives what was measured, and also, where it did not come to its end, why.
    pub(super) fn run(mut self) -> (Measured, Result<(), Failure>) {
        let ended = self.go();
        self.progress.end();
        (self.measured(), ended)
    }

    fn go(&mut self) -> Result<(), Failure> {
        let mut quiet = now();
        loop {
            // A server that also sends begins when it has heard of the client.
            if self.sends && (self.session.is_client() || !self.receives || self.received > 0) {
                self.post()?;
            }
            let some = self.poll()?;
            let at = now();
            if self.is_done(at) {
                return Ok(());
            }
            if self.session.interrupt.is_set() {
                let done = if self.sends { self.sent } else { self.received };
                return Err(Failure::Failed(format!("interrupted after {done} messages")));
            }
            self.progress.at(self.sent.max(self.received));
            if some {
                quiet = at;
            } else if at - quiet > LOOK {
                quiet = at;
                if self.look(at)? {
                    return Ok(());
                }
            }
        }
    }

    /// Nothing has happened for a while: true where nothing more will.
    fn look(&mut self, at: Instant) -> Result<bool, Failure> {
        let session = self.session;
        let messages = self.sent.max(self.received);
        if session.exchange.is_closed() {
            return Err(trouble::gone(&session.device, messages));
        }
        self.stall.look(&session.device, self.sent + self.received);
        // What an unreliable sender has sent and has not come will not come; nor will what a duration cut off.
        let unreliable = session.args.connection != Connection::Rc || self.span.is_some();
        let late = self.end.or(self.start).is_none_or(|last| at - last > LATE);
        let sends_done = !self.sends || self.pairs.iter().all(|pair| pair.completed >= self.iters);
        // Where both ends have lost something, each waits for the other.
        let both_wait = || self.sends && self.received > 0 && self.stall.is_lost();
        if unreliable
            && self.receives
            && sends_done
            && late
            && (session.exchange.is_waited_for() || both_wait())
        {
            return Ok(true);
        }
        let incoming = self.receives && self.received < self.all();
        if incoming && self.received == 0 && self.sent >= self.all() && self.stall.is_stuck() {
            return Err(trouble::silent(&session.device, messages));
        }
        self.stall.check(session, messages, incoming)?;
        Ok(false)
    }

    /// Messages of all queue pairs in one direction.
    fn all(&self) -> u64 {
        self.iters.saturating_mul(self.pairs.len() as u64)
    }

    fn is_done(&mut self, at: Instant) -> bool {
        let count = if self.sends {
            self.sent + if self.receives { self.received } else { 0 }
        } else {
            self.received
        };
        if let Some(span) = &mut self.span {
            let Some(start) = self.start else { return false };
            let past = at - start;
            if span.first.is_none() && past >= span.margin {
                span.first = Some((at, count));
            }
            if span.last.is_none() && past >= span.margin + span.sample {
                span.last = Some((at, count));
            }
            return past >= 2 * span.margin + span.sample;
        }
        let all = self.all();
        (!self.sends || self.sent >= all) && (!self.receives || self.received >= all)
    }

    /// Fills every queue.
    fn post(&mut self) -> Result<(), Failure> {
        let list = u64::from(self.session.args.post_list);
        let mut undriven = 0;
        while let Some(index) = self.roomy.pop() {
            self.pairs[index].is_roomy = false;
            loop {
                let Counts { posted, completed, .. } = self.pairs[index];
                let room = (self.tx_depth - (posted - completed)).min(self.iters - posted);
                // A list is posted whole, but for the last.
                if room == 0 || room < list && room < self.iters - posted && posted > completed {
                    break;
                }
                let count = room.min(list);
                self.post_list(index, count)?;
                undriven += count;
                if undriven >= DRIVE_AFTER {
                    undriven = 0;
                    self.session.device.drive();
                }
            }
        }
        if undriven > 0 {
            self.session.device.drive();
        }
        Ok(())
    }

    fn post_list(&mut self, index: usize, count: u64) -> Result<(), Failure> {
        let qp = &self.session.pairs[index].qp;
        for place in 1..=count {
            let number = self.pairs[index].posted;
            let after = number + 1;
            let wr = self.session.message(index, number, self.size, (index as u64) << COUNT_BITS | after)?;
            // The last of a list completes too, or there might never be room for another whole list.
            let signals = after.is_multiple_of(self.cq_mod)
                || after == self.iters
                || place == count && self.session.args.post_list > 1;
            let wr = if signals { wr.signaled() } else { wr };
            if self.start.is_none() || self.keeps_times {
                let at = now();
                self.start.get_or_insert(at);
                if self.keeps_times {
                    self.posted_at.push(at);
                }
            }
            self.pairs[index].posted = after;
            qp.post_send_later(wr).map_err(|error| Failure::Failed(error.to_string()))?;
        }
        Ok(())
    }

    /// Takes completions; true where there were any.
    fn poll(&mut self) -> Result<bool, Failure> {
        self.completions.clear();
        let cq = &self.session.cq;
        if self.session.args.events {
            self.completions = cq.wait(POLL, EVENT_WAIT);
        } else {
            cq.poll_into(POLL, &mut self.completions);
        }
        if self.completions.is_empty() {
            return Ok(false);
        }
        let at = now();
        let completions = std::mem::take(&mut self.completions);
        for wc in &completions {
            if wc.status != WcStatus::Success {
                return Err(trouble::failed(&self.session.device, wc, self.sent.max(self.received)));
            }
            let mark = wc.wr_id.value();
            if mark & RECEIVE != 0 {
                self.on_receive(usize::try_from(mark & !RECEIVE).unwrap_or(0), at)?;
            } else {
                self.on_sent(mark, at);
            }
        }
        if self.receives {
            // All may have come at once: then the time of taking them is all there is.
            self.end = Some(now());
        }
        self.completions = completions;
        Ok(true)
    }

    fn on_sent(&mut self, mark: u64, at: Instant) {
        let index = usize::try_from(mark >> COUNT_BITS).unwrap_or(0);
        let pair = &mut self.pairs[index];
        if !pair.is_roomy {
            pair.is_roomy = true;
            self.roomy.push(index);
        }
        let upto = mark & ((1 << COUNT_BITS) - 1);
        let count = upto - pair.completed;
        pair.completed = upto;
        self.sent += count;
        self.end = Some(at);
        if self.keeps_times {
            self.completed_at.extend((0..count).map(|_| at));
        }
    }

    fn on_receive(&mut self, index: usize, at: Instant) -> Result<(), Failure> {
        self.start.get_or_insert(at);
        self.received += 1;
        self.session.on_receive(index);
        let depth = u64::from(self.session.args.rx_depth(self.session.tool));
        let pair = &mut self.pairs[index];
        pair.received += 1;
        let next = pair.received - 1 + depth;
        if next < self.iters {
            self.session.post_recv(index, next, self.room)?;
        }
        Ok(())
    }

    fn measured(&self) -> Measured {
        let gone_by = self.start.zip(self.end).map_or(Duration::ZERO, |(start, end)| end - start);
        let count = if self.sends { self.sent } else { self.received };
        let (count, time) = match &self.span {
            Some(Span { first: Some((from, before)), last: Some((to, after)), .. }) => {
                (after - before, *to - *from)
            }
            _ => (count, gone_by),
        };
        Measured { size: self.size, iterations: count, seconds: time.as_secs_f64(), peak: self.peak() }
    }

    /// Seconds of a message in the best stretch: between any posting and any later completion.
    fn peak(&self) -> Option<f64> {
        let best = |from: usize| {
            let posted = self.posted_at[from];
            let ends = self.completed_at.iter().skip(from).enumerate();
            ends.map(move |(n, at)| (*at - posted).as_secs_f64() / (n + 1) as f64)
        };
        let stretches = (0..self.completed_at.len().min(self.posted_at.len())).flat_map(best);
        stretches.min_by(f64::total_cmp).filter(|seconds| *seconds > 0.0)
    }
}

/// Whether what arrived is what the other end sent or had: the places that were used, of every queue pair.
pub(super) fn verify(session: &Session<'_>, size: u32, iters: u64) -> Result<(), Failure> {
    let (step, places) = session.places(size);
    let brings = session.tool.verb == Verb::Read;
    for index in 0..session.pairs.len() {
        for place in 0..iters.min(places.into()) {
            let offset = usize::try_from(place).unwrap_or(0) * step as usize;
            let at = offset + if brings { session.source(index) } else { session.target(index) };
            let got =
                session.mr.to_vec(at..at + size as usize).map_err(|e| Failure::Failed(e.to_string()))?;
            if let Some(wrong) = (0..got.len()).find(|i| got[*i] != pattern(index, offset + i)) {
                return Err(Failure::Failed(format!(
                    "wrong data from queue pair {index}, byte {wrong} of {size}: was --verify given at both ends?"
                )));
            }
        }
    }
    Ok(())
}

/// Byte `at` of what queue pair `index` sends, or has for the other end to read.
pub(super) fn pattern(index: usize, at: usize) -> u8 {
    #[expect(clippy::cast_possible_truncation, reason = "any byte that depends on both does")]
    let byte = (at.wrapping_mul(31) ^ (at >> 8).wrapping_mul(17)).wrapping_add(index * 7 + 1) as u8;
    byte
}

#[expect(clippy::disallowed_methods, reason = "real time is what is measured")]
pub(super) fn now() -> Instant {
    Instant::now()
}
