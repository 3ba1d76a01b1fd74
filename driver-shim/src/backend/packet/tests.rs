use std::time::Duration;

use wire::icrc;

use super::*;
use crate::backend::namespace::{self, ENDS, MACS};
use crate::backend::{Local, Raw, Unreachable};

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(60);

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

/// A host of its own on one end of the pair.
fn own(end: usize, addresses: &[&str]) -> Packet {
    let own = addresses.iter().map(|text| (ip(text), if text.contains(':') { 64 } else { 24 })).collect();
    let config = PacketConfig { interface: ENDS[end].into(), own, ..PacketConfig::default() };
    Packet::open(&config).expect("the packet back end opens")
}

/// The host's own identity on one end of the pair.
fn shared(end: usize) -> Packet {
    let config = PacketConfig { interface: ENDS[end].into(), ..PacketConfig::default() };
    Packet::open(&config).expect("the packet back end opens")
}

fn batch(src: IpAddr, dst: IpAddr, caps: &Caps, count: usize, len: usize) -> TxBatch {
    batch_of_class(0x6A, (src, dst), caps, count, len)
}

fn batch_of_class(class: u8, (src, dst): (IpAddr, IpAddr), caps: &Caps, count: usize, len: usize) -> TxBatch {
    let net = NetHeader::v2(src, dst, 0xC123, class, 17).expect("one family");
    let mut tx = TxBatch::new();
    tx.begin(net, caps, 0xFFFE);
    for _ in 0..count {
        tx.push(len).fill(3);
    }
    tx.seal();
    tx
}

/// Waits until `receiver` has `count` packets, while `sender` takes its part in address resolution.
fn exchange(sender: &mut Packet, receiver: &mut Packet, count: usize) -> RxBurst {
    let (mut rx, mut answers) = (RxBurst::new(), RxBurst::new());
    while rx.len() < count {
        sender.recv_burst(&mut answers).expect("receives");
        if receiver.recv_burst(&mut rx).expect("receives") == 0 {
            // The other side may be the one that is asked, so neither may wait for long alone.
            let pause = Duration::from_millis(2);
            if !sys::wait_readable(receiver.socket.as_fd(), pause).expect("poll") {
                sender.poll(sender.now + pause.into());
                assert!(sender.now < Instant::ZERO + LIMIT.into(), "nothing arrives");
            }
        }
    }
    rx
}

fn assert_same(rx: &RxBurst, tx: &TxBatch) {
    assert_eq!(rx.len(), tx.len());
    for ((packet, body), (sent, sent_body)) in rx.iter().zip(tx.iter()) {
        assert_eq!(packet.net, sent);
        assert!(body == sent_body, "a body of {} bytes", body.len());
        assert!(icrc::verify(&packet.net, body));
    }
}

fn hosts_of_their_own() {
    let (mut a, mut b) = (own(0, &["10.88.0.1", "fd88::1"]), own(1, &["10.88.0.2", "fd88::2"]));
    assert_eq!(a.addresses().gids()[0], a.addresses().mac().link_local_gid());
    for i in 1..3 {
        let (src, dst) = (a.addresses().gids()[i].ip(), b.addresses().gids()[i].ip());
        // Whoever does not know the other yet asks, and the packets wait for the answer.
        let tx = batch(src, dst, &a.caps(), 5, 4112);
        assert_eq!(a.send_batch(&tx, 0).expect("sends"), 5);
        assert_same(&exchange(&mut a, &mut b, 5), &tx);
        let back = batch(dst, src, &b.caps(), 5, 4112);
        assert_eq!(b.send_batch(&back, 0).expect("takes"), 5);
        assert_same(&exchange(&mut b, &mut a, 5), &back);
        assert_eq!(b.prepare(b.now, src), Reachability::Ready);
        for class in [0x02, 0x03, 0xC2] {
            let tx = batch_of_class(class, (src, dst), &a.caps(), 5, 4112);
            assert_eq!(a.send_batch(&tx, 0).expect("sends"), 5);
            assert_same(&exchange(&mut a, &mut b, 5), &tx);
        }
    }
    let (src, dst) = (a.addresses().gids()[0].ip(), b.addresses().gids()[0].ip());
    let tx = batch(src, dst, &a.caps(), 1, 16);
    assert_eq!(a.prepare(a.now, dst), Reachability::Ready, "its address shows its Ethernet address");
    a.send_batch(&tx, 0).expect("sends");
    assert_same(&exchange(&mut a, &mut b, 1), &tx);
    assert_eq!((a.counters(), b.counters()), (IoCounters::default(), IoCounters::default()));
}

