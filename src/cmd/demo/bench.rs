//! A row of the demo's table at a time: data put in place, moved, and looked at.

use std::ops::Range;
use std::time::{Duration, Instant};

use driver_shim::Device;
use qp::{Access, Completion, MwRange, Placement, RecvWr, SendWr, WcStatus};
use wire::RKey;

use super::ends::{End, connect};
use super::plan::{Op, Trial, Way};
use crate::cmd::Failure;
use crate::cmd::interrupt::Interrupt;

/// Room for the longest message, and bytes around it that must stay as they are.
const GUARD: usize = 64;
pub(super) const ROOM: usize = (1 << 20) + 2 * GUARD;
/// Work requests that may wait at an end.
pub(super) const DEPTH: u32 = 64;
/// What a datagram's network header takes in front of it.
const GRH: usize = 40;
/// A row does not go on for so long without a completion, unless faults are injected and retries run out.
const PATIENCE: Duration = Duration::from_secs(20);
/// An unreliable message that has not come for so long is lost, and sent again.
const LOST: Duration = Duration::from_millis(300);
/// How often an unreliable message is sent at most.
const TRIES: u32 = 20;
const IMM: [u8; 4] = [0xFE, 0x44, 0x0C, 0xE2];

/// A row of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) trial: Trial,
    pub(super) bytes: usize,
    pub(super) operations: usize,
    pub(super) seconds: f64,
    /// What was wrong, if anything.
    pub(super) fault: Option<String>,
}

impl Row {
    pub(super) const fn verified(&self) -> bool {
        self.fault.is_none()
    }

    /// Payload throughput.
    pub(super) fn gbit_per_s(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 * 8.0 / self.seconds / 1e9 } else { 0.0 }
    }
}

/// Both ends of one way, connected.
pub(super) struct Bench {
    way: Way,
    near: End,
    far: End,
    round: u8,
}

impl Bench {
    pub(super) fn new(devices: &[Device; 2], way: Way) -> Result<Self, Failure> {
        let (near, far) = connect(devices, way)?;
        Ok(Self { way, near, far, round: 0 })
    }

    pub(super) const fn way(&self) -> Way {
        self.way
    }

