//! Field cases F10 to F20: reliability, as real peers have met it. A hand-made peer where the packets themselves are
//! the case, two NICs where only the outcome is.

use qp::{AttrMask, QpAttr, QpType, RecvWr, SendWr, Sge};
use trace::{Summary, dissect};
use transport::{Access, DropReason, WcStatus};
use wire::{Duration, Mtu, NakCode, Operation, Psn, RKey, RnrTimer, Syndrome, VirtAddr};

use crate::captures;
use crate::harness::{Conn, Crafted, Lone, Sent, World, WorldConfig, seed};

const SEQUENCE_NAK: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);

/// Operation and PSN of packets, relative to the NIC's first.
fn requests(sent: &[Sent]) -> Vec<(Operation, u32)> {
    sent.iter().map(|sent| (sent.operation, sent.psn.steps_from(Psn::new(Lone::SQ_PSN)))).collect()
}

/// PSN (relative to the peer's first), syndrome and MSN of answers.
fn answers(sent: &[Sent]) -> Vec<(u32, Syndrome, u32)> {
    sent.iter()
        .map(|sent| {
            let (syndrome, msn) = sent.aeth.expect("an AETH");
            (sent.psn.steps_from(Psn::new(Lone::RQ_PSN)), syndrome, msn)
        })
        .collect()
}

fn own_psn(n: u32) -> Psn {
    Psn::new(Lone::SQ_PSN).wrapping_add(n)
}

fn send_only(lone: &Lone, n: u32) -> Crafted {
    Crafted::rc(Operation::SendOnly, lone.qpn, Lone::psn(n)).ack_req().payload(b"data")
}

fn ack(lone: &Lone, n: u32) -> Crafted {
    Crafted::acknowledge(lone.qpn, own_psn(n), Syndrome::ACK, 0)
}

fn nak(lone: &Lone, n: u32, syndrome: Syndrome) -> Crafted {
    Crafted::acknowledge(lone.qpn, own_psn(n), syndrome, 0)
}

fn rnr(lone: &Lone, n: u32, code: u8) -> Crafted {
    nak(lone, n, Syndrome::RnrNak(RnrTimer::new(code).expect("five bits")))
}

// ---- F10 ----

#[test]
fn f10_a_lost_packet_is_asked_for_once_with_its_psn() {
    let mut lone = Lone::new(Conn::default());
    lone.post_recv(5, 64);
    let first = [0, 1, 3, 4].map(|n| send_only(&lone, n));
    assert_eq!(SEQUENCE_NAK.byte(), 0x60);
    assert_eq!(answers(&lone.answer(&first)), [(1, Syndrome::ACK, 2), (2, SEQUENCE_NAK, 2)]);
    assert_eq!(lone.completed().len(), 2);
    let again = [2, 3, 4].map(|n| send_only(&lone, n));
    assert_eq!(answers(&lone.answer(&again)), [(4, Syndrome::ACK, 5)]);
    assert_eq!(lone.completed().len(), 3);
    assert_eq!(lone.nic.drops().get(DropReason::OutOfSequence), 1);
    // The next loss is a new one.
    assert_eq!(answers(&lone.answer(&[send_only(&lone, 6)])), [(5, SEQUENCE_NAK, 5)]);
}

#[test]
fn f10_a_sequence_nak_acknowledges_what_is_before_it_and_repeats_the_rest() {
    let mut lone = Lone::new(Conn::default());
    for n in 0..5 {
        lone.post(SendWr::send(n, &[lone.sge(0, 16)]));
    }
    let send = |n| (Operation::SendOnly, n);
    assert_eq!(requests(&lone.sent()), [0, 1, 2, 3, 4].map(send));
    let again = lone.answer(&[nak(&lone, 2, SEQUENCE_NAK)]);
    assert_eq!(lone.completed(), [0, 1]);
    assert_eq!(requests(&again), [2, 3, 4].map(send));
    assert!(again.iter().all(|sent| sent.ack_req));
    // The same NAK twice is one loss.
    assert_eq!(lone.answer(&[nak(&lone, 2, SEQUENCE_NAK)]), []);
    lone.inject(&[ack(&lone, 4)]);
    assert_eq!(lone.completed(), [2, 3, 4]);
}