#[test]
fn hosts_of_their_own_find_each_other_and_exchange_packets() {
    namespace::run(
        "backend::packet::tests::hosts_of_their_own_find_each_other_and_exchange_packets",
        hosts_of_their_own,
    );
}

fn shared_addresses() {
    namespace::ip("address add 10.88.1.1/24 dev veth0");
    namespace::ip("address add fd88:1::1/64 dev veth0 nodad");
    namespace::ip("route add 192.0.2.0/24 via 10.88.1.2");
    let (mut a, mut b) = (shared(0), own(1, &["10.88.1.2", "fd88:1::2"]));
    assert_eq!(a.addresses().mac(), Mac(MACS[0]));
    assert_eq!(a.addresses().gids()[0], Mac(MACS[0]).link_local_gid());
    for i in 1..3 {
        let (src, dst) = (a.addresses().gids()[i].ip(), b.addresses().gids()[i].ip());
        let tx = batch(src, dst, &a.caps(), 5, 1040);
        assert_eq!(a.send_batch(&tx, 0).expect("takes"), 5);
        assert_same(&exchange(&mut a, &mut b, 5), &tx);
        let back = batch(dst, src, &b.caps(), 5, 1040);
        assert_eq!(b.send_batch(&back, 0).expect("sends"), 5);
        assert_same(&exchange(&mut b, &mut a, 5), &back);
    }
    let (src, beyond) = (ip("10.88.1.1"), ip("192.0.2.9"));
    assert_eq!(a.prepare(a.now, beyond), Reachability::Ready, "through the gateway, which is known");
    assert_eq!(a.prepare(a.now, src), Reachability::Ready, "itself");
    let tx = batch(src, src, &a.caps(), 2, 64);
    a.send_batch(&tx, 0).expect("sends");
    let mut rx = RxBurst::new();
    a.recv_burst(&mut rx).expect("receives");
    assert_same(&rx, &tx);
    // The shield holds the port against other devices.
    assert!(matches!(Raw::open(&Local::Address(src)), Err(OpenError::PortInUse { .. })));
    assert_eq!(a.counters(), IoCounters::default());
}

#[test]
fn a_device_with_the_hosts_addresses_uses_the_kernels_neighbours_and_routes() {
    namespace::run(
        "backend::packet::tests::a_device_with_the_hosts_addresses_uses_the_kernels_neighbours_and_routes",
        shared_addresses,
    );
}

fn super_frames() {
    namespace::ip("address add 10.88.2.1/24 dev veth0");
    let mut b = own(1, &["10.88.2.2"]);
    let kernel = std::net::UdpSocket::bind("10.88.2.1:4791").expect("free port");
    sys::set_option(&kernel, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO).expect("option");
    sys::set_option(&kernel, libc::IPPROTO_UDP, libc::UDP_SEGMENT, 1040).expect("option");
    let body = [[1; 1040], [2; 1040], [3; 1040]].concat();
    kernel.send_to(&body, "10.88.2.2:4791").expect("sends");
    let mut rx = RxBurst::new();
    while rx.len() < 3 {
        assert!(sys::wait_readable(b.socket.as_fd(), LIMIT).expect("poll"), "nothing arrives");
        b.recv_burst(&mut rx).expect("receives");
    }
    for (i, (packet, body)) in (0..).zip(rx.iter()) {
        let NetHeader::V4(ip, udp) = packet.net else { panic!("IPv4") };
        assert_eq!((ip.id, ip.total_len, udp.len), (i, 1068, 1048));
        assert_eq!(body, &[u8::try_from(i).expect("few") + 1; 1040]);
    }
}

