use std::sync::Weak;
use std::sync::atomic::AtomicUsize;
use std::time::Duration as StdDuration;

use mio::{Events, Registry};
use qp::{AttrMask, NicConfig, QpAttr, QpState, RecvWr, SendWr};
use wire::Mac;
use wire::batch::{Caps, IpIdRule};

use super::*;
use crate::backend::Loopback;
use crate::interfaces::GidTable;
use crate::{CompletionQueue, ConnectOptions, Device, QueuePair};

/// A back end that counts how often it is asked, and has `packets` bursts without a RoCE packet to give. While it
/// is asked, somebody else wants a pass of `wanting`.
#[derive(Debug)]
struct Counting {
    table: GidTable,
    asked: Arc<AtomicUsize>,
    packets: Arc<AtomicUsize>,
    wanting: Arc<Mutex<Weak<Engine>>>,
}

impl Backend for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn caps(&self) -> Caps {
        Caps {
            max_segments: 1,
            max_bytes: 4200,
            ip_id: IpIdRule::Ours,
            sees_ip_header: true,
            window: 1,
            credit: 1,
            src_port: None,
        }
    }

    fn addresses(&self) -> &GidTable {
        &self.table
    }

    fn recv_burst(&mut self, _: &mut RxBurst) -> io::Result<usize> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if let Some(engine) = lock(&self.wanting).upgrade() {
            engine.drive();
        }
        let left = self.packets.load(Ordering::Relaxed);
        self.packets.store(left.saturating_sub(1), Ordering::Relaxed);
        Ok(left.min(1))
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        Ok(tx.len() - from)
    }

    fn register(&mut self, _: &Registry, _: Token) -> io::Result<()> {
        Ok(())
    }
}

/// An engine without a thread, and what its back end counts.
struct Bare {
    engine: Arc<Engine>,
    poll: Poll,
    asked: Arc<AtomicUsize>,
    packets: Arc<AtomicUsize>,
    wanting: Arc<Mutex<Weak<Engine>>>,
}

impl Bare {
    fn new() -> Self {
        Self::driven_by(Driver::Inline)
    }

