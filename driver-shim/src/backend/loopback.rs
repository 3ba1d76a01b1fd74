//! Packets in memory, between devices of one process.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use mio::{Registry, Token, Waker};
use wire::batch::{Caps, HeaderKnowledge, RxBurst, TxBatch};
use wire::{Mac, NetHeader};

use super::local::InFlight;
use super::{BURST, Backend, IoCounters, JoinError, OpenError};
use crate::interfaces::GidTable;

/// Packets that a port queues before it drops more, as a real one would.
const QUEUE: usize = 4096;

/// Interface MTU of every port: a path MTU of 4096 and all headers.
const MTU: u32 = 4200;

/// A wire in memory. Devices attached to the same hub reach each other.
#[derive(Clone, Debug, Default)]
pub struct Hub {
    ports: Arc<Mutex<HashMap<IpAddr, Arc<Mutex<Port>>>>>,
    /// Addresses of the members of each multicast group.
    groups: Arc<Mutex<HashMap<IpAddr, Vec<IpAddr>>>>,
}

/// Receive side of one device.
#[derive(Debug, Default)]
struct Port {
    queue: VecDeque<(NetHeader, Bytes)>,
    dropped: u64,
    waker: Option<Arc<Waker>>,
}

/// The in-memory back end: one device's place on a [`Hub`].
#[derive(Debug)]
pub struct Loopback {
    hub: Hub,
    address: IpAddr,
    table: GidTable,
    port: Arc<Mutex<Port>>,
    tx_lost: u64,
}

impl Loopback {
    /// A new hub.
    #[must_use]
    pub fn hub() -> Hub {
        Hub::default()
    }
}

impl Hub {
    /// A back end with this address on the hub. The address is free again when it is dropped.
    ///
    /// # Errors
    /// [`OpenError::AddressTaken`].
    pub fn attach(&self, address: IpAddr) -> Result<Loopback, OpenError> {
        let mut ports = lock(&self.ports);
        if ports.contains_key(&address) {
            return Err(OpenError::AddressTaken { address });
        }
        let port = Arc::<Mutex<Port>>::default();
        ports.insert(address, Arc::clone(&port));
        let table = GidTable::new(&[address], Mac::default(), MTU);
        Ok(Loopback { hub: self.clone(), address, table, port, tx_lost: 0 })
    }

    /// The ports that packets from `src` to `dst` reach: one, or those of a group's members but the sender's own.
    fn ports_of(&self, dst: IpAddr, src: IpAddr) -> Vec<Arc<Mutex<Port>>> {
        let addresses = if dst.is_multicast() {
            let mut members = lock(&self.groups).get(&dst).cloned().unwrap_or_default();
            members.retain(|member| *member != src);
            members
        } else {
            vec![dst]
        };
        let ports = lock(&self.ports);
        addresses.iter().filter_map(|address| ports.get(address).cloned()).collect()
    }

    /// Ends the memberships of `address` in the groups that `which` says.
    fn leave(&self, address: IpAddr, which: impl Fn(&IpAddr) -> bool) {
        lock(&self.groups).retain(|group, members| {
            if which(group) {
                members.retain(|member| *member != address);
            }
            !members.is_empty()
        });
    }
}

impl Backend for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn caps(&self) -> Caps {
        InFlight { window: 256, credit: 1 << 14 }.of_whole_packets()
    }

    fn addresses(&self) -> &GidTable {
        &self.table
    }

    fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
        let mut port = lock(&self.port);
        let count = port.queue.len().min(BURST);
        for (net, body) in port.queue.drain(..count) {
            rx.push(net, HeaderKnowledge::Seen, &body);
        }
        Ok(count)
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        let taken = tx.len().saturating_sub(from);
        let Some(dst) = tx.header(from).filter(|_| taken > 0).map(|net| net.dst()) else { return Ok(0) };
        let ports = self.hub.ports_of(dst, self.address);
        if ports.is_empty() && !dst.is_multicast() {
            self.tx_lost += taken as u64;
        }
        for port in ports {
            deliver(&port, tx, from)?;
        }
        Ok(taken)
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        lock(&self.hub.groups).entry(group).or_default().push(self.address);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.hub.leave(self.address, |joined| *joined == group);
    }

    fn register(&mut self, _registry: &Registry, _token: Token) -> io::Result<()> {
        Ok(())
    }

    fn set_waker(&mut self, waker: Arc<Waker>) {
        let mut port = lock(&self.port);
        let waiting = !port.queue.is_empty();
        let waker = port.waker.insert(waker);
        if waiting && let Err(error) = waker.wake() {
            tracing::warn!(%error, "cannot wake the engine");
        }
    }

    fn counters(&self) -> IoCounters {
        IoCounters { tx_lost: self.tx_lost, rx_lost: lock(&self.port).dropped, ..IoCounters::default() }
    }
}