    /// Makes a row, and checks it. Where it does not verify, no other can be made with these ends: something of it
    /// may be under way.
    pub(super) fn measure(&mut self, trial: Trial, interrupt: &Interrupt) -> Row {
        let Trial { op, amount, .. } = trial;
        self.round = self.round.wrapping_add(1);
        let start = now();
        let mut run = Run { bench: self, interrupt, start, progress: start, seconds: 0.0 };
        let result = if op.is_atomic() { run.atomics(op, amount) } else { run.message(op, amount) };
        Row {
            trial,
            bytes: if op.is_atomic() { amount * 8 } else { amount },
            operations: if op.is_atomic() { amount } else { 1 },
            seconds: run.seconds,
            fault: result.err(),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the demo measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// One row being made.
struct Run<'a> {
    bench: &'a Bench,
    interrupt: &'a Interrupt,
    start: Instant,
    /// When something completed last.
    progress: Instant,
    seconds: f64,
}

type Outcome = Result<(), String>;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Run<'_> {
    fn begin(&mut self) {
        self.start = now();
        self.progress = self.start;
    }

    /// A message of `size` bytes; for READ it comes from the far end, else it goes there.
    fn message(&mut self, op: Op, size: usize) -> Outcome {
        let Bench { near, far, round, way } = self.bench;
        let (source, target) = if op == Op::Read { (far, near) } else { (near, far) };
        let data = pattern(*round, size);
        let mut expected = vec![!*round; size + 2 * GUARD];
        source.mr.write_at(GUARD, &data).map_err(text)?;
        target.mr.write_at(0, &expected).map_err(text)?;
        let place = GUARD..GUARD + size;
        expected[place.clone()].copy_from_slice(&data);
        let header = if *way == Way::Ud { GRH } else { 0 };
        if op.receives() {
            let room = far.mr.slice(GUARD - header..place.end).map_err(text)?;
            let sges = if op == Op::WriteImm { &[][..] } else { &[room] };
            far.post_recv(RecvWr::new(1, sges)).map_err(text)?;
        }
        let va = far.mr.addr_at(GUARD);
        let rkey = if *way == Way::Window { self.open(far, place.clone())? } else { far.mr.rkey() };
        let local = near.mr.slice(place).map_err(text)?;
        let wr = match op {
            Op::Send => SendWr::send(2, &[local]),
            Op::SendImm => SendWr::send_imm(2, &[local], IMM),
            Op::Write => SendWr::write(2, &[local], va, rkey),
            Op::WriteImm => SendWr::write_imm(2, &[local], va, rkey, IMM),
            Op::SendInv => SendWr::send_inv(2, &[local], rkey),
            Op::Flush => {
                // What is flushed is what a WRITE before it has put there.
                near.post_send(SendWr::write(1, &[local], va, rkey)).map_err(text)?;
                let length = u32::try_from(size).map_err(text)?;
                SendWr::flush(2, va, rkey, length, Placement::GLOBAL)
            }
            _ => SendWr::read(2, &[local], va, rkey),
        };
        self.begin();
        let received = self.send(&wr, op, &expected)?;
        self.seconds = self.start.elapsed().as_secs_f64();
        // A SEND with invalidate has closed the window already.
        if *way == Way::Window && op != Op::SendInv {
            self.do_at(far, SendWr::local_inv(4, rkey))?;
        }
        if let Some(wc) = received {
            if wc.invalidated != (op == Op::SendInv).then_some(rkey) {
                return Err(format!("the key invalidated is {:?}", wc.invalidated));
            }
            if wc.byte_len as usize != header + size {
                return Err(format!("{} bytes were received", wc.byte_len));
            }
            if wc.imm != matches!(op, Op::SendImm | Op::WriteImm).then_some(IMM) {
                return Err(format!("the immediate data are {:?}", wc.imm));
            }
        }
        let mut found = target.mr.to_vec(0..expected.len()).map_err(text)?;
        // The network header lies where the guard is.
        let overwritten = GUARD - header..GUARD;
        found[overwritten.clone()].copy_from_slice(&expected[overwritten]);
        same(&found, &expected)
    }

    /// Opens the far end's window on `place`; gives its key.
    fn open(&mut self, far: &End, place: Range<usize>) -> Result<RKey, String> {
        let (va, length) = (far.mr.addr_at(place.start), place.len() as u64);
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let range = MwRange { mr: far.mr.lkey(), va, length, access };
        let variant = self.bench.round;
        self.do_at(far, far.window.bind(3, variant, &range))?;
        Ok(far.window.rkey(variant))
    }

    /// Posts a work request that stays at `end`, and waits for its completion.
    fn do_at(&mut self, end: &End, wr: SendWr) -> Outcome {
        end.post_send(wr).map_err(text)?;
        while self.completions(end)?.is_empty() {
            self.check_patience()?;
        }
        Ok(())
    }

    /// Sends `wr` until it has arrived: once, where the transport sees to that. Gives the receive's completion.
    fn send(&mut self, wr: &SendWr, op: Op, expected: &[u8]) -> Result<Option<Completion>, String> {
        let Bench { near, far, way, .. } = self.bench;
        for _ in 0..TRIES {
            near.post_send(wr.clone()).map_err(text)?;
            let sent = now();
            let (mut done, mut received) = (false, None);
            loop {
                done |= self.completions(near)?.iter().any(|wc| wc.wr_id == wr.wr_id);
                far.drive();
                if op.receives() {
                    received = self.completions(far)?.first().copied().or(received);
                }
                // Nobody says when an unreliable WRITE has arrived: its bytes do.
                let arrived = if op.receives() {
                    received.is_some()
                } else {
                    !way.loses() || far.mr.to_vec(0..expected.len()).is_ok_and(|found| found == expected)
                };
                if done && arrived {
                    return Ok(received);
                }
                self.check_patience()?;
                if way.loses() && sent.elapsed() > LOST {
                    break;
                }
            }
        }
        Err(format!("lost {TRIES} times"))
    }

    /// `count` atomics on words of their own. Every word and every value returned is checked.
    fn atomics(&mut self, op: Op, count: usize) -> Outcome {
        let Bench { near, far, round, .. } = self.bench;
        let word = |i: usize| (u64::from(*round) << 56) | (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
        // Every second comparison fails, and then nothing may be stored.
        let compare = |i: usize| word(i) ^ (i as u64 & 1);
        let stored = |i: usize| match op {
            Op::CmpSwap if compare(i) != word(i) => word(i),
            Op::CmpSwap | Op::AtomicWrite => !word(i),
            _ => word(i).wrapping_add(i as u64 + 1),
        };
        let bytes = |value: &dyn Fn(usize) -> u64| {
            (0..count).flat_map(|i| value(i).to_ne_bytes()).collect::<Vec<u8>>()
        };
        let (before, after) = (bytes(&word), bytes(&stored));
        far.mr.write_at(0, &before).map_err(text)?;
        // What is to be stored comes from here, or what was found goes here.
        let (here, returned) =
            if op == Op::AtomicWrite { (after.clone(), &after) } else { (vec![0; before.len()], &before) };
        near.mr.write_at(0, &here).map_err(text)?;
        self.begin();
        let (mut posted, mut done) = (0, 0);
        while done < count {
            while posted < count && posted - done < DEPTH as usize {
                let (id, at) = (posted as u64, posted * 8);
                let (local, va) = (near.mr.slice(at..at + 8).map_err(text)?, far.mr.addr_at(at));
                let rkey = far.mr.rkey();
                let wr = match op {
                    Op::CmpSwap => SendWr::cmp_swap(id, local, va, rkey, compare(posted), !word(posted)),
                    Op::AtomicWrite => SendWr::atomic_write(id, local, va, rkey),
                    _ => SendWr::fetch_add(id, local, va, rkey, id + 1),
                };
                near.post_send(wr).map_err(text)?;
                posted += 1;
            }
            done += self.completions(near)?.len();
            self.check_patience()?;
            far.drive();
        }
        self.seconds = self.start.elapsed().as_secs_f64();
        same(&near.mr.to_vec(0..before.len()).map_err(text)?, returned)?;
        same(&far.mr.to_vec(0..after.len()).map_err(text)?, &after)
    }

    fn completions(&mut self, end: &End) -> Result<Vec<Completion>, String> {
        let found = end.cq.poll(DEPTH as usize);
        if !found.is_empty() {
            self.progress = now();
        }
        match found.iter().find(|wc| wc.status != WcStatus::Success) {
            Some(failed) => Err(format!("completed with {}", failed.status)),
            None => Ok(found),
        }
    }

    fn check_patience(&self) -> Outcome {
        if self.interrupt.is_set() {
            return Err("interrupted".into());
        }
        if self.progress.elapsed() > PATIENCE {
            return Err(format!("nothing completed for {PATIENCE:?}"));
        }
        Ok(())
    }
}

/// Bytes that tell their place and round.
#[expect(clippy::cast_possible_truncation, reason = "the low bits are the pattern")]
fn pattern(round: u8, size: usize) -> Vec<u8> {
    (0..size).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ round).collect()
}

fn same(found: &[u8], expected: &[u8]) -> Outcome {
    match found.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} is {:#04x}, not {:#04x}", found[at], expected[at])),
    }
}
