//! Congestion control in the NIC: marks, CNPs, rates.

use std::sync::Arc;

use dcqcn::{Algorithm, CcConfig, Params, Rate};
use transport::DropReason;
use wire::PacketRepr;
use wire::eth::ETHERNET_OVERHEAD;
use wire::ip::Ecn;

use super::unreliable::{QKEY, uc_with, ud_with};
use super::*;
use crate::nic::NicConfig;
use crate::state::QpType;

const LINE: Rate = Rate::from_gbps(10.0);

fn host(number: u8, cc: &CcConfig, qp_type: QpType) -> Host {
    let config = NicConfig { cc: cc.clone(), line_rate: LINE, ..config(number) };
    Host::on(config, number, |init| init.qp_type = qp_type)
}

/// Two hosts in RTS with each other, with congestion control.
fn controlled(cc: &CcConfig) -> (Host, Host) {
    join(host(1, cc, QpType::Rc), host(2, cc, QpType::Rc), |_| {})
}

fn dcqcn(params: Params) -> CcConfig {
    CcConfig { algorithm: Algorithm::Dcqcn, params: Arc::new(params), ..CcConfig::default() }
}

fn fixed(rate: Rate) -> CcConfig {
    CcConfig { algorithm: Algorithm::Rate(rate), ..CcConfig::default() }
}

fn at(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}

fn marked(packet: &PacketRepr) -> PacketRepr {
    let net = packet.net.with_traffic_class(packet.net.traffic_class() | 3);
    PacketRepr { net, ..packet.clone() }
}

fn is_cnp(packet: &PacketRepr) -> bool {
    packet.bth.opcode() == wire::Opcode::CNP
}

fn write(a: &mut Host, b: &Host, length: u32) {
    let wr = SendWr::write(1, &[a.sge(0, length)], b.va(0), b.mr.rkey).signaled();
    a.send(wr);
}

fn rate_of(host: &Host, now: Instant) -> Option<Rate> {
    host.nic.cc_state(now, host.qpn).unwrap().rate.rate
}

/// Rules R-CNP-1, R-CNP-2 and R-CNP-8: the CNP is first, in its own class, for the peer's queue pair, and takes no PSN.
#[test]
fn a_marked_packet_is_answered_with_a_cnp_before_all_else() {
    let (mut a, mut b) = controlled(&dcqcn(Params::CONNECTX));
    write(&mut a, &b, 1024);
    let [request] = a.transmit().try_into().unwrap();
    assert_eq!(request.net.ecn(), Ecn::Ect0);
    write(&mut b, &a, 1024);
    b.take(&[marked(&request)]);
    let packets = b.transmit();
    let mut expected = PacketRepr::cnp(packets[0].net, a.qpn);
    expected.finish();
    assert_eq!(packets[0], expected);
    let net = packets[0].net;
    assert_eq!((net.src_gid(), net.dst_gid(), net.traffic_class()), (b.gid, a.gid, 0xC2));
    assert_eq!(packets.iter().filter(|packet| is_cnp(packet)).count(), 1);
    let others: Vec<_> = packets[1..].iter().map(|packet| (is_cnp(packet), packet.bth.psn())).collect();
    assert_eq!(others, [(false, Psn::new(0)); 2], "an ACK and a request");
    let counters = b.nic.counters();
    assert_eq!((counters.np_cnp_sent, counters.np_ecn_marked_roce_packets), (1, 1));
    assert_eq!((counters.rp_cnp_handled, counters.rp_cnp_ignored), (0, 0));
}

/// Rule R-CNP-3.
#[test]
fn f44_marks_within_the_interval_make_one_cnp_and_an_interval_of_zero_makes_one_each() {
    for (interval, expected) in [(50, 2), (0, 10)] {
        let cnp_interval = Duration::from_micros(interval);
        let (mut a, mut b) = controlled(&dcqcn(Params { cnp_interval, ..Params::PAPER }));
        write(&mut a, &b, 10 * 1024);
        let mut cnps = 0;
        for (n, packet) in (0..).zip(a.transmit()) {
            b.take_at(at(10 * n), &[marked(&packet)]);
            cnps += b.transmit_at(at(10 * n)).iter().filter(|packet| is_cnp(packet)).count();
        }
        assert_eq!(cnps, expected, "interval of {interval} us");
        assert_eq!(b.nic.counters().np_cnp_sent, expected as u64);
        assert_eq!(b.nic.counters().np_ecn_marked_roce_packets, 10);
    }
}

