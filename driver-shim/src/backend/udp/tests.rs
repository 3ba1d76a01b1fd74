use std::net::UdpSocket;

use wire::{Gid, icrc};

use super::*;
use crate::backend::PortOwner;

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(10);

/// Addresses that no other test uses.
fn open(address: &str) -> Udp {
    open_with(address, false)
}

fn open_with(address: &str, foreign_senders: bool) -> Udp {
    let local = Local::Address(address.parse().expect("address"));
    Udp::open(&UdpConfig { local, foreign_senders }).expect("the udp back end opens")
}

fn batch(from: &Udp, to: &Udp, count: usize, len: usize) -> TxBatch {
    let (src, dst) = (from.sockets[0].address, to.sockets[0].address);
    let net = NetHeader::v2(src, dst, ROCE_V2_PORT, 0x6A, 17).expect("one family");
    let mut tx = TxBatch::new();
    tx.begin(net, &from.caps(), 99);
    for i in 0..count {
        let byte = u8::try_from(i).expect("few packets");
        tx.push(len).fill(byte);
    }
    tx.seal();
    tx
}

fn receive(udp: &mut Udp, rx: &mut RxBurst, count: usize) {
    while rx.len() < count {
        assert!(sys::wait_readable(udp.sockets[0].fd(), LIMIT).expect("poll"), "nothing arrives");
        udp.recv_burst(rx).expect("receives");
    }
}

/// Receives packets 2 to 4 of `tx`, which were sent, and compares.
fn check_arrival(receiver: &mut Udp, tx: &TxBatch) {
    let mut rx = RxBurst::new();
    receive(receiver, &mut rx, 3);
    assert_eq!(rx.len(), 3);
    for ((packet, body), (sent, sent_body)) in rx.iter().zip(tx.iter().skip(2)) {
        assert_eq!(packet.net, sent);
        assert_eq!(packet.knowledge, HeaderKnowledge::Assumed);
        assert_eq!(body, sent_body);
        assert!(icrc::verify(&packet.net, body));
    }
    assert_eq!(receiver.recv_burst(&mut rx).expect("receives"), 0);
    assert_eq!(receiver.counters(), IoCounters::default());
}

#[test]
fn a_batch_arrives_over_ipv4_with_exact_icrcs_and_header_fields() {
    let (mut sender, mut receiver) = (open("127.77.2.1"), open("127.77.2.2"));
    let tx = batch(&sender, &receiver, 5, 4112);
    assert_eq!(sender.send_batch(&tx, 2).expect("sends"), 3);
    check_arrival(&mut receiver, &tx);
}

#[test]
fn a_batch_arrives_over_ipv6_with_exact_icrcs_and_header_fields() {
    let mut udp = open("::1");
    let tx = batch(&udp, &udp, 5, 1040);
    assert_eq!(udp.send_batch(&tx, 2).expect("sends"), 3);
    check_arrival(&mut udp, &tx);
}

#[test]
fn a_sender_outside_the_rule_is_kept_out_unless_allowed() {
    let stranger = UdpSocket::bind("127.77.3.1:0").expect("free port");
    for (address, foreign_senders) in [("127.77.3.2", false), ("127.77.3.3", true)] {
        let mut udp = open_with(address, foreign_senders);
        // A connected socket counts its identifications up.
        stranger.connect((address, ROCE_V2_PORT)).expect("connects");
        stranger.send(&[7; 40]).expect("sends");
        let mut keeper = open(if foreign_senders { "127.77.3.4" } else { "127.77.3.5" });
        let tx = batch(&keeper, &udp, 1, 40);
        keeper.send_batch(&tx, 0).expect("sends");
        let mut rx = RxBurst::new();
        receive(&mut udp, &mut rx, if foreign_senders { 2 } else { 1 });
        let knowledge: Vec<_> = rx.iter().map(|(packet, _)| packet.knowledge).collect();
        if foreign_senders {
            assert_eq!(knowledge, [HeaderKnowledge::Unknown; 2]);
        } else {
            assert_eq!(knowledge, [HeaderKnowledge::Assumed]);
            assert_eq!(udp.counters().rx_lost, 1, "the kernel counts what the filter drops");
        }
    }
}

#[test]
fn a_port_in_use_is_blamed_on_its_owner() {
    let _first = open("127.77.4.1");
    let local = Local::Address("127.77.4.1".parse().expect("address"));
    let error = Udp::open(&UdpConfig { local, foreign_senders: false }).expect_err("in use");
    let OpenError::PortInUse { owner: PortOwner::Process { pid, .. }, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*pid, std::process::id());
    assert!(!error.to_string().contains('\n'), "{error}");
}

#[test]
fn bad_places_to_bind_are_explained() {
    let open = |local| Udp::open(&UdpConfig { local, foreign_senders: false }).expect_err("no such place");
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
    let (a, b) = (first.sockets[0].address, second.sockets[0].address);
    assert!(a < b && a >= IpAddr::from([127, 0, 0, 2]), "{a} {b}");
    assert_eq!(first.addresses().gids(), [Gid::from(a); 2]);
    assert!((1..=MAX_WINDOW).contains(&first.caps().window));
}

#[test]
fn a_packet_from_another_address_is_lost_not_an_error() {
    let (mut sender, receiver) = (open("127.77.5.1"), open("127.77.5.2"));
    let tx = batch(&receiver, &sender, 2, 64);
    assert_eq!(sender.send_batch(&tx, 0).expect("taken"), 2, "of another's address");
    assert_eq!(sender.counters().tx_lost, 2);
}