#[test]
fn super_frames_of_a_kernel_sender_are_taken_apart() {
    namespace::run("backend::packet::tests::super_frames_of_a_kernel_sender_are_taken_apart", super_frames);
}

/// Sends a batch of five packets of 1040 bytes, and says in how many frames it came.
fn frames_of_a_batch(a: &mut Packet, b: &mut Packet) -> usize {
    let (src, dst) = (ip("10.88.7.1"), ip("10.88.7.2"));
    let tx = batch(src, dst, &a.caps(), 5, 1040);
    assert_eq!(a.send_batch(&tx, 1).expect("sends"), 4);
    let (mut rx, mut frames) = (RxBurst::new(), 0);
    while rx.len() < 4 {
        assert!(sys::wait_readable(b.socket.as_fd(), LIMIT).expect("poll"), "nothing arrives");
        frames += b.recv_burst(&mut rx).expect("receives");
    }
    for ((packet, body), (sent, sent_body)) in rx.iter().zip(tx.iter_from(1)) {
        // Where the kernel took it apart each packet has got a checksum, which the ICRC leaves out.
        let id = |net: &NetHeader| if let NetHeader::V4(ip, _) = net { ip.id } else { 0 };
        assert_eq!(id(&packet.net), id(&sent));
        assert!(body == sent_body && icrc::verify(&packet.net, body));
    }
    frames
}

fn runs() {
    namespace::silence_host();
    let (mut a, mut b) = (own(0, &["10.88.7.1"]), own(1, &["10.88.7.2"]));
    // They learn of each other.
    let hello = batch(ip("10.88.7.1"), ip("10.88.7.2"), &a.caps(), 1, 64);
    a.send_batch(&hello, 0).expect("takes");
    exchange(&mut a, &mut b, 1);
    assert_eq!(frames_of_a_batch(&mut a, &mut b), 1);
    // What is too long for the interface is lost as it is alone, and offload goes on.
    let long = batch(ip("10.88.7.1"), ip("10.88.7.2"), &a.caps(), 2, 4400);
    assert_eq!(a.send_batch(&long, 0).expect("takes"), 2);
    assert_eq!(a.counters(), IoCounters { tx_lost: 2, rx_lost: 0, ..IoCounters::default() });
    assert!(a.runs.may_go_to(ip("10.88.7.2")));
    // The kernel takes the run apart.
    if namespace::features("veth0 tx-udp-segmentation off") {
        assert_eq!(frames_of_a_batch(&mut a, &mut b), 4);
    } else {
        println!("skipped: no ethtool that changes what veth can do");
    }
    a.runs.on_refusal(ip("10.88.7.2"));
    assert_eq!(frames_of_a_batch(&mut a, &mut b), 4);
    assert_eq!(b.counters(), IoCounters::default());
}

/// Rule R-WIR-35.
#[test]
fn runs_of_packets_leave_as_one_frame_and_come_apart_where_the_way_needs_it() {
    namespace::run(
        "backend::packet::tests::runs_of_packets_leave_as_one_frame_and_come_apart_where_the_way_needs_it",
        runs,
    );
}

fn silence() {
    let mut a = own(0, &["10.88.3.1"]);
    let (src, dst) = (ip("10.88.3.1"), ip("10.88.3.9"));
    a.send_batch(&batch(src, dst, &a.caps(), 3, 64), 0).expect("takes");
    while let Some(due) = a.poll_timeout() {
        a.poll(due);
    }
    let expected = Reachability::Unreachable(Unreachable::NoAnswer);
    assert_eq!(a.prepare(a.now, dst), expected);
    assert_eq!(a.counters(), IoCounters { tx_lost: 3, rx_lost: 0, ..IoCounters::default() });
    let expected = Reachability::Unreachable(Unreachable::NoRoute);
    assert_eq!(a.prepare(a.now, ip("192.0.2.1")), expected);
}

