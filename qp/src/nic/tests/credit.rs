//! Credit: what all queue pairs together may have in flight (rule R-REQ-48).

use wire::batch::{Caps, HeaderKnowledge, RxBurst, TxBatch};

use super::batches::{OFFLOAD, host_of};
use super::*;

const PAIRS: u32 = 16;

/// Two hosts with connections to each other; at most `credit` packets of each are in flight.
fn hosts(credit: u32) -> (Host, Host, Vec<Qpn>) {
    let caps = Caps { credit, ..OFFLOAD };
    let peers: Vec<u32> = (0x11..0x11 + PAIRS).collect();
    let (a, qpns) = host_of(1, caps, &peers);
    let (b, _) = host_of(2, caps, &peers);
    (a, b, qpns)
}

/// What is in flight, once it has been counted anew.
fn in_flight(host: &Host, qpns: &[Qpn]) -> u64 {
    let sum = qpns.iter().filter_map(|qpn| host.nic.in_flight_of(*qpn)).map(u64::from).sum();
    assert_eq!(host.nic.in_flight(), sum);
    sum
}

fn post(host: &mut Host, qpn: Qpn, wr: SendWr) {
    host.nic.post_send(NOW, qpn, wr.signaled()).unwrap();
}

/// Sends a batch of `a` to `b`; false where there is none.
fn step(now: Instant, a: &mut Host, b: &mut Host) -> bool {
    let (mut batch, mut burst) = (TxBatch::new(), RxBurst::new());
    if !a.nic.poll_transmit(now, &mut batch) {
        return false;
    }
    batch.iter().for_each(|(net, body)| burst.push(net, HeaderKnowledge::Seen, body));
    b.nic.handle_burst(now, &burst);
    true
}

#[test]
fn all_finish_within_the_credit_and_without_a_timeout() {
    for (credit, len, read) in
        [(1, 70_000, false), (7, 70_000, true), (32, 300_000, false), (32, 300_000, true), (200, 64, false)]
    {
        let (mut a, mut b, qpns) = hosts(credit);
        for qpn in &qpns {
            for id in 0..4 {
                let (sge, va, rkey) = (a.sge(0, len), b.va(0), b.mr.rkey);
                let wr = if read {
                    SendWr::read(id, &[sge], va, rkey)
                } else {
                    SendWr::write(id, &[sge], va, rkey)
                };
                post(&mut a, *qpn, wr);
            }
        }
        loop {
            // All that may leave, before anything is answered.
            let mut any = false;
            while step(NOW, &mut a, &mut b) {
                any = true;
                assert!(in_flight(&a, &qpns) <= credit.into());
            }
            while step(NOW, &mut b, &mut a) {
                any = true;
            }
            in_flight(&a, &qpns);
            if !any {
                break;
            }
        }
        let done = a.sends_done();
        assert_eq!((done.len(), in_flight(&a, &qpns)), (4 * qpns.len(), 0), "credit {credit}, READ {read}");
        assert!(done.iter().all(|wc| wc.status == WcStatus::Success));
        assert_eq!(a.nic.counters().local_ack_timeout_err, 0);
    }
}

#[test]
fn the_line_moves_on_when_a_queue_pair_ends() {
    let ends: [fn(&mut Host, Qpn); 3] = [
        |a, qpn| a.nic.destroy_qp(qpn).unwrap(),
        |a, qpn| {
            a.qpn = qpn;
            a.go(QpState::Err);
        },
        |a, qpn| {
            a.qpn = qpn;
            a.go(QpState::Reset);
        },
    ];
    for end in ends {
        let (mut a, b, qpns) = hosts(8);
        for qpn in &qpns {
            let wr = SendWr::write(1, &[a.sge(0, 8 * 4096)], b.va(0), b.mr.rkey);
            post(&mut a, *qpn, wr);
        }
        // Whoever has sent ends; so does one in line, without a trace.
        let mut left = qpns.clone();
        for _ in 0..PAIRS / 2 {
            let sent = a.transmit();
            assert_eq!((sent.len(), in_flight(&a, &left)), (8, 8));
            let holds = |qpn: &Qpn| a.nic.in_flight_of(*qpn) > Some(0);
            let holder = left.iter().position(holds).unwrap();
            let holder = left.remove(holder);
            let waiting = left.pop();
            end(&mut a, waiting.unwrap());
            assert_eq!(a.transmit(), []);
            end(&mut a, holder);
            assert_eq!(in_flight(&a, &left), 0);
        }
        assert_eq!(a.transmit(), []);
    }
}

