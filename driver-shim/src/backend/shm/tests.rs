use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration as StdDuration;

use mio::{Events, Poll};
use tempfile::TempDir;
use wire::{ROCE_V2_PORT, icrc};

use super::*;
use crate::backend::own::{nothing_starts, start};

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: StdDuration = StdDuration::from_secs(60);

/// A directory of its own, removed at the end.
struct Directory(TempDir);

impl Directory {
    fn new() -> Self {
        Self(TempDir::new().expect("a directory"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn open(&self, last: u8) -> Shm {
        Shm::open_in(self.path(), address(last)).expect("opens")
    }
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn batch(src: IpAddr, dst: IpAddr, from: &Shm, count: usize, len: usize) -> TxBatch {
    let net = NetHeader::v2(src, dst, ROCE_V2_PORT, 0x6A, 17).expect("one family");
    let mut tx = TxBatch::new();
    tx.begin(net, &from.caps(), 7);
    for byte in 0..count {
        tx.push(len).fill(u8::try_from(byte).expect("few"));
    }
    tx.seal();
    tx
}

fn send(from: &mut Shm, to: u8, count: usize, len: usize) -> TxBatch {
    let tx = batch(from.address, address(to), from, count, len);
    assert_eq!(from.send_batch(&tx, 0).expect("sends"), count);
    from.kick().expect("tells");
    tx
}

/// Lets `shm` notice what has happened to others.
fn pass_time(shm: &mut Shm) {
    let now = shm.now + LOOK_AROUND;
    shm.poll(now);
}

fn check_arrival(to: &mut Shm, tx: &TxBatch) {
    pass_time(to);
    let mut rx = RxBurst::new();
    while to.recv_burst(&mut rx).expect("receives") > 0 {}
    assert_eq!(rx.len(), tx.len());
    for ((packet, body), (sent, sent_body)) in rx.iter().zip(tx.iter()) {
        assert_eq!((packet.net, packet.knowledge, body), (sent, HeaderKnowledge::Seen, sent_body));
        assert!(icrc::verify(&packet.net, body));
    }
}

#[test]
fn packets_reach_the_other_device_and_the_device_itself() {
    let directory = Directory::new();
    let (mut a, mut b) = (directory.open(1), directory.open(2));
    for count in [1, 64] {
        let tx = send(&mut a, 2, count, 4112);
        check_arrival(&mut b, &tx);
        let tx = send(&mut b, 1, count, 64);
        check_arrival(&mut a, &tx);
        let tx = send(&mut a, 1, count, 1040);
        check_arrival(&mut a, &tx);
    }
    assert_eq!((a.counters(), b.counters()), (IoCounters::default(), IoCounters::default()));
}

#[test]
fn packets_over_ipv6_reach_the_other_device() {
    let directory = Directory::new();
    let [one, two] = ["fd00::1", "fd00::2"].map(|text| text.parse::<IpAddr>().expect("address"));
    let (mut a, mut b) = (
        Shm::open_in(directory.path(), one).expect("opens"),
        Shm::open_in(directory.path(), two).expect("opens"),
    );
    let tx = batch(one, two, &a, 3, 4112);
    assert_eq!(a.send_batch(&tx, 0).expect("sends"), 3);
    check_arrival(&mut b, &tx);
}

#[test]
fn whoever_waits_is_woken_by_packets_and_whoever_does_not_costs_no_call() {
    let directory = Directory::new();
    let (mut a, mut b) = (directory.open(1), directory.open(2));
    let (mut poll, mut events) = (Poll::new().expect("poll"), Events::with_capacity(8));
    b.register(poll.registry(), Token(3)).expect("registers");
    let mut wait = |b: &mut Shm, limit| {
        poll.poll(&mut events, Some(limit)).expect("polls");
        b.look_around = Instant::ZERO;
        events.iter().any(|event| event.token() == Token(3))
    };
    assert!(b.before_wait(), "nothing is there");
    let tx = send(&mut a, 2, 2, 64);
    assert!(wait(&mut b, LIMIT), "somebody connects");
    assert!(!b.before_wait(), "somebody has come");
    assert!(!b.before_wait(), "packets are there");
    check_arrival(&mut b, &tx);
    for _ in 0..3 {
        assert!(b.before_wait());
        wait(&mut b, StdDuration::ZERO);
        let tx = send(&mut a, 2, 2, 64);
        assert!(wait(&mut b, LIMIT), "packets wake");
        check_arrival(&mut b, &tx);
        let tx = send(&mut a, 2, 2, 64);
        assert!(!wait(&mut b, StdDuration::ZERO), "nobody sleeps");
        check_arrival(&mut b, &tx);
    }
}

#[test]
fn a_note_that_is_read_while_another_thread_waits_is_passed_on() {
    let directory = Directory::new();
    let (mut a, mut b) = (directory.open(1), directory.open(2));
    let (mut poll, mut events) = (Poll::new().expect("poll"), Events::with_capacity(8));
    b.set_waker(Arc::new(Waker::new(poll.registry(), Token(4)).expect("waker")));
    let tx = send(&mut a, 2, 1, 64);
    check_arrival(&mut b, &tx);
    poll.poll(&mut events, Some(LIMIT)).expect("polls");
    assert!(events.iter().any(|event| event.token() == Token(4)));
}

#[test]
fn an_address_is_held_until_it_is_dropped_and_what_a_dead_owner_left_is_taken_over() {
    let _held = nothing_starts();
    let directory = Directory::new();
    let first = directory.open(1);
    assert!(matches!(Shm::open_in(directory.path(), address(1)), Err(OpenError::AddressInMemory { .. })));
    drop(first);
    // A socket that nobody removed.
    let left = Socket::new(socket2::Domain::UNIX, socket2::Type::SEQPACKET, None).expect("a socket");
    left.bind(&socket2::SockAddr::unix(directory.path().join("10.0.0.1")).expect("a path")).expect("binds");
    drop(left);
    let (mut a, mut b) = (directory.open(1), directory.open(2));
    let tx = send(&mut b, 1, 3, 64);
    check_arrival(&mut a, &tx);
}

#[test]
fn what_goes_to_nobody_is_lost_until_somebody_is_there() {
    let directory = Directory::new();
    let mut a = directory.open(1);
    assert_eq!(a.prepare(Instant::ZERO, address(2)), Reachability::Unreachable(Unreachable::NoAnswer));
    send(&mut a, 2, 3, 64);
    assert_eq!(a.counters().tx_lost, 3);
    let mut b = directory.open(2);
    pass_time(&mut a);
    let tx = send(&mut a, 2, 3, 64);
    check_arrival(&mut b, &tx);
    assert_eq!(a.prepare(a.now, address(2)), Reachability::Ready);
    assert_eq!(a.counters().tx_lost, 3);
}

#[test]
fn what_a_device_sent_before_its_end_arrives_and_then_its_ring_is_dropped() {
    let _held = nothing_starts();
    let directory = Directory::new();
    let (mut a, mut b) = (directory.open(1), directory.open(2));
    let tx = send(&mut a, 2, 5, 1040);
    drop(a);
    check_arrival(&mut b, &tx);
    assert!(b.from.is_empty());
    // The next of that address is another.
    let mut a = directory.open(1);
    let tx = send(&mut a, 2, 1, 64);
    check_arrival(&mut b, &tx);
    drop(b);
    pass_time(&mut a);
    assert!(a.to.is_empty());
}

#[test]
fn a_full_ring_takes_fewer_and_a_reader_that_never_reads_loses_packets() {
    let directory = Directory::new();
    let (mut a, mut b) = (directory.open(1), directory.open(2));
    let tx = batch(address(1), address(2), &a, 64, 4112);
    let mut sent = 0;
    let short = loop {
        match a.send_batch(&tx, 0).expect("sends") {
            64 => sent += 64,
            fewer => break fewer,
        }
    };
    sent += short;
    assert!(sent >= records::packets() as usize);
    assert_eq!(a.send_batch(&tx, short).expect("sends"), 0);
    let mut rx = RxBurst::new();
    pass_time(&mut b);
    assert_eq!(b.recv_burst(&mut rx).expect("receives"), BURST);
    assert_eq!(a.send_batch(&tx, short).expect("sends"), 64 - short);
    assert_eq!(a.counters(), IoCounters::default());
    while a.send_batch(&tx, 0).expect("sends") > 0 {}
    a.poll(a.now + PATIENCE + LOOK_AROUND);
    assert_eq!(a.send_batch(&tx, 0).expect("sends"), 64);
    assert_eq!(a.counters().tx_lost, 64);
}

#[test]
fn packets_under_another_address_and_nonsense_do_not_get_in() {
    let directory = Directory::new();
    let (mut a, mut b) = (directory.open(1), directory.open(2));
    let forged = batch(address(9), address(2), &a, 2, 64);
    assert_eq!(a.send_batch(&forged, 0).expect("sends"), 2);
    pass_time(&mut b);
    let mut rx = RxBurst::new();
    assert_eq!(b.recv_burst(&mut rx).expect("receives"), 2);
    assert!(rx.is_empty());
    assert_eq!(b.counters().rx_lost, 2);
    // Neither does who greets otherwise.
    let path = socket2::SockAddr::unix(directory.path().join("10.0.0.2")).expect("a path");
    for words in [b"hello".as_slice(), b"FERROCE\x01then no memory...", &[0; 200]] {
        let stranger = Socket::new(socket2::Domain::UNIX, socket2::Type::SEQPACKET, None).expect("a socket");
        stranger.connect(&path).expect("connects");
        stranger.send(words).expect("sends");
        pass_time(&mut b);
        assert_eq!(b.from.len(), 1);
    }
}

/// Runs as the other process of the tests that have two.
#[test]
fn other_process() {
    let Some(directory) = std::env::var_os("FERROCE_TEST_SHM_OTHER").map(PathBuf::from) else { return };
    let mut b = Shm::open_in(&directory, address(2)).expect("opens");
    let (mut poll, mut events) = (Poll::new().expect("poll"), Events::with_capacity(8));
    b.register(poll.registry(), Token(0)).expect("registers");
    println!("open");
    // Sends back what comes, until it is ended; and if nobody ends it, ends itself.
    let mut rx = RxBurst::new();
    loop {
        rx.clear();
        pass_time(&mut b);
        while b.recv_burst(&mut rx).expect("receives") > 0 {}
        for (packet, body) in rx.iter() {
            let mut tx = TxBatch::new();
            let net = NetHeader::v2(address(2), packet.net.src(), ROCE_V2_PORT, 0, 64);
            tx.begin(net.expect("one family"), &b.caps(), 0);
            tx.push(body.len()).copy_from_slice(body);
            tx.seal();
            assert_eq!(b.send_batch(&tx, 0).expect("sends"), 1);
        }
        b.kick().expect("tells");
        if rx.is_empty() && b.before_wait() {
            poll.poll(&mut events, Some(LIMIT)).expect("polls");
            assert!(!events.is_empty(), "nobody ended this process");
        }
    }
}

fn start_other(directory: &Directory) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "backend::shm::tests::other_process", "--nocapture"])
        .env("FERROCE_TEST_SHM_OTHER", directory.path())
        .stdout(Stdio::piped());
    let mut child = start(&mut command).expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let opened = lines.map_while(Result::ok).any(|line| line.contains("open"));
    assert!(opened, "the other process opens its device");
    child
}

#[test]
fn two_processes_exchange_packets_and_one_that_is_killed_is_forgotten_and_replaced() {
    let directory = Directory::new();
    let mut a = directory.open(1);
    let (mut poll, mut events) = (Poll::new().expect("poll"), Events::with_capacity(8));
    a.register(poll.registry(), Token(0)).expect("registers");
    for _ in 0..2 {
        let mut child = start_other(&directory);
        pass_time(&mut a);
        for round in 1..=5 {
            let tx = send(&mut a, 2, 8 * round, 1040);
            let mut rx = RxBurst::new();
            while rx.len() < tx.len() {
                pass_time(&mut a);
                if a.recv_burst(&mut rx).expect("receives") == 0 && a.before_wait() {
                    poll.poll(&mut events, Some(LIMIT)).expect("polls");
                    assert!(!events.is_empty(), "nothing comes back");
                }
            }
            for ((_, body), (_, sent)) in rx.iter().zip(tx.iter()) {
                assert_eq!(body[..sent.len() - 4], sent[..sent.len() - 4]);
            }
        }
        child.kill().expect("ends");
        child.wait().expect("ended");
        let mut rx = RxBurst::new();
        pass_time(&mut a);
        assert_eq!(a.recv_burst(&mut rx).expect("receives"), 0);
        assert!(a.to.is_empty() && a.from.is_empty());
    }
}
