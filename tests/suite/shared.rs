//! Many queue pairs on one shared receive queue, over a wire that loses packets: the program posts receives only when
//! it is told that few are left.

use fabric::{Direction, FaultKind, FaultSpec};
use qp::{AsyncEvent, Event, MrInfo, QpCap, QpInit, QpType, RecvWr, SendWr, Sge, SrqAttr, SrqInit, SrqMask};
use transport::{Access, DropReason, WcStatus};
use wire::{Duration, Qpn, Srqn};

use crate::harness::world::Flow;
use crate::harness::{Conn, World, WorldConfig, seed};

const PAIRS: usize = 24;
/// Messages on each queue pair.
const MESSAGES: usize = 40;
/// Receives of the shared queue; fewer than there are queue pairs.
const RECEIVES: u32 = 16;
/// Where the program wants to be told.
const LIMIT: u32 = 6;
const ROOM: u32 = 4096;
const SOURCE: usize = 8192;

/// Where in the source message `n` of queue pair `pair` begins, and its length.
fn message(pair: usize, n: usize) -> (usize, usize) {
    ((pair * 131 + n * 17) % 4000, (pair * 37 + n * 101) % 3000)
}

/// The program at the receiving end.
struct Receiver {
    srqn: Srqn,
    mr: MrInfo,
    free: Vec<u64>,
    limits_told: u32,
    /// Messages that have come, of each queue pair.
    come: Vec<usize>,
}

impl Receiver {
    fn slot(&self, n: u64) -> Sge {
        Sge { addr: self.mr.addr.wrapping_add(n * u64::from(ROOM)), length: ROOM, lkey: self.mr.lkey }
    }

    /// Posts all receives that are free, and asks to be told again.
    fn refill(&mut self, world: &mut World) {
        let nic = &mut world.hosts[1].nic;
        for n in std::mem::take(&mut self.free) {
            nic.post_srq_recv(self.srqn, RecvWr::new(n, &[self.slot(n)])).expect("the post");
        }
        let attr = SrqAttr { limit: LIMIT, ..SrqAttr::default() };
        nic.modify_srq(self.srqn, &attr, SrqMask::LIMIT).expect("the limit");
    }

    fn work(&mut self, world: &mut World, cq: qp::CqId, qpns: &[Qpn], source: &[u8]) {
        let mut done = Vec::new();
        world.hosts[1].nic.poll_cq(cq, usize::MAX, &mut done);
        for wc in done {
            assert_eq!(wc.status, WcStatus::Success);
            let pair = qpns.iter().position(|qpn| *qpn == wc.qp_num).expect("one of ours");
            // In the order in which each queue pair was sent to.
            let (at, len) = message(pair, self.come[pair]);
            self.come[pair] += 1;
            let offset = usize::try_from(wc.wr_id.value() * u64::from(ROOM)).expect("a slot");
            let bytes = world.hosts[1].nic.mr_bytes(self.mr.lkey, offset, len).expect("a slot");
            assert!(wc.byte_len as usize == len && bytes == &source[at..at + len], "{wc:?}");
            assert!(!self.free.contains(&wc.wr_id.value()), "a receive was used twice: {wc:?}");
            self.free.push(wc.wr_id.value());
        }
        let told = world.hosts[1].events.drain(..).filter(|event| {
            assert_eq!(*event, Event::Async(AsyncEvent::SrqLimitReached(self.srqn)));
            true
        });
        let told = u32::try_from(told.count()).expect("few");
        assert!(told <= 1, "the limit is told once until it is set again");
        self.limits_told += told;
        if told > 0 {
            self.refill(world);
        }
    }
}

/// Rules R-CQE-6, R-CQE-14, R-RSP-46.
#[test]
fn every_message_comes_once_and_in_order_whoever_takes_the_receives() {
    let mut world = World::new(WorldConfig::new("shared", seed(3)));
    world.allow(&[
        DropReason::OutOfSequence,
        DropReason::GhostResponse,
        DropReason::ResponseOutOfOrder,
        DropReason::DuplicateUnknown,
    ]);
    for host in [0, 1] {
        let loss = FaultSpec::chance(FaultKind::Drop, Direction::Tx, 0.02).expect("a probability");
        world.net.set_faults(world.hosts[host].node, [loss]);
    }
    let source: Vec<u8> = (0..SOURCE).map(|n| n.wrapping_mul(0x9E37_79B9).to_le_bytes()[2]).collect();
    let from = world.register(0, source.clone(), Access::empty());
    let mr = world.register(1, vec![0; (RECEIVES * ROOM) as usize], Access::LOCAL_WRITE);
    let host = &mut world.hosts[1];
    let cq = host.nic.create_cq(4096).expect("a completion queue");
    let srqn = host.nic.create_srq(SrqInit::new(host.pd, RECEIVES, 1)).expect("a shared receive queue");
    let init = QpInit { srq: Some(srqn), ..QpInit::new(QpType::Rc, host.pd, cq, cq) };
    let conn = Conn { min_rnr_timer: 1, timeout: 8, ..Conn::default() };
    let mut qpns = Vec::new();
    for _ in 0..PAIRS {
        let sender = world.create(0, QpCap::default(), false);
        let qpn = world.hosts[1].nic.create_qp(init).expect("a queue pair");
        let gids = [0, 1].map(|host: usize| world.hosts[host].gid);
        for (host, own, peer, psns) in [(0, sender.qpn, qpn, [5, 9]), (1, qpn, sender.qpn, [9, 5])] {
            let peer = (gids[1 - host], peer);
            conn.establish(&mut world.hosts[host].nic, world.now, own, peer, psns).expect("the attributes");
        }
        for n in 0..MESSAGES {
            let (at, len) = message(qpns.len(), n);
            let length = u32::try_from(len).expect("a short message");
            let piece = Sge { addr: from.addr.wrapping_add(at as u64), length, lkey: from.lkey };
            world.hosts[0].nic.post_send(world.now, sender.qpn, SendWr::send(0, &[piece])).expect("the post");
        }
        qpns.push(qpn);
    }
    let free = (0..u64::from(RECEIVES)).collect();
    let mut receiver = Receiver { srqn, mr, free, limits_told: 0, come: vec![0; PAIRS] };
    receiver.refill(&mut world);
    let end = world.now + Duration::from_secs(100);
    let done = world.run(end, |world| {
        receiver.work(world, cq, &qpns, &source);
        if receiver.come.iter().all(|come| *come == MESSAGES) { Flow::Done } else { Flow::Wait(None) }
    });
    assert!(done, "{:?} after {:?}", receiver.come, world.now);
    assert!(receiver.limits_told > 10, "{}", receiver.limits_told);
}