/// Rule R-CNP-4.
#[test]
fn what_says_nothing_of_data_is_not_answered() {
    let (mut a, mut b) = controlled(&dcqcn(Params { cnp_interval: Duration::ZERO, ..Params::PAPER }));
    write(&mut a, &b, 8);
    let request = a.transmit();
    b.take(&request);
    let [ack] = b.transmit().try_into().unwrap();
    let mut bad = marked(&request[0]);
    bad.icrc ^= 1;
    b.take(&[bad, marked(&PacketRepr::cnp(request[0].net, b.qpn))]);
    a.take(&[marked(&ack)]);
    assert_eq!((a.transmit(), b.transmit()), (vec![], vec![]));
    assert_eq!((a.nic.counters().np_cnp_sent, b.nic.counters().np_cnp_sent), (0, 0));
}

/// Rules R-CNP-5 and R-CNP-7: for a queue pair that has no rate to cut, it is counted and no more.
#[test]
fn a_cnp_cuts_the_rate_of_its_queue_pair_and_of_no_other() {
    let (mut a, b) = controlled(&dcqcn(Params::PAPER));
    assert_eq!(rate_of(&a, NOW), None, "no limit before the first");
    let cnp = PacketRepr::cnp(reply(&a, &b), a.qpn);
    a.take(core::slice::from_ref(&cnp));
    assert_eq!(rate_of(&a, NOW), Some(Rate::from_gbps(5.0)));
    a.take_at(at(50), &[cnp.clone(), PacketRepr::cnp(cnp.net, Qpn::new(99))]);
    let state = a.nic.cc_state(at(50), a.qpn).unwrap();
    assert_eq!(
        (state.rate.rate, state.rate.target),
        (Some(Rate::from_gbps(2.5)), Some(Rate::from_gbps(5.0)))
    );
    assert_eq!(state.cnps_handled, 2);
    assert_eq!((a.nic.counters().rp_cnp_handled, a.nic.counters().rp_cnp_ignored), (2, 0));
    assert_eq!((a.state(), a.dropped()), (QpState::Rts, vec![(DropReason::NoSuchQp, 1)]));
    a.go(QpState::Reset);
    assert_eq!(a.nic.cc_state(at(50), a.qpn), None);

    let (mut off, peer) = connected();
    off.take(&[PacketRepr::cnp(reply(&off, &peer), off.qpn)]);
    assert_eq!((off.nic.counters().rp_cnp_handled, off.nic.counters().rp_cnp_ignored), (0, 1));
    assert_eq!(off.nic.cc_state(NOW, off.qpn), None);
}

/// Header of what `peer` sends to `host`.
fn reply(host: &Host, peer: &Host) -> wire::NetHeader {
    wire::NetHeader::v2(peer.gid.ip(), host.gid.ip(), 50_000, 0xC2, 64).unwrap()
}

/// Bytes on the wire of data that a host sends, with the time of each batch.
struct Sent {
    batches: Vec<(Instant, u64)>,
    packets: usize,
    wakes: usize,
}

fn wire_bytes(packet: &PacketRepr) -> u64 {
    let mut body = Vec::new();
    packet.emit_body(&mut body);
    (ETHERNET_OVERHEAD + packet.net.len() + body.len()) as u64
}

/// Lets `a` send, kept busy by `refill`, until so many packets of data have left `sender`.
fn pace(a: &mut Host, b: &mut Host, of_b: bool, count: usize, mut refill: impl FnMut(&mut Host)) -> Sent {
    let mut sent = Sent { batches: Vec::new(), packets: 0, wakes: 0 };
    let mut now = Instant::ZERO;
    while sent.packets < count {
        let mut bytes = 0;
        loop {
            refill(a);
            let (from_a, from_b) = (a.transmit_at(now), b.transmit_at(now));
            let data = if of_b { &from_b } else { &from_a };
            let data = data.iter().filter(|packet| !packet.payload.is_empty());
            sent.packets += data.clone().count();
            bytes += data.map(wire_bytes).sum::<u64>();
            if from_a.is_empty() && from_b.is_empty() {
                break;
            }
            b.take_at(now, &from_a);
            a.take_at(now, &from_b);
        }
        if bytes > 0 {
            sent.batches.push((now, bytes));
        }
        let next = a.nic.poll_timeout().into_iter().chain(b.nic.poll_timeout()).min().unwrap();
        assert!(next > now, "what is due was done");
        now = next;
        sent.wakes += 1;
        a.nic.handle_timeout(now);
        b.nic.handle_timeout(now);
    }
    sent
}

