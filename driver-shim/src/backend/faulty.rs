//! Faults on purpose: a back end whose packets are lost, repeated, spoiled, held back or overtaken.
//!
//! What happens to which packet is decided by [`fabric::Stage`]; this wrapper moves packets past it or through it, in
//! both directions. What no fault touches goes on in runs as long as they can be, so that segmentation offload still
//! has its use; a batch that a fault cuts in pieces is sent as pieces, whose packets get identifications and ICRCs of
//! their own.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use fabric::{Direction, FaultCounts, FaultSpec, Frame, Stage};
use mio::{Registry, Token, Waker};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::{Duration, Instant, NetHeader, icrc};

use super::{BURST, Backend, IoCounters, JoinError, Reachability};
use crate::interfaces::GidTable;

/// Batches that wait for room before the engine is told that there is none.
const WAITING: usize = 4 * BURST;

/// Pause before packets are offered again that found no room.
const RETRY: Duration = Duration::from_micros(100);

/// A back end with faults.
pub struct Faulty {
    backend: Box<dyn Backend>,
    stage: Stage,
    /// Whether there are faults for packets sent, and for packets received.
    faults: [bool; 2],
    now: Instant,
    /// What goes out next: the pieces of a batch, and packets that came through the stage. Of the first, so many
    /// packets are gone already.
    waiting: VecDeque<TxBatch>,
    gone: usize,
    received: RxBurst,
    /// How far the headers of received packets are known, by family: the same for all of a back end.
    knowledge: [HeaderKnowledge; 2],
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("backend", &self.backend).field("faults", &self.faults).finish()
    }
}

impl Faulty {
    /// `backend` with the faults of `specs`. The same seed and packets have the same faults.
    #[must_use]
    pub fn new(backend: Box<dyn Backend>, specs: &[FaultSpec], seed: u64) -> Self {
        let any = |direction| specs.iter().any(|spec| spec.direction == direction);
        Self {
            backend,
            stage: Stage::new(specs.iter().copied(), seed),
            faults: [any(Direction::Tx), any(Direction::Rx)],
            now: Instant::ZERO,
            waiting: VecDeque::new(),
            gone: 0,
            received: RxBurst::new(),
            knowledge: [HeaderKnowledge::Seen; 2],
        }
    }

    /// What was done so far in `direction`.
    #[must_use]
    pub fn counts(&self, direction: Direction) -> FaultCounts {
        self.stage.counts(direction)
    }

    fn has_faults(&self, direction: Direction) -> bool {
        self.faults[direction as usize]
    }

    /// Sends what comes out of the stage now, as far as there is room; says whether there was anything.
    fn send_due(&mut self) -> io::Result<bool> {
        self.queue_due();
        let any = !self.waiting.is_empty();
        self.send_waiting()?;
        Ok(any)
    }

    /// Queues what comes out of the stage now.
    fn queue_due(&mut self) {
        let as_written = Caps { ip_id: IpIdRule::Ours, ..self.backend.caps() };
        while let Some(frame) = self.stage.pop(self.now, Direction::Tx) {
            let mut single = TxBatch::new();
            single.begin(frame.net, &as_written, id_of(&frame.net));
            // Not sealed: the ICRC is there already, right or spoiled.
            single.push(frame.body.len()).copy_from_slice(&frame.body);
            self.waiting.push_back(single);
        }
    }

    /// Queues packets of `tx` that no fault touches, as a batch of their own.
    fn queue_run(&mut self, tx: &TxBatch, run: Range<usize>) {
        let Some(net) = tx.header(run.start).filter(|_| !run.is_empty()) else { return };
        let mut piece = TxBatch::new();
        piece.begin(net, &self.backend.caps(), id_of(&net));
        for body in tx.bodies_from(run.start).take(run.len()) {
            piece.push(body.len()).copy_from_slice(body);
        }
        piece.seal();
        self.waiting.push_back(piece);
    }

    fn send_waiting(&mut self) -> io::Result<()> {
        while let Some(batch) = self.waiting.front() {
            self.gone += self.backend.send_batch(batch, self.gone)?;
            if self.gone < batch.len() {
                break;
            }
            self.waiting.pop_front();
            self.gone = 0;
        }
        Ok(())
    }
}

/// A packet that is to go out alone, with the ICRC that is right then.
fn alone(net: NetHeader, body: &[u8], rule: IpIdRule) -> Frame {
    let mut frame = Frame::new(net, body.to_vec());
    if matches!(rule, IpIdRule::Fixed0 | IpIdRule::Index) && id_of(&net) != 0 {
        frame.net = frame.net.with_id(0);
        icrc::fill(&frame.net, &mut frame.body);
    }
    frame
}