#[test]
fn a_silent_neighbour_becomes_unreachable() {
    namespace::run("backend::packet::tests::a_silent_neighbour_becomes_unreachable", silence);
}

/// Rules R-ADR-22, R-ADR-23.
fn groups() {
    namespace::ip("address add 10.88.5.2/24 dev veth1");
    namespace::ip("address add fd88:5::2/64 dev veth1 nodad");
    let (mut a, mut b) = (own(0, &["10.88.5.1", "fd88:5::1"]), shared(1));
    for (src, group, other) in
        [("10.88.5.1", "239.8.8.8", "239.8.8.9"), ("fd88:5::1", "ff0e::88", "ff0e::89")]
    {
        let (src, group, other) = (ip(src), ip(group), ip(other));
        assert_eq!(a.prepare(a.now, group), Reachability::Ready, "nobody is asked");
        b.join(group).expect("joins");
        // What goes to a group that nobody joined is not taken, and the order is kept.
        let (lost, tx) = (batch(src, other, &a.caps(), 1, 64), batch(src, group, &a.caps(), 3, 1040));
        assert_eq!(a.send_batch(&lost, 0).expect("sends"), 1);
        assert_eq!(a.send_batch(&tx, 0).expect("sends"), 3);
        assert_same(&exchange(&mut a, &mut b, 3), &tx);
        b.leave(group);
        b.join(other).expect("joins");
        assert_eq!(a.send_batch(&tx, 0).expect("sends"), 3);
        assert_eq!(a.send_batch(&lost, 0).expect("sends"), 1);
        assert_same(&exchange(&mut a, &mut b, 1), &lost);
    }
    assert_eq!((a.counters(), b.counters()), (IoCounters::default(), IoCounters::default()));
    let mut v4_only = own(0, &["10.88.5.3"]);
    // It has a link-local address besides, so both families are there.
    assert!(v4_only.join(ip("ff0e::88")).is_ok());
}

#[test]
fn packets_to_groups_need_no_neighbours_and_reach_members_only() {
    namespace::run(
        "backend::packet::tests::packets_to_groups_need_no_neighbours_and_reach_members_only",
        groups,
    );
}

fn link() {
    let (mut a, mut b) = (own(0, &["10.88.6.1"]), own(1, &["10.88.6.2"]));
    assert!(a.link_is_up());
    namespace::ip("link set veth0 down");
    let mut rx = RxBurst::new();
    while a.link_is_up() {
        assert!(sys::wait_readable(a.socket.as_fd(), LIMIT).expect("poll"), "nothing is said");
        a.recv_burst(&mut rx).expect("that is no error for good");
    }
    namespace::ip("link set veth0 up");
    let tx = batch(ip("10.88.6.2"), ip("10.88.6.1"), &b.caps(), 1, 64);
    b.send_batch(&tx, 0).expect("takes");
    exchange(&mut b, &mut a, 1);
    assert!(a.link_is_up(), "a frame has come");
}

#[test]
fn a_link_that_goes_down_is_noticed_and_that_it_is_up_again() {
    namespace::run("backend::packet::tests::a_link_that_goes_down_is_noticed_and_that_it_is_up_again", link);
}

fn unfit_interfaces() {
    namespace::ip("address add 10.88.4.1/24 dev veth0");
    namespace::ip("link set veth1 down");
    let open = |interface: &str, own: &[(IpAddr, u8)]| {
        let config =
            PacketConfig { interface: interface.into(), own: own.to_vec(), ..PacketConfig::default() };
        Packet::open(&config).expect_err("unfit").to_string()
    };
    assert!(open("veth1", &[]).contains("is down"));
    assert!(open("lo", &[]).contains("no Ethernet address"));
    assert!(open("veth0", &[(ip("10.88.4.1"), 24)]).contains("holds that address itself"));
    assert!(open("nosuch0", &[]).contains("veth0"), "names those that there are");
}

#[test]
fn unfit_interfaces_are_explained() {
    namespace::run("backend::packet::tests::unfit_interfaces_are_explained", unfit_interfaces);
}