impl Sent {
    fn rate(&self) -> f64 {
        let [(first, _), .., (last, _)] = self.batches[..] else { panic!("too few batches") };
        let bytes: u64 = self.batches[..self.batches.len() - 1].iter().map(|(_, bytes)| bytes).sum();
        bytes as f64 * 8.0 / last.since(first).as_nanos() as f64 * 1e9
    }
}

const RATES: [f64; 6] = [1e6, 7e6, 100e6, 1e9, 5e9, 9.9e9];

/// Rules R-CNP-9 and R-CNP-10: each of 200 packets and more keeps its time, there is no wake-up but for a batch, and nothing is sent twice.
#[test]
fn requests_keep_the_rate_exactly() {
    for (rate, burst) in RATES.into_iter().flat_map(|rate| [0, 200].map(|burst| (rate, burst))) {
        let cc = CcConfig { burst: Duration::from_micros(burst), ..fixed(Rate::from_bps(rate)) };
        let (mut a, mut b) = controlled(&cc);
        let (to, key) = (b.va(0), b.mr.rkey);
        let sent = pace(&mut a, &mut b, false, 1_000, |a| {
            let wr = SendWr::write(1, &[a.sge(0, 20_000)], to, key);
            while a.nic.post_send(NOW, a.qpn, wr.clone()).is_ok() {}
        });
        let off = sent.rate() / rate - 1.0;
        assert!(off.abs() < 1e-3, "{rate} b/s with bursts of {burst} us: off by {off}");
        let most = rate * burst as f64 / 8e6 + 1e4;
        assert!(
            sent.batches[1..].iter().all(|(_, bytes)| *bytes as f64 <= most),
            "{rate}: a batch is too long"
        );
        assert!(
            sent.wakes < 2 * sent.batches.len() + 20,
            "{} wakes, {} batches",
            sent.wakes,
            sent.batches.len()
        );
        assert_eq!(a.nic.counters().local_ack_timeout_err, 0, "{rate} b/s");
        assert_eq!(b.nic.counters().duplicate_request, 0);
    }
}

/// Rule R-CNP-9: the responder is who sends the data of READs, so it is its rate that counts; its ACKs do not wait for that.
#[test]
fn read_responses_keep_the_responders_rate_and_acks_pass() {
    for rate in RATES {
        let a = host(1, &CcConfig::default(), QpType::Rc);
        let (mut a, mut b) =
            join(a, host(2, &fixed(Rate::from_bps(rate)), QpType::Rc), |attr| attr.timeout = 20);
        let (from, key) = (b.va(0), b.mr.rkey);
        let sent = pace(&mut a, &mut b, true, 1_000, |a| {
            let wr = SendWr::read(1, &[a.sge(0, 20_000)], from, key);
            while a.nic.post_send(NOW, a.qpn, wr.clone()).is_ok() {}
        });
        let off = sent.rate() / rate - 1.0;
        assert!(off.abs() < 1e-3, "{rate} b/s: off by {off}");
        assert_eq!(a.nic.counters().local_ack_timeout_err, 0, "{rate} b/s");
    }
    let (mut a, mut b) = controlled(&fixed(Rate::from_mbps(1.0)));
    write(&mut a, &b, 16 * 1024);
    b.recv(RecvWr::new(1, &[]));
    write(&mut b, &a, 2_000);
    let now = at(1_000);
    let (from_a, from_b) = (a.transmit_at(now), b.transmit_at(now));
    assert_eq!((from_a.len(), from_b.len()), (1, 1), "the first packet of each empties its budget");
    a.take_at(now, &from_b);
    let early = wire::Bth::new(wire::Opcode::rc(Op::SendOnly), b.qpn, Psn::new(9));
    b.take_at(now, &[PacketRepr::new(from_a[0].net, early, [], []).unwrap()]);
    let answers = operations(&b.transmit_at(now));
    assert_eq!(answers, [Op::Acknowledge], "a NAK, though data has to wait");
}