/// Gives to `rx` what comes out of the stage now; returns how many packets that were.
fn pass_on_due(stage: &mut Stage, now: Instant, knowledge: [HeaderKnowledge; 2], rx: &mut RxBurst) -> usize {
    let mut passed = 0;
    while let Some(frame) = stage.pop(now, Direction::Rx) {
        rx.push(frame.net, knowledge[usize::from(frame.net.dst().is_ipv6())], &frame.body);
        passed += 1;
    }
    passed
}

fn id_of(net: &NetHeader) -> u16 {
    if let NetHeader::V4(ip, _) = net { ip.id } else { 0 }
}

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn caps(&self) -> Caps {
        self.backend.caps()
    }

    fn addresses(&self) -> &GidTable {
        self.backend.addresses()
    }

    fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
        if !self.has_faults(Direction::Rx) {
            return self.backend.recv_burst(rx);
        }
        self.received.clear();
        let taken = self.backend.recv_burst(&mut self.received)?;
        rx.add_malformed(self.received.malformed());
        let mut passed = pass_on_due(&mut self.stage, self.now, self.knowledge, rx);
        for (packet, body) in self.received.iter() {
            let family = usize::from(packet.net.dst().is_ipv6());
            self.knowledge[family] = packet.knowledge;
            let owned = || Frame::new(packet.net, body.to_vec());
            if self.stage.lets_pass(self.now, Direction::Rx, &packet.net, body, owned) {
                rx.push(packet.net, packet.knowledge, body);
                passed += 1;
                continue;
            }
            passed += pass_on_due(&mut self.stage, self.now, self.knowledge, rx);
        }
        Ok(taken.max(passed))
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        if !self.has_faults(Direction::Tx) {
            return self.backend.send_batch(tx, from);
        }
        self.send_due()?;
        if self.waiting.len() > WAITING {
            return Ok(0);
        }
        let rule = self.backend.caps().ip_id;
        let mut run = from..from;
        for (i, (net, body)) in (from..).zip(tx.iter_from(from)) {
            let owned = || alone(net, body, rule);
            if self.stage.lets_pass(self.now, Direction::Tx, &net, body, owned) {
                run.end = i + 1;
                continue;
            }
            self.queue_run(tx, run);
            self.queue_due();
            run = i + 1..i + 1;
        }
        if run.start == from && self.waiting.is_empty() {
            run.start += self.backend.send_batch(tx, from)?;
        }
        self.queue_run(tx, run);
        self.send_waiting()?;
        Ok(tx.len().saturating_sub(from))
    }

    fn kick(&mut self) -> io::Result<()> {
        self.backend.kick()
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.backend.register(registry, token)
    }

    fn lane(&self) -> qp::Lane {
        self.backend.lane()
    }

    fn before_wait(&mut self) -> bool {
        self.backend.before_wait()
    }

    fn set_waker(&mut self, waker: Arc<Waker>) {
        self.backend.set_waker(waker);
    }

    fn prepare(&mut self, now: Instant, dst: IpAddr) -> Reachability {
        self.backend.prepare(now, dst)
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        self.backend.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.backend.leave(group);
    }

    fn link_is_up(&self) -> bool {
        self.backend.link_is_up()
    }

    fn poll(&mut self, now: Instant) {
        self.now = now;
        self.backend.poll(now);
        // Whatever is on the way below is to leave now: the engine kicks only after batches of its own.
        if let Err(error) = self.send_due().and_then(|sent| if sent { self.backend.kick() } else { Ok(()) }) {
            // The engine's next call meets the same error and reports it.
            tracing::debug!(%error, "a delayed packet could not be sent");
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let waiting = (!self.waiting.is_empty()).then(|| self.now + RETRY);
        let stage = [Direction::Tx, Direction::Rx].map(|direction| self.stage.poll_timeout(direction));
        self.backend.poll_timeout().into_iter().chain(waiting).chain(stage.into_iter().flatten()).min()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.backend.flush()
    }

    fn counters(&self) -> IoCounters {
        self.backend.counters()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use fabric::FaultKind;
    use wire::ROCE_V2_PORT;

    use super::*;
    use crate::backend::{Hub, Loopback};

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// A faulty sender at 10.0.0.1 and a faulty receiver at 10.0.0.2 with the same faults.
    fn pair(faults: &[(FaultKind, &str)]) -> (Faulty, Faulty) {
        let parse = |(kind, text): &(FaultKind, &str)| FaultSpec::parse(*kind, text).expect("a fault");
        let specs: Vec<FaultSpec> = faults.iter().map(parse).collect();
        let hub = Loopback::hub();
        let attach = |hub: &Hub, last| Box::new(hub.attach(address(last)).expect("free"));
        (Faulty::new(attach(&hub, 1), &specs, 1), Faulty::new(attach(&hub, 2), &specs, 1))
    }

    /// Sends `count` packets whose payload says which they are.
    fn send(from: &mut Faulty, count: u8) {
        let net = NetHeader::v2(address(1), address(2), ROCE_V2_PORT, 0, 64).expect("one family");
        let mut tx = TxBatch::new();
        tx.begin(net, &from.caps(), 100);
        for i in 0..count {
            tx.push(32)[16] = i;
        }
        tx.seal();
        assert_eq!(from.send_batch(&tx, 0).expect("sends"), usize::from(count));
    }

    /// What arrives: which packet, and whether its ICRC is right.
    fn receive(at: &mut Faulty) -> Vec<(u8, bool)> {
        let mut rx = RxBurst::new();
        while at.recv_burst(&mut rx).expect("receives") > 0 {}
        rx.iter().map(|(packet, body)| (body[16], icrc::verify(&packet.net, body))).collect()
    }

    #[test]
    fn faults_hit_the_direction_that_they_name() {
        let (mut a, mut b) = pair(&[(FaultKind::Drop, "rx:1")]);
        send(&mut a, 2);
        assert_eq!(receive(&mut b), []);
        assert_eq!(b.counts(Direction::Rx).dropped, 2);
        assert_eq!(a.counts(Direction::Tx).packets, 0, "passed untouched");
        let (mut a, mut b) = pair(&[(FaultKind::Drop, "tx:1")]);
        send(&mut a, 2);
        assert_eq!((receive(&mut b), a.counts(Direction::Tx).dropped), (vec![], 2));
    }

    #[test]
    fn packets_are_repeated_and_spoiled_after_their_icrc_was_made() {
        let (mut a, mut b) = pair(&[(FaultKind::Duplicate, "1")]);
        send(&mut a, 2);
        assert_eq!(receive(&mut b), [(0, true), (0, true), (1, true), (1, true)]);
        let (mut a, mut b) = pair(&[(FaultKind::Corrupt, "tx:1")]);
        send(&mut a, 2);
        assert_eq!(receive(&mut b).iter().map(|(_, right)| *right).collect::<Vec<_>>(), [false; 2]);
    }

    #[test]
    fn delayed_packets_arrive_when_their_time_has_come() {
        for direction in ["tx", "rx"] {
            let (mut a, mut b) = pair(&[(FaultKind::Delay, &format!("{direction}:2ms"))]);
            send(&mut a, 2);
            assert_eq!(receive(&mut b), []);
            let held = if direction == "tx" { &mut a } else { &mut b };
            let due = Instant::ZERO + Duration::from_millis(2);
            assert_eq!(held.poll_timeout(), Some(due));
            held.poll(due);
            assert_eq!(receive(&mut b), [(0, true), (1, true)]);
        }
    }

    /// A back end that offloads, and keeps the sizes of the batches that it was given.
    #[derive(Debug)]
    struct Offload(Loopback, Arc<Mutex<Vec<usize>>>);

    impl Backend for Offload {
        fn name(&self) -> &'static str {
            self.0.name()
        }
        fn caps(&self) -> Caps {
            Caps { ip_id: IpIdRule::Index, ..self.0.caps() }
        }
        fn addresses(&self) -> &GidTable {
            self.0.addresses()
        }
        fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
            self.0.recv_burst(rx)
        }
        fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
            self.1.lock().expect("not poisoned").push(tx.len() - from);
            self.0.send_batch(tx, from)
        }
        fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
            self.0.register(registry, token)
        }
    }

    #[test]
    fn what_no_fault_touches_goes_in_runs_with_icrcs_of_their_own() {
        let hub = Loopback::hub();
        let sizes = Arc::<Mutex<Vec<usize>>>::default();
        let offload = Offload(hub.attach(address(1)).expect("free"), Arc::clone(&sizes));
        let faults =
            [(FaultKind::Drop, "psn=+5"), (FaultKind::Duplicate, "psn=+9"), (FaultKind::Corrupt, "psn=+12")];
        let specs = faults.map(|(kind, text)| FaultSpec::parse(kind, text).expect("a fault"));
        let mut a = Faulty::new(Box::new(offload), &specs, 1);
        let mut b = Faulty::new(Box::new(hub.attach(address(2)).expect("free")), &[], 1);
        for first in [0, 15] {
            let net = NetHeader::v2(address(1), address(2), ROCE_V2_PORT, 0, 64).expect("one family");
            let mut tx = TxBatch::new();
            tx.begin(net, &a.caps(), 0);
            for i in first..first + 15 {
                let body = tx.push(32);
                // A SEND with its PSN.
                body[..12].copy_from_slice(&[4, 0, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, i]);
                body[12..28].fill(i);
            }
            tx.seal();
            assert_eq!(a.send_batch(&tx, 0).expect("sends"), 15);
        }
        let came = receive(&mut b);
        let right: Vec<u8> = came.iter().filter(|(_, right)| *right).map(|(i, _)| *i).collect();
        let times = |i| match i {
            5 | 12 => 0,
            9 => 2,
            _ => 1,
        };
        assert_eq!(right, (0..30).flat_map(|i| vec![i; times(i)]).collect::<Vec<u8>>());
        assert_eq!(came.len(), right.len() + 1, "the spoiled one comes too");
        assert_eq!(*sizes.lock().expect("not poisoned"), [5, 3, 1, 1, 2, 1, 2, 15]);
    }

    /// A back end with room for a few packets.
    #[derive(Debug)]
    struct Narrow(Loopback, usize);

    impl Backend for Narrow {
        fn name(&self) -> &'static str {
            self.0.name()
        }
        fn caps(&self) -> Caps {
            self.0.caps()
        }
        fn addresses(&self) -> &GidTable {
            self.0.addresses()
        }
        fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
            self.1 = 3;
            self.0.recv_burst(rx)
        }
        fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
            if self.1 == 0 {
                return Ok(0);
            }
            self.1 -= 1;
            self.0.send_batch(tx, from)
        }
        fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
            self.0.register(registry, token)
        }
    }

    #[test]
    fn what_finds_no_room_is_sent_later_and_in_order() {
        let hub = Loopback::hub();
        let narrow = Narrow(hub.attach(address(1)).expect("free"), 3);
        let twice = FaultSpec::parse(FaultKind::Duplicate, "tx:1").expect("a fault");
        let mut a = Faulty::new(Box::new(narrow), &[twice], 1);
        let mut b = Faulty::new(Box::new(hub.attach(address(2)).expect("free")), &[], 1);
        send(&mut a, 3);
        let mut came = receive(&mut b);
        assert_eq!(came.len(), 3);
        assert_eq!(a.poll_timeout(), Some(Instant::ZERO + RETRY));
        a.recv_burst(&mut RxBurst::new()).expect("makes room");
        a.poll(Instant::ZERO);
        came.extend(receive(&mut b));
        assert_eq!(came, [0, 0, 1, 1, 2, 2].map(|i| (i, true)));
        assert_eq!(a.poll_timeout(), None);
    }

    /// A back end that holds packets back until it is kicked.
    #[derive(Debug)]
    struct Kicked(Loopback, Vec<(NetHeader, Vec<u8>)>);

    impl Backend for Kicked {
        fn name(&self) -> &'static str {
            self.0.name()
        }
        fn caps(&self) -> Caps {
            self.0.caps()
        }
        fn addresses(&self) -> &GidTable {
            self.0.addresses()
        }
        fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
            self.0.recv_burst(rx)
        }
        fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
            self.1.extend(tx.iter_from(from).map(|(net, body)| (net, body.to_vec())));
            Ok(tx.len() - from)
        }
        fn kick(&mut self) -> io::Result<()> {
            let caps = self.caps();
            for (net, body) in self.1.drain(..) {
                let mut tx = TxBatch::new();
                tx.begin(net, &caps, id_of(&net));
                tx.push(body.len()).copy_from_slice(&body);
                self.0.send_batch(&tx, 0)?;
            }
            Ok(())
        }
        fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
            self.0.register(registry, token)
        }
    }

    #[test]
    fn what_was_delayed_is_not_held_back_below() {
        let hub = Loopback::hub();
        let kicked = Kicked(hub.attach(address(1)).expect("free"), Vec::new());
        let late = FaultSpec::parse(FaultKind::Delay, "tx:2ms").expect("a fault");
        let mut a = Faulty::new(Box::new(kicked), &[late], 1);
        let mut b = Faulty::new(Box::new(hub.attach(address(2)).expect("free")), &[], 1);
        send(&mut a, 2);
        a.poll(Instant::ZERO + Duration::from_millis(2));
        assert_eq!(receive(&mut b), [(0, true), (1, true)]);
    }
}
