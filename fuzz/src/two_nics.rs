//! Two NICs with one connection over a link that loses, repeats, reorders and damages packets, driven by a sequence
//! of operations that the input spells.
//!
//! On an honest link (damage is left for the ICRC to find) every message must arrive as it was sent, once and in
//! order, every atomic must be executed once, and every work request must complete as it should. On a hostile link
//! damaged packets get a right ICRC; then only what no peer may break is asked for: no panic, completions once each
//! and in order, and no byte changed that peers may not write.

use arbitrary::{Arbitrary, Unstructured};
use qp::{QpState, SendFlags};
use wire::{Duration, Instant, Mtu, Psn};

mod end;
mod link;
mod model;

use end::{End, Limits};
use link::Link;

/// What is fixed before the first step.
#[derive(Arbitrary, Debug)]
struct Setup {
    hostile: bool,
    mtu: u8,
    psns: [u32; 2],
    depths: [u8; 2],
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    window: u8,
    max_segments: u8,
}

/// The two ends of the connection.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// Operations that can be posted.
#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CmpSwap,
    FetchAdd,
}

/// One operation of the sequence.
#[derive(Debug)]
enum Step {
    /// Posts a send: `at` is where in the source its data lie, or the operand of an atomic.
    Post { side: Side, work: Work, len: u16, at: u16, signaled: bool, fenced: bool, inline: bool },
    /// Posts receives.
    Receive { side: Side, count: u8 },
    /// Delivers the oldest packets that are on the way to a side, all in one burst or each alone.
    Deliver { to: Side, count: u8, together: bool },
    /// Loses a packet.
    Lose { to: Side, at: u8 },
    /// Repeats a packet, behind all others.
    Repeat { to: Side, at: u8 },
    /// Moves a packet behind all others.
    Delay { to: Side, at: u8 },
    /// Turns bits of a packet.
    Damage { to: Side, at: u8, byte: u16, mask: u8 },
    /// Lets time pass.
    Wait { micros: u16 },
    /// Stops starting sends.
    Drain { side: Side },
    /// Starts sends again.
    Resume { side: Side },
    /// Puts a queue pair into the error state.
    Fail { side: Side },
}

impl Step {
    /// The next operation that `input` spells: work and packets often, faults less, and rarely an end.
    fn read(input: &mut Unstructured<'_>) -> arbitrary::Result<Self> {
        let (kind, side) = (input.int_in_range(0..=63)?, input.arbitrary()?);
        let at = input.arbitrary::<u16>()?;
        let [a, mask] = at.to_be_bytes();
        Ok(match kind {
            0..=19 => Self::Post {
                side,
                work: input.arbitrary()?,
                len: input.arbitrary()?,
                at,
                signaled: input.arbitrary()?,
                fenced: input.ratio(1, 4)?,
                inline: input.ratio(1, 4)?,
            },
            20..=23 => Self::Receive { side, count: a },
            24..=41 => Self::Deliver { to: side, count: a, together: mask & 1 == 1 },
            42..=47 => Self::Lose { to: side, at: a % 8 },
            48..=51 => Self::Repeat { to: side, at: a % 8 },
            52..=54 => Self::Delay { to: side, at: a % 8 },
            55..=56 => Self::Damage { to: side, at: a % 8, byte: input.arbitrary()?, mask },
            57..=60 => Self::Wait { micros: at % 2048 },
            61 => Self::Drain { side },
            62 => Self::Resume { side },
            _ if mask % 4 == 0 => Self::Fail { side },
            _ => Self::Wait { micros: at },
        })
    }
}

/// More steps than any input needs to be interesting.
const MAX_STEPS: usize = 400;

/// More rounds than any honest or hostile sequence takes to come to rest.
const MAX_ROUNDS: usize = 200_000;

/// Runs the sequence that `data` spells, lets everything come to rest on a link without faults, and checks what has
/// become of it.
pub fn two_nics(data: &[u8]) {
    let mut input = Unstructured::new(data);
    let Ok(setup) = Setup::arbitrary(&mut input) else { return };
    let mut world = World::new(&setup);
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        let Ok(step) = Step::read(&mut input) else { break };
        world.step(&step);
    }
    world.finish();
}

struct World {
    now: Instant,
    hostile: bool,
    left: End,
    right: End,
    /// Packets on their way to the left and to the right.
    to_left: Link,
    to_right: Link,
}

