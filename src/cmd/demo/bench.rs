//! The demo's two ends: one queue pair each, and a row of the table at a time.

use std::time::{Duration, Instant};

use driver_shim::{CompletionQueue, ConnectOptions, Device, MemoryRegion, QueuePair};
use qp::{Access, Completion, QpType, RecvWr, SendWr, WcStatus};

use super::Op;
use crate::cmd::Failure;
use crate::cmd::interrupt::Interrupt;

/// Room for the longest message, and bytes around it that must stay as they are.
const GUARD: usize = 64;
const ROOM: usize = (1 << 20) + 2 * GUARD;
const DEPTH: u32 = 64;
const READS: u8 = 16;
/// A row does not go on for so long without a completion, unless faults are injected and retries run out.
const PATIENCE: Duration = Duration::from_secs(20);
const IMM: [u8; 4] = [0xFE, 0x44, 0x0C, 0xE2];

/// A row of the table.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) op: Op,
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

/// One end.
struct End {
    cq: CompletionQueue,
    mr: MemoryRegion,
    qp: QueuePair,
}

/// Both ends, connected.
pub(super) struct Bench {
    devices: [Device; 2],
    near: End,
    far: End,
    round: u8,
}

impl Bench {
    pub(super) fn new(devices: &[Device; 2]) -> Result<Self, Failure> {
        let [a, b] = devices;
        let options = ConnectOptions {
            path_mtu: a.active_mtu().min(b.active_mtu()),
            max_rd_atomic: READS,
            max_dest_rd_atomic: READS,
            ..ConnectOptions::default()
        };
        let make = |device: &Device| -> Result<_, Box<dyn std::error::Error>> {
            let pd = device.alloc_pd();
            let cq = device.create_cq(256)?;
            let rights =
                Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let mr = pd.register(vec![0; ROOM], rights)?;
            let qp = pd
                .create_qp(QpType::Rc, &cq, &cq)
                .max_send_wr(DEPTH)
                .max_recv_wr(DEPTH)
                .signal_all()
                .build()?;
            Ok((cq, mr, qp))
        };
        let connect = || -> Result<Self, Box<dyn std::error::Error>> {
            let (near, far) = (make(a)?, make(b)?);
            let (near_end, far_end) = (near.2.endpoint(1), far.2.endpoint(1));
            Ok(Self {
                devices: devices.clone(),
                near: End { cq: near.0, mr: near.1, qp: near.2.connect(far_end, &options)? },
                far: End { cq: far.0, mr: far.1, qp: far.2.connect(near_end, &options)? },
                round: 0,
            })
        };
        connect().map_err(|error| Failure::Failed(error.to_string()))
    }

