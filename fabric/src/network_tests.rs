use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use wire::Duration;

use super::*;
use crate::faults::FaultKind;
use crate::frame::ETHERNET_OVERHEAD;

fn ip(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

fn header(from: u8, to: u8) -> NetHeader {
    NetHeader::v2(ip(from), ip(to), 49152, 0, 64).unwrap()
}

/// Nodes 10.0.0.1, 10.0.0.2 and so on.
fn network<const N: usize>(seed: u64, link: LinkParams) -> (Network, [NodeId; N]) {
    let mut net = Network::new(seed);
    let mut n = 0;
    let nodes = [(); N].map(|()| {
        n += 1;
        net.add_node([ip(n).into()], link)
    });
    (net, nodes)
}

/// Everything that arrives at `node` until nothing moves any more, with its time.
fn collect(net: &mut Network, node: NodeId) -> Vec<(Instant, Vec<u8>)> {
    let mut out = Vec::new();
    while let Some(at) = net.poll_timeout() {
        let mut burst = RxBurst::new();
        net.deliver(at, node, &mut burst);
        out.extend(burst.iter().map(|(_, body)| (at, body.to_vec())));
    }
    out
}

#[test]
fn a_packet_arrives_after_both_links_with_its_header() {
    let (mut net, [a, b]) = network(0, LinkParams::new(1_000_000_000, Duration::from_micros(3)));
    let body = [7; 59];
    let wire_len = (ETHERNET_OVERHEAD + 28 + 59) as u64;
    net.send(Instant::from_micros(10), a, header(1, 2), &body);
    let at = Instant::from_micros(16) + Duration::from_nanos(2 * wire_len * 8);
    let mut burst = RxBurst::new();
    assert_eq!(net.deliver(Instant::from_nanos(at.as_nanos() - 1), b, &mut burst), 0);
    assert_eq!(net.poll_timeout(), Some(at));
    assert_eq!(net.deliver(at, b, &mut burst), 1);
    assert_eq!(net.poll_timeout(), None);
    let (packet, got) = burst.iter().next().unwrap();
    assert_eq!((packet.net, got), (header(1, 2).with_transport_len(59), &body[..]));
    let counts = net.counts(b);
    assert_eq!((net.counts(a).sent, counts.sent, counts.delivered), (1, 0, 1));
}

#[test]
fn a_batch_is_sent_packet_by_packet() {
    let (mut net, [a, b]) = network(0, LinkParams::default());
    let caps = wire::batch::Caps {
        max_segments: 64,
        max_bytes: 65_000,
        ip_id: wire::batch::IpIdRule::Fixed0,
        sees_ip_header: true,
        window: 64,
        credit: u32::MAX,
        src_port: None,
    };
    let mut batch = TxBatch::new();
    batch.begin(header(1, 2), &caps, 0);
    batch.push(40).fill(1);
    batch.push(20).fill(2);
    batch.seal();
    net.send_batch(Instant::ZERO, a, &batch);
    let got: Vec<_> = collect(&mut net, b).into_iter().map(|(_, body)| body).collect();
    assert_eq!(got, batch.iter().map(|(_, body)| body.to_vec()).collect::<Vec<_>>());
}

#[test]
fn packets_for_nobody_are_counted_and_gone() {
    let (mut net, [a, _]) = network(0, LinkParams::default());
    net.send(Instant::ZERO, a, header(1, 9), &[0; 16]);
    assert_eq!(net.counts(a).unroutable, 1);
    assert_eq!(net.poll_timeout(), None);
}

#[test]
fn two_senders_share_the_link_of_one_receiver() {
    let link = LinkParams::new(1_000_000_000, Duration::ZERO);
    let (mut net, [a, b, c]) = network(0, link);
    for _ in 0..10 {
        net.send(Instant::ZERO, a, header(1, 3), &[1; 59]);
        net.send(Instant::ZERO, b, header(2, 3), &[2; 59]);
    }
    let got = collect(&mut net, c);
    let each = (ETHERNET_OVERHEAD + 28 + 59) as u64 * 8;
    assert_eq!(got.len(), 20);
    assert_eq!(got[19].0, Instant::from_nanos(21 * each));
}

#[test]
fn a_full_queue_drops_from_the_tail() {
    let link = LinkParams::new(1_000_000_000, Duration::ZERO).with_queue_limit(3 * 125);
    let (mut net, [a, b]) = network(0, link);
    for n in 0..5 {
        net.send(Instant::ZERO, a, header(1, 2), &[n; 59]);
    }
    let got: Vec<_> = collect(&mut net, b).into_iter().map(|(_, body)| body[0]).collect();
    assert_eq!(got, [0, 1, 2]);
    assert_eq!(net.counts(a).overflows, 2);
}

#[test]
fn taps_see_packets_before_and_behind_the_faults() {
    let (mut net, [a, b]) = network(0, LinkParams::default());
    net.set_faults(a, [FaultSpec::parse(FaultKind::Duplicate, "1").unwrap()]);
    net.set_faults(b, [FaultSpec::parse(FaultKind::Corrupt, "rx:1").unwrap()]);
    net.record();
    net.send(Instant::from_micros(1), a, header(1, 2), &[0; 16]);
    let points: Vec<_> = net.records().iter().map(|r| (r.node, r.point)).collect();
    assert_eq!(points, [(a, TapPoint::Sent), (b, TapPoint::Delivered), (b, TapPoint::Delivered)]);
    assert_eq!(net.records()[0].frame.body, [0; 16]);
    assert_ne!(net.records()[1].frame.body, [0; 16]);
    assert_eq!(net.records()[0].frame.to_ip().len(), 28 + 16);
    assert_eq!((net.counts(a).tx_faults.duplicated, net.counts(b).rx_faults.corrupted), (1, 2));
}

#[test]
fn faults_can_be_changed_on_the_way() {
    let (mut net, [a, b]) = network(0, LinkParams::default());
    net.set_faults(a, [FaultSpec::parse(FaultKind::Drop, "1").unwrap()]);
    net.send(Instant::ZERO, a, header(1, 2), &[1; 16]);
    net.set_faults(a, []);
    net.send(Instant::ZERO, a, header(1, 2), &[2; 16]);
    assert_eq!(collect(&mut net, b), [(Instant::ZERO, vec![2; 16])]);
    assert_eq!(net.counts(a).tx_faults.dropped, 1);
}

fn link() -> impl Strategy<Value = LinkParams> {
    (prop::option::of(1_000_000..100_000_000_000_u64), 0..50_000_u64).prop_map(|(rate, delay)| LinkParams {
        rate,
        delay: Duration::from_nanos(delay),
        queue_limit: None,
    })
}

proptest! {
    #[test]
    fn without_faults_nothing_is_lost_and_order_is_kept(
        link in link(), sends in prop::collection::vec((0..20_000_u64, 4_usize..4_200), 1..80),
    ) {
        let (mut net, [a, b]) = network(0, link);
        let mut now = Instant::ZERO;
        let mut sent = Vec::new();
        for (gap, len) in sends {
            now += Duration::from_nanos(gap);
            sent.push(vec![u8::try_from(sent.len()).unwrap(); len]);
            net.send(now, a, header(1, 2), sent.last().unwrap());
        }
        let got = collect(&mut net, b);
        prop_assert!(got.is_sorted_by_key(|(at, _)| *at));
        prop_assert_eq!(got.into_iter().map(|(_, body)| body).collect::<Vec<_>>(), sent);
    }

    #[test]
    fn the_rate_is_honoured(rate in 1_000_000..100_000_000_000_u64, lens in prop::collection::vec(4_usize..4_200, 2..80)) {
        let (mut net, [a, b]) = network(0, LinkParams::new(rate, Duration::ZERO));
        for len in &lens {
            net.send(Instant::ZERO, a, header(1, 2), &vec![0; *len]);
        }
        let got = collect(&mut net, b);
        for pair in got.windows(2) {
            let bits = (ETHERNET_OVERHEAD + 28 + pair[1].1.len()) as f64 * 8.0;
            let gap = (pair[1].0 - pair[0].0).as_nanos() as f64;
            prop_assert!(gap + 1.0 >= bits * 1e9 / rate as f64, "{} bits in {} ns", bits, gap);
        }
        let bits = lens.iter().map(|len| (ETHERNET_OVERHEAD + 28 + len) as f64 * 8.0).sum::<f64>();
        let longest = lens.iter().map(|len| (ETHERNET_OVERHEAD + 28 + len) as f64 * 8.0).fold(0.0, f64::max);
        let end = got.last().unwrap().0.as_nanos() as f64;
        prop_assert!(end <= (bits + longest) * 1e9 / rate as f64 + 2.0 * lens.len() as f64, "the link idled");
    }

    #[test]
    fn the_same_seed_gives_the_same_bytes_at_the_same_times(seed: u64, link in link()) {
        let run = |seed| {
            let (mut net, [a, b]) = network(seed, link);
            net.record();
            for (node, sign) in [(a, "tx:"), (b, "rx:")] {
                let faults = FaultKind::ALL.map(|kind| {
                    let time = if kind == FaultKind::Delay { ":20us" } else { "" };
                    FaultSpec::parse(kind, &format!("{sign}20%{time}")).unwrap()
                });
                net.set_faults(node, faults);
            }
            for n in 0..50 {
                net.send(Instant::from_micros(u64::from(n)), a, header(1, 2), &[n; 60]);
            }
            collect(&mut net, b);
            net.records().to_vec()
        };
        let records = run(seed);
        prop_assert_eq!(&records, &run(seed));
        prop_assert_ne!(&records, &run(seed ^ 1));
    }
}