impl Drop for Loopback {
    fn drop(&mut self) {
        lock(&self.hub.ports).remove(&self.address);
        self.hub.leave(self.address, |_| true);
    }
}

/// Puts the packets of `tx` from index `from` on into the queue of `port`.
fn deliver(port: &Mutex<Port>, tx: &TxBatch, from: usize) -> io::Result<()> {
    let bytes = Bytes::copy_from_slice(tx.bytes());
    let mut port = lock(port);
    let was_empty = port.queue.is_empty();
    for (i, (net, body)) in (from..).zip(tx.iter_from(from)) {
        if port.queue.len() < QUEUE {
            let start = i * tx.segment_len();
            port.queue.push_back((net, bytes.slice(start..start + body.len())));
        } else {
            port.dropped += 1;
        }
    }
    // One edge is enough: a reader that was told empties the queue before it sleeps.
    let waker = port.waker.clone().filter(|_| was_empty);
    drop(port);
    waker.map_or(Ok(()), |waker| waker.wake())
}

/// A lock that a panic elsewhere cannot poison for us: every change under it is complete.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use mio::{Events, Poll};
    use wire::{ROCE_V2_PORT, icrc};

    use super::*;

    fn batch(from: &Loopback, to: IpAddr, count: usize) -> TxBatch {
        let net = NetHeader::v2(from.address, to, ROCE_V2_PORT, 0, 64).expect("one family");
        let mut tx = TxBatch::new();
        tx.begin(net, &from.caps(), 7);
        for _ in 0..count {
            tx.push(64).fill(1);
        }
        tx.seal();
        tx
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn packets_reach_the_other_port_and_wake_its_owner() {
        let hub = Loopback::hub();
        let (mut a, mut b) = (hub.attach(address(1)).expect("free"), hub.attach(address(2)).expect("free"));
        let mut poll = Poll::new().expect("poll");
        b.set_waker(Arc::new(Waker::new(poll.registry(), Token(0)).expect("waker")));
        let tx = batch(&a, address(2), 3);
        assert_eq!(a.send_batch(&tx, 1).expect("sends"), 2);
        let mut events = Events::with_capacity(4);
        poll.poll(&mut events, Some(std::time::Duration::from_secs(10))).expect("poll");
        assert_eq!(events.iter().count(), 1);
        let mut rx = RxBurst::new();
        assert_eq!(b.recv_burst(&mut rx).expect("receives"), 2);
        for ((packet, body), (sent, sent_body)) in rx.iter().zip(tx.iter().skip(1)) {
            assert_eq!((packet.net, body), (sent, sent_body));
            assert!(icrc::verify(&packet.net, body));
        }
        assert_eq!(b.recv_burst(&mut rx).expect("receives"), 0);
    }

    #[test]
    fn a_full_queue_and_a_missing_peer_lose_packets() {
        let hub = Loopback::hub();
        let (mut a, b) = (hub.attach(address(1)).expect("free"), hub.attach(address(2)).expect("free"));
        for _ in 0..=QUEUE / BURST {
            assert_eq!(a.send_batch(&batch(&a, address(2), BURST), 0).expect("sends"), BURST);
        }
        assert_eq!(b.counters(), IoCounters { tx_lost: 0, rx_lost: BURST as u64, ..IoCounters::default() });
        assert_eq!(a.send_batch(&batch(&a, address(3), 2), 0).expect("sends"), 2);
        assert_eq!(a.counters(), IoCounters { tx_lost: 2, rx_lost: 0, ..IoCounters::default() });
    }

    #[test]
    fn an_address_is_taken_until_its_back_end_is_dropped() {
        let hub = Loopback::hub();
        let first = hub.attach(address(1)).expect("free");
        assert!(matches!(hub.attach(address(1)), Err(OpenError::AddressTaken { .. })));
        drop(first);
        assert_eq!(hub.attach(address(1)).expect("free again").addresses().gids().len(), 2);
    }
}
