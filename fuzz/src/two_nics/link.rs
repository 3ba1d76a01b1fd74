//! Packets on their way in one direction, oldest first.

use std::collections::VecDeque;

use wire::{NetHeader, icrc};

/// A packet: network header, and the bytes from BTH to ICRC.
pub(super) type Sent = (NetHeader, Vec<u8>);

#[derive(Default)]
pub(super) struct Link(VecDeque<Sent>);

impl Link {
    /// Packets beyond these are lost when a repeat would add more.
    const MAX: usize = 4096;

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn extend(&mut self, packets: Vec<Sent>) {
        self.0.extend(packets);
    }

    pub(super) fn take(&mut self, count: usize) -> Vec<Sent> {
        let count = count.min(self.0.len());
        self.0.drain(..count).collect()
    }

    pub(super) fn lose(&mut self, at: usize) {
        self.0.remove(at);
    }

    pub(super) fn repeat(&mut self, at: usize) {
        if let Some(packet) = self.0.get(at).filter(|_| self.0.len() < Self::MAX) {
            self.0.push_back(packet.clone());
        }
    }

    pub(super) fn delay(&mut self, at: usize) {
        if let Some(packet) = self.0.remove(at) {
            self.0.push_back(packet);
        }
    }

    /// Turns the bits of `mask` in one byte; `refill` makes the ICRC right again. The byte with the congestion
    /// bits, which no ICRC covers and nobody reads, is spared.
    pub(super) fn damage(&mut self, at: usize, byte: usize, mask: u8, refill: bool) {
        let Some((net, body)) = self.0.get_mut(at) else { return };
        let byte = byte % body.len();
        if byte != 4 {
            body[byte] ^= mask;
        }
        if refill {
            icrc::fill(net, body);
        }
    }
}