// ---- F11 ----

#[test]
fn f11_an_ack_beyond_an_unanswered_read_does_not_complete_it() {
    let mut lone = Lone::new(Conn::default());
    let (local, va, rkey) = (lone.sge(0, 32), VirtAddr::new(0x1000), RKey::new(7));
    lone.post(SendWr::write(40, &[local], va, rkey));
    lone.post(SendWr::read(41, &[local], va, rkey));
    lone.post(SendWr::write(42, &[local], va, rkey));
    let all = [(Operation::WriteOnly, 0), (Operation::ReadRequest, 1), (Operation::WriteOnly, 2)];
    assert_eq!(requests(&lone.sent()), all);
    let again = lone.answer(&[ack(&lone, 2)]);
    assert_eq!(lone.completed(), [40]);
    assert_eq!(requests(&again), all[1..]);
    let response = Crafted::rc(Operation::ReadResponseOnly, lone.qpn, own_psn(1)).aeth(Syndrome::ACK, 2);
    lone.inject(&[response.payload(&[9; 32]), ack(&lone, 2)]);
    assert_eq!(lone.completed(), [41, 42]);
    assert_eq!(lone.bytes(0, 32), [9; 32]);
    assert_eq!(lone.nic.counters().implied_nak_seq_err, 1);
}

fn read_response(lone: &Lone, operation: Operation, n: u32) -> Crafted {
    let response = Crafted::rc(operation, lone.qpn, own_psn(n));
    let response =
        if operation == Operation::ReadResponseMiddle { response } else { response.aeth(Syndrome::ACK, 1) };
    response.payload(&[u8::try_from(n).expect("a few packets") + 1; 1024])
}

/// A READ of four packets whose third response is lost, resumed with responses of these kinds.
fn resume_read(resumed: [Operation; 2]) {
    use Operation::{ReadRequest, ReadResponseFirst, ReadResponseLast, ReadResponseMiddle};
    let mut lone = Lone::new(Conn::default());
    lone.post(SendWr::read(1, &[lone.sge(0, 4096)], VirtAddr::new(0x10_0000), RKey::new(7)));
    let sent = lone.sent();
    assert_eq!(sent[0].reth, Some((0x10_0000, 7, 4096)));
    let again = lone.answer(&[
        read_response(&lone, ReadResponseFirst, 0),
        read_response(&lone, ReadResponseMiddle, 1),
        read_response(&lone, ReadResponseLast, 3),
    ]);
    assert_eq!(requests(&again), [(ReadRequest, 2)]);
    assert_eq!(again[0].reth, Some((0x10_0000 + 2048, 7, 2048)));
    assert!(lone.completed().is_empty());
    lone.inject(&[read_response(&lone, resumed[0], 2), read_response(&lone, resumed[1], 3)]);
    assert_eq!(lone.completed(), [1]);
    for n in 0..4_u8 {
        assert_eq!(lone.bytes(usize::from(n) * 1024, 1024), [n + 1; 1024]);
    }
}

#[test]
fn f11_a_read_is_resumed_from_the_first_missing_response() {
    resume_read([Operation::ReadResponseFirst, Operation::ReadResponseLast]);
}

#[test]
fn f11_a_resumed_read_may_also_be_answered_with_middle() {
    resume_read([Operation::ReadResponseMiddle, Operation::ReadResponseLast]);
}

