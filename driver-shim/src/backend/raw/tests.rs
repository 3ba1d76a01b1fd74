use std::net::UdpSocket;
use std::time::Duration;

use wire::batch::HeaderKnowledge;
use wire::icrc;

use super::*;
use crate::backend::own::{nothing_starts, open_when_free, own};
use crate::backend::{Udp, UdpConfig};

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(60);

/// The back end, or `None` without the privilege that it needs.
fn open(end: &str) -> Option<Raw> {
    match open_when_free(end, || Raw::open(&local(end))) {
        Err(error @ OpenError::NoPermission { .. }) => {
            println!("skipped: {error}");
            None
        }
        other => Some(other.expect("the raw back end opens")),
    }
}

fn local(end: &str) -> Local {
    Local::Address(own(end).parse().expect("address"))
}

fn batch(from: &Raw, dst: IpAddr, count: usize, class: u8) -> TxBatch {
    let net = NetHeader::v2(from.sockets.all()[0].address, dst, 0xC123, class, 17).expect("one family");
    let mut tx = TxBatch::new();
    tx.begin(net, &from.caps(), 0xFFFE);
    for _ in 0..count {
        tx.push(1040).fill(3);
    }
    tx.seal();
    tx
}

fn receive(raw: &mut Raw, rx: &mut RxBurst, count: usize) {
    while rx.len() < count {
        assert!(
            sys::wait_readable(raw.sockets.all()[0].receive.as_fd(), LIMIT).expect("poll"),
            "nothing arrives"
        );
        raw.recv_burst(rx).expect("receives");
    }
}

/// Sends five packets from index 1 on and compares what arrives, field by field.
fn exchange(a: &str, b: &str) {
    let Some(mut sender) = open(a) else { return };
    let mut other = (a != b).then(|| open(b).expect("opens as the first did"));
    for class in [0x6A, 0x02, 0x03, 0xC2] {
        let tx = batch(&sender, own(b).parse().expect("address"), 6, class);
        assert_eq!(sender.send_batch(&tx, 1).expect("sends"), 5);
        let receiver = other.as_mut().unwrap_or(&mut sender);
        let mut rx = RxBurst::new();
        receive(receiver, &mut rx, 5);
        assert_eq!(rx.len(), 5);
        for ((packet, body), (sent, sent_body)) in rx.iter().zip(tx.iter().skip(1)) {
            assert_eq!((packet.net, body), (sent, sent_body));
            assert_eq!(packet.knowledge, HeaderKnowledge::Seen);
            assert!(icrc::verify(&packet.net, body));
        }
        assert_eq!(receiver.recv_burst(&mut rx).expect("receives"), 0);
        assert_eq!((rx.malformed(), receiver.counters()), (0, IoCounters::default()));
    }
}

#[test]
fn ipv4_packets_keep_their_header_even_where_the_id_wraps_to_0() {
    exchange("6.1", "6.2");
}

#[test]
fn ipv6_packets_keep_their_header() {
    exchange("::1", "::1");
}

#[test]
fn the_kernel_answers_no_icmp_and_a_connected_peer_sees_no_error() {
    let Some(mut raw) = open("7.1") else { return };
    let peer = UdpSocket::bind((own("7.2"), 0)).expect("free port");
    peer.send_to(b"to another port", (own("7.1"), 9)).expect("sends");
    peer.connect((own("7.1"), ROCE_V2_PORT)).expect("connects");
    for byte in 0..3 {
        peer.send(&[byte; 32]).expect("no ICMP error is pending");
    }
    let mut rx = RxBurst::new();
    receive(&mut raw, &mut rx, 3);
    assert_eq!((rx.len(), raw.counters()), (3, IoCounters::default()));
    assert!(peer.take_error().expect("asks").is_none());
}

#[test]
fn a_run_that_a_sender_hands_over_as_one_is_lost_and_told_of() {
    let _held = nothing_starts();
    let Some(mut raw) = open("11.1") else { return };
    let (raw_at, peer_at) = (raw.sockets.all()[0].address, own("11.2"));
    for (offload, came) in [(true, 0), (false, 5)] {
        let config = UdpConfig { local: local("11.2"), offload, ..UdpConfig::default() };
        let mut peer = Udp::open(&config).expect("the udp back end opens");
        let net = NetHeader::v2(peer_at.parse().expect("address"), raw_at, ROCE_V2_PORT, 0, 64);
        let mut tx = TxBatch::new();
        tx.begin(net.expect("one family"), &peer.caps(), 0);
        for _ in 0..5 {
            tx.push(1040);
        }
        tx.seal();
        assert_eq!(peer.send_batch(&tx, 0).expect("sends"), 5);
        let mut rx = RxBurst::new();
        receive(&mut raw, &mut rx, came);
        while came == 0 && !raw.sockets.all()[0].told {
            assert!(sys::wait_readable(raw.sockets.all()[0].receive.as_fd(), LIMIT).expect("poll"));
            raw.recv_burst(&mut rx).expect("receives");
        }
        assert_eq!((rx.len(), raw.counters().rx_lost), (came, 1));
    }
}

#[test]
fn the_port_is_held_against_other_devices() {
    let Some(_raw) = open("8.1") else { return };
    assert!(matches!(Raw::open(&local("8.1")), Err(OpenError::PortInUse { .. })));
    let udp = Udp::open(&UdpConfig { local: local("8.1"), ..UdpConfig::default() });
    assert!(matches!(udp, Err(OpenError::PortInUse { .. })));
}

#[test]
fn a_packet_that_the_host_will_not_route_is_lost_not_an_error() {
    let Some(mut raw) = open("9.1") else { return };
    // Broadcasting must be asked for.
    let tx = batch(&raw, "255.255.255.255".parse().expect("address"), 2, 0x6A);
    assert_eq!(raw.send_batch(&tx, 0).expect("taken"), 2);
    assert_eq!(raw.counters(), IoCounters { tx_lost: 2, rx_lost: 0, ..IoCounters::default() });
}
