//! F28: who is woken, and when.

use std::time::Duration;

use driver_shim::backend::Loopback;
use driver_shim::{CompletionQueue, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair};
use qp::{Event, QpState, QpType, RecvWr, SendOp, SendWr};
use transport::{Access, WcStatus};
use wire::{Operation, RKey, VirtAddr};

use super::*;
use crate::harness::Lone;

/// Whether the completion queue of the second end's receives was notified since the last question.
fn notified(ends: &mut Ends) -> bool {
    let cq = ends.b.recv_cq;
    let events = std::mem::take(&mut ends.world.hosts[1].events);
    let count = events.iter().filter(|event| **event == Event::CqReady(cq)).count();
    assert!(count <= 1, "one notification for one arming");
    count == 1
}

/// Sends a message that the second end has a receive for.
fn message(ends: &mut Ends, solicited: bool) {
    ends.post_recv(RecvWr::new(1, &[ends.far(0, 8)]));
    let wr = SendWr::send(1, &[ends.near(0, 8)]);
    ends.post(if solicited { wr.solicited() } else { wr });
    ends.world.drive();
}

/// Rule R-CQE-10.
#[test]
fn f28_what_is_there_before_the_arming_wakes_nobody_and_polling_finds_it() {
    let mut ends = ends("f28", Conn::default());
    let (b, cq) = (ends.b, ends.b.recv_cq);
    message(&mut ends, false);
    assert!(!notified(&mut ends), "not armed");
    ends.world.nic(b).req_notify_cq(cq, false);
    ends.world.drive();
    assert!(!notified(&mut ends));
    assert_eq!(ends.world.recv_completions(b).len(), 1);
    // One-shot: the next one wakes, the one behind it does not.
    message(&mut ends, false);
    assert!(notified(&mut ends));
    message(&mut ends, false);
    assert!(!notified(&mut ends));
}

/// Rule R-RSP-37.
#[test]
fn f28_armed_for_solicited_ones_only_those_and_errors_wake() {
    let mut ends = ends("f28-solicited", Conn::default());
    let (b, cq) = (ends.b, ends.b.recv_cq);
    ends.world.nic(b).req_notify_cq(cq, true);
    message(&mut ends, false);
    assert!(!notified(&mut ends));
    message(&mut ends, true);
    assert!(notified(&mut ends));
    ends.world.nic(b).req_notify_cq(cq, true);
    ends.post_recv(RecvWr::new(1, &[]));
    ends.go(b, QpState::Err);
    ends.world.drive();
    assert!(notified(&mut ends), "an error wakes");
    assert_eq!(ends.world.recv_completions(b).last().unwrap().status, WcStatus::WrFlushErr);
}

/// Rule R-REQ-13.
#[test]
fn f28_the_solicited_bit_is_on_the_last_packet_of_what_takes_a_receive() {
    let mut lone = Lone::new(Conn::default());
    let (sge, va, rkey) = (lone.sge(0, 2500), VirtAddr::new(0), RKey::new(7));
    for op in [
        SendOp::Send { imm: None },
        SendOp::Write { va, rkey, imm: Some([0; 4]) },
        SendOp::Write { va, rkey, imm: None },
        SendOp::Read { va, rkey },
    ] {
        lone.post(SendWr::new(1, op, &[sge]).solicited());
    }
    lone.post(SendWr::send(1, &[]).solicited());
    let sent = lone.sent();
    let with_bit: Vec<_> = sent.iter().filter(|sent| sent.solicited).map(|sent| sent.operation).collect();
    assert_eq!(with_bit, [Operation::SendLast, Operation::WriteLastImm, Operation::SendOnly]);
    assert_eq!(sent.len(), 3 + 3 + 3 + 1 + 1);
}

/// One end of a ping-pong.
struct Player {
    _pd: ProtectionDomain,
    cq: CompletionQueue,
    mr: MemoryRegion,
    qp: QueuePair,
}

/// Two ends on two devices, connected to each other.
fn players(devices: &[Device; 2]) -> [Player; 2] {
    let made = devices.each_ref().map(|device| {
        let (pd, cq) = (device.alloc_pd(), device.create_cq(16).unwrap());
        let mr = pd.register(vec![0; 64], Access::LOCAL_WRITE).unwrap();
        let qp = pd.create_qp(QpType::Rc, &cq, &cq).build().unwrap();
        (pd, cq, mr, qp)
    });
    let peers = [made[1].3.endpoint(1), made[0].3.endpoint(1)];
    let mut peers = peers.into_iter();
    made.map(|(_pd, cq, mr, qp)| {
        let qp = qp.connect(peers.next().unwrap(), &ConnectOptions::default()).unwrap();
        Player { _pd, cq, mr, qp }
    })
}

impl Player {
    /// Blocks for each message and answers it; whoever serves begins.
    fn play(&self, rounds: u32, serves: bool) {
        let piece = self.mr.slice(0..8).unwrap();
        let send = || self.qp.post_send(SendWr::send(2, &[piece])).unwrap();
        self.qp.post_recv(RecvWr::new(1, &[piece])).unwrap();
        if serves {
            send();
        }
        for round in 0..rounds {
            let got = self.cq.wait(1, Duration::from_secs(20));
            assert_eq!(statuses(&got), [(1, WcStatus::Success)], "hangs in round {round}");
            if !serves || round + 1 < rounds {
                self.qp.post_recv(RecvWr::new(1, &[piece])).unwrap();
                send();
            }
        }
    }
}

/// Four threads on two devices, two connections: 10^5 times somebody blocks for a message and is woken.
#[test]
fn f28_a_hundred_thousand_blocking_ping_pongs_of_four_threads() {
    let hub = Loopback::hub();
    let devices = [2, 3].map(|last| {
        Device::builder(hub.attach([127, 0, 0, last].into()).unwrap()).seed(last.into()).open().unwrap()
    });
    let pairs = [players(&devices), players(&devices)];
    std::thread::scope(|scope| {
        for [near, far] in &pairs {
            scope.spawn(|| near.play(25_000, true));
            scope.spawn(|| far.play(25_000, false));
        }
    });
}
