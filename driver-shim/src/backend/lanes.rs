//! What back ends of several lanes have in common: a mailbox for each.
//!
//! The kernel gives a packet to the lane that its queue pair is of ([`qp::Lane`]), unless it has joined packets of
//! several lanes to one datagram. Then whoever receives it hands over what is not its own. That is rare: while it does
//! not happen nothing is written that another lane reads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use mio::Waker;
use qp::Lane;
use wire::batch::{HeaderKnowledge, RxBurst};
use wire::{NetHeader, Qpn};

use crate::engine::lock;

/// Most packets that wait in a mailbox.
const MAILBOX: usize = 1024;

/// The lanes of an address, as one of them sees them.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    own: Lane,
    mailboxes: Arc<[Mailbox]>,
}

/// What other lanes have received for one; on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Mailbox {
    has_mail: AtomicBool,
    packets: Mutex<VecDeque<(NetHeader, HeaderKnowledge, Vec<u8>)>>,
    waker: OnceLock<Arc<Waker>>,
}

impl Lanes {
    /// All of `count` lanes, in order; `None` where there cannot be so many.
    pub(super) fn all(count: u32) -> Option<Vec<Self>> {
        let mailboxes: Arc<[Mailbox]> = (0..count).map(|_| Mailbox::default()).collect();
        let lane = |index| Some(Self { own: Lane::new(index, count)?, mailboxes: Arc::clone(&mailboxes) });
        (0..count).map(lane).collect::<Option<Vec<_>>>().filter(|lanes| !lanes.is_empty())
    }

    pub(super) const fn own(&self) -> Lane {
        self.own
    }

    /// Who is to be woken when there is mail.
    pub(super) fn set_waker(&self, waker: Arc<Waker>) {
        // A back end belongs to one engine.
        let first = self.mailboxes[self.own.index() as usize].waker.set(waker);
        debug_assert!(first.is_ok());
    }

    /// Hands the packet `body` over where it is of another lane.
    pub(super) fn hand_over(&self, net: NetHeader, knowledge: HeaderKnowledge, body: &[u8]) -> HandOver {
        // Of the BTH only this is of interest; the rest is for the NIC to judge.
        let Some(&[high, middle, low]) = body.get(5..8) else { return HandOver::Ours };
        let place = self.own.place_of(Qpn::new(u32::from_be_bytes([0, high, middle, low])));
        if place == self.own.index() {
            return HandOver::Ours;
        }
        let mailbox = &self.mailboxes[place as usize];
        let mut packets = lock(&mailbox.packets);
        if packets.len() >= MAILBOX {
            return HandOver::NoRoom;
        }
        packets.push_back((net, knowledge, body.to_vec()));
        mailbox.has_mail.store(true, Ordering::Release);
        drop(packets);
        if let Some(waker) = mailbox.waker.get()
            && waker.wake().is_err()
        {
            tracing::warn!("a lane's thread cannot be woken");
        }
        HandOver::Done
    }

    /// Appends what others have received to `rx`; returns how many packets.
    pub(super) fn fetch(&self, rx: &mut RxBurst) -> usize {
        let mailbox = &self.mailboxes[self.own.index() as usize];
        if !mailbox.has_mail.load(Ordering::Acquire) {
            return 0;
        }
        let mut packets = lock(&mailbox.packets);
        mailbox.has_mail.store(false, Ordering::Relaxed);
        let count = packets.len();
        for (net, knowledge, body) in packets.drain(..) {
            rx.push(net, knowledge, &body);
        }
        count
    }

    /// Keeps all mailboxes locked while `work` runs.
    #[cfg(test)]
    pub(super) fn with_all_locked(&self, work: impl FnOnce()) {
        let guards: Vec<_> = self.mailboxes.iter().map(|mailbox| lock(&mailbox.packets)).collect();
        work();
        drop(guards);
    }
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandOver {
    /// It is of the lane that received it.
    Ours,
    /// The lane that it is of has it.
    Done,
    /// It is of another lane, and lost.
    NoRoom,
}