impl World {
    fn new(setup: &Setup) -> Self {
        let limits = |depth: u8, peer_depth: u8| Limits {
            mtu: Mtu::from_code(setup.mtu % 5 + 1).unwrap_or(Mtu::B1024),
            max_rd_atomic: depth % 5,
            max_dest_rd_atomic: peer_depth % 5,
            // Codes 1 to 10: 8 µs to 4 ms. Without a timeout a lost packet could never be missed.
            timeout: setup.timeout % 10 + 1,
            retry_cnt: setup.retry_cnt % 8,
            rnr_retry: setup.rnr_retry % 8,
            window: u32::from(setup.window) + 1,
            max_segments: usize::from(setup.max_segments) + 1,
        };
        let mut left = End::new(1, &limits(setup.depths[0], setup.depths[1]));
        let mut right = End::new(2, &limits(setup.depths[1], setup.depths[0]));
        let psns = setup.psns.map(Psn::new);
        left.connect(&right.address(), psns[0], psns[1]);
        right.connect(&left.address(), psns[1], psns[0]);
        Self {
            now: Instant::ZERO,
            hostile: setup.hostile,
            left,
            right,
            to_left: Link::default(),
            to_right: Link::default(),
        }
    }

    fn end(&mut self, side: Side) -> &mut End {
        match side {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        }
    }

    fn link(&mut self, to: Side) -> &mut Link {
        match to {
            Side::Left => &mut self.to_left,
            Side::Right => &mut self.to_right,
        }
    }

    fn step(&mut self, step: &Step) {
        let now = self.now;
        match *step {
            Step::Post { side, work, len, at, signaled, fenced, inline } => {
                let mut flags = SendFlags::empty();
                flags.set(SendFlags::SIGNALED, signaled);
                flags.set(SendFlags::FENCE, fenced);
                flags.set(SendFlags::SOLICITED, at & 1 == 1);
                self.post(side, work, len, at, flags, inline);
            }
            Step::Receive { side, count } => {
                for _ in 0..count % 16 {
                    self.end(side).post_recv(now);
                }
            }
            Step::Deliver { to, count, together } => self.deliver(to, usize::from(count % 64) + 1, together),
            Step::Lose { to, at } => self.link(to).lose(at.into()),
            Step::Repeat { to, at } => self.link(to).repeat(at.into()),
            Step::Delay { to, at } => self.link(to).delay(at.into()),
            Step::Damage { to, at, byte, mask } => {
                let refill = self.hostile;
                self.link(to).damage(at.into(), byte.into(), mask.max(1), refill);
            }
            Step::Wait { micros } => self.wait_until(now + Duration::from_micros(micros.into())),
            Step::Drain { side } => self.end(side).go_to(now, QpState::Sqd),
            Step::Resume { side } => self.end(side).go_to(now, QpState::Rts),
            Step::Fail { side } => self.end(side).go_to(now, QpState::Err),
        }
        self.pump();
    }

    fn post(&mut self, side: Side, work: Work, len: u16, at: u16, flags: SendFlags, inline: bool) {
        let now = self.now;
        let (end, peer) = match side {
            Side::Left => (&mut self.left, &mut self.right),
            Side::Right => (&mut self.right, &mut self.left),
        };
        end.post_send(now, peer, work, len, at, flags, inline);
    }

    /// Sends what the NICs have to send, and sees to what has completed.
    fn pump(&mut self) {
        for side in [Side::Left, Side::Right] {
            let now = self.now;
            let mut packets = Vec::new();
            self.end(side).transmit(now, &mut packets);
            self.link(side.other()).extend(packets);
        }
        self.collect();
    }

    fn collect(&mut self) {
        self.left.collect(&mut self.right, self.hostile);
        self.right.collect(&mut self.left, self.hostile);
    }

    fn deliver(&mut self, to: Side, count: usize, together: bool) {
        let now = self.now;
        let packets = self.link(to).take(count);
        if together {
            self.end(to).receive(now, &packets);
            self.collect();
        } else {
            for packet in packets {
                self.end(to).receive(now, core::slice::from_ref(&packet));
                self.collect();
            }
        }
    }

    fn wait_until(&mut self, at: Instant) {
        self.now = at;
        self.left.pass_time(at);
        self.right.pass_time(at);
        self.collect();
    }

    /// Lets everything come to rest, and checks the whole.
    fn finish(&mut self) {
        for side in [Side::Left, Side::Right] {
            let now = self.now;
            self.end(side).go_to(now, QpState::Rts);
        }
        for round in 0.. {
            assert!(round < MAX_ROUNDS, "the connection does not come to rest");
            for side in [Side::Left, Side::Right] {
                let now = self.now;
                self.end(side).keep_receiving(now);
            }
            self.pump();
            if !self.to_left.is_empty() || !self.to_right.is_empty() {
                self.deliver(Side::Left, usize::MAX, false);
                self.deliver(Side::Right, usize::MAX, false);
                continue;
            }
            let next = [self.left.poll_timeout(), self.right.poll_timeout()].into_iter().flatten().min();
            let Some(at) = next else { break };
            self.wait_until(at.max(self.now));
        }
        self.left.come_to_rest(&mut self.right, self.hostile);
        self.right.come_to_rest(&mut self.left, self.hostile);
        self.left.check_memory(self.hostile);
        self.right.check_memory(self.hostile);
    }
}
