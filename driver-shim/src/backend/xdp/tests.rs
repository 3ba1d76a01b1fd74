use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration as StdDuration;

use wire::batch::IpIdRule;
use wire::icrc;

use super::*;
use crate::backend::namespace::{self, ENDS, MACS};
use crate::backend::{Local, Packet, PacketConfig, Udp, UdpConfig};

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: StdDuration = StdDuration::from_secs(60);

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

fn config(end: usize, addresses: &[&str], mode: Option<XdpMode>) -> XdpConfig {
    let own = addresses.iter().map(|text| (ip(text), if text.contains(':') { 64 } else { 24 })).collect();
    XdpConfig { interface: ENDS[end].into(), own, mode, ..XdpConfig::default() }
}

/// A device on one end of the pair, with addresses of its own or those of the host; `None` with the reason printed
/// where the process may not have one.
fn open(end: usize, addresses: &[&str], mode: Option<XdpMode>) -> Option<Xdp> {
    match Xdp::open(&config(end, addresses, mode)) {
        Err(error @ OpenError::NoPermission { .. }) => {
            println!("skipped: {error}");
            None
        }
        other => Some(other.expect("the xdp back end opens")),
    }
}

fn batch(src: IpAddr, dst: IpAddr, caps: &Caps, count: usize, len: usize) -> TxBatch {
    batch_of_class(0x6A, (src, dst), caps, count, len)
}

fn batch_of_class(class: u8, (src, dst): (IpAddr, IpAddr), caps: &Caps, count: usize, len: usize) -> TxBatch {
    let net = NetHeader::v2(src, dst, caps.src_port.unwrap_or(0xC123), class, 17).expect("one family");
    let mut tx = TxBatch::new();
    tx.begin(net, caps, 0xFFFE);
    for byte in (0..count).map(|i| u8::try_from(i % 251).expect("a byte")) {
        let body = tx.push(len);
        body.fill(byte);
        // As the batch wants it: pad and ICRC are its own.
        body[len - 4..].fill(0);
    }
    tx.seal();
    tx
}

/// Sends all of `tx`, and gives the packets that `receiver` got.
fn transfer(sender: &mut dyn Backend, receiver: &mut dyn Backend, tx: &TxBatch) -> RxBurst {
    let (mut rx, mut answers) = (RxBurst::new(), RxBurst::new());
    let (mut sent, mut now, mut idle) = (0, Instant::ZERO, 0);
    while sent < tx.len() || rx.len() < tx.len() {
        now += Duration::from_micros(1);
        sender.poll(now);
        receiver.poll(now);
        if sent < tx.len() {
            sent += sender.send_batch(tx, sent).expect("sends");
            sender.kick().expect("kicks");
        }
        let came = receiver.recv_burst(&mut rx).expect("receives");
        receiver.kick().expect("kicks");
        sender.recv_burst(&mut answers).expect("receives");
        idle = if came > 0 { 0 } else { idle + 1 };
        assert!(idle < 1_000_000, "only {} of {} arrive", rx.len(), tx.len());
    }
    rx
}

/// Senders that leave the checksum to a card write a part of it only, and nothing depends on it.
fn without_checksum(mut net: NetHeader) -> NetHeader {
    if let NetHeader::V4(_, udp) | NetHeader::V6(_, udp) = &mut net {
        udp.checksum = 0;
    }
    net
}

fn assert_same(rx: &RxBurst, tx: &TxBatch) {
    assert_eq!(rx.len(), tx.len());
    for (i, ((packet, body), (sent, sent_body))) in rx.iter().zip(tx.iter()).enumerate() {
        assert_eq!(without_checksum(packet.net), without_checksum(sent), "header of packet {i}");
        assert!(body == sent_body, "body of packet {i}");
        assert!(icrc::verify(&packet.net, body));
    }
}

/// Both ways, packets of one piece and of two, more than rings and queues hold, of each family.
fn exchange(a: &mut dyn Backend, b: &mut dyn Backend, pairs: &[(&str, &str)], lengths: &[usize]) {
    for (src, dst) in pairs.iter().map(|(src, dst)| (ip(src), ip(dst))) {
        for len in lengths {
            // Marks of all kinds, and what CNPs have.
            for class in [0x6A, 0x02, 0x03, 0xC2].repeat(5) {
                let tx = batch_of_class(class, (src, dst), &a.caps(), 64, *len);
                assert_same(&transfer(a, b, &tx), &tx);
                let back = batch_of_class(class, (dst, src), &b.caps(), 64, *len);
                assert_same(&transfer(b, a, &back), &back);
            }
        }
    }
    assert_eq!((a.counters(), b.counters()), (IoCounters::default(), IoCounters::default()));
}