    fn driven_by(driver: Driver) -> Self {
        let (asked, packets, wanting) = (Arc::default(), Arc::default(), Arc::default());
        let table = GidTable::new(&[[10, 0, 0, 1].into()], Mac::default(), 4200);
        let backend = Counting {
            table,
            asked: Arc::clone(&asked),
            packets: Arc::clone(&packets),
            wanting: Arc::clone(&wanting),
        };
        let config = NicConfig::new(
            backend.table.gids().to_vec(),
            backend.table.active_mtu(),
            backend.caps(),
            1,
            qp::Profile::Strict,
        );
        let (engine, poll) = Engine::new(Nic::new(config), Box::new(backend), driver).expect("a poll");
        Self { engine, poll, asked, packets, wanting }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether someone who blocks in the poll would be woken now.
    fn wakes(&mut self) -> bool {
        let mut events = Events::with_capacity(4);
        self.poll.poll(&mut events, Some(StdDuration::ZERO)).expect("poll");
        !events.is_empty()
    }
}

#[test]
fn a_pass_that_is_wanted_while_one_runs_follows_it() {
    let bare = Bare::new();
    bare.engine.drive();
    assert_eq!(bare.asked(), 1);
    let engine = &bare.engine;
    engine.with_io(|_| {
        engine.drive();
        engine.drive();
        assert_eq!(bare.asked(), 1, "the path is taken");
    });
    assert_eq!(bare.asked(), 2, "one pass does for both");
    engine.with_io(|_| {});
    assert_eq!(bare.asked(), 2, "nothing is wanted");
}

#[test]
fn only_a_pass_that_did_something_wakes_a_thread_that_sleeps() {
    let mut bare = Bare::new();
    for (asleep, packets, woken) in [(true, 0, false), (false, 1, false), (true, 1, true)] {
        bare.engine.asleep.store(asleep, Ordering::SeqCst);
        bare.packets.store(packets, Ordering::Relaxed);
        bare.engine.drive();
        assert_eq!(bare.wakes(), woken, "asleep {asleep}, {packets} packets");
    }
    // It is told once, and has then to look for itself.
    bare.packets.store(1, Ordering::Relaxed);
    bare.engine.drive();
    assert!(!bare.wakes());
}

#[test]
fn a_pass_goes_on_after_a_panic_in_another() {
    let bare = Bare::new();
    let engine = Arc::clone(&bare.engine);
    let panicked = std::thread::spawn(move || engine.with_io(|_| panic!("on purpose"))).join();
    assert!(panicked.is_err());
    bare.engine.drive();
    assert_eq!(bare.asked(), 1);
}

#[test]
fn others_who_want_pass_after_pass_do_not_keep_a_caller() {
    let mut bare = Bare::new();
    *lock(&bare.wanting) = Arc::downgrade(&bare.engine);
    bare.engine.asleep.store(true, Ordering::SeqCst);
    bare.engine.drive();
    assert_eq!(bare.asked(), WANTED_PASSES);
    assert!(bare.wakes(), "the device's thread is to see to the rest");
    *lock(&bare.wanting) = Weak::new();
    bare.engine.with_io(|_| {});
    assert_eq!(bare.asked(), WANTED_PASSES + 1, "nothing is forgotten");
}

#[test]
fn with_a_driver_of_its_own_the_device_wakes_it_for_what_is_posted_and_nothing_else() {
    for driver in [Driver::Background, Driver::Spin] {
        let mut bare = Bare::driven_by(driver);
        let cq = bare.engine.nic().create_cq(1).expect("a queue");
        bare.engine.asleep.store(true, Ordering::SeqCst);
        bare.engine.polled(cq);
        assert!(!bare.wakes());
        bare.engine.posted();
        assert!(bare.wakes());
        bare.engine.posted();
        assert!(!bare.wakes(), "it is awake");
        assert_eq!(bare.asked(), 0, "the program runs no pass");
        // What was posted while it was not looking is seen to before it sleeps.
        bare.engine.with_io(|_| {});
        assert_eq!(bare.asked(), 1);
    }
}

#[test]
fn the_thread_leaves_the_device_to_a_program_that_runs_passes_until_it_falls_silent_or_waits() {
    let bare = Bare::new();
    let engine = &bare.engine;
    let at = |micros: u64| Instant::from_nanos(1000 * micros);
    let silence = Duration::from_micros(100);
    let watch = |seen| thread::Watch { silence, seen: at(seen).as_nanos() };
    let waits_having_seen = |seen, micros| {
        engine.time_at_gate(at(micros), watch(seen)).map(|wait| StdDuration::from(wait).as_micros())
    };
    let waits = |micros| waits_having_seen(10, micros);
    assert_eq!(waits(10), None, "it has run none");
    engine.note_driven(at(10));
    assert_eq!([10, 30, 109, 110, 5000].map(waits), [Some(100), Some(80), Some(1), None, None]);
    engine.note_driven(at(5000));
    assert_eq!(waits(5000), Some(100));
    assert_eq!(waits(9000), Some(100), "it has run one since the last look, which may just have ended");
    assert_eq!(waits_having_seen(5000, 9000), None);
    let long = engine.with_io(|_| waits_having_seen(5000, 9000));
    assert_eq!(long, Some(100), "its pass takes long");
    engine.hand_over();
    assert_eq!(waits(5000), None, "it waits for an event");
    let cq = engine.nic().create_cq(1).expect("a queue");
    for pass in [|engine: &Engine, _| engine.drive(), |engine: &Engine, _| engine.posted(), Engine::polled] {
        engine.hand_over();
        let before = engine.now();
        pass(engine, cq);
        assert!(engine.time_at_gate(before, watch(0)).is_some(), "every pass of the program counts");
    }
}

#[test]
fn a_program_that_waits_for_packets_is_woken_and_keeps_the_device() {
    let bare = Bare::new();
    let engine = &bare.engine;
    let long = Duration::from_secs(10);
    assert!(!engine.wait_for_packets(Duration::from_micros(100)), "nothing comes");
    engine.wake();
    let before = engine.now();
    assert!(engine.wait_for_packets(long));
    let now = engine.now();
    assert!(now - before < long, "it was woken");
    let watch = thread::Watch { silence: Duration::ZERO, seen: before.as_nanos() };
    assert!(engine.time_at_gate(now, watch).is_some(), "it has said for how long it may be silent");
    // Where there is no path there is nothing to wait for.
    engine.with_io(|io| io.broken = Some("gone".into()));
    assert!(!engine.wait_for_packets(long));
}

/// Whoever has the packet path may wait for the core of whoever polls for it.
#[test]
fn who_polls_in_vain_for_long_waits_for_who_has_the_packet_path() {
    let bare = Bare::new();
    let engine = &bare.engine;
    let cq = engine.nic().create_cq(1).expect("a queue");
    let polls = AtomicUsize::new(0);
    let io = lock(&engine.io);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while bare.asked() == 0 {
                polls.fetch_add(1, Ordering::Relaxed);
                engine.polled(cq);
            }
        });
        while polls.load(Ordering::Relaxed) <= 8 {
            std::thread::yield_now();
        }
        drop(io);
    });
    assert_eq!(polls.into_inner(), 9, "the last one waits, and makes the pass");
}

