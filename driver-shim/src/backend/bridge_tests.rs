use std::io::Write;
use std::path::PathBuf;
use std::thread::JoinHandle;

use fabric::switched::{MarkAt, Red};
use proptest::prelude::*;
use wire::{ROCE_V2_PORT, icrc};

use super::*;
use crate::backend::own::nothing_starts;
use crate::backend::{Packet, PacketConfig, namespace};
use crate::bridge::{Bridge, BridgeConfig, BridgeError, Report, Stopper, Way};

const WAY: Way =
    Way { rate: 10_000_000_000, delay: wire::Duration::ZERO, limit: 1 << 24, red: None, drop: 0.0, seed: 1 };

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(60);

/// A bridge in a thread of its own.
struct Running {
    path: PathBuf,
    stopper: Stopper,
    thread: JoinHandle<Report>,
}

/// A path that no other test uses.
fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ferroce-test-{}-{name}", std::process::id()))
}

fn config(way: Way) -> BridgeConfig {
    BridgeConfig { way, shared: Vec::new(), warm_up: None, lasts: None, capture: None }
}

fn start(name: &str, config: &BridgeConfig) -> Running {
    let path = path(name);
    let mut bridge = Bridge::listen(&path, config).expect("a bridge");
    let stopper = bridge.stopper();
    Running { path, stopper, thread: std::thread::spawn(move || bridge.run().expect("it ends well")) }
}

impl Running {
    fn port(&self, last: u8) -> BridgePort {
        BridgePort::open(&self.path, &Local::Address(address(last))).expect("a port")
    }

