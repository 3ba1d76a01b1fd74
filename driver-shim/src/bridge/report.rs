//! What a bridge has measured.

use std::net::IpAddr;

use wire::{Duration, Qpn};

/// What a bridge has measured since it began to count.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// Bits per second of each output.
    pub rate: u64,
    /// Time in which it was measured.
    pub time: Duration,
    /// Each output queue, in the order of their making.
    pub queues: Vec<QueueReport>,
    /// RoCE packets by sender, receiver and queue pair; the most bytes first.
    pub flows: Vec<FlowReport>,
    /// What went nowhere.
    pub lost: Lost,
}

/// What happened in an output queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueReport {
    /// Where it leads: addresses, or an interface.
    pub to: Vec<String>,
    /// Packets that left it.
    pub packets: u64,
    /// Bytes of them on Ethernet, with preamble and gap.
    pub bytes: u64,
    /// Packets that were marked with congestion experienced.
    pub marked: u64,
    /// Packets that found no room.
    pub dropped: u64,
    /// Mean of the waiting bytes over time.
    pub mean: f64,
    /// Standard deviation of the waiting bytes over time.
    pub deviation: f64,
    /// Most waiting bytes.
    pub most: u64,
    /// Part of the time in which it was sending.
    pub utilisation: f64,
}

/// Packets to one queue pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowReport {
    /// Sender.
    pub src: IpAddr,
    /// Receiver.
    pub dst: IpAddr,
    /// The receiver's queue pair.
    pub qpn: Qpn,
    /// Packets that left the queue.
    pub packets: u64,
    /// Bytes of them on Ethernet, with preamble and gap.
    pub bytes: u64,
    /// Packets that were marked with congestion experienced.
    pub marked: u64,
    /// Packets that found no room, or were dropped as the drop probability says.
    pub dropped: u64,
    /// Congestion notifications among the packets.
    pub cnps: u64,
}

/// Packets that went nowhere, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Dropped as the drop probability says.
    pub by_chance: u64,
    /// No RoCE packets, or longer than the bridge carries.
    pub malformed: u64,
    /// To addresses that no client has.
    pub unroutable: u64,
    /// From addresses that are not the sender's.
    pub foreign: u64,
    /// Not taken by the receiver, who has gone or reads too slowly.
    pub not_taken: u64,
}

impl Lost {
    /// Names and counts.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("by_chance", self.by_chance),
            ("malformed", self.malformed),
            ("unroutable", self.unroutable),
            ("foreign", self.foreign),
            ("not_taken", self.not_taken),
        ]
        .into_iter()
    }
}