/// Rule R-CNP-9: requests and READ responses of one queue pair have one rate, and none of them takes it all.
#[test]
fn requests_and_read_responses_share_the_rate() {
    for burst in [0, 1_000] {
        let cc = CcConfig { burst: Duration::from_micros(burst), ..fixed(Rate::from_mbps(500.0)) };
        let (mut a, mut b) = controlled(&cc);
        let read = SendWr::read(1, &[b.sge(0, 20_000)], a.va(0), a.mr.rkey);
        let write = SendWr::write(1, &[a.sge(0, 20_000)], b.va(0), b.mr.rkey);
        let (mut now, mut answers, mut requests) = (at(10_000), 0, 0);
        while answers + requests < 400 {
            while a.nic.post_send(now, a.qpn, write.clone()).is_ok() {}
            while b.nic.post_send(now, b.qpn, read.clone()).is_ok() {}
            let (from_a, from_b) = (a.transmit_at(now), b.transmit_at(now));
            for packet in from_a.iter().filter(|packet| !packet.payload.is_empty()) {
                let info = packet.bth.opcode().info().unwrap();
                *if info.kind.is_request() { &mut requests } else { &mut answers } += 1;
            }
            b.take_at(now, &from_a);
            a.take_at(now, &from_b);
            if from_a.is_empty() && from_b.is_empty() {
                now = a.nic.poll_timeout().into_iter().chain(b.nic.poll_timeout()).min().unwrap();
                a.nic.handle_timeout(now);
                b.nic.handle_timeout(now);
            }
        }
        assert!(answers > 100 && requests > 100, "{answers} answers, {requests} requests");
    }
}

#[test]
fn unreliable_queue_pairs_keep_the_rate_too() {
    for rate in RATES {
        let cc = fixed(Rate::from_bps(rate));
        let (mut a, mut b) = uc_with(host(1, &cc, QpType::Uc), host(2, &cc, QpType::Uc));
        let (to, key) = (b.va(0), b.mr.rkey);
        let sent = pace(&mut a, &mut b, false, 1_000, |a| {
            let wr = SendWr::write(1, &[a.sge(0, 20_000)], to, key);
            while a.nic.post_send(NOW, a.qpn, wr.clone()).is_ok() {}
        });
        assert!((sent.rate() / rate - 1.0).abs() < 1e-3, "UC at {rate} b/s");

        let (mut a, mut b, ah) = ud_with(host(1, &cc, QpType::Ud), host(2, &cc, QpType::Ud));
        let dest = b.qpn;
        let sent = pace(&mut a, &mut b, false, 1_000, |a| {
            let wr = SendWr::send(1, &[a.sge(0, 4096)]).to(ah, dest, QKEY);
            while a.nic.post_send(NOW, a.qpn, wr.clone()).is_ok() {}
        });
        assert!((sent.rate() / rate - 1.0).abs() < 1e-3, "UD at {rate} b/s");
    }
}

#[test]
fn who_has_nothing_to_send_sets_no_timer() {
    for cc in [dcqcn(Params::CONNECTX), dcqcn(Params::PAPER), fixed(Rate::from_mbps(1.0))] {
        let (mut a, mut b) = controlled(&cc);
        a.take(&[PacketRepr::cnp(reply(&a, &b), a.qpn)]);
        assert_eq!((a.nic.poll_timeout(), b.nic.poll_timeout()), (None, None));
        write(&mut a, &b, 100);
        drive_at(at(1_000), &mut a, &mut b);
        assert_eq!(a.nic.in_flight(), 0);
        let left: Vec<_> = core::iter::from_fn(|| {
            let next = a.nic.poll_timeout()?;
            a.nic.handle_timeout(next);
            assert!(a.transmit_at(next).is_empty());
            Some(next)
        })
        .collect();
        assert!(left.len() <= 1, "the ACK timeout that is no longer wanted, and nothing else: {left:?}");
    }
}

