//! What two NICs do for their programs when the network is good, and what each sees when one of them breaks a rule.

use qp::{AsyncEvent, AttrMask, Event, MrInfo, QpAttr, QpCap, QpState, RecvWr, SendOp, SendWr, Sge};
use rand_pcg::Pcg64;
use transport::{Access, DropReason, WcOpcode, WcStatus};
use wire::{Duration, Mtu, RKey, VirtAddr};

use crate::harness::plan::Mix;
use crate::harness::workload::{self, Depths};
use crate::harness::world::Endpoint;
use crate::harness::{Conn, World, WorldConfig, seed};

const EVERYTHING: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

fn sge(mr: &MrInfo, offset: u32, length: u32) -> Sge {
    Sge { addr: mr.addr.wrapping_add(offset.into()), length, lkey: mr.lkey }
}

fn pattern(len: u32, salt: u32) -> Vec<u8> {
    (0..len).map(|n| ((n ^ salt).wrapping_mul(0x9E37_79B9) >> 24) as u8).collect()
}

/// Two connected ends, each with a region that allows everything.
struct Two {
    world: World,
    a: Endpoint,
    b: Endpoint,
    at_a: MrInfo,
    at_b: MrInfo,
}

impl Two {
    fn new(name: &'static str, conn: Conn, len: u32) -> Self {
        Self::with(WorldConfig::new(name, seed(1)), conn, len)
    }

    fn with(config: WorldConfig, conn: Conn, len: u32) -> Self {
        let (mut world, [a, b]) = World::pair(config, conn);
        let at_a = world.register(a.host, pattern(len, 0xA), EVERYTHING);
        let at_b = world.register(b.host, pattern(len, 0xB), EVERYTHING);
        Self { world, a, b, at_a, at_b }
    }

    fn post(&mut self, wr: SendWr) {
        let (now, qpn) = (self.world.now, self.a.qpn);
        self.world.nic(self.a).post_send(now, qpn, wr).expect("the post");
    }

    fn post_recv(&mut self, wr: RecvWr) {
        let (now, qpn) = (self.world.now, self.b.qpn);
        self.world.nic(self.b).post_recv(now, qpn, wr).expect("the post");
    }

    fn bytes_at_a(&mut self, offset: usize, len: usize) -> Vec<u8> {
        self.world.nic(self.a).mr_bytes(self.at_a.lkey, offset, len).expect("inside").to_vec()
    }

    fn bytes_at_b(&mut self, offset: usize, len: usize) -> Vec<u8> {
        self.world.nic(self.b).mr_bytes(self.at_b.lkey, offset, len).expect("inside").to_vec()
    }

    /// Marks and statuses of the sender's completions.
    fn sent(&mut self) -> Results {
        self.world.send_completions(self.a).iter().map(|wc| (wc.wr_id.value(), wc.status)).collect()
    }

    /// Marks and statuses of the receiver's completions.
    fn received(&mut self) -> Results {
        self.world.recv_completions(self.b).iter().map(|wc| (wc.wr_id.value(), wc.status)).collect()
    }
}

// ---- every operation, every size ----