    fn stop(self) -> Report {
        self.stopper.stop();
        let report = self.thread.join().expect("no panic");
        assert!(!self.path.exists(), "the socket is gone");
        report
    }
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn batch(port: &BridgePort, from: u8, to: u8, count: usize) -> TxBatch {
    let net = NetHeader::v2(address(from), address(to), ROCE_V2_PORT, 2, 64).expect("one family");
    let mut tx = TxBatch::new();
    tx.begin(net, &port.caps(), 7);
    for i in 0..count {
        tx.push(64).fill(u8::try_from(i).unwrap_or(0));
    }
    tx.seal();
    tx
}

/// Waits for `count` packets; returns the bodies.
fn receive(port: &mut BridgePort, count: usize) -> Vec<Vec<u8>> {
    let mut rx = RxBurst::new();
    let mut bodies = Vec::new();
    while bodies.len() < count {
        crate::sys::wait_readable(port.socket.as_fd(), LIMIT).expect("a poll");
        rx.clear();
        assert_ne!(port.recv_burst(&mut rx).expect("receives"), 0, "{} of {count}", bodies.len());
        for (packet, body) in rx.iter() {
            assert!(icrc::verify(&packet.net, body));
            bodies.push(body.to_vec());
        }
    }
    bodies
}

#[test]
fn packets_pass_between_clients_in_order() {
    let bridge = start("pass", &config(WAY));
    let (mut a, mut b) = (bridge.port(1), bridge.port(2));
    assert_eq!((a.name(), a.rate()), ("bridge", WAY.rate));
    let tx = batch(&a, 1, 2, 64);
    assert_eq!(a.send_batch(&tx, 3).expect("sends"), 61);
    let sent: Vec<_> = tx.bodies_from(3).map(<[u8]>::to_vec).collect();
    assert_eq!(receive(&mut b, 61), sent);
    let answer = batch(&b, 2, 1, 1);
    assert_eq!(b.send_batch(&answer, 0).expect("sends"), 1);
    assert_eq!(receive(&mut a, 1).len(), 1);
    let report = bridge.stop();
    assert_eq!(report.queues.iter().map(|queue| queue.packets).collect::<Vec<_>>(), [1, 61]);
    assert_eq!(report.lost, crate::bridge::Lost::default());
}

#[test]
fn a_port_is_not_taken_for_slower_than_its_bridge() {
    let bridge = start("speed", &config(Way { rate: 1_500_000, ..WAY }));
    assert_eq!(bridge.port(1).addresses().speed(), Some(qp::Rate::from_mbps(2.0)));
    bridge.stop();
}

#[test]
fn an_address_has_one_client_until_it_is_dropped() {
    let bridge = start("address", &config(WAY));
    let first = bridge.port(1);
    let again = BridgePort::open(&bridge.path, &Local::Address(address(1)));
    assert!(matches!(again, Err(OpenError::AddressOnBridge { .. })), "{again:?}");
    drop(first);
    // The bridge reads of the end before it reads of the new one, or else is asked once more.
    let opened = (0..1000).map(|_| BridgePort::open(&bridge.path, &Local::Address(address(1))));
    opened.flatten().next().expect("free again");
    let [a, b] =
        [0, 1].map(|_| BridgePort::open(&bridge.path, &Local::FreeLoopback).expect("free addresses"));
    let addresses = [&a, &b].map(|port| port.table.gids().last().expect("an address").ip());
    assert_eq!(addresses, [IpAddr::from([127, 0, 0, 2]), IpAddr::from([127, 0, 0, 3])]);
    bridge.stop();
}

#[test]
fn only_addresses_of_hosts_are_given_out() {
    let bridge = start("hosts", &config(WAY));
    for bad in
        ["0.0.0.0", "0.1.2.3", "224.0.0.1", "239.1.2.3", "255.255.255.255", "::", "ff02::1", "::ffff:0.0.0.0"]
    {
        let local = Local::Address(bad.parse().expect("an address"));
        let error = BridgePort::open(&bridge.path, &local).expect_err(bad);
        assert!(matches!(error, OpenError::NoHostAddress { .. }), "{bad}: {error}");
    }
    for good in ["1.0.0.0", "169.254.1.1", "223.255.255.255", "127.0.0.1", "fe80::1", "::1"] {
        let local = Local::Address(good.parse().expect("an address"));
        BridgePort::open(&bridge.path, &local).expect(good);
    }
    bridge.stop();
}

#[test]
fn addresses_that_nobody_has_any_more_make_room_for_others() {
    let bridge = start("again", &BridgeConfig { shared: vec![address(1)], ..config(WAY) });
    let mut stays = bridge.port(2);
    for group in 0..20 {
        let client = connect(&bridge.path).expect("connects");
        for last in 0..64 {
            let address = IpAddr::from([10, 1, group, last]);
            assert_eq!(ask(&client, &bridge.path, address).expect("an answer"), Some(WAY.rate), "{address}");
        }
        let one_more = ask(&client, &bridge.path, address(9));
        assert!(matches!(one_more, Err(OpenError::BridgeFull { .. })), "{one_more:?}");
    }
    // Who has kept an address has it still, and a new one has a queue that works.
    let mut new = BridgePort::open(&bridge.path, &Local::Address(address(3))).expect("a port");
    let again = BridgePort::open(&bridge.path, &Local::Address(address(2)));
    assert!(matches!(again, Err(OpenError::AddressOnBridge { .. })), "{again:?}");
    let tx = batch(&stays, 2, 3, 5);
    assert_eq!(stays.send_batch(&tx, 0).expect("sends"), 5);
    assert_eq!(receive(&mut new, 5).len(), 5);
    let report = bridge.stop();
    let of_new = report.queues.iter().find(|queue| queue.to == ["10.0.0.3"]).expect("a queue");
    assert_eq!((of_new.packets, report.queues.len() <= 1025), (5, true));
}

#[test]
fn where_every_loopback_address_is_taken_it_is_said_on_which_bridge() {
    let bridge = start("taken", &config(WAY));
    // A client holds up to 64, and costs two descriptors.
    let clients: Vec<_> = (0..4).map(|_| connect(&bridge.path).expect("connects")).collect();
    for (client, last) in clients.iter().cycle().zip(2..=254) {
        let address = IpAddr::from([127, 0, 0, last]);
        assert_eq!(ask(client, &bridge.path, address).expect("an answer"), Some(WAY.rate), "{address}");
    }
    let refused = BridgePort::open(&bridge.path, &Local::FreeLoopback).expect_err("an error").to_string();
    assert!(refused.contains("all in use on the bridge"), "{refused}");
    drop(clients);
    bridge.stop();
}

#[test]
fn one_who_hangs_up_before_he_answers_lets_nobody_in() {
    let path = path("hangs-up");
    let listener = Socket::new(Domain::UNIX, Type::SEQPACKET, None).expect("a socket");
    listener.bind(&SockAddr::unix(&path).expect("a path")).expect("binds");
    listener.listen(1).expect("listens");
    let thread = std::thread::spawn(move || drop(listener.accept().expect("a client")));
    let refused = BridgePort::open(&path, &Local::FreeLoopback).expect_err("an error");
    assert!(matches!(refused, OpenError::BridgeFull { .. }), "{refused}");
    thread.join().expect("no panic");
    std::fs::remove_file(&path).expect("removes");
}

#[test]
fn addresses_that_share_a_queue_are_one_bottleneck() {
    let shared = vec![address(3), address(4)];
    let bridge = start("shared", &BridgeConfig { shared, ..config(WAY) });
    let [mut a, mut c, mut d] = [1, 3, 4].map(|last| bridge.port(last));
    for to in [3, 4, 4] {
        let tx = batch(&a, 1, to, 1);
        assert_eq!(a.send_batch(&tx, 0).expect("sends"), 1);
    }
    assert_eq!((receive(&mut c, 1).len(), receive(&mut d, 2).len()), (1, 2));
    let report = bridge.stop();
    let queues: Vec<_> = report.queues.iter().map(|queue| (queue.to.join(" "), queue.packets)).collect();
    assert_eq!(queues, [("10.0.0.1".to_owned(), 0), ("10.0.0.3 10.0.0.4".to_owned(), 3)]);
}

#[test]
fn a_bridge_that_ends_is_noticed() {
    let bridge = start("ends", &config(WAY));
    let mut port = bridge.port(1);
    bridge.stop();
    let mut rx = RxBurst::new();
    assert_eq!(port.recv_burst(&mut rx).expect_err("an error").to_string(), "the bridge has ended");
    let tx = batch(&port, 1, 2, 1);
    assert_eq!(port.send_batch(&tx, 0).expect_err("an error").to_string(), "the bridge has ended");
}

#[test]
fn a_path_is_taken_from_the_dead_and_from_no_other() {
    let _held = nothing_starts();
    let bridge = start("path", &config(WAY));
    let second = Bridge::listen(&bridge.path, &config(WAY));
    assert!(matches!(second, Err(BridgeError::PathInUse { .. })), "{second:?}");
    bridge.stop();

    let dead = path("dead");
    let listener = Socket::new(Domain::UNIX, Type::SEQPACKET, None).expect("a socket");
    listener.bind(&SockAddr::unix(&dead).expect("a path")).expect("binds");
    drop(listener);
    let refused = BridgePort::open(&dead, &Local::FreeLoopback);
    assert!(matches!(refused, Err(OpenError::NoBridge { .. })), "{refused:?}");
    let bridge = start("dead", &config(WAY));
    bridge.port(1);
    bridge.stop();

    let file = path("file");
    std::fs::write(&file, "mine").expect("writes");
    let refused = Bridge::listen(&file, &config(WAY));
    assert!(matches!(refused, Err(BridgeError::NoSocket { .. })), "{refused:?}");
    assert_eq!(std::fs::read(&file).expect("reads"), b"mine");
    std::fs::remove_file(&file).expect("removes");
}

#[test]
fn a_bridge_that_ends_leaves_the_socket_of_another_alone() {
    let first = start("own", &config(WAY));
    std::fs::remove_file(&first.path).expect("removes");
    let second = start("own", &config(WAY));
    first.stopper.stop();
    first.thread.join().expect("no panic");
    second.port(1);
    second.stop();
}

#[test]
fn what_clients_should_not_send_is_dropped_and_counted() {
    let bridge = start("hostile", &config(WAY));
    let (mut good, mut other) = (bridge.port(1), bridge.port(2));
    let bad = connect(&bridge.path).expect("connects");
    let send = |bytes: &[u8]| (&mut &bad).write_all(bytes).expect("sends");
    let mut packet = Vec::new();
    let tx = batch(&good, 1, 2, 1);
    let (net, body) = tx.iter().next().expect("a packet");
    packet.resize(net.len(), 0);
    net.emit(&mut packet);
    packet.extend_from_slice(body);
    // From an address that is another's; before that nothing of it is known at all.
    send(&packet);
    send(&packet[..packet.len() - 1]);
    send(&[&packet[..], b"more"].concat());
    send(&vec![0x45; LONGEST + 1]);
    send(b"\0FB\x01\x01 but not an address");
    send(b"\0");
    assert_eq!(ask(&bad, &bridge.path, address(3)).expect("an answer"), Some(WAY.rate));
    assert_eq!(ask(&bad, &bridge.path, address(3)).expect("an answer"), Some(WAY.rate));
    assert_eq!(ask(&bad, &bridge.path, address(2)).expect("an answer"), None);
    for to in [9, 2] {
        let tx = batch(&good, 1, to, 1);
        good.send_batch(&tx, 0).expect("sends");
    }
    assert_eq!(receive(&mut other, 1).len(), 1);
    let report = bridge.stop();
    assert_eq!((report.lost.malformed, report.lost.foreign, report.lost.unroutable), (5, 1, 1));
}

#[test]
fn one_who_does_not_read_stops_nobody_else() {
    let bridge = start("deaf", &config(WAY));
    let [mut a, mut reads, _deaf] = [1, 2, 3].map(|last| bridge.port(last));
    // More than a socket and a ring hold.
    for _ in 0..200 {
        for to in [3, 2] {
            let tx = batch(&a, 1, to, 64);
            let mut sent = 0;
            while sent < 64 {
                sent += a.send_batch(&tx, sent).expect("sends");
                if sent < 64 {
                    std::thread::yield_now();
                }
            }
        }
        assert_eq!(receive(&mut reads, 64).len(), 64);
    }
    let report = bridge.stop();
    assert!(report.lost.not_taken > 0, "{:?}", report.lost);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn any_bytes_leave_a_bridge_alive(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..200), 1..50)) {
        let bridge = start("any", &config(WAY));
        let bad = connect(&bridge.path).expect("connects");
        for message in &messages {
            (&mut &bad).write_all(message).expect("sends");
        }
        drop(bad);
        bridge.port(1);
        bridge.stop();
    }
}

