//! How packets come together in batches: what segmentation offload sends with one call.

use wire::batch::{Caps, IpIdRule, TxBatch};
use wire::{Instant, Mtu, Packet};

use super::*;
use crate::nic::{Nic, NicConfig};
use crate::pair::QpInit;
use crate::state::QpType;

/// As a UDP socket has it.
pub(super) const OFFLOAD: Caps = Caps {
    max_segments: 64,
    max_bytes: 65_507,
    ip_id: IpIdRule::BasePlusIndex,
    sees_ip_header: true,
    window: 1024,
    credit: u32::MAX,
    src_port: Some(4791),
};

/// Host `number` of two, whose back end is as `caps` say, with connections to queue pairs of these numbers.
pub(super) fn host_of(number: u8, caps: Caps, peers: &[u32]) -> (Host, Vec<Qpn>) {
    let mut a = Host::new(number);
    a.nic = Nic::new(NicConfig { caps, ..config(number) });
    a.pd = a.nic.alloc_pd();
    a.send_cq = a.nic.create_cq(4096).unwrap();
    a.mr = a.nic.reg_mr(a.pd, vec![number; 1 << 20], ALL).unwrap();
    let cap = QpCap { max_send_wr: 256, ..QpCap::default() };
    a.init = QpInit { cap, ..QpInit::new(QpType::Rc, a.pd, a.send_cq, a.send_cq) };
    let mut attr = a.attr(&Host::new(3 - number));
    attr.path_mtu = Mtu::B4096;
    let mut qpns = Vec::new();
    for peer in peers {
        a.qpn = a.nic.create_qp(a.init).unwrap();
        attr.dest_qpn = Qpn::new(*peer);
        a.bring(QpState::Rts, &attr);
        qpns.push(a.qpn);
    }
    (a, qpns)
}

fn host(caps: Caps, peers: &[u32]) -> (Host, Vec<Qpn>) {
    host_of(1, caps, peers)
}

fn write(a: &mut Host, qpn: Qpn, len: u32) {
    let wr = SendWr::write(1, &[a.sge(0, len)], a.va(0), a.mr.rkey);
    a.nic.post_send(Instant::ZERO, qpn, wr).unwrap();
}

/// For each batch, the queue pairs that its packets are for.
fn batches(a: &mut Host) -> Vec<Vec<u32>> {
    let (mut batch, mut all) = (TxBatch::new(), Vec::new());
    while a.nic.poll_transmit(Instant::ZERO, &mut batch) {
        let dest = |(net, body)| Packet::parse_body(net, body).unwrap().bth().dest_qp().value();
        all.push(batch.iter().map(dest).collect());
    }
    all
}

fn lens(a: &mut Host) -> Vec<usize> {
    batches(a).iter().map(Vec::len).collect()
}

#[test]
fn a_long_message_leaves_in_full_runs() {
    let (mut a, qpns) = host(OFFLOAD, &[8]);
    write(&mut a, qpns[0], 1 << 20);
    // FIRST is longer, so that one MIDDLE ends its batch; all others are equal.
    let mut expected = vec![15; 18];
    (expected[0], expected[17]) = (2, 14);
    assert_eq!(lens(&mut a), expected);
}

#[test]
fn messages_of_one_packet_fill_batches() {
    let (mut a, qpns) = host(OFFLOAD, &[8]);
    (0..150).for_each(|_| write(&mut a, qpns[0], 64));
    assert_eq!(lens(&mut a), [64, 64, 22]);
    (0..31).for_each(|_| write(&mut a, qpns[0], 4096));
    assert_eq!(lens(&mut a), [15, 15, 1]);
}

#[test]
fn queue_pairs_of_one_lane_share_batches() {
    let (mut a, qpns) = host(OFFLOAD, &[8, 17, 16, 24, 9, 32]);
    for qpn in qpns {
        (0..2).for_each(|_| write(&mut a, qpn, 64));
    }
    assert_eq!(batches(&mut a), [vec![8, 8, 16, 16, 24, 24, 32, 32], vec![17, 17, 9, 9]]);
}

#[test]
fn only_packets_of_equal_size_share_a_batch() {
    let (mut a, qpns) = host(OFFLOAD, &[8, 16, 24, 32]);
    for (qpn, len) in qpns.into_iter().zip([64, 64, 100, 64]) {
        write(&mut a, qpn, len);
    }
    // The odd one that ends a batch may be shorter.
    assert_eq!(batches(&mut a), [vec![8, 16], vec![24, 32]]);
}

#[test]
fn packets_that_go_different_ways_do_not_share_a_batch() {
    let (mut a, qpns) = host(Caps { src_port: None, ..OFFLOAD }, &[8, 16]);
    qpns.into_iter().for_each(|qpn| write(&mut a, qpn, 64));
    assert_eq!(batches(&mut a), [[8], [16]], "their source ports differ");
}

#[test]
fn a_turn_ends_though_others_share_its_batch() {
    let (mut a, qpns) = host(Caps { max_segments: 4, ..OFFLOAD }, &[8, 16]);
    for qpn in &qpns {
        (0..3).for_each(|_| write(&mut a, *qpn, 4096));
    }
    write(&mut a, qpns[0], 4096);
    assert_eq!(batches(&mut a), [vec![8, 8, 8, 8], vec![16, 16, 16]]);
}

#[test]
fn an_acknowledgement_shares_the_batch_of_what_was_just_posted_or_waits_for_that_one_only() {
    // Where the kernel makes runs, a lone request does not wait to be made one of two.
    let (ours, runs) = (IpIdRule::Ours, IpIdRule::Index);
    for (ip_id, posted, expected) in [
        (ours, 0, vec![1]),
        (ours, 1, vec![2]),
        (runs, 1, vec![1, 1]),
        (ours, 2, vec![3]),
        (runs, 2, vec![3]),
        (ours, 7, vec![8]),
        (ours, 10, vec![8, 1, 2]),
    ] {
        let mut of_b = config(2);
        of_b.caps.ip_id = ip_id;
        let answering = Host::on(of_b, 2, |_| {});
        let (mut a, mut b) = join(Host::new(1), answering, |_| {});
        b.recv(RecvWr::new(1, &[]));
        a.send(SendWr::send(1, &[]).signaled());
        b.take(&a.transmit());
        for id in 0..posted {
            b.send(SendWr::send(id, &[b.sge(0, 64)]));
        }
        let (mut batch, mut lens, mut operations) = (TxBatch::new(), Vec::new(), Vec::new());
        while b.nic.poll_transmit(NOW, &mut batch) {
            lens.push(batch.len());
            operations.extend(
                batch.iter().map(|(net, body)| Packet::parse_body(net, body).unwrap().info().operation),
            );
        }
        assert_eq!(lens, expected);
        let place = operations.iter().position(|op| *op == Op::Acknowledge);
        assert_eq!(place, Some(usize::try_from(posted.min(8)).unwrap()), "{posted} posted");
    }
}

/// Rule R-RSP-26.
#[test]
fn a_burst_of_messages_is_answered_by_one_ack() {
    let (mut a, mut b) = connected();
    for id in 0..16 {
        a.send(SendWr::write(id, &[a.sge(0, 8)], b.va(0), b.mr.rkey).signaled());
    }
    let asked = a.transmit();
    assert!(asked.len() == 16 && asked.iter().all(|packet| packet.bth.ack_req()));
    b.take(&asked);
    let answers = b.transmit();
    assert_eq!((answers.len(), answers[0].bth.psn()), (1, Psn::new(15)));
    a.take(&answers);
    assert_eq!(a.sends_done().len(), 16);
}
