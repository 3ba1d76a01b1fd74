//! One port of a switch or host: its egress queues, who of them is next, and how it has been paused.

use std::collections::VecDeque;

use wire::{Duration, Instant};

use crate::frame::Frame;
use crate::line::Line;
use crate::switched::buffer::Signal;
use crate::switched::stats::{PortStats, QueueStats};

/// Priorities, and queues of a port.
pub(super) const PRIORITIES: usize = 8;
/// Ethernet bytes of a pause frame, with preamble and gap.
pub(super) const PAUSE_LEN: usize = 84;
/// Times of 512 bits in a pause are counted in these.
const QUANTUM_BITS: u64 = 512;
/// Bytes of a turn for a weight of 1: no packet needs many turns.
const TURN: u64 = 4_096;

/// A cable: both directions alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cable {
    /// Bits per second.
    pub rate: u64,
    /// Time from the last bit sent to the last bit received.
    pub delay: Duration,
}

/// Who is next among the priorities of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// These go before all others, the highest first; bit i for priority i.
    pub strict: u8,
    /// Shares of the others, at least 1.
    pub weights: [u8; PRIORITIES],
}

impl Default for Scheduling {
    /// CNPs and network control first, equal shares for the rest.
    fn default() -> Self {
        Self { strict: 0b1100_0000, weights: [1; PRIORITIES] }
    }
}

/// A packet in an egress queue, or on a cable.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) frame: Frame,
    /// The port that it came by; `None` in hosts.
    pub(super) ingress: Option<usize>,
    pub(super) len: u64,
}

/// What a port sends.
#[derive(Debug)]
pub(super) enum Sent {
    /// A packet of a priority.
    Packet(u8, Queued),
    /// A pause of a priority for so many quanta; 0 ends one.
    Pause(u8, u16),
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    packets: VecDeque<Queued>,
    pub(super) bytes: u64,
    /// Until when it is paused; in the past where it is not.
    paused_until: Option<Instant>,
    pause_began: Option<Instant>,
    /// When the peer last asked for a pause.
    pub(super) last_pause: Option<Instant>,
    /// Since when it has packets, is paused and has sent none.
    pub(super) stuck_since: Option<Instant>,
    pub(super) watchdog: Watchdog,
    deficit: u64,
    pub(super) stats: QueueStats,
}

/// What the watchdog thinks of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Watchdog {
    #[default]
    Idle,
    /// It will look at it again.
    Watching,
    /// It has found a storm and acts, or only tells of it.
    Storm(WatchdogAction),
}

/// What the watchdog of pauses does with a queue that is paused for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchdogAction {
    /// It drops what is queued and what comes.
    Drop,
    /// It sends in spite of the pause.
    Forward,
    /// It counts the storm and does nothing.
    Alert,
}

#[derive(Debug)]
pub(super) struct Port {
    pub(super) cable: Cable,
    /// Node and port at the other end.
    pub(super) peer: (usize, usize),
    pub(super) queues: [Queue; PRIORITIES],
    scheduling: Scheduling,
    turn: usize,
    signals: VecDeque<(u8, u16)>,
    pub(super) is_busy: bool,
    /// Priorities that a stuck host wants paused for ever.
    pub(super) stuck: u8,
    /// Priorities for which the peer will be asked again.
    pub(super) refreshing: [bool; PRIORITIES],
    line: Line,
    /// What is on its way to the peer, with its time of arrival.
    pub(super) in_flight: VecDeque<(Instant, Sent)>,
    pub(super) stats: PortStats,
}

impl Port {
    pub(super) fn new(cable: Cable, peer: (usize, usize), scheduling: Scheduling) -> Self {
        Self {
            cable,
            peer,
            queues: Default::default(),
            scheduling,
            turn: 0,
            signals: VecDeque::new(),
            is_busy: false,
            stuck: 0,
            refreshing: [false; PRIORITIES],
            line: Line::default(),
            in_flight: VecDeque::new(),
            stats: PortStats::default(),
        }
    }

    pub(super) fn push(&mut self, now: Instant, priority: u8, packet: Queued) {
        let queue = &mut self.queues[usize::from(priority)];
        queue.bytes += packet.len;
        queue.packets.push_back(packet);
        queue.stats.level(now, queue.bytes);
        queue.look_if_stuck(now);
    }

    /// Tells the peer to pause or to go on, before any packet.
    pub(super) fn signal(&mut self, priority: u8, signal: Signal, quanta: u16) {
        self.signals.retain(|(of, _)| *of != priority);
        self.signals.push_back((priority, if signal == Signal::Xoff { quanta } else { 0 }));
    }

