use fabric::switched::MarkAt;
use wire::{PacketRepr, Psn, icrc};

use super::*;

const WAY: Way =
    Way { rate: 200_000_000, delay: Duration::ZERO, limit: 1 << 20, red: None, drop: 0.0, seed: 1 };

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn net(tos: u8) -> NetHeader {
    NetHeader::v2(address(1), address(2), 0xC000, tos, 64).expect("one family")
}

/// A SEND of 1,000 bytes on the cable for the queue pair `qpn`.
fn send(qpn: u32, tos: u8) -> Carried {
    let opcode = Opcode::from_byte(0x04);
    let bth = wire::Bth::new(opcode, Qpn::new(qpn), Psn::new(1));
    let mut bytes = Vec::new();
    PacketRepr::new(net(tos), bth, [], vec![7; 64]).expect("a SEND").emit(&mut bytes);
    Carried::new(bytes, Some(0), 1_000, 7)
}

fn at(micros: u64) -> Instant {
    Instant::from_micros(micros)
}

#[test]
fn each_output_has_a_queue_of_its_own_and_all_is_counted_by_flow() {
    let mut switch = Switch::new(at(0), WAY);
    let (near, far) = (switch.add_output(at(0), "near".into()), switch.add_output(at(0), "far".into()));
    for _ in 0..3 {
        switch.offer(at(0), near, send(17, 2));
        switch.offer(at(0), far, send(18, 2));
    }
    let mut cnp = Vec::new();
    PacketRepr::cnp(net(0xC2), Qpn::new(17)).emit(&mut cnp);
    switch.offer(at(0), near, Carried::new(cnp, Some(0), 98, 7));
    assert_eq!(switch.poll_timeout(), Some(at(40)));
    let mut came = Vec::new();
    while let Some(due) = switch.poll_timeout() {
        came.extend(std::iter::from_fn(|| switch.pop(due)).map(|(output, to, _)| (due, output, to)));
    }
    let each = [40, 80, 120].map(|due| [(at(due), near, 7), (at(due), far, 7)]);
    assert_eq!(came[..6], each.concat());
    let report = switch.report(at(240));
    let flows: Vec<_> =
        report.flows.iter().map(|flow| (flow.qpn.value(), flow.packets, flow.bytes, flow.cnps)).collect();
    assert_eq!(flows, [(17, 4, 3_098, 1), (18, 3, 3_000, 0)]);
    assert_eq!(report.queues[far].to, ["far"]);
    assert!((report.queues[far].utilisation - 0.5).abs() < 1e-9);
    assert_eq!(report.time, Duration::from_micros(240));
}

#[test]
fn marks_are_set_on_the_bytes_and_break_no_checksum() {
    let red = Red { kmin: 0, kmax: 0, pmax: 1.0, at: MarkAt::Enqueue };
    let mut switch = Switch::new(at(0), Way { red: Some(red), ..WAY });
    let output = switch.add_output(at(0), "there".into());
    for tos in [0x68, 0x69, 0x6A, 0x6B] {
        switch.offer(at(0), output, send(17, 0x6A));
        switch.offer(at(0), output, send(18, tos));
    }
    let mut seen = Vec::new();
    while let Some((_, _, bytes)) = switch.pop(at(1_000)) {
        let (net, body) = NetHeader::parse_ip(&bytes).expect("a RoCE packet");
        assert_eq!(net, net.with_transport_len(body.len()), "with its checksum");
        assert!(icrc::verify(&net, body));
        seen.push((body[7], net.traffic_class()));
    }
    // The first finds an empty queue.
    let want =
        [(17, 0x6A), (18, 0x68), (17, 0x6B), (18, 0x6B), (17, 0x6B), (18, 0x6B), (17, 0x6B), (18, 0x6B)];
    assert_eq!(seen, want);
    let report = switch.report(at(1_000));
    assert_eq!(report.queues[output].marked, 5);
    // One of them came marked.
    assert_eq!(report.flows.iter().map(|flow| flow.marked).sum::<u64>(), 5);
}

#[test]
fn packets_are_lost_as_often_as_they_should_and_where_there_is_no_room() {
    let mut switch = Switch::new(at(0), Way { drop: 0.25, limit: 2_000, ..WAY });
    let output = switch.add_output(at(0), "there".into());
    for n in 0..10_000 {
        switch.offer(at(40 * n), output, send(17, 2));
        switch.pop(at(40 * n));
    }
    let report = switch.report(at(400_000));
    assert!((2_300..2_700).contains(&report.lost.by_chance), "{}", report.lost.by_chance);
    assert_eq!(report.queues[output].dropped, 0);
    for _ in 0..10 {
        switch.offer(at(400_000), output, send(17, 2));
    }
    let report = switch.report(at(400_000));
    assert_eq!(report.flows[0].dropped, report.lost.by_chance + report.queues[output].dropped);
    assert!(report.queues[output].dropped > 0);
}

#[test]
fn counting_begins_anew_but_what_waits_is_still_forwarded() {
    let mut switch = Switch::new(at(0), WAY);
    let output = switch.add_output(at(0), "there".into());
    (0..4).for_each(|_| switch.offer(at(0), output, send(17, 2)));
    switch.pop(at(40)).expect("the first");
    switch.restart(at(50));
    assert_eq!(switch.report(at(50)).flows, []);
    assert_eq!(std::iter::from_fn(|| switch.pop(at(160))).count(), 3);
    let report = switch.report(at(170));
    assert_eq!((report.flows[0].packets, report.time), (3, Duration::from_micros(120)));
}

#[test]
fn what_is_no_ip_packet_passes_and_is_no_flow() {
    let red = Red { kmin: 0, kmax: 0, pmax: 1.0, at: MarkAt::Enqueue };
    let mut switch = Switch::new(at(0), Way { red: Some(red), ..WAY });
    let output = switch.add_output(at(0), "there".into());
    let frames = [vec![], vec![0x45], vec![0xFF; 60], vec![0x60; 39], vec![0x45; 19]];
    for frame in &frames {
        for ip_at in [None, Some(0), Some(14), Some(1 << 40)] {
            switch.offer(at(0), output, Carried::new(frame.clone(), ip_at, 100, 0));
        }
    }
    let came: Vec<_> = std::iter::from_fn(|| switch.pop(at(1_000))).map(|(_, _, bytes)| bytes).collect();
    assert_eq!(came, frames.iter().flat_map(|frame| vec![frame.clone(); 4]).collect::<Vec<_>>());
    assert_eq!(switch.report(at(1_000)).flows, []);
}

#[test]
fn flows_without_number_cost_no_memory_without_end() {
    let mut switch = Switch::new(at(0), WAY);
    let output = switch.add_output(at(0), "there".into());
    for qpn in 0..5_000 {
        switch.offer(at(0), output, send(qpn, 0));
        switch.pop(at(u64::from(qpn) * 40));
    }
    while switch.pop(at(1 << 30)).is_some() {}
    let report = switch.report(at(1 << 30));
    assert_eq!((report.flows.len(), report.queues[output].dropped > 0), (MOST_FLOWS, false));
}