const LENGTHS: [usize; 4] = [16, 1040, 3814, 4128];

fn hosts_of_their_own() {
    let (a, b) = (["10.66.0.1", "fd66::1"], ["10.66.0.2", "fd66::2"]);
    for mode in [Some(XdpMode::Native), Some(XdpMode::Generic), None] {
        // The one before was just dropped, and the queue is free at once.
        let Some(mut one) = open(0, &a, mode) else { return };
        let mut other = open(1, &b, mode).expect("as the first");
        assert_eq!(one.mode(), mode.unwrap_or(XdpMode::Native));
        exchange(&mut one, &mut other, &[(a[0], b[0]), (a[1], b[1])], &LENGTHS);
    }
}

#[test]
fn hosts_of_their_own_exchange_packets_in_each_mode_and_reopen_at_once() {
    namespace::run_privileged(
        "backend::xdp::tests::hosts_of_their_own_exchange_packets_in_each_mode_and_reopen_at_once",
        hosts_of_their_own,
    );
}

fn small_mtu() {
    for end in ENDS {
        namespace::ip(&format!("link set {end} mtu 1500"));
    }
    let Some(mut a) = open(0, &["10.66.1.1"], None) else { return };
    let mut b = open(1, &["10.66.1.2"], None).expect("as the first");
    exchange(&mut a, &mut b, &[("10.66.1.1", "10.66.1.2")], &[64, 1040]);
    let too_long = batch(ip("10.66.1.1"), ip("10.66.1.2"), &a.caps(), 1, 1473);
    assert_eq!(a.send_batch(&too_long, 0).expect("takes"), 1);
    assert_eq!(a.counters(), IoCounters { tx_lost: 1, ..IoCounters::default() });
}

#[test]
fn an_mtu_of_1500_bounds_packets() {
    namespace::run_privileged("backend::xdp::tests::an_mtu_of_1500_bounds_packets", small_mtu);
}

fn packet_sockets() {
    let (a, b) = (["10.66.2.1", "fd66:2::1"], ["10.66.2.2", "fd66:2::2"]);
    let Some(mut one) = open(0, &a, None) else { return };
    let own = vec![(ip(b[0]), 24), (ip(b[1]), 64)];
    let other = PacketConfig { interface: ENDS[1].into(), own, mac: None, offload: true };
    let mut other = Packet::open(&other).expect("the packet back end opens");
    exchange(&mut one, &mut other, &[(a[0], b[0]), (a[1], b[1])], &LENGTHS);
}

#[test]
fn the_other_end_may_be_a_packet_socket() {
    namespace::run_privileged("backend::xdp::tests::the_other_end_may_be_a_packet_socket", packet_sockets);
}

fn udp_sockets() {
    namespace::ip("address add 10.66.3.2/24 dev veth1");
    let Some(mut one) = open(0, &["10.66.3.1"], None) else { return };
    let local = Local::Address(ip("10.66.3.2"));
    // The socket lets in only identifications that tell the header; the device's count up.
    let foreign = UdpConfig { local, foreign_senders: true, offload: true };
    let mut other = Udp::open(&foreign).expect("the udp back end opens");
    let (src, dst) = (ip("10.66.3.2"), ip("10.66.3.1"));
    for len in [64, 4112] {
        let tx = batch(src, dst, &other.caps(), 15, len);
        let back = batch(dst, src, &one.caps(), 15, len);
        let (there, here) = (transfer(&mut other, &mut one, &tx), transfer(&mut one, &mut other, &back));
        // A socket sends from its own port, and does not see identifications.
        for ((packet, body), (sent, sent_body)) in
            there.iter().zip(tx.iter()).chain(here.iter().zip(back.iter()))
        {
            assert_eq!(packet.net.src(), sent.src());
            assert!(body == sent_body);
            assert!(packet.knowledge != HeaderKnowledge::Seen || icrc::verify(&packet.net, body));
        }
    }
    assert_eq!(one.counters(), IoCounters::default());
}

#[test]
fn the_other_end_may_be_a_udp_socket() {
    namespace::run_privileged("backend::xdp::tests::the_other_end_may_be_a_udp_socket", udp_sockets);
}