/// Datagrams take part where they are told to: they are marked as capable, and answered to who sent them.
#[test]
fn datagrams_take_part_where_configured() {
    for takes_part in [false, true] {
        let cc = dcqcn(Params { cnp_for_ud: takes_part, ..Params::PAPER });
        let (mut a, mut b, ah) = ud_with(host(1, &cc, QpType::Ud), host(2, &cc, QpType::Ud));
        a.send(SendWr::send(1, &[a.sge(0, 100)]).to(ah, b.qpn, QKEY));
        let [datagram] = a.transmit().try_into().unwrap();
        assert_eq!(datagram.net.ecn() == Ecn::Ect0, takes_part);
        b.take(&[marked(&datagram)]);
        let cnps = b.transmit();
        assert_eq!(cnps.len(), usize::from(takes_part));
        for cnp in &cnps {
            assert!(is_cnp(cnp) && cnp.bth.dest_qp() == a.qpn && cnp.net.dst_gid() == a.gid);
        }
        a.take(&cnps);
        assert_eq!(a.nic.counters().rp_cnp_handled, u64::from(takes_part));
    }
}

#[test]
fn the_users_ecn_bits_are_kept_and_other_priorities_left_alone() {
    let params = Params { cc_prio_mask: 1 << 3, ..Params::PAPER };
    for (class, sent) in [(0x60, 0x62), (0x61, 0x61), (0x63, 0x63), (0x20, 0x20)] {
        let cc = dcqcn(params);
        let (mut a, b) = join(host(1, &cc, QpType::Rc), host(2, &cc, QpType::Rc), |attr| {
            attr.addr.traffic_class = class;
        });
        write(&mut a, &b, 8);
        assert_eq!(a.transmit()[0].net.traffic_class(), sent);
        assert_eq!(a.nic.cc_state(NOW, a.qpn).is_some(), class != 0x20);
    }
}

/// A packet that was sent again tells no round-trip time: nobody knows which of the two its ACK is for.
#[test]
fn what_was_lost_tells_no_round_trip_time() {
    let cc = CcConfig { algorithm: Algorithm::Timely, ..CcConfig::default() };
    for lost in [false, true] {
        let (mut a, mut b) = controlled(&cc);
        let mut now = NOW;
        for late in [false, true] {
            write(&mut a, &b, 8);
            let mut packets = a.transmit_at(now);
            if late && lost {
                packets.clear();
                while packets.is_empty() {
                    now = a.nic.poll_timeout().unwrap();
                    a.nic.handle_timeout(now);
                    packets = a.transmit_at(now);
                }
            } else {
                now += if late { Duration::from_millis(100) } else { Duration::from_micros(20) };
            }
            assert_eq!(packets.len(), 1);
            b.take_at(now, &packets);
            let answers = b.transmit_at(now);
            a.take_at(now, &answers);
            assert_eq!(a.nic.in_flight(), 0);
        }
        // A round trip of so long takes half of the rate.
        let rate = if lost { LINE } else { Rate::from_gbps(5.0) };
        assert_eq!(rate_of(&a, now), Some(rate), "lost: {lost}");
    }
}

/// Some NICs send a CNP with the NAK of a gap; this one where it is told to, and once for each gap.
#[test]
fn a_gap_makes_a_cnp_where_configured() {
    for nack_triggers_cnp in [false, true] {
        let cc = dcqcn(Params { nack_triggers_cnp, ..Params::PAPER });
        let (mut a, mut b) = controlled(&cc);
        write(&mut a, &b, 4 * 1024);
        let packets = a.transmit();
        b.take(&packets[1..]);
        let answers = b.transmit();
        assert_eq!(answers.iter().filter(|packet| is_cnp(packet)).count(), usize::from(nack_triggers_cnp));
        assert_eq!(answers.iter().filter(|packet| !is_cnp(packet)).count(), 1);
    }
}

/// In window mode the CNP leaves at the end of the window in which there was a mark.
#[test]
fn a_cnp_may_wait_for_the_end_of_its_window() {
    let cc = dcqcn(Params { np_mode: dcqcn::NpMode::Window, ..Params::PAPER });
    let (mut a, mut b) = controlled(&cc);
    write(&mut a, &b, 8);
    let request = a.transmit();
    b.take_at(at(20), &[marked(&request[0])]);
    assert!(!b.transmit_at(at(20)).iter().any(is_cnp));
    assert_eq!(b.nic.poll_timeout(), Some(at(50)));
    b.nic.handle_timeout(at(50));
    assert!(b.nic.wants_transmit());
    assert!(b.transmit_at(at(50)).iter().all(is_cnp));
    assert_eq!((b.nic.counters().np_cnp_sent, b.nic.poll_timeout()), (1, None));
}