/// Rules R-REQ-3, R-REQ-4, R-REQ-14, R-REQ-32, R-WIR-19, R-CQE-7, R-CQE-8, F4, F30.
#[test]
fn every_operation_at_every_size_and_mtu() {
    const LEN: u32 = 1 << 20;
    for (mtu, ipv6) in Mtu::ALL.into_iter().flat_map(|mtu| [(mtu, false), (mtu, true)]) {
        let m = mtu.bytes();
        let mut sizes = vec![0, 1, 3, 4, 33, m - 1, m, m + 1, 2 * m, 4097, 65_536, LEN];
        sizes.sort_unstable();
        sizes.dedup();
        for len in sizes {
            let config = WorldConfig { ipv6, ..WorldConfig::new("sizes", seed(u64::from(len))) };
            // The PSNs wrap on the way of all but the shortest.
            let conn = Conn { mtu, psns: [0xFF_FFFE, 0xFF_FFFF], ..Conn::default() };
            let mut two = Two::with(config, conn, 4 * LEN);
            let (here, there) = (two.at_a, two.at_b);
            let va = |slot: u32| there.addr.wrapping_add((slot * LEN).into());
            let imm = [1, 2, 3, 4];
            two.post_recv(RecvWr::new(0, &[sge(&there, 0, LEN)]));
            two.post_recv(RecvWr::new(1, &[sge(&there, LEN, LEN)]));
            two.post_recv(RecvWr::new(2, &[]));
            two.post(SendWr::send(0, &[sge(&here, 0, len)]).signaled());
            two.post(SendWr::send_imm(1, &[sge(&here, 0, len)], imm).signaled());
            two.post(SendWr::write(2, &[sge(&here, 0, len)], va(2), there.rkey).signaled());
            two.post(SendWr::write_imm(3, &[sge(&here, 0, len)], va(3), there.rkey, imm).signaled());
            two.post(SendWr::read(4, &[sge(&here, 3 * LEN, len)], va(2), there.rkey).signaled());
            two.world.drive();
            let done = two.world.send_completions(two.a);
            let results: Vec<_> = done.iter().map(|wc| (wc.wr_id.value(), wc.status, wc.opcode)).collect();
            assert_eq!(
                results,
                [
                    (0, WcStatus::Success, WcOpcode::Send),
                    (1, WcStatus::Success, WcOpcode::Send),
                    (2, WcStatus::Success, WcOpcode::RdmaWrite),
                    (3, WcStatus::Success, WcOpcode::RdmaWrite),
                    (4, WcStatus::Success, WcOpcode::RdmaRead),
                ]
            );
            let received = two.world.recv_completions(two.b);
            let results: Vec<_> =
                received.iter().map(|wc| (wc.wr_id.value(), wc.opcode, wc.byte_len, wc.imm)).collect();
            assert_eq!(
                results,
                [
                    (0, WcOpcode::Recv, len, None),
                    (1, WcOpcode::Recv, len, Some(imm)),
                    (2, WcOpcode::RecvRdmaWithImm, len, Some(imm)),
                ]
            );
            let n = len as usize;
            let sent = two.bytes_at_a(0, n);
            let before = pattern(4 * LEN, 0xB);
            for slot in 0..4 {
                let at = slot * LEN as usize;
                assert!(two.bytes_at_b(at, n) == sent, "slot {slot}, {len} bytes, MTU {mtu}");
                let rest = LEN as usize - n;
                assert!(
                    two.bytes_at_b(at + n, rest) == before[at + n..at + LEN as usize],
                    "nothing behind it"
                );
            }
            assert!(two.bytes_at_a(3 * LEN as usize, n) == sent, "READ of {len} bytes, MTU {mtu}");
        }
    }
}

