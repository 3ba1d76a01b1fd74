use super::*;
use crate::repr::PacketRepr;
use crate::{Bth, Opcode, Operation, Packet, Psn, Qpn};

fn caps(ip_id: IpIdRule) -> Caps {
    Caps {
        max_segments: 4,
        max_bytes: 1000,
        ip_id,
        sees_ip_header: true,
        window: 32,
        credit: 32,
        src_port: None,
    }
}

fn net() -> NetHeader {
    NetHeader::v2([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 0xC000, 0, 64).unwrap()
}

/// A batch of SENDs whose bodies have these lengths.
fn batch(ip_id: IpIdRule, base_id: u16, lens: &[usize]) -> TxBatch {
    let mut batch = TxBatch::new();
    batch.begin(net(), &caps(ip_id), base_id);
    for (i, len) in (0..).zip(lens) {
        assert!(batch.accepts(*len, &caps(ip_id)), "body {i}");
        let bth = Bth::new(Opcode::rc(Operation::SendMiddle), Qpn::new(1), Psn::new(i));
        batch.push(*len)[..Bth::SIZE].copy_from_slice(zerocopy::IntoBytes::as_bytes(&bth));
    }
    batch
}

#[test]
fn packets_from_an_index_on() {
    let batch = batch(IpIdRule::Ours, 5, &[100, 100, 60]);
    for from in 0..=3 {
        let all: Vec<_> = batch.iter().skip(from).collect();
        assert_eq!(batch.iter_from(from).collect::<Vec<_>>(), all);
        let bodies: Vec<_> = all.iter().map(|(_, body)| *body).collect();
        assert_eq!(batch.bodies_from(from).collect::<Vec<_>>(), bodies);
    }
}

fn ids(batch: &TxBatch) -> Vec<u16> {
    batch
        .iter()
        .map(|(net, _)| match net {
            NetHeader::V4(ip, _) => ip.id,
            _ => panic!("IPv4"),
        })
        .collect()
}

#[test]
fn only_a_begun_batch_takes_bodies() {
    let caps = caps(IpIdRule::Ours);
    let mut batch = TxBatch::new();
    assert!(!batch.accepts(16, &caps));
    batch.begin(net(), &caps, 0);
    assert!(batch.accepts(16, &caps) && batch.is_empty());
    batch.push(16);
    batch.clear();
    assert!(!batch.accepts(16, &caps) && batch.is_empty());
    assert_eq!((batch.bytes(), batch.segment_len(), batch.iter().count()), (&[][..], 0, 0));
}

#[test]
fn the_first_body_sets_the_length_and_an_odd_one_ends_the_batch() {
    let caps = caps(IpIdRule::Ours);
    let open = batch(IpIdRule::Ours, 0, &[100, 100]);
    assert!(open.accepts(100, &caps) && open.accepts(16, &caps));
    assert!(!open.accepts(101, &caps), "longer than the others");
    let ended = batch(IpIdRule::Ours, 0, &[100, 100, 60]);
    assert!(!ended.accepts(60, &caps) && !ended.accepts(100, &caps));
    assert_eq!((ended.len(), ended.segment_len(), ended.bytes().len()), (3, 100, 260));
    let lens: Vec<_> = ended.iter().map(|(_, body)| body.len()).collect();
    assert_eq!(lens, [100, 100, 60]);
}

#[test]
fn limits_of_the_back_end() {
    let caps = caps(IpIdRule::Ours);
    assert!(!batch(IpIdRule::Ours, 0, &[16; 4]).accepts(16, &caps), "four segments at most");
    let full = batch(IpIdRule::Ours, 0, &[400, 400]);
    assert!(full.accepts(200, &caps) && !full.accepts(201, &caps), "1000 bytes at most");
}

#[test]
fn headers_state_the_length_of_their_packet() {
    let batch = batch(IpIdRule::Ours, 0, &[100, 60]);
    let lens: Vec<_> = batch.iter().map(|(net, _)| net.transport_len()).collect();
    assert_eq!(lens, [100, 60]);
}

/// Rule R-WIR-35.
#[test]
fn identifications() {
    assert_eq!(ids(&batch(IpIdRule::Fixed0, 7, &[16; 3])), [0, 0, 0]);
    assert_eq!(ids(&batch(IpIdRule::Index, 7, &[16; 3])), [0, 1, 2]);
    assert_eq!(ids(&batch(IpIdRule::BasePlusIndex, 0, &[16; 3])), [0, 1, 2]);
    assert_eq!(ids(&batch(IpIdRule::Ours, 0xFFFF, &[16; 3])), [0xFFFF, 0, 1]);
}

#[test]
fn a_sealed_batch_is_ready_to_send() {
    // Rule R-WIR-10.
    for rule in [IpIdRule::Fixed0, IpIdRule::Index, IpIdRule::BasePlusIndex, IpIdRule::Ours] {
        let mut batch = batch(rule, 0x1234, &[100, 100, 60]);
        batch.seal();
        assert!(!batch.accepts(16, &caps(rule)));
        for (psn, (net, body)) in (0..).zip(batch.iter()) {
            let packet = Packet::parse_body(net, body).unwrap();
            assert!(packet.icrc_ok());
            assert_eq!(packet.bth().psn(), Psn::new(psn));
        }
    }
}

#[test]
fn the_last_body_can_be_taken_out() {
    let caps = caps(IpIdRule::Ours);
    let mut batch = batch(IpIdRule::Ours, 0, &[100, 60]);
    batch.cancel_last();
    assert_eq!((batch.len(), batch.bytes().len()), (1, 100));
    assert!(batch.accepts(100, &caps), "the odd one is gone");
    batch.cancel_last();
    batch.cancel_last();
    assert!(batch.is_empty() && batch.accepts(200, &caps));
    batch.push(200);
    assert_eq!(batch.segment_len(), 200);
}

#[test]
fn a_batch_is_used_again() {
    let mut batch = batch(IpIdRule::Ours, 9, &[100, 60]);
    batch.seal();
    let caps = caps(IpIdRule::Fixed0);
    batch.begin(net(), &caps, 0);
    assert!(batch.is_empty() && batch.accepts(200, &caps));
    batch.push(200).fill(7);
    batch.begin(net(), &caps, 0);
    let place = batch.push(200);
    assert_eq!(place[193..], [0; 7], "pad and ICRC");
    // Where a writer leaves something out, it shows in tests; and the rest costs no time elsewhere.
    let left = if cfg!(debug_assertions) { 0xEE } else { 7 };
    assert!(place[..193].iter().all(|byte| *byte == left));
    assert_eq!((batch.bytes().len(), ids(&batch)), (200, vec![0]));
}

fn ack() -> PacketRepr {
    PacketRepr::ack(net(), Qpn::new(1), Psn::new(2), crate::Syndrome::ACK, crate::Msn::new(3))
}

#[test]
fn a_burst_keeps_packets_in_order() {
    let mut burst = RxBurst::new();
    burst.push(net(), HeaderKnowledge::Unknown, &[1; 20]);
    burst.push(net(), HeaderKnowledge::Assumed, &[]);
    burst.push(net(), HeaderKnowledge::Assumed, &[2; 30]);
    let seen: Vec<_> = burst.iter().map(|(packet, body)| (packet.knowledge, body.to_vec())).collect();
    assert_eq!(
        seen,
        [
            (HeaderKnowledge::Unknown, vec![1; 20]),
            (HeaderKnowledge::Assumed, vec![]),
            (HeaderKnowledge::Assumed, vec![2; 30])
        ]
    );
    assert_eq!(burst.len(), 3);
    burst.clear();
    assert!(burst.is_empty() && burst.iter().next().is_none());
}

#[test]
fn packets_are_received_into_the_burst_itself() {
    let mut burst = RxBurst::new();
    burst.push(net(), HeaderKnowledge::Seen, &[1; 20]);
    burst.room(100)[10..90].fill(2);
    assert_eq!(burst.lent()[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2]);
    // Of what has come two packets are made; the one between them is no packet, and the rest stays unused.
    burst.record(net(), HeaderKnowledge::Near, 10..40);
    burst.record(net(), HeaderKnowledge::Near, 60..90);
    burst.push(net(), HeaderKnowledge::Seen, &[3; 20]);
    assert_eq!(burst.room(8).len(), 8);
    let bodies: Vec<_> = burst.iter().map(|(_, body)| body.to_vec()).collect();
    assert_eq!(bodies, [vec![1; 20], vec![2; 30], vec![2; 30], vec![3; 20]]);
    let ends: Vec<_> = burst.iter().map(|(packet, _)| packet.body.clone()).collect();
    assert_eq!(ends, [0..20, 30..60, 80..110, 110..130]);
    burst.clear();
    assert_eq!(burst.room(20).len(), 20, "the memory is used again");
}

#[test]
#[should_panic(expected = "within the room")]
fn only_what_was_lent_is_recorded() {
    let mut burst = RxBurst::new();
    burst.room(100);
    burst.record(net(), HeaderKnowledge::Near, 90..101);
}

#[test]
fn whole_ip_packets_are_sorted() {
    let mut good = Vec::new();
    ack().emit(&mut good);
    let mut burst = RxBurst::new();
    burst.push_ip(&good);
    // Another port is none of ours; a cut packet of our port is.
    let mut other = good.clone();
    other[23] ^= 1;
    burst.push_ip(&other);
    assert_eq!((burst.len(), burst.malformed()), (1, 0));
    burst.push_ip(&good[..good.len() - 1]);
    assert_eq!((burst.len(), burst.malformed()), (1, 1));

    let (packet, body) = burst.iter().next().unwrap();
    assert_eq!(packet.knowledge, HeaderKnowledge::Seen);
    assert!(Packet::parse_body(packet.net, body).unwrap().icrc_ok());
    burst.clear();
    assert_eq!(burst.malformed(), 0);
}