#[test]
fn f11_a_resumed_read_is_answered_from_first_or_only() {
    use Operation::{ReadRequest, ReadResponseFirst, ReadResponseLast, ReadResponseMiddle, ReadResponseOnly};
    let mut lone = Lone::new(Conn::default());
    lone.bytes(0, 4096).copy_from_slice(&(0..=255).flat_map(|n| [n; 16]).collect::<Vec<u8>>());
    let (va, rkey) = (lone.va(0), lone.mr.rkey);
    let read = |lone: &Lone, n: u32, len| {
        Crafted::rc(ReadRequest, lone.qpn, Lone::psn(n)).ack_req().reth(va + u64::from(n) * 1024, rkey, len)
    };
    let kinds = |sent: &[Sent]| {
        sent.iter()
            .map(|s| (s.operation, s.psn.steps_from(Lone::psn(0)), s.payload.len()))
            .collect::<Vec<_>>()
    };
    let all = lone.answer(&[read(&lone, 0, 4096)]);
    let middle = |n| (ReadResponseMiddle, n, 1024);
    assert_eq!(
        kinds(&all),
        [(ReadResponseFirst, 0, 1024), middle(1), middle(2), (ReadResponseLast, 3, 1024)]
    );
    let resumed = lone.answer(&[read(&lone, 2, 2048)]);
    assert_eq!(kinds(&resumed), [(ReadResponseFirst, 2, 1024), (ReadResponseLast, 3, 1024)]);
    let last = lone.answer(&[read(&lone, 3, 1024)]);
    assert_eq!(kinds(&last), [(ReadResponseOnly, 3, 1024)]);
    assert_eq!(last[0].payload, all[3].payload);
    assert_eq!(last[0].aeth, Some((Syndrome::ACK, 1)));
}

#[test]
fn f11_a_repeated_read_must_lie_inside_the_first() {
    let mut lone = Lone::new(Conn::default());
    let (va, rkey) = (lone.va(100), lone.mr.rkey);
    let read = |lone: &Lone, psn: u32, va: u64, rkey: RKey, len: u32| {
        Crafted::rc(Operation::ReadRequest, lone.qpn, Lone::psn(psn)).ack_req().reth(va, rkey, len)
    };
    assert_eq!(lone.answer(&[read(&lone, 0, va, rkey, 1500)]).len(), 2);
    let other_key = RKey::new(rkey.value() ^ 1);
    let outside = [
        read(&lone, 0, va - 1, rkey, 1500),
        read(&lone, 0, va + 1, rkey, 1500),
        read(&lone, 0, va, rkey, 1501),
        read(&lone, 1, va + 1024, rkey, 477),
        read(&lone, 0, va, other_key, 1500),
        // One PSN more than the first has.
        read(&lone, 1, va + 100, rkey, 1025),
        read(&lone, 0, u64::MAX - 1023, rkey, 1024),
    ];
    assert_eq!(lone.answer(&outside), []);
    assert_eq!(lone.nic.drops().get(DropReason::DuplicateUnknown), outside.len() as u64);
    assert_eq!(lone.answer(&[read(&lone, 1, va + 1024, rkey, 476)]).len(), 1);
}

// ---- F12 ----

#[test]
fn f12_a_repeated_atomic_gets_the_first_answer_and_is_not_done_again() {
    let mut lone = Lone::new(Conn::default());
    lone.bytes(0, 16).copy_from_slice(&[5_u64.to_ne_bytes(), 9_u64.to_ne_bytes()].concat());
    let (va, rkey) = (lone.va(0), lone.mr.rkey);
    let add = Crafted::rc(Operation::FetchAdd, lone.qpn, Lone::psn(0)).ack_req().atomic(va, rkey, 1, 0);
    let swap = Crafted::rc(Operation::CmpSwap, lone.qpn, Lone::psn(1)).ack_req().atomic(va + 8, rkey, 70, 9);
    for _ in 0..3 {
        let sent = lone.answer(&[add.clone(), swap.clone()]);
        assert_eq!(
            sent.iter().map(|s| (s.operation, s.original)).collect::<Vec<_>>(),
            [(Operation::AtomicAcknowledge, Some(5)), (Operation::AtomicAcknowledge, Some(9)),]
        );
        assert_eq!((lone.word(0), lone.word(8)), (6, 70));
    }
}

