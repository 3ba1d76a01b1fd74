use std::cell::RefCell;
use std::net::UdpSocket;

use proptest::prop_assert_eq;
use proptest::test_runner::{Config, TestRunner};
use wire::{Gid, icrc};

use super::*;
use crate::backend::PortOwner;
use crate::backend::own::{open_when_free, own};

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(60);

/// On the address that ends so, which no other test uses.
fn open(end: &str) -> Udp {
    open_with(end, false)
}

fn open_with(end: &str, foreign_senders: bool) -> Udp {
    let config = UdpConfig { local: local(end), foreign_senders, ..UdpConfig::default() };
    open_when_free(end, || Udp::open(&config)).expect("the udp back end opens")
}

fn local(end: &str) -> Local {
    Local::Address(own(end).parse().expect("address"))
}

fn batch(from: &Udp, to: &Udp, count: usize, len: usize) -> TxBatch {
    let mut lens = vec![len; count - 1];
    lens.push(if count > 1 { len - 4 } else { len });
    batch_of(from, to, &lens)
}

fn batch_of(from: &Udp, to: &Udp, lens: &[usize]) -> TxBatch {
    batch_of_class(from, to, lens, 0x6A)
}

fn batch_of_class(from: &Udp, to: &Udp, lens: &[usize], class: u8) -> TxBatch {
    let (src, dst) = (from.sockets.all()[0].address, to.sockets.all()[0].address);
    let net = NetHeader::v2(src, dst, ROCE_V2_PORT, class, 17).expect("one family");
    let mut tx = TxBatch::new();
    tx.begin(net, &from.caps(), 99);
    for (byte, len) in (0..).zip(lens) {
        assert!(tx.accepts(*len, &from.caps()));
        tx.push(*len).fill(byte);
    }
    tx.seal();
    tx
}

fn receive(udp: &mut Udp, rx: &mut RxBurst, count: usize) {
    while rx.len() < count {
        assert!(sys::wait_readable(udp.sockets.all()[0].fd(), LIMIT).expect("poll"), "nothing arrives");
        udp.recv_burst(rx).expect("receives");
    }
}

/// Receives the packets of `tx` from index `from` on, which were sent, and compares. Over IPv4 the identification is a
/// guess, the place in what came as one: a kernel that is busy may split a run on its way.
fn check_arrival(receiver: &mut Udp, tx: &TxBatch, from: usize) {
    let mut rx = RxBurst::new();
    let count = tx.len() - from;
    receive(receiver, &mut rx, count);
    assert_eq!(rx.len(), count);
    let mut next_id = 0;
    for ((packet, body), (sent, sent_body)) in rx.iter().zip(tx.iter().skip(from)) {
        let v4 = sent.dst().is_ipv4();
        assert_eq!((packet.net.with_id(0), body), (sent.with_id(0), sent_body));
        if let NetHeader::V4(ip, _) = packet.net {
            assert!(ip.id == 0 || ip.id == next_id, "{} after {next_id}", ip.id);
            next_id = ip.id + 1;
        }
        assert_eq!(packet.knowledge, if v4 { HeaderKnowledge::Near } else { HeaderKnowledge::Assumed });
        assert!(icrc::verify(&sent, body));
    }
    assert_eq!(receiver.recv_burst(&mut rx).expect("receives"), 0);
    assert_eq!(receiver.counters(), IoCounters::default());
}

#[test]
fn a_batch_arrives_over_ipv4_with_exact_icrcs_and_header_fields() {
    let (mut sender, mut receiver) = (open("2.1"), open("2.2"));
    assert_eq!(sender.caps().ip_id, IpIdRule::Index, "this kernel segments");
    for count in [1, 15] {
        let tx = batch(&sender, &receiver, count, 4112);
        assert_eq!(sender.send_batch(&tx, 0).expect("sends"), count);
        check_arrival(&mut receiver, &tx, 0);
    }
}