    /// Runs `amount` bytes, or atomics, of `op`, and checks them. A row that fails takes its connection with it, so
    /// that none of its operations is left to the next.
    ///
    /// # Errors
    /// When there is no other connection.
    pub(super) fn measure(&mut self, op: Op, amount: usize, interrupt: &Interrupt) -> Result<Row, Failure> {
        self.round = self.round.wrapping_add(1);
        let atomic = matches!(op, Op::CmpSwap | Op::FetchAdd);
        let start = now();
        let mut run = Run { bench: self, interrupt, start, progress: start, seconds: 0.0 };
        let result = if atomic { run.atomics(op, amount) } else { run.message(op, amount) };
        let seconds = run.seconds;
        if result.is_err() {
            *self = Self { round: self.round, ..Self::new(&self.devices)? };
        }
        Ok(Row {
            op,
            bytes: if atomic { amount * 8 } else { amount },
            operations: if atomic { amount } else { 1 },
            seconds,
            fault: result.err(),
        })
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
        let Bench { near, far, round, .. } = self.bench;
        let (source, target) = if op == Op::Read { (far, near) } else { (near, far) };
        let data = pattern(*round, size);
        let blank = vec![!*round; size + 2 * GUARD];
        source.mr.write_at(GUARD, &data).map_err(text)?;
        target.mr.write_at(0, &blank).map_err(text)?;
        let place = GUARD..GUARD + size;
        let (local, va, rkey) =
            (near.mr.slice(place.clone()).map_err(text)?, far.mr.addr_at(GUARD), far.mr.rkey());
        let receives = matches!(op, Op::Send | Op::SendImm | Op::WriteImm);
        if receives {
            let sges =
                if op == Op::WriteImm { vec![] } else { vec![far.mr.slice(place.clone()).map_err(text)?] };
            far.qp.post_recv(RecvWr::new(1, &sges)).map_err(text)?;
        }
        let wr = match op {
            Op::Send => SendWr::send(2, &[local]),
            Op::SendImm => SendWr::send_imm(2, &[local], IMM),
            Op::Write => SendWr::write(2, &[local], va, rkey),
            Op::WriteImm => SendWr::write_imm(2, &[local], va, rkey, IMM),
            _ => SendWr::read(2, &[local], va, rkey),
        };
        self.begin();
        near.qp.post_send(wr).map_err(text)?;
        let received = self.wait(near, 1, receives.then_some(far))?;
        self.seconds = self.start.elapsed().as_secs_f64();
        if let Some(wc) = received {
            if wc.byte_len as usize != size {
                return Err(format!("{} bytes were received", wc.byte_len));
            }
            if wc.imm != matches!(op, Op::SendImm | Op::WriteImm).then_some(IMM) {
                return Err(format!("the immediate data are {:?}", wc.imm));
            }
        }
        let mut expected = blank;
        expected[place].copy_from_slice(&data);
        let found = target.mr.to_vec(0..expected.len()).map_err(text)?;
        same(&found, &expected)
    }

    /// `count` atomics on words of their own. Every word and every value returned is checked.
    fn atomics(&mut self, op: Op, count: usize) -> Outcome {
        let Bench { near, far, round, .. } = self.bench;
        let word = |i: usize| (u64::from(*round) << 56) | (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
        // Every second comparison fails, and then nothing may be stored.
        let compare = |i: usize| word(i) ^ (i as u64 & 1);
        let before: Vec<u8> = (0..count).flat_map(|i| word(i).to_ne_bytes()).collect();
        far.mr.write_at(0, &before).map_err(text)?;
        near.mr.write_at(0, &vec![0; before.len()]).map_err(text)?;
        self.begin();
        let (mut posted, mut done) = (0, 0);
        while done < count {
            while posted < count && posted - done < DEPTH as usize {
                let at = posted * 8;
                let (local, va) = (near.mr.slice(at..at + 8).map_err(text)?, far.mr.addr_at(at));
                let wr = match op {
                    Op::CmpSwap => SendWr::cmp_swap(
                        posted as u64,
                        local,
                        va,
                        far.mr.rkey(),
                        compare(posted),
                        !word(posted),
                    ),
                    _ => SendWr::fetch_add(posted as u64, local, va, far.mr.rkey(), posted as u64 + 1),
                };
                near.qp.post_send_later(wr).map_err(text)?;
                posted += 1;
            }
            done += self.completions(near)?.len();
            self.check_patience()?;
            far.cq.device().drive();
        }
        self.seconds = self.start.elapsed().as_secs_f64();
        let after: Vec<u8> = (0..count)
            .flat_map(|i| {
                let value = match op {
                    Op::CmpSwap if compare(i) == word(i) => !word(i),
                    Op::CmpSwap => word(i),
                    _ => word(i).wrapping_add(i as u64 + 1),
                };
                value.to_ne_bytes()
            })
            .collect();
        same(&near.mr.to_vec(0..before.len()).map_err(text)?, &before)?;
        same(&far.mr.to_vec(0..after.len()).map_err(text)?, &after)
    }

    /// Waits for `sends` completions at `near`, and for one receive at `far` where there is to be one.
    fn wait(&mut self, near: &End, sends: usize, far: Option<&End>) -> Result<Option<Completion>, String> {
        let (mut sent, mut received) = (0, None);
        while sent < sends || far.is_some() && received.is_none() {
            sent += self.completions(near)?.len();
            match far {
                Some(far) => received = self.completions(far)?.first().copied().or(received),
                // Somebody has to answer.
                None => self.bench.far.cq.device().drive(),
            }
            self.check_patience()?;
        }
        Ok(received)
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