/// Two queue pairs of devices without threads, connected to each other.
fn connected() -> [(CompletionQueue, QueuePair); 2] {
    let hub = Loopback::hub();
    let prepared = [1, 2].map(|last| {
        let backend = hub.attach([127, 0, 0, last].into()).expect("free");
        let device = Device::builder(backend).seed(last.into()).without_thread();
        let cq = device.create_cq(64).expect("a queue");
        let pd = device.alloc_pd();
        let qp = pd.create_qp(qp::QpType::Rc, &cq, &cq).signal_all().build().expect("a queue pair");
        (cq, qp)
    });
    let [a, b] = [0, 1].map(|i| prepared[i].1.endpoint(1));
    let mut peers = [b, a].into_iter();
    prepared.map(|(cq, qp)| {
        let peer = peers.next().expect("one each");
        (cq, qp.connect(peer, &ConnectOptions::default()).expect("connects"))
    })
}

#[test]
fn completions_come_before_the_acknowledgement_leaves_which_the_next_call_sends() {
    type Call = fn(&CompletionQueue, &QueuePair);
    let next_calls: [Call; 4] = [
        |cq, _| assert!(cq.poll(8).is_empty()),
        |cq, _| assert_eq!(cq.poll(1).len(), 1),
        |_, qp| qp.post_send(SendWr::send(1, &[])).expect("taken"),
        |_, qp| {
            let failed = QpAttr { state: QpState::Err, ..QpAttr::default() };
            qp.modify(&failed, AttrMask::STATE).expect("possible");
        },
    ];
    for (i, next_call) in next_calls.into_iter().enumerate() {
        let [(near_cq, near), (far_cq, far)] = connected();
        for _ in 0..2 {
            far.post_recv(RecvWr::new(2, &[])).expect("taken");
            near.post_send(SendWr::send(1, &[])).expect("taken");
        }
        let first = if i == 1 { 1 } else { 2 };
        assert_eq!(far_cq.poll(first).len(), first);
        assert!(near_cq.poll(2).is_empty(), "call {i}: nothing has come back yet");
        next_call(&far_cq, &far);
        assert_eq!(near_cq.poll(2).len(), 2, "call {i}");
    }
}

#[test]
fn what_was_received_is_acknowledged_before_its_queue_pair_goes() {
    let [(near_cq, near), (far_cq, far)] = connected();
    far.post_recv(RecvWr::new(2, &[])).expect("taken");
    near.post_send(SendWr::send(1, &[])).expect("taken");
    assert_eq!(far_cq.poll(1).len(), 1);
    drop(far);
    assert_eq!(near_cq.poll(1).first().map(|wc| wc.status), Some(qp::WcStatus::Success));
}

/// A back end that never has room.
#[derive(Debug)]
struct Full(Loopback);

impl Backend for Full {
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

    fn send_batch(&mut self, _: &TxBatch, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.0.register(registry, token)
    }
}

/// Rule F18: or nobody would offer it again where the program posts nothing more.
#[test]
fn a_thread_that_sleeps_is_told_of_what_found_no_room() {
    let backend = Full(Loopback::hub().attach([127, 0, 0, 1].into()).expect("free"));
    let device = Device::builder(backend).seed(1).without_thread();
    let cq = device.create_cq(8).expect("a queue");
    let prepared = device.alloc_pd().create_qp(qp::QpType::Rc, &cq, &cq).build().expect("a queue pair");
    let peer = prepared.endpoint(1);
    let qp = prepared.connect(peer, &ConnectOptions::default()).expect("connects");
    device.engine().asleep.store(true, Ordering::SeqCst);
    qp.post_send(SendWr::send(1, &[])).expect("taken");
    assert!(!device.engine().asleep.load(Ordering::SeqCst));
}