// ---- F13 ----

#[test]
fn f13_a_write_to_a_wrong_key_is_answered_though_it_takes_no_receive() {
    let mut lone = Lone::new(Conn::default());
    let (va, rkey) = (lone.va(0), RKey::new(lone.mr.rkey.value() + 1));
    let write = Crafted::rc(Operation::WriteOnly, lone.qpn, Lone::psn(0)).ack_req().reth(va, rkey, 4);
    let sent = lone.answer(&[write.payload(b"evil")]);
    let access = Syndrome::Nak(NakCode::RemoteAccessError);
    assert_eq!(access.byte(), 0x62);
    assert_eq!(answers(&sent), [(0, access, 0)]);
    assert_eq!(lone.bytes(0, 4), [0; 4]);
}

#[test]
fn f13_the_requester_learns_of_a_remote_access_error_at_once() {
    let (mut world, [a, b]) = World::pair(WorldConfig::new("f13", seed(13)), Conn::default());
    let mr = world.register(b.host, vec![0; 64], Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let src = world.register(a.host, vec![1; 64], Access::empty());
    let local = [Sge { addr: src.addr, length: 64, lkey: src.lkey }];
    let now = world.now;
    for n in 0..5 {
        let rkey = RKey::new(mr.rkey.value() + u32::from(n == 1));
        world.nic(a).post_send(now, a.qpn, SendWr::write(n, &local, mr.addr, rkey)).expect("the post");
    }
    // What was under way when the answer came finds the peer's queue pair in the error state.
    world.allow(&[DropReason::QpState]);
    world.drive_until(now + Duration::from_millis(10));
    let results: Vec<_> = world.send_completions(a).iter().map(|wc| (wc.wr_id.value(), wc.status)).collect();
    assert_eq!(
        results,
        [
            (1, WcStatus::RemAccessErr),
            (2, WcStatus::WrFlushErr),
            (3, WcStatus::WrFlushErr),
            (4, WcStatus::WrFlushErr),
        ]
    );
}

// ---- F14 ----

#[test]
fn f14_nothing_is_sent_before_the_time_in_an_rnr_nak() {
    for code in 0..32 {
        // The ACK timer, of about 1 ms, runs out long before most of these.
        let mut lone = Lone::new(Conn { timeout: 8, ..Conn::default() });
        lone.post(SendWr::send(0, &[lone.sge(0, 16)]));
        assert_eq!(lone.sent().len(), 1);
        lone.pass(Duration::from_micros(3));
        let start = lone.now;
        lone.inject(&[rnr(&lone, 0, code)]);
        // Work posted meanwhile, and a sequence NAK for what was in flight behind, change nothing.
        lone.post(SendWr::send(1, &[lone.sge(0, 16)]));
        lone.inject(&[nak(&lone, 0, SEQUENCE_NAK)]);
        let wait = RnrTimer::new(code).expect("five bits").duration();
        let sent = lone.pass(wait + Duration::from_millis(1));
        assert_eq!(sent[0].0, start + wait, "code {code}");
        assert_eq!((sent[0].1.psn, sent[1].1.psn), (own_psn(0), own_psn(1)));
    }
}

#[test]
fn f14_the_times_of_all_codes() {
    let micros = [
        655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840, 5120,
        7680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840, 245_760, 327_680,
        491_520,
    ];
    for (code, micros) in (0..32).zip(micros) {
        assert_eq!(
            RnrTimer::new(code).expect("five bits").duration(),
            Duration::from_micros(micros),
            "{code}"
        );
    }
}

#[test]
fn f14_a_receive_posted_after_three_milliseconds_is_in_time_for_six_retries() {
    for run in 0..100 {
        let conn = Conn { timeout: 8, rnr_retry: 6, min_rnr_timer: 14, ..Conn::default() };
        let (mut world, [a, b]) = World::pair(WorldConfig::new("f14", seed(140 + run)), conn);
        let (src, dst) = (
            world.register(a.host, vec![3; 64], Access::empty()),
            world.register(b.host, vec![0; 64], Access::LOCAL_WRITE),
        );
        let [from, to] = [src, dst].map(|mr| Sge { addr: mr.addr, length: 64, lkey: mr.lkey });
        let start = world.now;
        world.nic(a).post_send(start, a.qpn, SendWr::send(1, &[from]).signaled()).expect("the post");
        let late = start + Duration::from_micros(2900 + 2 * run);
        world.drive_until(late);
        world.nic(b).post_recv(late, b.qpn, RecvWr::new(2, &[to])).expect("the post");
        world.drive();
        assert_eq!(world.send_completions(a)[0].status, WcStatus::Success, "run {run}");
        assert_eq!(world.recv_completions(b)[0].byte_len, 64);
        let counters = world.nic(a).counters();
        assert_eq!((counters.rnr_nak_retry_err, counters.local_ack_timeout_err), (3, 0));
    }
}

// ---- F15 ----

#[test]
fn f15_a_timer_that_was_never_set_costs_the_longest_wait() {
    let mut lone = Lone::new(Conn { min_rnr_timer: 0, ..Conn::default() });
    lone.inject(&[send_only(&lone, 0)]);
    let answers = answers(&lone.sent());
    assert_eq!((answers.len(), answers[0].0, answers[0].1.byte()), (1, 0, 0x20));
    // A requester that is told so waits for all of it.
    lone.post(SendWr::send(0, &[lone.sge(0, 16)]));
    assert_eq!(lone.sent().len(), 1);
    let start = lone.now;
    lone.inject(&[rnr(&lone, 0, 0)]);
    let sent = lone.pass(Duration::from_millis(656));
    assert_eq!((sent.len(), sent[0].0 - start), (1, Duration::from_micros(655_360)));
}

// ---- F16 ----

/// Answers every packet with an RNR NAK of 10.24 ms; how often it was sent until the NIC gave up or `limit` passed.
fn sends_against_rnr(rnr_retry: u8, limit: Duration) -> (usize, Lone) {
    let mut lone = Lone::new(Conn { rnr_retry, ..Conn::default() });
    lone.post(SendWr::send(0, &[lone.sge(0, 16)]));
    let end = lone.now + limit;
    let mut sends = 0;
    while lone.now < end {
        let sent = lone.pass(Duration::from_micros(10_240));
        if sent.is_empty() {
            break;
        }
        sends += sent.len();
        lone.inject(&[rnr(&lone, 0, 20)]);
    }
    (sends, lone)
}

#[test]
fn f16_rnr_retry_counts_the_repeats_and_seven_never_gives_up() {
    for (rnr_retry, right) in [(0, 1), (1, 2), (6, 7)] {
        let (sends, mut lone) = sends_against_rnr(rnr_retry, Duration::from_secs(10));
        assert_eq!(sends, right, "rnr_retry {rnr_retry}");
        let statuses: Vec<_> = lone.completions().iter().map(|wc| wc.status).collect();
        assert_eq!(statuses, [WcStatus::RnrRetryExcErr]);
    }
    let (sends, mut lone) = sends_against_rnr(7, Duration::from_secs(10));
    assert!(sends > 900, "{sends}");
    assert!(lone.completions().is_empty());
}

#[test]
fn f16_the_rnr_counter_reloads_after_progress() {
    let mut lone = Lone::new(Conn { rnr_retry: 1, ..Conn::default() });
    for n in 0..4 {
        lone.post(SendWr::send(n.into(), &[lone.sge(0, 16)]));
        lone.sent();
        lone.inject(&[rnr(&lone, n, 1)]);
        assert_eq!(lone.pass(Duration::from_micros(20)).len(), 1);
        lone.inject(&[ack(&lone, n)]);
        assert_eq!(lone.completed(), [u64::from(n)]);
    }
}

#[test]
fn f16_more_than_seven_is_refused() {
    let mut lone = Lone::new(Conn::default());
    lone.modify(&QpAttr::default(), AttrMask::STATE).expect("to RESET");
    let conn = Conn { rnr_retry: 8, ..Conn::default() };
    let peer = (Lone::peer_gid(), Lone::PEER);
    let [init, rtr, rts] = conn.steps(QpType::Rc, peer, Psn::new(0), Psn::new(0));
    lone.modify(&init.0, init.1).expect("to INIT");
    lone.modify(&rtr.0, rtr.1).expect("to RTR");
    let error = lone.modify(&rts.0, rts.1).expect_err("8");
    assert_eq!(error.errno(), 22, "{error}");
    let seven = QpAttr { rnr_retry: 7, ..rts.0 };
    lone.modify(&seven, rts.1).expect("to RTS with 7");
}

// ---- F17 ----

#[test]
fn f17_a_dead_peer_gets_retry_cnt_and_one_sends_in_the_time_allowed() {
    let mut lone = Lone::new(Conn { timeout: 14, retry_cnt: 7, ..Conn::default() });
    lone.post(SendWr::send(0, &[lone.sge(0, 16)]));
    let sent = lone.pass(Duration::from_nanos(537_000_000));
    assert!(sent.iter().all(|(_, sent)| sent.psn == own_psn(0)));
    assert!(lone.completions().is_empty());
    let sends = sent.len() + lone.pass(Duration::from_nanos(2_200_000_000 - 537_000_000)).len();
    assert_eq!(sends, 8);
    assert_eq!(lone.completions()[0].status, WcStatus::RetryExcErr);
    // Between two sends lie T to 4 T.
    let t = 4096 << 14;
    for pair in sent.windows(2) {
        let gap = (pair[1].0 - pair[0].0).as_nanos();
        assert!((t..=4 * t).contains(&gap), "{gap}");
    }
}

#[test]
fn f17_timeout_zero_waits_for_ever() {
    let mut lone = Lone::new(Conn { timeout: 0, ..Conn::default() });
    lone.post(SendWr::send(0, &[lone.sge(0, 16)]));
    assert_eq!(lone.pass(Duration::from_secs(10)).len(), 1);
    assert!(lone.completions().is_empty());
    assert_eq!(lone.nic.poll_timeout(), None);
}

// ---- F18 ----

#[test]
fn f18_a_send_that_the_back_end_refuses_once_changes_nothing() {
    const LEN: u32 = 1 << 20;
    let conn = Conn { mtu: Mtu::B4096, ..Conn::default() };
    let (mut world, [a, b]) = World::pair(WorldConfig::new("f18", seed(18)), conn);
    world.refuse_every = Some(7);
    let bytes: Vec<u8> = (0..LEN).map(|n| (n.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    let src = world.register(a.host, bytes.clone(), Access::LOCAL_WRITE);
    let back = world.register(a.host, vec![0; LEN as usize], Access::LOCAL_WRITE);
    let remote = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let dst = world.register(b.host, vec![0; LEN as usize], remote);
    let pieces = |mr: qp::MrInfo| {
        [(0, 100_001), (100_001, 500_000), (600_001, LEN - 600_001)].map(|(at, length)| Sge {
            addr: mr.addr.wrapping_add(at),
            length,
            lkey: mr.lkey,
        })
    };
    for n in 0..32 {
        let now = world.now;
        let write = SendWr::write(n, &pieces(src), dst.addr, dst.rkey);
        let read = SendWr::read(n, &pieces(back), dst.addr, dst.rkey);
        world.nic(a).post_send(now, a.qpn, write.signaled()).expect("the post");
        world.nic(a).post_send(now, a.qpn, read.signaled()).expect("the post");
    }
    world.drive();
    let completions = world.send_completions(a);
    assert_eq!(completions.len(), 64);
    assert!(completions.iter().all(|wc| wc.status == WcStatus::Success));
    assert!(world.nic(b).mr_bytes(dst.lkey, 0, LEN as usize).expect("the region") == bytes);
    assert!(world.nic(a).mr_bytes(back.lkey, 0, LEN as usize).expect("the region") == bytes);
    let counters = *world.nic(a).counters();
    assert_eq!((counters.local_ack_timeout_err, counters.packet_seq_err), (0, 0));
}

// ---- F19 ----

#[test]
fn f19_the_msn_counts_every_completed_request_message() {
    let mut lone = Lone::new(Conn { mtu: Mtu::B256, ..Conn::default() });
    lone.post_recv(1, 1024);
    let (va, rkey) = (lone.va(8192), lone.mr.rkey);
    let rc = |operation, n| Crafted::rc(operation, lone.qpn, Lone::psn(n)).ack_req();
    let steps = [
        // What does not end a message repeats the old MSN.
        (rc(Operation::SendFirst, 0).payload(&[1; 256]), 0),
        (rc(Operation::SendMiddle, 1).payload(&[2; 256]), 0),
        (rc(Operation::SendLast, 2).payload(&[3; 5]), 1),
        (rc(Operation::WriteFirst, 3).reth(va, rkey, 260).payload(&[4; 256]), 1),
        (rc(Operation::WriteLast, 4).payload(&[5; 4]), 2),
        (rc(Operation::ReadRequest, 5).reth(va, rkey, 16), 3),
        (rc(Operation::FetchAdd, 6).atomic(va, rkey, 1, 0), 4),
        (rc(Operation::WriteOnly, 7).reth(va, rkey, 0), 5),
    ];
    for (packet, msn) in steps {
        let sent = lone.answer(&[packet]);
        assert_eq!((sent.len(), sent[0].aeth), (1, Some((Syndrome::ACK, msn))), "{sent:?}");
    }
}

// ---- F20 ----

#[test]
fn f20_a_read_takes_a_psn_for_each_packet_of_its_answer() {
    for (len, psns) in [(0, 1), (1, 1), (1024, 1), (1025, 2), (4096, 4), (5000, 5)] {
        let mut lone = Lone::new(Conn::default());
        lone.post(SendWr::read(0, &[lone.sge(0, len)], VirtAddr::new(0), RKey::new(7)));
        lone.post(SendWr::send(1, &[lone.sge(0, 4)]));
        assert_eq!(
            requests(&lone.sent()),
            [(Operation::ReadRequest, 0), (Operation::SendOnly, psns)],
            "{len}"
        );
    }
}

#[test]
fn f20_a_send_inside_the_psns_of_a_read_is_acknowledged_again_and_not_delivered() {
    let mut lone = Lone::new(Conn::default());
    lone.post_recv(2, 64);
    let (va, rkey) = (lone.va(0), lone.mr.rkey);
    let read = Crafted::rc(Operation::ReadRequest, lone.qpn, Lone::psn(0)).ack_req().reth(va, rkey, 2048);
    assert_eq!(lone.answer(&[read]).len(), 2);
    // The peer counts one PSN for its READ of two.
    assert_eq!(answers(&lone.answer(&[send_only(&lone, 1)])), [(1, Syndrome::ACK, 1)]);
    assert!(lone.completions().is_empty());
    assert_eq!(answers(&lone.answer(&[send_only(&lone, 2)])), [(2, Syndrome::ACK, 2)]);
    assert_eq!(lone.completions().len(), 1);
}

#[test]
fn f20_an_ack_of_nothing_outstanding_acknowledges_nothing() {
    let mut lone = Lone::new(Conn::default());
    lone.post(SendWr::send(0, &[lone.sge(0, 16)]));
    lone.sent();
    let stray = [0x00FF_FFFF, Lone::SQ_PSN - 1, Lone::SQ_PSN + 1];
    let stray = stray.map(|psn| Crafted::acknowledge(lone.qpn, Psn::new(psn), Syndrome::ACK, 0));
    assert_eq!(lone.answer(&stray), []);
    assert!(lone.completions().is_empty());
    assert_eq!(lone.nic.drops().get(DropReason::GhostResponse), 3);
    lone.inject(&[ack(&lone, 0)]);
    assert_eq!(lone.completed(), [0]);
}

// ---- F19 and F20 in real captures ----

fn public(name: &str) -> Option<Summary> {
    let mut summary = Summary::default();
    captures::each_frame(&captures::public(name)?.join(name), |frame| summary.add(frame, &dissect(frame)));
    Some(summary)
}

/// Requests that were sent one way, and the last MSN that came back the other.
fn requests_and_msn(summary: &Summary, request_qp: u32, answer_qp: u32) -> (u64, Option<u32>) {
    let flow = |qp| summary.flows.iter().find(|flow| flow.dest_qp == qp).expect("the flow");
    (flow(request_qp).messages.values().sum(), flow(answer_qp).msn.map(|[_, last]| last))
}

/// Rule R-RSP-24; and R-CMP-19, since some peers count in another way.
#[test]
fn f19_real_peers_count_requests_each_in_its_way() {
    let Some(summary) = public("rxe-rping.pcap") else { return };
    assert_eq!(requests_and_msn(&summary, 0x2C, 0x2B), (20, Some(20)));
    let mut msns = Vec::new();
    let Some(folder) = captures::public("F19") else { return };
    captures::each_frame(&folder.join("hns-hw-send-imm.pcap"), |frame| {
        if [19, 20].contains(&frame.number) {
            let packet = dissect(frame).roce.expect("a RoCE packet");
            msns.push(packet.aeth().expect("an AETH").msn().value());
        }
    });
    assert_eq!(msns, [0, 1]);
    // A WRITE left out; and a count that does not advance.
    let Some(old) = public("rxe-old-rping-1.pcapng") else { return };
    let last = old.flows.iter().filter(|flow| flow.dest_qp != 1).filter_map(|flow| Some(flow.msn?[1])).max();
    let most =
        old.flows.iter().filter(|flow| flow.dest_qp != 1).map(|flow| flow.messages.values().sum()).max();
    assert_eq!((most, last), (Some(4), Some(3)));
    let Some(still) = public("userstack-rping-1400.pcapng") else { return };
    assert!(still.flows.iter().any(|flow| flow.dest_qp == 0x18 && flow.msn == Some([1, 1])));
}

/// Rule R-REQ-4.
#[test]
fn f20_the_stall_that_a_wrong_psn_behind_a_read_led_to() {
    let name = "userstack-rping-2400-stall.pcapng";
    let Some(folder) = captures::public(name) else { return };
    let mut expected: Option<Psn> = None;
    let (mut wrong, mut acks, mut frames) = (Vec::new(), Vec::new(), 0);
    captures::each_frame(&folder.join(name), |frame| {
        frames = frame.number;
        let Some(packet) = dissect(frame).roce else { return };
        let (Some(bth), Some(info)) = (packet.bth(), packet.info()) else { return };
        let from_user_stack = packet.net.src() == std::net::IpAddr::from([192, 168, 178, 25]);
        if bth.dest_qp().value() == 1 {
            return;
        }
        if from_user_stack && info.kind.is_request() {
            let psn = bth.psn();
            let span = packet.reth().map_or(1, |reth| reth.dma_len().div_ceil(1024));
            if let Some(expected) = expected.filter(|expected| *expected != psn) {
                wrong.push((frame.number, psn.value(), expected.value()));
            }
            expected = Some(psn.wrapping_add(span));
        } else if !from_user_stack && info.kind == wire::opcode::Kind::Acknowledge {
            acks.push(bth.psn().value());
        }
    });
    assert_eq!(wrong, [(frames - 1, 7_488_513, 7_488_514)]);
    assert_eq!(acks.last(), Some(&0x00FF_FFFF), "which acknowledges nothing outstanding");
}