    /// Takes what is to be sent next off its queue.
    pub(super) fn next(&mut self, now: Instant) -> Option<Sent> {
        if let Some((priority, quanta)) = self.signals.pop_front() {
            self.stats.pauses_sent += u64::from(quanta > 0);
            return Some(Sent::Pause(priority, quanta));
        }
        let priority = self.pick(now)?;
        let queue = &mut self.queues[priority];
        let packet = queue.packets.pop_front()?;
        queue.bytes -= packet.len;
        queue.stats.level(now, queue.bytes);
        queue.stats.sent_bytes += packet.len;
        queue.stats.sent_packets += 1;
        queue.stuck_since = None;
        #[expect(clippy::cast_possible_truncation, reason = "one of eight")]
        let priority = priority as u8;
        Some(Sent::Packet(priority, packet))
    }

    /// The priority whose turn it is.
    fn pick(&mut self, now: Instant) -> Option<usize> {
        let may_send = |queue: &Queue| !queue.packets.is_empty() && !queue.is_held(now);
        let is_strict = |priority: usize| self.scheduling.strict & 1 << priority != 0;
        if let Some(strict) =
            (0..PRIORITIES).rev().find(|priority| is_strict(*priority) && may_send(&self.queues[*priority]))
        {
            return Some(strict);
        }
        if !self.queues.iter().any(may_send) {
            return None;
        }
        // Deficit round robin; ends, since somebody may send and each turn adds to what he may.
        loop {
            let queue = &mut self.queues[self.turn];
            match queue.packets.front() {
                Some(head) if may_send(queue) => {
                    if queue.deficit >= head.len {
                        queue.deficit -= head.len;
                        return Some(self.turn);
                    }
                }
                _ => queue.deficit = 0,
            }
            self.turn = (self.turn + 1) % PRIORITIES;
            let queue = &mut self.queues[self.turn];
            if may_send(queue) {
                queue.deficit += TURN * u64::from(self.scheduling.weights[self.turn].max(1));
            }
        }
    }

    /// Until when the cable is busy with `len` bytes.
    pub(super) fn send(&mut self, now: Instant, len: u64) -> Instant {
        self.line.send(now, self.cable.rate, len)
    }

    /// How long a pause of `quanta` is on this cable.
    pub(super) fn pause_time(&self, quanta: u16) -> Duration {
        let nanos = u128::from(quanta) * u128::from(QUANTUM_BITS) * 1_000_000_000
            / u128::from(self.cable.rate.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The peer asks for a pause of `quanta`; returns until when.
    pub(super) fn pause(&mut self, now: Instant, priority: u8, quanta: u16) -> Instant {
        let until = now + self.pause_time(quanta);
        let queue = &mut self.queues[usize::from(priority)];
        if quanta > 0 {
            self.stats.pauses_received += 1;
            queue.last_pause = Some(now);
            queue.pause_began.get_or_insert(now);
            queue.paused_until = Some(until);
            queue.look_if_stuck(now);
        } else {
            queue.resume(now);
        }
        until
    }

    /// What is to come out of pauses that are over at `now`.
    pub(super) fn end_pauses(&mut self, now: Instant) {
        for queue in &mut self.queues {
            if queue.paused_until.is_some_and(|until| until <= now) {
                queue.resume(now);
            }
        }
    }

    /// Priorities that are paused, bit i for priority i.
    pub(super) fn paused(&self) -> u8 {
        let bit = |(at, queue): (usize, &Queue)| u8::from(queue.pause_began.is_some()) << at;
        self.queues.iter().enumerate().map(bit).fold(0, |a, b| a | b)
    }

    /// Whether a packet of `priority` could leave at once.
    pub(super) fn is_free(&self, now: Instant, priority: u8) -> bool {
        let queue = &self.queues[usize::from(priority)];
        !self.is_busy && queue.packets.is_empty() && !queue.is_held(now)
    }
}

impl Queue {
    /// Whether a pause holds it back.
    pub(super) fn is_held(&self, now: Instant) -> bool {
        self.is_paused(now) && self.watchdog != Watchdog::Storm(WatchdogAction::Forward)
    }

    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| until > now)
    }

    fn resume(&mut self, now: Instant) {
        let Some(until) = self.paused_until.take() else { return };
        if let Some(began) = self.pause_began.take() {
            self.stats.paused = self.stats.paused + now.min(until).since(began);
        }
        self.stuck_since = None;
    }

    fn look_if_stuck(&mut self, now: Instant) {
        if self.stuck_since.is_none() && !self.packets.is_empty() && self.is_paused(now) {
            self.stuck_since = Some(now);
        }
    }

    /// Empties it.
    pub(super) fn drain(&mut self, now: Instant) -> Vec<Queued> {
        self.bytes = 0;
        self.stats.level(now, 0);
        self.stuck_since = None;
        self.packets.drain(..).collect()
    }
}
