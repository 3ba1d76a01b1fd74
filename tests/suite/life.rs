//! The life of queue pairs among traffic: drained and gone on, failed and used again, destroyed in the middle of it,
//! and connections within one NIC.

use qp::{AsyncEvent, AttrMask, Event, QpAttr, QpCap, QpState, RecvWr, SendWr, Sge};
use rand_pcg::Pcg64;
use transport::{Access, DropReason, WcStatus};
use wire::Duration;

use crate::harness::plan::Mix;
use crate::harness::workload::{self, Depths};
use crate::harness::world::Endpoint;
use crate::harness::{Conn, World, WorldConfig, seed};

const DEPTHS: Depths = Depths { sends: 16, receives: 16, repost_delay: Duration::ZERO };

fn go(world: &mut World, end: Endpoint, state: QpState) {
    let (now, attr) = (world.now, QpAttr { state, en_sqd_async_notify: true, ..QpAttr::default() });
    let mask = if state == QpState::Sqd { AttrMask::EN_SQD_ASYNC_NOTIFY } else { AttrMask::empty() };
    world.nic(end).modify_qp(now, end.qpn, &attr, mask | AttrMask::STATE).unwrap();
}

/// A region of 64 KiB at each end, and a WRITE of all of the first to the second.
fn large_write(world: &mut World, ends: [Endpoint; 2]) -> SendWr {
    const LEN: u32 = 64 << 10;
    let from = world.register(ends[0].host, vec![1; LEN as usize], Access::empty());
    let to = world.register(ends[1].host, vec![2; LEN as usize], Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let sge = Sge { addr: from.addr, length: LEN, lkey: from.lkey };
    SendWr::write(1, &[sge], to.addr, to.rkey).signaled()
}

/// A connection of which one end is destroyed after some time of traffic in both directions. The end that stays gives
/// up, or has nothing to do; nobody panics, and what comes late finds nobody.
#[test]
fn a_queue_pair_may_be_destroyed_at_any_moment() {
    for micros in (0..60).step_by(3) {
        for goes in 0..2 {
            let conn = Conn { timeout: 8, retry_cnt: 1, ..Conn::default() };
            let (mut world, ends) = World::pair(WorldConfig::new("destroyed", seed(50)), conn);
            world.allow(&[DropReason::NoSuchQp]);
            for order in [[0, 1], [1, 0]] {
                let pair = order.map(|i| ends[i]);
                let wr = large_write(&mut world, pair);
                let now = world.now;
                world.nic(pair[0]).post_send(now, pair[0].qpn, wr).unwrap();
            }
            let end = world.now + Duration::from_micros(micros);
            world.drive_until(end);
            let (gone, stays) = (ends[goes], ends[1 - goes]);
            world.nic(gone).destroy_qp(gone.qpn).unwrap();
            world.drive();
            let done = world.send_completions(stays);
            assert_eq!(done.len(), 1, "{micros} µs");
            match done[0].status {
                WcStatus::Success => {}
                WcStatus::RetryExcErr => assert_eq!(state(&mut world, stays), QpState::Err),
                other => panic!("{other:?} after {micros} µs"),
            }
            assert!(world.send_completions(gone).is_empty(), "R-CQE-15");
            assert_eq!(world.nic(gone).poll_timeout(), None);
        }
    }
}

fn state(world: &mut World, end: Endpoint) -> QpState {
    world.nic(end).query_qp(end.qpn).unwrap().0.state
}

/// Rules R-REQ-31, R-QPS-20: what was begun is finished and said so once; what waits goes on in RTS.
#[test]
fn a_send_queue_is_drained_under_traffic_and_goes_on() {
    let (mut world, [a, b]) = World::pair(WorldConfig::new("drained", seed(51)), Conn::default());
    let wr = large_write(&mut world, [a, b]);
    for _ in 0..4 {
        let now = world.now;
        world.nic(a).post_send(now, a.qpn, wr.clone()).unwrap();
    }
    let end = world.now + Duration::from_micros(10);
    world.drive_until(end);
    go(&mut world, a, QpState::Sqd);
    assert!(world.hosts[0].events.is_empty(), "not yet");
    world.drive();
    assert_eq!(world.hosts[0].events, [Event::Async(AsyncEvent::SqDrained(a.qpn))]);
    let before = world.send_completions(a).len();
    assert!((1..4).contains(&before), "{before}");
    // The receive side works meanwhile.
    let back = large_write(&mut world, [b, a]);
    let now = world.now;
    world.nic(b).post_send(now, b.qpn, back).unwrap();
    world.drive();
    assert_eq!(world.send_completions(b)[0].status, WcStatus::Success);
    go(&mut world, a, QpState::Rts);
    world.drive();
    let rest = world.send_completions(a);
    assert_eq!(before + rest.len(), 4);
    assert!(rest.iter().all(|wc| wc.status == WcStatus::Success));
}

/// Rules R-QPS-3, R-QPS-13: the same queue pairs, again and again.
#[test]
fn a_connection_that_failed_is_used_again() {
    let mut world = World::new(WorldConfig::new("again", seed(52)));
    let ends = world.connect([0, 1], Conn::default(), workload::cap(DEPTHS));
    let mix = Mix { messages: 60, mtu: 1024, max_inline: 0 };
    for round in 0..3_u32 {
        workload::run(&mut world, ends, mix, DEPTHS, &mut Pcg64::new(u128::from(round), 0));
        for (end, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            go(&mut world, end, QpState::Err);
            // The receives that were still posted.
            let flushed = world.recv_completions(end);
            assert_eq!(flushed.len(), DEPTHS.receives);
            assert!(flushed.iter().all(|wc| wc.status == WcStatus::WrFlushErr));
            go(&mut world, end, QpState::Reset);
            let (now, name) = (world.now, (world.hosts[peer.host].gid, peer.qpn));
            let conn = Conn::default();
            let psns = [round << 8, round << 8];
            conn.establish(world.nic(end), now, end.qpn, name, psns).unwrap();
        }
    }
}

/// Two queue pairs of one NIC connected to each other: every operation, with loss as well.
#[test]
fn connections_within_one_nic() {
    let mut world = World::new(WorldConfig { hosts: 1, ..WorldConfig::new("within", seed(53)) });
    let ends = world.connect([0, 0], Conn::default(), workload::cap(DEPTHS));
    let mix = Mix { messages: 300, mtu: 1024, max_inline: 0 };
    workload::run(&mut world, ends, mix, DEPTHS, &mut Pcg64::new(53, 0));
    let counters = world.hosts[0].nic.counters();
    assert_eq!((counters.local_ack_timeout_err, counters.duplicate_request), (0, 0));
}

/// A queue pair that is its own peer, over the network.
#[test]
fn a_queue_pair_that_is_its_own_peer() {
    let mut world = World::new(WorldConfig { hosts: 1, ..WorldConfig::new("oneself", seed(54)) });
    let end = world.create(0, QpCap::default(), true);
    let (now, name) = (world.now, (world.hosts[0].gid, end.qpn));
    Conn::default().establish(world.nic(end), now, end.qpn, name, [7, 7]).unwrap();
    let mr = world.register(0, (0..=255).cycle().take(32 << 10).collect(), Access::LOCAL_WRITE);
    let sge = |at: u64, length| Sge { addr: mr.addr.wrapping_add(at), length, lkey: mr.lkey };
    for id in 0..4 {
        let nic = world.nic(end);
        nic.post_recv(now, end.qpn, RecvWr::new(id, &[sge(16 << 10, 8 << 10)])).unwrap();
        nic.post_send(now, end.qpn, SendWr::send(id, &[sge(0, 8 << 10)])).unwrap();
    }
    world.drive();
    for done in [world.send_completions(end), world.recv_completions(end)] {
        let ids: Vec<_> = done.iter().map(|wc| (wc.wr_id.value(), wc.status, wc.byte_len)).collect();
        assert_eq!(ids, [0, 1, 2, 3].map(|id| (id, WcStatus::Success, 8 << 10)));
    }
    let nic = world.nic(end);
    let copy = nic.mr_bytes(mr.lkey, 16 << 10, 8 << 10).unwrap().to_vec();
    assert_eq!(nic.mr_bytes(mr.lkey, 0, 8 << 10).unwrap(), copy);
}