/// Rule R-RSP-33.
#[test]
fn atomics_find_and_leave_the_right_values() {
    let mut two = Two::new("atomics", Conn::default(), 4096);
    let (here, there) = (two.at_a, two.at_b);
    let nic = two.world.nic(two.b);
    nic.mr_bytes_mut(there.lkey, 0, 8).expect("inside").copy_from_slice(&u64::MAX.to_ne_bytes());
    let at = |n: u32| sge(&here, n * 8, 8);
    two.post(SendWr::fetch_add(0, at(0), there.addr, there.rkey, 3).signaled());
    two.post(SendWr::cmp_swap(1, at(1), there.addr, there.rkey, 1, 9).signaled());
    two.post(SendWr::cmp_swap(2, at(2), there.addr, there.rkey, 2, 77).signaled());
    two.post(SendWr::fetch_add(3, at(3), there.addr, there.rkey, 0).signaled());
    two.world.drive();
    assert_eq!(two.sent(), [0, 1, 2, 3].map(|n| (n, WcStatus::Success)));
    let found: Vec<_> =
        two.bytes_at_a(0, 32).chunks(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    assert_eq!(found, [u64::MAX, 2, 2, 77]);
}

/// Rules R-CQE-6, R-CQE-14, R-RSP-34.
#[test]
fn a_thousand_mixed_messages_each_way_lose_nothing_and_drop_nothing() {
    for mtu in Mtu::ALL {
        let depths = Depths { sends: 64, receives: 64, repost_delay: Duration::ZERO };
        let mut world = World::new(WorldConfig::new("clean", seed(5)));
        let conn = Conn { mtu, psns: [0xFF_FF00, 0], ..Conn::default() };
        let ends = world.connect([0, 1], conn, workload::cap(depths));
        let mix = Mix { messages: 1000, mtu: mtu.bytes(), max_inline: 0 };
        workload::run(&mut world, ends, mix, depths, &mut Pcg64::new(seed(5).into(), 0));
        for end in ends {
            let counters = world.nic(end).counters();
            let repeated =
                counters.packet_seq_err + counters.local_ack_timeout_err + counters.duplicate_request;
            assert_eq!(repeated, 0, "{counters:?}");
        }
    }
}

// ---- order ----

/// Rule R-REQ-10.
#[test]
fn a_fenced_request_starts_when_the_reads_before_it_are_done() {
    let mut two =
        Two::new("fence", Conn { max_rd_atomic: 8, max_dest_rd_atomic: 8, ..Conn::default() }, 64 << 10);
    two.world.net.record();
    let (here, there) = (two.at_a, two.at_b);
    let read = |n: u32| SendWr::read(n.into(), &[sge(&here, n * 8192, 8192)], there.addr, there.rkey);
    two.post(read(0));
    two.post(read(1));
    two.post(SendWr::write(2, &[sge(&here, 0, 16)], there.addr, there.rkey).fenced().signaled());
    two.world.drive();
    assert_eq!(two.sent(), [(2, WcStatus::Success)]);
    // The WRITE carries what the READ has brought, and left after the last byte of both.
    assert_eq!(two.bytes_at_b(0, 16), pattern(16, 0xB));
    let opcodes: Vec<_> = two
        .world
        .net
        .records()
        .iter()
        .filter(|record| record.point == fabric::TapPoint::Sent)
        .map(|record| record.frame.body[0])
        .collect();
    let write = opcodes.iter().position(|op| *op == wire::Operation::WriteOnly as u8).expect("the WRITE");
    let last =
        opcodes.iter().rposition(|op| *op == wire::Operation::ReadResponseLast as u8).expect("the READ");
    assert!(last < write, "{opcodes:x?}");
}

/// Rule R-REQ-8, F31.
/// Rule R-REQ-39.
#[test]
fn reads_beyond_the_agreed_depth_wait_their_turn() {
    let mut two =
        Two::new("depth", Conn { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..Conn::default() }, 64 << 10);
    let (here, there) = (two.at_a, two.at_b);
    for n in 0..8 {
        two.post(SendWr::read(n.into(), &[sge(&here, n * 4096, 4096)], there.addr, there.rkey).signaled());
    }
    two.world.drive();
    assert_eq!(two.sent(), [0, 1, 2, 3, 4, 5, 6, 7].map(|n| (n, WcStatus::Success)));
}

/// Rule R-REQ-37.
#[test]
fn unsignalled_requests_complete_in_silence() {
    let mut two = Two::new("unsignalled", Conn::default(), 4096);
    let (here, there) = (two.at_a, two.at_b);
    for n in 0..300 {
        let wr = SendWr::write(n, &[sge(&here, 0, 64)], there.addr, there.rkey);
        two.post(if n % 100 == 99 { wr.signaled() } else { wr });
        if n % 100 == 99 {
            two.world.drive();
        }
    }
    assert_eq!(two.sent(), [99, 199, 299].map(|n| (n, WcStatus::Success)));
}

/// Rules R-RSP-3, R-RSP-18, R-RSP-19, R-RSP-20, F30.
#[test]
fn a_message_sent_before_its_receive_is_posted_waits_for_it() {
    let mut two = Two::new("rnr", Conn { min_rnr_timer: 14, ..Conn::default() }, 64 << 10);
    let (here, there) = (two.at_a, two.at_b);
    // Both packets behind the refused one, and the WRITE's before its last, come out of turn.
    two.world.allow(&[DropReason::OutOfSequence]);
    two.post(SendWr::write_imm(0, &[sge(&here, 0, 5000)], there.addr, there.rkey, *b"imm!").signaled());
    two.post(SendWr::send(1, &[sge(&here, 0, 5000)]).signaled());
    two.world.drive_until(wire::Instant::from_micros(500));
    assert_eq!(two.sent(), []);
    // All of the WRITE but the packet with the immediate is there (rule R-RSP-20).
    assert!(two.bytes_at_b(0, 4096) == two.bytes_at_a(0, 4096));
    assert!(two.bytes_at_b(4096, 904) != two.bytes_at_a(4096, 904));
    two.post_recv(RecvWr::new(0, &[]));
    two.world.drive_until(wire::Instant::from_micros(3000));
    assert_eq!(two.sent(), [(0, WcStatus::Success)]);
    two.post_recv(RecvWr::new(1, &[sge(&there, 16_384, 5000)]));
    two.world.drive();
    assert_eq!(two.sent(), [(1, WcStatus::Success)]);
    assert_eq!(two.received(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    assert!(two.bytes_at_b(16_384, 5000) == two.bytes_at_a(0, 5000));
}

/// Rule R-MEM-11.
#[test]
fn the_key_of_an_empty_piece_is_not_looked_at() {
    let mut two = Two::new("empty piece", Conn::default(), 4096);
    let (here, there) = (two.at_a, two.at_b);
    let nowhere = Sge { addr: VirtAddr::new(1), length: 0, lkey: wire::LKey::new(0xDEAD_BEEF) };
    two.post_recv(RecvWr::new(0, &[nowhere, sge(&there, 0, 64), nowhere]));
    two.post(SendWr::send(0, &[nowhere, sge(&here, 0, 64)]).signaled());
    two.post(SendWr::read(1, &[sge(&here, 64, 64), nowhere], there.addr, there.rkey).signaled());
    two.post(SendWr::write(2, &[nowhere], VirtAddr::new(0), RKey::new(0)).signaled());
    two.world.drive();
    assert_eq!(two.sent(), [0, 1, 2].map(|n| (n, WcStatus::Success)));
    assert_eq!(two.received(), [(0, WcStatus::Success)]);
}

/// Rule R-REQ-16, F25.
#[test]
fn inline_data_may_be_changed_at_once() {
    let mut two = Two::new("inline", Conn::default(), 4096);
    let there = two.at_b;
    two.post_recv(RecvWr::new(0, &[sge(&there, 0, 2048)]));
    let mut data = pattern(200, 1);
    two.post(SendWr::inline(0, SendOp::Send { imm: None }, data.clone()).signaled());
    data.fill(0);
    two.world.drive();
    assert_eq!(two.sent(), [(0, WcStatus::Success)]);
    assert_eq!(two.bytes_at_b(0, 200), pattern(200, 1));
}

/// Rules R-REQ-13, R-CQE-10, R-RSP-37, F28.
#[test]
fn solicited_completions_wake_who_waits_for_them_only() {
    let mut two = Two::new("solicited", Conn::default(), 4096);
    let (here, there) = (two.at_a, two.at_b);
    let (b, cq) = (two.b, two.b.recv_cq);
    let mut sent = 0;
    let mut events_after = |two: &mut Two, wr: SendWr| {
        two.post_recv(RecvWr::new(sent, &[sge(&there, 0, 64)]));
        sent += 1;
        two.world.nic(b).req_notify_cq(cq, true);
        two.post(wr);
        two.world.drive();
        std::mem::take(&mut two.world.hosts[b.host].events)
    };
    let send = SendWr::send(0, &[sge(&here, 0, 16)]);
    assert_eq!(events_after(&mut two, send.clone()), []);
    assert_eq!(events_after(&mut two, send.clone().solicited()), [Event::CqReady(cq)]);
    let write = SendWr::write_imm(0, &[sge(&here, 0, 16)], there.addr, there.rkey, [0; 4]);
    assert_eq!(events_after(&mut two, write.solicited()), [Event::CqReady(cq)]);
}

// ---- errors ----

/// Marks and statuses of completions.
type Results = Vec<(u64, WcStatus)>;

/// Posts a bad request between good ones; what the sends and the peer's receives say, and the bad one's syndrome.
fn error_case(name: &'static str, conn: Conn, bad: impl FnOnce(&Two) -> SendWr) -> (Results, Results, u32) {
    let mut two = Two::new(name, conn, 64 << 10);
    let (here, there) = (two.at_a, two.at_b);
    // Requests behind the bad one reach a queue pair that has given up.
    two.world.allow(&[DropReason::QpState]);
    for n in 0..2 {
        two.post_recv(RecvWr::new(n, &[sge(&there, 0, 1024)]));
    }
    let good = |n: u64| SendWr::write(n, &[sge(&here, 0, 64)], there.addr, there.rkey);
    two.post(good(0).signaled());
    let wr = bad(&two);
    two.post(wr);
    two.post(good(2));
    two.world.drive();
    let sent = two.world.send_completions(two.a);
    let vendor = sent.get(1).map_or(0, |wc| wc.vendor_err);
    let sent = sent.iter().map(|wc| (wc.wr_id.value(), wc.status)).collect();
    let (state, _) = two.world.nic(two.a).query_qp(two.a.qpn).expect("the queue pair");
    assert_eq!(state.state, QpState::Err, "{name}");
    (sent, two.received(), vendor)
}

fn after_error(status: WcStatus) -> Results {
    vec![(0, WcStatus::Success), (1, status), (2, WcStatus::WrFlushErr)]
}

const FLUSHED: [(u64, WcStatus); 2] = [(0, WcStatus::WrFlushErr), (1, WcStatus::WrFlushErr)];

/// Rules R-RSP-15, R-MEM-3, R-MEM-4, R-MEM-8, R-CQE-3, F3, F13.
#[test]
fn remote_access_errors_end_the_connection_on_both_sides() {
    type Bad = fn(&Two) -> SendWr;
    let cases: [(&str, Bad); 5] = [
        ("unknown key", |two| {
            SendWr::write(
                1,
                &[sge(&two.at_a, 0, 64)],
                two.at_b.addr,
                RKey::new(two.at_b.rkey.value() ^ 0x100),
            )
        }),
        ("before the region", |two| {
            SendWr::read(1, &[sge(&two.at_a, 0, 64)], VirtAddr::new(two.at_b.addr.value() - 1), two.at_b.rkey)
        }),
        ("one byte too far", |two| {
            let last = two.at_b.addr.wrapping_add((64 << 10) - 1);
            SendWr::write(1, &[sge(&two.at_a, 0, 2)], last, two.at_b.rkey)
        }),
        ("wrapping", |two| {
            SendWr::read(1, &[sge(&two.at_a, 0, 1024)], VirtAddr::new(u64::MAX - 1023), two.at_b.rkey)
        }),
        ("atomic elsewhere", |two| {
            SendWr::fetch_add(1, sge(&two.at_a, 0, 8), VirtAddr::new(8), two.at_b.rkey, 1)
        }),
    ];
    for (name, bad) in cases {
        let (sent, received, vendor) = error_case(name, Conn::default(), bad);
        assert_eq!(sent, after_error(WcStatus::RemAccessErr), "{name}");
        assert_eq!((&received[..], vendor), (&FLUSHED[..], 0x62), "{name}");
    }
}

/// Rules R-RSP-11, R-RSP-14, R-RSP-16, R-CQE-2.
#[test]
fn invalid_requests_end_the_connection_on_both_sides() {
    let misaligned = |two: &Two| {
        SendWr::fetch_add(1, sge(&two.at_a, 0, 8), two.at_b.addr.wrapping_add(4), two.at_b.rkey, 1)
    };
    let (sent, received, vendor) = error_case("misaligned", Conn::default(), misaligned);
    assert_eq!((sent, &received[..], vendor), (after_error(WcStatus::RemInvReqErr), &FLUSHED[..], 0x61));

    let write_only = Conn { access: Access::REMOTE_WRITE, ..Conn::default() };
    let read = |two: &Two| SendWr::read(1, &[sge(&two.at_a, 0, 64)], two.at_b.addr, two.at_b.rkey);
    let (sent, received, vendor) = error_case("not allowed", write_only, read);
    assert_eq!((sent, &received[..], vendor), (after_error(WcStatus::RemInvReqErr), &FLUSHED[..], 0x61));

    let too_long = |two: &Two| SendWr::send(1, &[sge(&two.at_a, 0, 1025)]);
    let (sent, received, vendor) = error_case("too long", Conn::default(), too_long);
    let receives = [(0, WcStatus::LocLenErr), (1, WcStatus::WrFlushErr)];
    assert_eq!((sent, &received[..], vendor), (after_error(WcStatus::RemInvReqErr), &receives[..], 0x61));
}

/// Rules R-REQ-15, R-CQE-3, F23.
#[test]
fn a_bad_local_key_fails_in_its_turn_and_nothing_of_it_is_sent() {
    let bad = |two: &Two| {
        let sge = Sge { lkey: wire::LKey::new(two.at_a.lkey.value() ^ 1), ..sge(&two.at_a, 0, 64) };
        SendWr::send(1, &[sge])
    };
    let mut two = Two::new("local", Conn::default(), 4096);
    let (here, there) = (two.at_a, two.at_b);
    two.post(SendWr::write(0, &[sge(&here, 0, 64)], there.addr, there.rkey).signaled());
    let wr = bad(&two);
    two.post(wr);
    two.post(SendWr::send(2, &[sge(&here, 0, 64)]));
    two.world.drive();
    assert_eq!(two.sent(), after_error(WcStatus::LocProtErr));
    let (attr, _) = two.world.nic(two.b).query_qp(two.b.qpn).expect("the queue pair");
    assert_eq!(attr.state, QpState::Rts, "the peer has seen nothing wrong");
}

/// Rules R-MEM-12, R-RSP-31.
#[test]
fn a_region_that_goes_away_stops_a_read_being_answered() {
    let mut two = Two::new("dereg", Conn { mtu: Mtu::B256, ..Conn::default() }, 64 << 10);
    let (here, there) = (two.at_a, two.at_b);
    // The READ is asked for in pieces, and a later one finds the queue pair in the error state.
    two.world.allow(&[DropReason::QpState]);
    two.post(SendWr::read(1, &[sge(&here, 0, 64 << 10)], there.addr, there.rkey).signaled());
    two.world.drive_until(wire::Instant::from_micros(20));
    two.world.nic(two.b).dereg_mr(there.lkey).expect("the region");
    two.world.drive();
    assert_eq!(two.sent(), [(1, WcStatus::RemAccessErr)]);
}

/// Rule R-ADM-13.
#[test]
fn one_connection_does_not_suffer_from_another() {
    let mut world = World::new(WorldConfig::new("others", seed(9)));
    world.allow(&[DropReason::QpState]);
    let depths = Depths { sends: 16, receives: 16, repost_delay: Duration::ZERO };
    let bad = world.connect([0, 1], Conn::default(), QpCap::default());
    let good = world.connect([0, 1], Conn::default(), workload::cap(depths));
    let mr = world.register(0, vec![0; 64], Access::empty());
    let wr = SendWr::write(0, &[sge(&mr, 0, 64)], VirtAddr::new(0), RKey::new(1));
    let now = world.now;
    world.nic(bad[0]).post_send(now, bad[0].qpn, wr).expect("the post");
    let mix = Mix { messages: 200, mtu: 1024, max_inline: 0 };
    workload::run(&mut world, good, mix, depths, &mut Pcg64::new(9, 0));
    assert_eq!(world.send_completions(bad[0])[0].status, WcStatus::RemAccessErr);
}

/// Rules R-REQ-26, R-REQ-28.
#[test]
fn an_overflowing_port_costs_time_but_no_data() {
    let mut config = WorldConfig { hosts: 3, ..WorldConfig::new("incast", seed(11)) };
    config.link = config.link.with_queue_limit(20_000);
    let mut world = World::new(config);
    world.allow(&[DropReason::OutOfSequence, DropReason::GhostResponse, DropReason::ResponseOutOfOrder]);
    let conn = Conn { timeout: 8, ..Conn::default() };
    let [from_a, at_c] = world.connect([0, 2], conn, QpCap::default());
    let [from_b, also_at_c] = world.connect([1, 2], conn, QpCap::default());
    let len = 1 << 20;
    let sink = world.register(2, vec![0; 2 * len as usize], EVERYTHING);
    let mut sources = Vec::new();
    for (n, end) in [(0, from_a), (1, from_b)] {
        let source = world.register(end.host, pattern(len, n), Access::empty());
        let va = sink.addr.wrapping_add(u64::from(n * len));
        let (now, wr) =
            (world.now, SendWr::write(n.into(), &[sge(&source, 0, len)], va, sink.rkey).signaled());
        world.nic(end).post_send(now, end.qpn, wr).expect("the post");
        sources.extend(pattern(len, n));
    }
    world.drive();
    for end in [from_a, from_b] {
        assert_eq!(world.send_completions(end)[0].status, WcStatus::Success);
    }
    assert!(world.nic(at_c).mr_bytes(sink.lkey, 0, 2 * len as usize).expect("the sink") == sources);
    let node = world.hosts[also_at_c.host].node;
    assert!(world.net.counts(node).overflows > 0, "the port never overflowed");
}

/// Rule R-CQE-9.
#[test]
fn a_full_completion_queue_ends_the_queue_pair() {
    let mut two = Two::new("overrun", Conn::default(), 4096);
    let (here, there) = (two.at_a, two.at_b);
    let nic = two.world.nic(two.a);
    let small = nic.create_cq(2).expect("a completion queue");
    let (_, init) = nic.query_qp(two.a.qpn).expect("the queue pair");
    let qpn = nic.create_qp(qp::QpInit { send_cq: small, ..init }).expect("a queue pair");
    let peer = (two.world.hosts[two.b.host].gid, two.b.qpn);
    let own = (two.world.hosts[two.a.host].gid, qpn);
    Conn::default().establish(two.world.nic(two.a), wire::Instant::ZERO, qpn, peer, [1, 2]).expect("to RTS");
    let (now, b) = (two.world.now, two.b);
    two.world.nic(b).modify_qp(now, b.qpn, &QpAttr::default(), AttrMask::STATE).expect("to RESET");
    Conn::default().establish(two.world.nic(b), now, b.qpn, own, [2, 1]).expect("to RTS");
    for n in 0..4 {
        let wr = SendWr::write(n, &[sge(&here, 0, 64)], there.addr, there.rkey).signaled();
        two.world.nic(two.a).post_send(now, qpn, wr).expect("the post");
    }
    // ACKs of what was under way find the queue pair in the error state.
    two.world.allow(&[DropReason::QpState]);
    two.world.drive();
    let mut done = Vec::new();
    two.world.nic(two.a).poll_cq(small, 8, &mut done);
    let done: Vec<_> = done.iter().map(|wc| (wc.wr_id.value(), wc.status)).collect();
    assert_eq!(done, [(0, WcStatus::Success), (1, WcStatus::Success)]);
    let events = [AsyncEvent::CqErr(small), AsyncEvent::QpFatal(qpn)].map(Event::Async);
    assert_eq!(two.world.hosts[two.a.host].events, events);
    let (attr, _) = two.world.nic(two.a).query_qp(qpn).expect("the queue pair");
    assert_eq!(attr.state, QpState::Err);
}

/// Rules R-ADM-2, R-REQ-24, F17.
#[test]
fn packets_for_a_queue_pair_that_is_gone_are_dropped_and_its_peer_gives_up() {
    let conn = Conn { timeout: 10, retry_cnt: 3, ..Conn::default() };
    let mut two = Two::new("gone", conn, 4096);
    two.world.allow(&[DropReason::NoSuchQp]);
    let (here, there, b) = (two.at_a, two.at_b, two.b);
    two.world.nic(b).destroy_qp(b.qpn).expect("the queue pair");
    two.post(SendWr::write(0, &[sge(&here, 0, 64)], there.addr, there.rkey));
    two.world.drive();
    assert_eq!(two.sent(), [(0, WcStatus::RetryExcErr)]);
    assert_eq!(two.world.nic(b).drops().get(DropReason::NoSuchQp), 4);
}

// ---- states ----

/// Rules R-REQ-31, R-QPS-12.
#[test]
fn draining_finishes_what_has_started_and_starts_nothing_more() {
    let mut two = Two::new("drain", Conn::default(), 1 << 20);
    let (here, there) = (two.at_a, two.at_b);
    let write = |n: u64| SendWr::write(n, &[sge(&here, 0, 1 << 19)], there.addr, there.rkey).signaled();
    two.post(write(0));
    two.world.drive_until(wire::Instant::from_micros(50));
    let (now, a) = (two.world.now, two.a);
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    two.world
        .nic(a)
        .modify_qp(now, a.qpn, &attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY)
        .expect("to SQD");
    two.post(write(1));
    two.world.drive();
    assert_eq!(two.sent(), [(0, WcStatus::Success)]);
    assert_eq!(two.world.hosts[a.host].events, [Event::Async(AsyncEvent::SqDrained(a.qpn))]);
    let (now, attr) = (two.world.now, QpAttr { state: QpState::Rts, ..QpAttr::default() });
    two.world.nic(a).modify_qp(now, a.qpn, &attr, AttrMask::STATE).expect("back to RTS");
    two.world.drive();
    assert_eq!(two.sent(), [(1, WcStatus::Success)]);
}

/// Rule R-QPS-13.
#[test]
fn a_queue_pair_can_be_reset_and_connected_again() {
    let mut two = Two::new("again", Conn::default(), 4096);
    let (here, there) = (two.at_a, two.at_b);
    for round in 0..3 {
        let ends = [two.a, two.b];
        for (mine, peer) in [(0, 1), (1, 0)] {
            let name = (two.world.hosts[ends[peer].host].gid, ends[peer].qpn);
            let now = two.world.now;
            let nic = two.world.nic(ends[mine]);
            nic.modify_qp(now, ends[mine].qpn, &QpAttr::default(), AttrMask::STATE).expect("to RESET");
            Conn::default().establish(nic, now, ends[mine].qpn, name, [round, round]).expect("to RTS");
        }
        two.post_recv(RecvWr::new(1, &[sge(&there, 0, 64)]));
        two.post(SendWr::send(1, &[sge(&here, 0, 64)]).signaled());
        two.world.drive();
        assert_eq!(
            (two.sent(), two.received()),
            (vec![(1, WcStatus::Success)], vec![(1, WcStatus::Success)])
        );
    }
}