fn shared_addresses() {
    namespace::ip("address add 10.66.4.1/24 dev veth0");
    namespace::ip("address add fd66:4::1/64 dev veth0 nodad");
    let Some(mut a) = open(0, &[], None) else { return };
    let mut b = open(1, &["10.66.4.2", "fd66:4::2"], None).expect("as the first");
    assert_eq!(a.addresses().mac(), Mac(MACS[0]));
    exchange(&mut a, &mut b, &[("10.66.4.1", "10.66.4.2"), ("fd66:4::1", "fd66:4::2")], &[1040, 4112]);
    // What is for itself no wire brings back.
    let tx = batch(ip("10.66.4.1"), ip("10.66.4.1"), &a.caps(), 2, 64);
    a.send_batch(&tx, 0).expect("sends");
    let mut rx = RxBurst::new();
    a.recv_burst(&mut rx).expect("receives");
    assert_same(&rx, &tx);
    // The host goes on as before: another host's packets to other ports reach its sockets.
    let socket = std::net::UdpSocket::bind("10.66.4.1:4790").expect("free port");
    socket.set_read_timeout(Some(LIMIT)).expect("option");
    b.send_batch(&ordinary_udp(), 0).expect("sends");
    b.kick().expect("kicks");
    assert_eq!(socket.recv(&mut [0; 2048]).expect("arrives"), 64);
    // And the shield holds the port against other devices.
    let local = Local::Address(ip("10.66.4.1"));
    let taken = Udp::open(&UdpConfig { local, ..UdpConfig::default() });
    assert!(matches!(taken, Err(OpenError::PortInUse { .. })));
}

/// A packet to a port that is not RoCE's.
fn ordinary_udp() -> TxBatch {
    let mut net = NetHeader::v2(ip("10.66.4.2"), ip("10.66.4.1"), 0xC123, 0, 64).expect("one family");
    if let NetHeader::V4(_, udp) = &mut net {
        udp.dst_port = 4790;
    }
    let mut tx = TxBatch::new();
    let caps = Caps { ip_id: IpIdRule::Ours, ..wire_caps() };
    tx.begin(net, &caps, 1);
    tx.push(64).fill(0);
    tx.seal();
    tx
}