/// Two hosts of their own with a bridge between their links: veth0 is one's, veth1 and veth2 are the bridge's, veth3 is
/// the other's.
fn between_two_links() {
    namespace::ip("link add veth2 mtu 4200 type veth peer veth3 mtu 4200");
    namespace::ip("link set veth2 up");
    namespace::ip("link set veth3 up");
    namespace::wait_for_links(5);
    let red = Red { kmin: 0, kmax: 0, pmax: 1.0, at: MarkAt::Enqueue };
    let mut bridge =
        Bridge::between(["veth1", "veth2"], &config(Way { red: Some(red), ..WAY })).expect("a bridge");
    let stopper = bridge.stopper();
    let thread = std::thread::spawn(move || bridge.run().expect("it ends well"));
    let host = |link: &str, last| {
        let own = vec![(address(last), 24)];
        let offload = false;
        let config = PacketConfig { interface: link.into(), own, offload, ..PacketConfig::default() };
        Packet::open(&config).expect("a host")
    };
    let (mut a, mut b) = (host("veth0", 1), host("veth3", 2));
    // As one batch, so that all but the first find others before them.
    let net = NetHeader::v2(address(1), address(2), ROCE_V2_PORT, 2, 64).expect("one family");
    let mut tx = TxBatch::new();
    tx.begin(net, &a.caps(), 7);
    (0..5).for_each(|_| tx.push(1024).fill(3));
    tx.seal();
    assert_eq!(a.send_batch(&tx, 0).expect("sends"), 5);
    let idle = std::net::UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let (mut rx, mut answers, mut now) = (RxBurst::new(), RxBurst::new(), wire::Instant::ZERO);
    while rx.len() < 5 {
        assert!(now < wire::Instant::ZERO + wire::Duration::from_secs(30), "nothing arrives");
        a.poll(now);
        a.recv_burst(&mut answers).expect("receives");
        b.poll(now);
        if b.recv_burst(&mut rx).expect("receives") == 0 {
            let pause = Duration::from_millis(2);
            crate::sys::wait_readable(idle.as_fd(), pause).expect("a poll");
            now += wire::Duration::from(pause);
        }
    }
    for (packet, body) in rx.iter() {
        assert!(icrc::verify(&packet.net, body));
        assert_eq!(packet.net, packet.net.with_transport_len(body.len()), "with its checksum");
    }
    stopper.stop();
    let report = thread.join().expect("no panic");
    let marked = rx.iter().filter(|(packet, _)| packet.net.traffic_class() == 3).count() as u64;
    let there = report.queues.iter().find(|queue| queue.to == ["veth2"]).expect("a queue");
    // Address resolution passed too, and is no flow.
    assert_eq!((there.marked, report.flows.len()), (marked, 1));
    assert!(there.packets > 5 && report.queues.iter().all(|queue| queue.packets > 0));
}

#[test]
fn frames_pass_between_two_links() {
    namespace::run("backend::bridge::tests::frames_pass_between_two_links", between_two_links);
}

#[test]
fn interfaces_that_are_none_are_named() {
    let wrong = Bridge::between(["lo", "no-such"], &config(WAY)).expect_err("an error").to_string();
    assert!(wrong.contains("no-such") || wrong.contains("CAP_NET_RAW"), "{wrong}");
    let same = Bridge::between(["lo", "lo"], &config(WAY)).expect_err("an error");
    assert!(matches!(same, BridgeError::SameInterface { .. }));
}