#[test]
fn waiting_for_credit_is_no_timeout() {
    let (mut a, b, qpns) = hosts(4);
    for qpn in &qpns[..2] {
        let wr = SendWr::write(1, &[a.sge(0, 8 * 4096)], b.va(0), b.mr.rkey);
        post(&mut a, *qpn, wr);
    }
    // Nothing is ever answered: both give up in the end, after as many repeats.
    let (mut now, mut sent) = (NOW, Vec::new());
    loop {
        sent.extend(a.transmit_at(now));
        assert!(in_flight(&a, &qpns) <= 4);
        let Some(due) = a.nic.poll_timeout() else { break };
        now = due;
        a.nic.handle_timeout(now);
    }
    let done: Vec<_> = a.sends_done().iter().map(|wc| (wc.qp_num, wc.status)).collect();
    assert_eq!(done.len(), 2);
    assert!(done.iter().all(|(_, status)| *status == WcStatus::RetryExcErr), "{done:?}");
    for qpn in [0x11, 0x12] {
        let times =
            sent.iter().filter(|p| p.bth.dest_qp() == Qpn::new(qpn) && p.bth.psn() == Psn::new(0)).count();
        assert_eq!(times, 8, "once, and seven times again");
    }
}

/// A peer that is gone takes the credit for one timeout, not for as many as there are repeats.
#[test]
fn a_dead_peer_does_not_keep_the_credit() {
    let (mut a, mut b, qpns) = hosts(8);
    for qpn in &qpns[..2] {
        for id in 0..10 {
            let wr = SendWr::write(id, &[a.sge(0, 4 * 4096)], b.va(0), b.mr.rkey);
            post(&mut a, *qpn, wr);
        }
    }
    // The first one's packets, which take all the credit, are lost.
    assert_eq!((a.transmit().len(), a.nic.in_flight_of(qpns[0])), (8, Some(8)));
    b.nic.destroy_qp(Qpn::new(0x11)).unwrap();
    let now = a.nic.poll_timeout().unwrap();
    a.nic.handle_timeout(now);
    while step(now, &mut a, &mut b) | step(now, &mut b, &mut a) {
        in_flight(&a, &qpns);
    }
    let done: Vec<_> = a.sends_done().iter().map(|wc| (wc.qp_num, wc.status)).collect();
    assert_eq!(done, [(qpns[1], WcStatus::Success); 10]);
}

fn post_unsignaled(host: &mut Host, qpn: Qpn, to: &Host, len: u32) {
    let wr = SendWr::write(9, &[host.sge(0, len)], to.va(0), to.mr.rkey);
    host.nic.post_send(NOW, qpn, wr).unwrap();
}

/// Rule R-REQ-49: who finds no credit asks for what it holds itself, and has not asked for.
#[test]
fn what_was_put_off_is_asked_for_where_credit_runs_out() {
    let (mut a, mut b, qpns) = hosts(8);
    for _ in 0..3 {
        post_unsignaled(&mut a, qpns[0], &b, 64);
        assert!(step(NOW, &mut a, &mut b));
    }
    assert!(!step(NOW, &mut b, &mut a), "nothing was asked for");
    let wr = SendWr::write(1, &[a.sge(0, 5 * 4096)], b.va(0), b.mr.rkey);
    post(&mut a, qpns[1], wr);
    let others = a.transmit();
    assert_eq!((others.len(), a.nic.in_flight()), (5, 8));
    post_unsignaled(&mut a, qpns[0], &b, 64);
    let [asks] = a.transmit().try_into().unwrap();
    assert_eq!((asks.bth.psn(), asks.bth.ack_req()), (Psn::new(2), true));
    b.take(&[asks]);
    b.take(&others);
    while step(NOW, &mut b, &mut a) | step(NOW, &mut a, &mut b) {}
    let last = a.nic.poll_timeout().unwrap();
    a.nic.handle_timeout(last);
    while step(last, &mut a, &mut b) | step(last, &mut b, &mut a) {}
    assert_eq!((a.nic.in_flight(), a.sends_done().len()), (0, 1));
    assert_eq!(a.nic.counters().local_ack_timeout_err, 0);
}

/// Rules R-REQ-48 and R-REQ-49.
#[test]
fn many_queue_pairs_that_are_told_of_nothing_need_no_timeout() {
    let (mut a, mut b, qpns) = hosts(32);
    let mut now = NOW;
    for (round, many) in [(0, 1), (1, 20), (2, 3)] {
        for qpn in &qpns[round..] {
            (0..many).for_each(|_| post_unsignaled(&mut a, *qpn, &b, 64));
        }
        while step(now, &mut a, &mut b) | step(now, &mut b, &mut a) {}
    }
    while a.nic.in_flight() > 0 {
        now = a.nic.poll_timeout().unwrap();
        a.nic.handle_timeout(now);
        while step(now, &mut a, &mut b) | step(now, &mut b, &mut a) {}
    }
    assert!(now.since(NOW) <= Duration::from_millis(2), "{:?}", now.since(NOW));
    assert_eq!(a.nic.counters().local_ack_timeout_err, 0);
    // Those that left first put off; the others saw that they are not alone.
    assert!(b.nic.counters().duplicate_request <= 4, "{}", b.nic.counters().duplicate_request);
}