fn wire_caps() -> Caps {
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

#[test]
fn a_device_with_the_hosts_addresses_takes_only_what_is_for_it() {
    namespace::run_privileged(
        "backend::xdp::tests::a_device_with_the_hosts_addresses_takes_only_what_is_for_it",
        shared_addresses,
    );
}

/// Rules R-ADR-22, R-ADR-23.
fn groups() {
    let Some(mut a) = open(0, &["10.66.5.1", "fd66:5::1"], None) else { return };
    let mut b = open(1, &["10.66.5.2", "fd66:5::2"], None).expect("as the first");
    for (src, group, other) in
        [("10.66.5.1", "239.8.8.8", "239.8.8.9"), ("fd66:5::1", "ff0e::88", "ff0e::89")]
    {
        b.join(ip(group)).expect("joins");
        let lost = batch(ip(src), ip(other), &a.caps(), 1, 64);
        assert_eq!(a.send_batch(&lost, 0).expect("sends"), 1);
        let tx = batch(ip(src), ip(group), &a.caps(), 3, 1040);
        assert_same(&transfer(&mut a, &mut b, &tx), &tx);
        b.leave(ip(group));
    }
}

#[test]
fn packets_to_groups_reach_members_only() {
    namespace::run_privileged("backend::xdp::tests::packets_to_groups_reach_members_only", groups);
}

fn a_link_that_is_down() {
    let Some(mut a) = open(0, &["10.66.9.1"], None) else { return };
    let mut b = open(1, &["10.66.9.2"], None).expect("as the first");
    let way = (ip("10.66.9.1"), ip("10.66.9.2"));
    let hello = batch(way.0, way.1, &a.caps(), 1, 64);
    assert_same(&transfer(&mut a, &mut b, &hello), &hello);
    namespace::ip("link set veth0 down");
    let tx = batch(way.0, way.1, &a.caps(), 64, 64);
    let mut taken = 0;
    while a.counters().tx_lost == 0 {
        assert_eq!(a.send_batch(&tx, 0).expect("takes"), 64, "there is no room that others could wait for");
        a.kick().expect("that is no error for good");
        taken += 64;
        assert!(taken < 10_000, "nothing is lost");
    }
    assert!(!a.link_is_up() && a.unsent);
    // Whoever waits for it waits ever longer.
    let waits = [(); 16].map(|()| {
        a.kick().expect("kicks");
        a.kick_again
    });
    assert!(waits.is_sorted());
    assert_eq!(waits[15], KICK_AGAIN_AT_LAST);
    assert!(a.poll_timeout().is_some_and(|due| due > a.now));
    let kept = taken - usize::try_from(a.counters().tx_lost).expect("few");
    namespace::ip("link set veth0 up");
    namespace::wait_for_links(1 + ENDS.len());
    let (mut rx, mut idle) = (RxBurst::new(), 0);
    while rx.len() < kept {
        a.kick().expect("kicks");
        idle = if b.recv_burst(&mut rx).expect("receives") > 0 { 0 } else { idle + 1 };
        assert!(idle < 1_000_000, "only {} of {kept} arrive", rx.len());
    }
    assert!(a.link_is_up() && !a.unsent);
    assert_eq!(a.kick_again, KICK_AGAIN);
}

#[test]
fn a_link_that_is_down_is_asked_for_ever_less_often_and_what_finds_no_room_is_lost() {
    namespace::run_privileged(
        "backend::xdp::tests::a_link_that_is_down_is_asked_for_ever_less_often_and_what_finds_no_room_is_lost",
        a_link_that_is_down,
    );
}

fn conflicts() {
    let Some(first) = open(0, &["10.66.6.1"], None) else { return };
    let error = Xdp::open(&config(0, &["10.66.6.3"], None)).expect_err("the queue is taken");
    assert!(matches!(error, OpenError::QueueInUse { queue: 0, .. }), "{error}");
    assert!(error.to_string().contains("receive queue 0 of veth0"));
    let queue = XdpConfig { queue: 9, ..config(0, &["10.66.6.3"], None) };
    let error = Xdp::open(&queue).expect_err("there is no such queue");
    assert!(matches!(error, OpenError::NoSuchQueue { queue: 9, .. }), "{error}");
    drop(first);
    // Programs without a socket of their own.
    for held in [XdpMode::Native, XdpMode::Generic] {
        let map = sys::socket_map(1).expect("a map");
        let wanted = Wanted { addresses: &[], port: 1, neighbours: false };
        let other = program::load(&wanted, &map).expect("loads");
        let interface = OpenError::interface(ENDS[0]).expect("is there").index;
        let _link = sys::attach_xdp(&other, interface, held).expect("attaches");
        for mode in [None, Some(XdpMode::Native), Some(XdpMode::Generic)] {
            let error = Xdp::open(&config(0, &["10.66.6.3"], mode)).expect_err("a program is there");
            assert!(matches!(error, OpenError::ProgramInUse { .. }), "{held:?}, {mode:?}: {error}");
        }
    }
    assert!(open(0, &["10.66.6.1"], None).is_some(), "all is given back");
    for (interface, what) in [("lo", "no Ethernet address"), ("nosuch0", "veth0")] {
        let config = XdpConfig { interface: interface.into(), ..XdpConfig::default() };
        assert!(Xdp::open(&config).expect_err("unfit").to_string().contains(what));
    }
}

#[test]
fn who_comes_second_is_told_why() {
    namespace::run_privileged("backend::xdp::tests::who_comes_second_is_told_why", conflicts);
}

fn without_privileges() {
    // Root of a user namespace may have the socket, but no program.
    let error = Xdp::open(&config(0, &["10.66.7.1"], None)).expect_err("no CAP_BPF");
    assert!(error.to_string().contains("CAP_BPF and CAP_NET_ADMIN"), "{error}");
}

#[test]
fn a_missing_capability_is_named() {
    namespace::run("backend::xdp::tests::a_missing_capability_is_named", without_privileges);
}

/// Set in the process that is killed.
const VICTIM: &str = "FERROCE_TEST_VICTIM";

#[test]
fn a_killed_process_leaves_nothing_behind() {
    const NAME: &str = "backend::xdp::tests::a_killed_process_leaves_nothing_behind";
    if std::env::var_os(VICTIM).is_some() {
        let device = open(0, &["10.66.8.1"], None);
        println!("opened: {}", device.is_some());
        // Until the end comes.
        let mut line = String::new();
        let _ = io::stdin().read_line(&mut line);
        return;
    }
    namespace::run_privileged(NAME, || {
        let mut command = Command::new(std::env::current_exe().expect("the path of this program"));
        command.args([NAME, "--exact", "--nocapture"]).env(VICTIM, "1");
        let mut victim = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
        let lines = BufReader::new(victim.stdout.take().expect("piped")).lines();
        let opened = lines.map_while(Result::ok).find(|line| line.contains("opened: "));
        victim.kill().expect("kills");
        victim.wait().expect("ends");
        if opened.is_some_and(|line| line.contains("true")) {
            let link = Command::new("ip").args(["-details", "link", "show", "dev", ENDS[0]]).output();
            let link = String::from_utf8(link.expect("runs").stdout).expect("text");
            assert!(!link.contains("xdp"), "a program is left: {link}");
            assert!(open(0, &["10.66.8.1"], None).is_some());
        }
    });
}