#[test]
fn a_batch_arrives_over_ipv6_with_exact_icrcs_and_header_fields() {
    let mut udp = open("::1");
    let tx = batch(&udp, &udp, 62, 1040);
    assert_eq!(udp.send_batch(&tx, 0).expect("sends"), 62);
    check_arrival(&mut udp, &tx, 0);
    // What is left of a batch that did not go whole.
    assert_eq!(udp.send_batch(&tx, 60).expect("sends"), 2);
    check_arrival(&mut udp, &tx, 60);
}

/// Data that may be marked, data that is, and CNPs, right behind each other: a mark is not lost in a run of packets that
/// have none, nor spread over them.
#[test]
fn traffic_classes_arrive_as_they_were_sent() {
    const CLASSES: [u8; 5] = [0x02, 0x03, 0x02, 0xC2, 0x00];
    for (near, far) in [("2.20", "2.21"), ("2.21", "2.20"), ("::1", "::1")] {
        let mut sender = open(near);
        let mut other = (near != far).then(|| open(far));
        let batches = CLASSES.map(|class| {
            let to = other.as_ref().unwrap_or(&sender);
            batch_of_class(&sender, to, &[1040; 5], class)
        });
        for tx in &batches {
            assert_eq!(sender.send_batch(tx, 0).expect("sends"), 5);
        }
        let mut rx = RxBurst::new();
        receive(other.as_mut().unwrap_or(&mut sender), &mut rx, 25);
        let classes: Vec<u8> = rx.iter().map(|(packet, _)| packet.net.traffic_class()).collect();
        assert_eq!(classes, CLASSES.map(|class| [class; 5]).concat());
    }
}

#[test]
fn without_offload_each_packet_is_a_datagram_of_its_own() {
    let config = UdpConfig { local: local("2.3"), offload: false, ..UdpConfig::default() };
    let (mut sender, mut receiver) = (Udp::open(&config).expect("opens"), open("2.4"));
    assert_eq!(sender.caps().ip_id, IpIdRule::Fixed0);
    let tx = batch(&sender, &receiver, 5, 4112);
    assert_eq!(sender.send_batch(&tx, 2).expect("sends"), 3);
    check_arrival(&mut receiver, &tx, 2);
}

#[test]
fn a_batch_made_for_offload_is_sent_packet_by_packet_where_the_way_has_refused_it() {
    let (mut sender, mut receiver) = (open("2.5"), open("2.6"));
    let tx = batch(&sender, &receiver, 5, 1040);
    sender.runs.on_refusal(receiver.sockets.all()[0].address);
    assert_eq!(sender.send_batch(&tx, 0).expect("sends"), 5);
    let mut rx = RxBurst::new();
    receive(&mut receiver, &mut rx, 5);
    for ((packet, body), (sent, sent_body)) in rx.iter().zip(tx.iter()) {
        assert_eq!(packet.net, sent.with_id(0));
        assert_eq!(body[..body.len() - 4], sent_body[..body.len() - 4]);
        assert!(icrc::verify(&packet.net, body));
    }
}

#[test]
fn datagrams_that_are_no_runs_of_packets_give_what_is_in_them() {
    let (stranger, mut udp) = (open("2.7"), open("2.8"));
    let to = roce_port(udp.sockets.all()[0].address, 0);
    let (bytes, mut rx) = ([7; 100], RxBurst::new());
    for (len, segment, parts) in
        [(100, 33, vec![33, 33, 33, 1]), (64, 1, vec![1; 64]), (100, 100, vec![100]), (0, 0, vec![0])]
    {
        let mut control = ControlBuf::default();
        if segment > 0 {
            control.push_segment_len(segment);
        }
        let odd = Outgoing { parts: [&bytes[..len], &[], &[]], to: Some(&to), control: Some(&control) };
        assert_eq!(sys::send_many(stranger.sockets.all()[0].fd(), std::iter::once(odd)).expect("sends"), 1);
        rx.clear();
        receive(&mut udp, &mut rx, parts.len());
        let bodies: Vec<usize> = rx.iter().map(|(_, body)| body.len()).collect();
        assert_eq!(bodies, parts);
    }
    assert_eq!(udp.counters(), IoCounters::default());
}