/// Connections with congestion control between the same two hosts, over a path that lets them share batches.
fn connections(cc: &CcConfig, count: usize) -> (Host, Host, Vec<[Qpn; 2]>) {
    let make = |number| {
        let caps = wire::batch::Caps { src_port: Some(4791), window: 64, ..CAPS };
        let config = NicConfig { cc: cc.clone(), line_rate: LINE, caps, ..config(number) };
        Host::on(config, number, |_| {})
    };
    let (mut a, mut b) = (make(1), make(2));
    let pairs = (0..count)
        .map(|_| {
            (a.qpn, b.qpn) = (a.nic.create_qp(a.init).unwrap(), b.nic.create_qp(b.init).unwrap());
            let (of_a, of_b) = (a.attr(&b), b.attr(&a));
            a.bring(QpState::Rts, &of_a);
            b.bring(QpState::Rts, &of_b);
            [a.qpn, b.qpn]
        })
        .collect();
    (a, b, pairs)
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]

    /// Rule R-CNP-9: whatever the rate, the burst and the messages, and whoever shares batches with whom: within any time
    /// each queue pair sends no more than its rate, the burst and one packet allow, and in the long run no less.
    #[test]
    fn each_of_several_keeps_its_rate(
        mbps in 1u32..9_000,
        burst in 0u64..2_000,
        count in 1usize..6,
        lengths in proptest::collection::vec(0u32..20_000, 1..8),
    ) {
        let rate = f64::from(mbps) * 1e6;
        let burst = Duration::from_micros(burst);
        let cc = CcConfig { burst, ..fixed(Rate::from_bps(rate)) };
        let (mut a, mut b, pairs) = connections(&cc, count);
        let mut sent: Vec<Vec<(Instant, u64)>> = vec![Vec::new(); count];
        let mut now = at(10_000);
        let mut wr = 0;
        while sent.iter().any(|sent| sent.len() < 250) {
            loop {
                for [qpn, _] in &pairs {
                    let length = |wr: usize| lengths[wr % lengths.len()];
                    let post = |a: &mut Host, length| {
                        let write = SendWr::write(1, &[a.sge(0, length)], b.va(0), b.mr.rkey);
                        a.nic.post_send(now, *qpn, write).is_ok()
                    };
                    while post(&mut a, length(wr)) {
                        wr += 1;
                    }
                }
                let (from_a, from_b) = (a.transmit_at(now), b.transmit_at(now));
                for packet in &from_a {
                    let pair = pairs.iter().position(|[_, far]| *far == packet.bth.dest_qp()).unwrap();
                    sent[pair].push((now, wire_bytes(packet)));
                }
                if from_a.is_empty() && from_b.is_empty() {
                    break;
                }
                b.take_at(now, &from_a);
                a.take_at(now, &from_b);
            }
            now = a.nic.poll_timeout().unwrap().max(now);
            a.nic.handle_timeout(now);
        }
        for sent in &sent {
            for first in (0..sent.len()).step_by(7) {
                let mut bits = 0.0;
                for &(when, bytes) in &sent[first..] {
                    // All but the last packet of a time are within what its length allows.
                    let span = (when.since(sent[first].0) + burst).as_nanos() as f64 / 1e9;
                    proptest::prop_assert!(bits <= rate * span + 1.0, "{bits} bits in {span} s");
                    bits += bytes as f64 * 8.0;
                }
            }
            let (begin, end) = (sent[0].0, sent[sent.len() - 1].0);
            let bits: u64 = sent.iter().map(|(_, bytes)| bytes * 8).sum();
            let span = end.since(begin).as_nanos() as f64 / 1e9;
            proptest::prop_assert!(bits as f64 >= rate * span, "{bits} bits in {span} s");
        }
        proptest::prop_assert_eq!(a.nic.counters().local_ack_timeout_err, 0);
    }
}
