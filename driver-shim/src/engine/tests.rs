use std::sync::Weak;
use std::sync::atomic::AtomicUsize;

use mio::Registry;
use qp::NicConfig;
use wire::Mac;
use wire::batch::{Caps, IpIdRule};

use super::*;
use crate::interfaces::GidTable;

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
        let (asked, packets, wanting) = (Arc::default(), Arc::default(), Arc::default());
        let table = GidTable::new(&[[10, 0, 0, 1].into()], Mac::default(), 4200);
        let backend = Counting {
            table,
            asked: Arc::clone(&asked),
            packets: Arc::clone(&packets),
            wanting: Arc::clone(&wanting),
        };
        let config = NicConfig {
            gids: backend.table.gids().to_vec(),
            active_mtu: backend.table.active_mtu(),
            caps: backend.caps(),
            seed: 1,
            profile: qp::Profile::Strict,
        };
        let (engine, poll) = Engine::new(Nic::new(config), Box::new(backend)).expect("a poll");
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