#[test]
fn any_batch_arrives_packet_by_packet() {
    let ends = RefCell::new((open("10.1"), open("10.2")));
    let batches = (4_usize..1031, 1_usize..=64, 4_usize..1031);
    let mut runner = TestRunner::new(Config { cases: 64, failure_persistence: None, ..Config::default() });
    let result = runner.run(&batches, |(words, count, last)| {
        let (sender, receiver) = &mut *ends.borrow_mut();
        let len = 4 * words;
        let mut lens = vec![len; count.min(MOST_BYTES / len)];
        *lens.last_mut().expect("at least one") = 4 * last.min(words);
        let tx = batch_of(sender, receiver, &lens);
        prop_assert_eq!(sender.send_batch(&tx, 0).expect("sends"), lens.len());
        check_arrival(receiver, &tx, 0);
        Ok(())
    });
    result.expect("every batch arrives");
}

#[test]
fn a_sender_outside_the_rule_is_kept_out_unless_allowed() {
    let stranger = UdpSocket::bind((own("3.1"), 0)).expect("free port");
    for (address, foreign_senders) in [("3.2", false), ("3.3", true)] {
        let mut udp = open_with(address, foreign_senders);
        // A connected socket counts its identifications up.
        stranger.connect((own(address), ROCE_V2_PORT)).expect("connects");
        stranger.send(&[7; 40]).expect("sends");
        let mut keeper = open(if foreign_senders { "3.4" } else { "3.5" });
        let tx = batch(&keeper, &udp, 1, 40);
        keeper.send_batch(&tx, 0).expect("sends");
        let mut rx = RxBurst::new();
        receive(&mut udp, &mut rx, if foreign_senders { 2 } else { 1 });
        let knowledge: Vec<_> = rx.iter().map(|(packet, _)| packet.knowledge).collect();
        if foreign_senders {
            assert_eq!(knowledge, [HeaderKnowledge::Unknown; 2]);
        } else {
            assert_eq!(knowledge, [HeaderKnowledge::Near]);
            assert_eq!(udp.counters().rx_lost, 1, "the kernel counts what the filter drops");
        }
    }
}

#[test]
fn a_port_in_use_is_blamed_on_its_owner() {
    let _first = open("4.1");
    let error = Udp::open(&UdpConfig { local: local("4.1"), ..UdpConfig::default() }).expect_err("in use");
    let OpenError::PortInUse { owner: PortOwner::Process { pid, .. }, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*pid, std::process::id());
    assert!(!error.to_string().contains('\n'), "{error}");
}

#[test]
fn bad_places_to_bind_are_explained() {
    let open = |local| Udp::open(&UdpConfig { local, ..UdpConfig::default() }).expect_err("no such place");
    let nowhere = Local::Address("203.0.113.9".parse().expect("address"));
    assert!(matches!(open(nowhere), OpenError::NoSuchAddress { .. }));
    let error = open(Local::Interface("nosuch0".into()));
    assert!(
        matches!(&error, OpenError::NoSuchInterface { known, .. } if known.contains(&"lo".into())),
        "{error}"
    );
}

#[test]
fn without_an_address_the_first_free_one_from_127_0_0_2_is_taken() {
    let (first, second) = (Udp::open(&UdpConfig::default()), Udp::open(&UdpConfig::default()));
    let (first, second) = (first.expect("opens"), second.expect("opens"));
    let (a, b) = (first.sockets.all()[0].address, second.sockets.all()[0].address);
    // Others come and go meanwhile, so either may be the lower.
    assert!(a != b && a.min(b) >= IpAddr::from([127, 0, 0, 2]), "{a} {b}");
    assert_eq!(first.addresses().gids(), [Gid::from(a); 2]);
    assert!((1..=MAX_WINDOW).contains(&first.caps().window));
}

#[test]
fn a_packet_from_another_address_is_lost_not_an_error() {
    let (mut sender, receiver) = (open("5.1"), open("5.2"));
    let tx = batch(&receiver, &sender, 2, 64);
    assert_eq!(sender.send_batch(&tx, 0).expect("taken"), 2, "of another's address");
    assert_eq!(sender.counters().tx_lost, 2);
}
