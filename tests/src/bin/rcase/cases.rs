//! The cases: one message or atomic of each kind, and the exchanges that take more than one.

use std::time::Duration;

use crate::pair::{Pair, Setup, expect_pattern, expect_word};
use crate::side::{Flag, Kind, Op, Outcome, REGION, Right, Side, Status, check};

/// Where messages lie: at odd addresses, apart from each other.
const CLIENT_AT: u64 = 0x0001_0001;
const SERVER_AT: u64 = 0x0020_0003;
/// Words for atomics.
const WORD_AT: u64 = 0x0060_0000;
/// Bytes on each side of a message that must stay as they were.
const GUARD: u64 = 16;

/// One message of `size` bytes, with its contents, its completions and the bytes around it checked.
pub(crate) fn message(p: &mut Pair<'_>, op: Op, size: u32, seed: u8) -> Outcome {
    let len = u64::from(size);
    let (from, to) = if op == Op::RdmaRead { (SERVER_AT, CLIENT_AT) } else { (CLIENT_AT, SERVER_AT) };
    let header = p.kind.header();
    let before = to - u64::from(header) - GUARD;
    p.source(op).fill(from, len, seed, 0)?;
    p.sink(op).fill(before, to + len + GUARD - before, !seed, 0)?;
    if op.takes_receive() {
        let room = header + size;
        p.recv(if op.is_send() && room > 0 { vec![(to - u64::from(header), room)] } else { Vec::new() })?;
    }
    let request = p.request(op, vec![(CLIENT_AT, size)], SERVER_AT);
    let imm = request.imm;
    p.client.post_send(&[request])?;
    let sent = p.client_done(1, Status::SUCCESS)?;
    check(sent[0].opcode == op.completion(), || format!("completion opcode {}", sent[0].opcode))?;
    if op.takes_receive() {
        let got = p.server_done(1)?;
        check(got[0].opcode == op.receive_completion(), || format!("receive's opcode {}", got[0].opcode))?;
        let expected = header + size;
        check(got[0].len == expected, || format!("receive's length {}, expected {expected}", got[0].len))?;
        check(got[0].imm == imm, || format!("immediate {:x?}, expected {imm:x?}", got[0].imm))?;
    }
    if p.kind == Kind::Uc && !op.takes_receive() {
        // Nobody says when an unreliable WRITE is there; an empty SEND behind it does.
        p.recv(Vec::new())?;
        p.post(Op::Send, vec![(CLIENT_AT, 0)], 0)?;
        p.client_done(1, Status::SUCCESS)?;
        p.server_done(1)?;
    }
    let sink = p.sink(op);
    expect_pattern(sink, before, GUARD, !seed, 0)?;
    expect_pattern(sink, to, len, seed, 0)?;
    expect_pattern(sink, to + len, GUARD, !seed, to + len - before)
}

/// What an unreliable type can do, by the names of its rows.
pub(crate) const UNRELIABLE: [(&str, Kind, Op); 6] = [
    ("UC SEND", Kind::Uc, Op::Send),
    ("UC SEND_WITH_IMM", Kind::Uc, Op::SendWithImm),
    ("UC RDMA_WRITE", Kind::Uc, Op::RdmaWrite),
    ("UC RDMA_WRITE_WITH_IMM", Kind::Uc, Op::RdmaWriteWithImm),
    ("UD SEND", Kind::Ud, Op::Send),
    ("UD SEND_WITH_IMM", Kind::Ud, Op::SendWithImm),
];

/// An atomic that finds what it expects and one that does not, or sums that wrap.
pub(crate) fn atomic(p: &mut Pair<'_>, op: Op) -> Outcome {
    const A: u64 = 0x1122_3344_5566_7788;
    const B: u64 = 0xaabb_ccdd_eeff_0011;
    // compare or add, swap, the value that must come back
    let (first, steps, last): (u64, &[(u64, u64, u64)], u64) = match op {
        Op::CmpSwap => (A, &[(A, B, A), (A, 0x2222, B)], B),
        _ => (41, &[(1, 0, 41), (u64::MAX, 0, 42), (0x100, 0, 41)], 0x129),
    };
    p.server.put(WORD_AT, &first.to_le_bytes())?;
    for &(compare_add, swap, back) in steps {
        let mut request = p.request(op, vec![(WORD_AT, 8)], WORD_AT);
        request.compare_add = compare_add;
        request.swap = swap;
        p.client.put(WORD_AT, &[0xee; 8])?;
        p.client.post_send(&[request])?;
        let done = p.client_done(1, Status::SUCCESS)?;
        check(done[0].opcode == op.completion(), || format!("completion opcode {}", done[0].opcode))?;
        expect_word(p.client, WORD_AT, back)?;
    }
    expect_word(p.server, WORD_AT, last)
}

/// A case of its own connection.
pub(crate) struct Case {
    /// What the table calls it.
    pub(crate) name: &'static str,
    /// How it wants its connection, given the path MTU.
    pub(crate) setup: fn(u32) -> Setup,
    /// Whether it also passes on a wire that loses packets: a lost NAK is not sent again, so what ends with one
    /// does not.
    pub(crate) lossy: bool,
    /// Whether it has a fenced request.
    pub(crate) fenced: bool,
    /// The exchange.
    pub(crate) run: fn(&mut Pair<'_>) -> Outcome,
}

const fn case(name: &'static str, run: fn(&mut Pair<'_>) -> Outcome) -> Case {
    Case { name, setup: Setup::new, lossy: true, fenced: false, run }
}

const fn ends_in_error(
    name: &'static str,
    setup: fn(u32) -> Setup,
    run: fn(&mut Pair<'_>) -> Outcome,
) -> Case {
    Case { name, setup, lossy: false, fenced: false, run }
}

/// Every case that is not a single message.
pub(crate) const CASES: [Case; 29] = [
    case("gather_scatter", gather_scatter),
    case("inline", inline),
    case("unsignaled", unsignaled),
    case("reads_beyond_limit", reads_beyond_limit),
    Case { fenced: true, ..case("fence", fence) },
    Case { fenced: true, ..case("mix", mix) },
    case("write_then_read", write_then_read),
    case("solicited", solicited),
    Case { setup: slow_rnr, ..case("rnr", rnr) },
    ends_in_error("rnr_exceeded", few_rnr, rnr_exceeded),
    ends_in_error("retry_exceeded", nobody, retry_exceeded),
    ends_in_error("nak_write_bad_rkey", Setup::new, |p| nak(p, Op::RdmaWrite, 64, Wrong::Key)),
    ends_in_error("nak_write_bad_rkey_long", Setup::new, |p| nak(p, Op::RdmaWrite, 9000, Wrong::Key)),
    ends_in_error("nak_read_bad_rkey", Setup::new, |p| nak(p, Op::RdmaRead, 64, Wrong::Key)),
    ends_in_error("nak_atomic_bad_rkey", Setup::new, |p| nak(p, Op::FetchAdd, 8, Wrong::Key)),
    ends_in_error("nak_write_out_of_range", Setup::new, |p| nak(p, Op::RdmaWrite, 64, Wrong::Range)),
    ends_in_error("nak_write_below_range", Setup::new, |p| nak(p, Op::RdmaWrite, 64, Wrong::Before)),
    ends_in_error("nak_read_out_of_range", Setup::new, |p| nak(p, Op::RdmaRead, 64, Wrong::Range)),
    ends_in_error("nak_write_no_access", no_write, |p| nak(p, Op::RdmaWrite, 64, Wrong::Right)),
    ends_in_error("nak_read_no_access", no_read, |p| nak(p, Op::RdmaRead, 64, Wrong::Right)),
    ends_in_error("nak_atomic_no_access", no_atomic, |p| nak(p, Op::FetchAdd, 8, Wrong::Right)),
    ends_in_error("nak_send_too_long", Setup::new, |p| send_too_long(p, 200)),
    ends_in_error("nak_send_too_long_multi", Setup::new, |p| send_too_long(p, 9000)),
    Case { fenced: true, ..ends_in_error("reconnect_after_nak", Setup::new, reconnect_after_nak) },
    ends_in_error("window", Setup::new, window),
    ends_in_error("window_out_of_range", Setup::new, window_out_of_range),
    ends_in_error("send_with_inv", Setup::new, send_with_inv),
    case("atomic_write", atomic_write),
    case("flush", flush),
];

fn slow_rnr(mtu: u32) -> Setup {
    let mut setup = Setup::new(mtu);
    setup.link.min_rnr_timer = 20; // 10.24 ms
    setup
}

fn few_rnr(mtu: u32) -> Setup {
    let mut setup = Setup::new(mtu);
    setup.link.min_rnr_timer = 14;
    setup.link.rnr_retry = 2;
    setup
}

fn nobody(mtu: u32) -> Setup {
    let mut setup = Setup::new(mtu);
    setup.nobody = true;
    setup.link.retry_cnt = 2;
    setup
}

fn no_write(mtu: u32) -> Setup {
    Setup { rights: &[Right::Read, Right::Atomic], ..Setup::new(mtu) }
}

fn no_read(mtu: u32) -> Setup {
    Setup { rights: &[Right::Write, Right::Atomic], ..Setup::new(mtu) }
}

fn no_atomic(mtu: u32) -> Setup {
    Setup { rights: &[Right::Write, Right::Read], ..Setup::new(mtu) }
}

/// One message gathered from three pieces and scattered over two.
fn gather_scatter(p: &mut Pair<'_>) -> Outcome {
    p.client.fill(0, 0x8000, 3, 0)?;
    p.server.fill(0, 0x8000, 99, 0)?;
    p.recv(vec![(10, 100), (0x4001, 5000)])?;
    p.post(Op::Send, vec![(5, 11), (300, 1400), (0x7000, 2)], 0)?;
    p.client_done(1, Status::SUCCESS)?;
    let got = p.server_done(1)?;
    check(got[0].len == 1413, || format!("receive's length {}", got[0].len))?;
    expect_pattern(p.server, 10, 11, 3, 5)?;
    expect_pattern(p.server, 21, 89, 3, 300)?;
    expect_pattern(p.server, 110, 16, 99, 110)?;
    expect_pattern(p.server, 0x4001, 1311, 3, 389)?;
    expect_pattern(p.server, 0x4001 + 1311, 2, 3, 0x7000)?;
    expect_pattern(p.server, 0x4001 + 1313, 16, 99, 0x4001 + 1313)
}

/// Inline data are taken when posted: what the buffer holds later does not matter.
fn inline(p: &mut Pair<'_>) -> Outcome {
    p.client.fill(0, 64, 3, 0)?;
    p.server.fill(0, 64, 99, 0)?;
    p.recv(vec![(0, 64)])?;
    let mut request = p.request(Op::Send, vec![(0, 48)], 0);
    request.flags.push(Flag::Inline);
    p.client.post_send(&[request])?;
    p.client.fill(0, 64, 200, 0)?;
    p.client_done(1, Status::SUCCESS)?;
    p.server_done(1)?;
    expect_pattern(p.server, 0, 48, 3, 0)?;
    expect_pattern(p.server, 48, 16, 99, 48)
}

/// Nine WRITEs without a completion, then one with: only that one completes.
fn unsignaled(p: &mut Pair<'_>) -> Outcome {
    p.client.fill(0, 10 * 3000, 3, 0)?;
    p.server.fill(0, 10 * 3000, 99, 0)?;
    let mut requests: Vec<_> =
        (0..10).map(|k| p.request(Op::RdmaWrite, vec![(k * 3000, 3000)], k * 3000)).collect();
    for request in &mut requests[..9] {
        request.flags.clear();
    }
    p.client.post_send(&requests)?;
    let done = p.client_done(1, Status::SUCCESS)?;
    check(done[0].id == requests[9].id, || format!("completion of work request {}", done[0].id))?;
    let more = p.client.poll(1, Duration::from_millis(20))?;
    check(more.is_empty(), || format!("a completion nobody asked for: {more:?}"))?;
    expect_pattern(p.server, 0, 10 * 3000, 3, 0)
}

/// Sixteen READs at once over a connection that may have four outstanding.
fn reads_beyond_limit(p: &mut Pair<'_>) -> Outcome {
    p.server.fill(0, 16 * 5000, 99, 0)?;
    p.client.fill(0, 16 * 5000, 3, 0)?;
    let requests: Vec<_> =
        (0..16).map(|k| p.request(Op::RdmaRead, vec![(k * 5000, 5000)], k * 5000)).collect();
    p.client.post_send(&requests)?;
    let done = p.client_done(16, Status::SUCCESS)?;
    let order = done.iter().map(|wc| wc.id).eq(requests.iter().map(|r| r.id));
    check(order, || "completions out of order".to_owned())?;
    expect_pattern(p.client, 0, 16 * 5000, 99, 0)
}

/// A fenced SEND of what a READ before it brings.
fn fence(p: &mut Pair<'_>) -> Outcome {
    p.server.fill(0, 6000, 99, 0)?;
    p.client.fill(0, 6000, 3, 0)?;
    p.server.fill(0x8000, 6000, 150, 0)?;
    p.recv(vec![(0x8000, 6000)])?;
    let read = p.request(Op::RdmaRead, vec![(0, 6000)], 0);
    let mut send = p.request(Op::Send, vec![(0, 6000)], 0);
    send.flags.push(Flag::Fence);
    p.client.post_send(&[read, send])?;
    p.client_done(2, Status::SUCCESS)?;
    p.server_done(1)?;
    expect_pattern(p.server, 0x8000, 6000, 99, 0)
}

/// A SEND, a WRITE, a READ, both atomics and a fenced SEND with immediate, posted at once.
fn mix(p: &mut Pair<'_>) -> Outcome {
    p.client.fill(0, 0x10000, 3, 0)?;
    p.server.fill(0, 0x10000, 99, 0)?;
    p.server.put(0xe000, &[7u64.to_le_bytes(), 41u64.to_le_bytes()].concat())?;
    p.recv(vec![(0, 4096)])?;
    p.recv(vec![(4096, 4096)])?;
    let mut swap = p.request(Op::CmpSwap, vec![(0xf000, 8)], 0xe000);
    (swap.compare_add, swap.swap) = (7, 8);
    let mut add = p.request(Op::FetchAdd, vec![(0xf008, 8)], 0xe008);
    add.compare_add = 1;
    let mut last = p.request(Op::SendWithImm, vec![(0x1000, 33)], 0);
    last.flags.extend([Flag::Fence, Flag::Solicited]);
    let requests = [
        p.request(Op::Send, vec![(0, 1500)], 0),
        p.request(Op::RdmaWrite, vec![(0x3000, 2600)], 0x3000),
        p.request(Op::RdmaRead, vec![(0x5000, 2600)], 0x5000),
        swap,
        add,
        last,
    ];
    p.client.post_send(&requests)?;
    p.client_done(6, Status::SUCCESS)?;
    p.server_done(2)?;
    expect_word(p.client, 0xf000, 7)?;
    expect_word(p.client, 0xf008, 41)?;
    expect_pattern(p.client, 0x5000, 2600, 99, 0x5000)?;
    expect_pattern(p.server, 0, 1500, 3, 0)?;
    expect_pattern(p.server, 4096, 33, 3, 0x1000)?;
    expect_pattern(p.server, 0x3000, 2600, 3, 0x3000)?;
    expect_word(p.server, 0xe000, 8)?;
    expect_word(p.server, 0xe008, 42)
}

/// A READ right behind a WRITE to the same place brings what was written.
fn write_then_read(p: &mut Pair<'_>) -> Outcome {
    p.client.fill(0, 9000, 3, 0)?;
    p.client.fill(0x8000, 9000, 99, 0)?;
    p.server.fill(0, 9000, 150, 0)?;
    let requests =
        [p.request(Op::RdmaWrite, vec![(0, 9000)], 0), p.request(Op::RdmaRead, vec![(0x8000, 9000)], 0)];
    p.client.post_send(&requests)?;
    p.client_done(2, Status::SUCCESS)?;
    expect_pattern(p.client, 0x8000, 9000, 3, 0)
}

/// Solicited SENDs and WRITEs with immediate arrive like any other.
fn solicited(p: &mut Pair<'_>) -> Outcome {
    p.client.fill(0, 0x4000, 3, 0)?;
    p.server.fill(0, 0x4000, 99, 0)?;
    for op in [Op::Send, Op::SendWithImm, Op::RdmaWriteWithImm] {
        p.recv(vec![(0, 3000)])?;
        let mut request = p.request(op, vec![(0x1000, 3000)], 0x2000);
        request.flags.push(Flag::Solicited);
        p.client.post_send(&[request])?;
        p.client_done(1, Status::SUCCESS)?;
        p.server_done(1)?;
    }
    expect_pattern(p.server, 0, 3000, 3, 0x1000)?;
    expect_pattern(p.server, 0x2000, 3000, 3, 0x1000)
}

/// The receive comes 50 ms late: RNR NAKs, then the SEND goes through.
fn rnr(p: &mut Pair<'_>) -> Outcome {
    p.client.fill(0, 2500, 3, 0)?;
    p.server.fill(0, 2500, 99, 0)?;
    p.post(Op::Send, vec![(0, 2500)], 0)?;
    let early = p.client.poll(1, Duration::from_millis(50))?;
    check(early.is_empty(), || format!("completed without a receive: {early:?}"))?;
    p.recv(vec![(0, 4096)])?;
    p.client_done(1, Status::SUCCESS)?;
    p.server_done(1)?;
    expect_pattern(p.server, 0, 2500, 3, 0)
}

/// There is never a receive: the client gives up.
fn rnr_exceeded(p: &mut Pair<'_>) -> Outcome {
    p.post(Op::Send, vec![(0, 64)], 0)?;
    p.client_done(1, Status::RNR_RETRY_EXC_ERR)?;
    Ok(())
}

/// Nobody ever answers: the client gives up, and flushes what it had queued.
fn retry_exceeded(p: &mut Pair<'_>) -> Outcome {
    p.post(Op::Send, vec![(0, 64)], 0)?;
    p.post(Op::RdmaWrite, vec![(0, 64)], 0)?;
    p.client_done(1, Status::RETRY_EXC_ERR)?;
    p.client_done(1, Status::WR_FLUSH_ERR)?;
    Ok(())
}

/// What a request has wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrong {
    Key,
    /// It crosses the end of the region.
    Range,
    /// It starts before the region.
    Before,
    /// The queue pair does not allow it.
    Right,
}

/// After a good request, one that the server must refuse; the next is flushed.
fn nak(p: &mut Pair<'_>, op: Op, size: u32, wrong: Wrong) -> Outcome {
    p.server.fill(0, 0x4000, 99, 0)?;
    p.client.fill(0, 0x4000, 3, 0)?;
    // The good one makes the answer's MSN differ from zero.
    let good = if op == Op::RdmaWrite && wrong == Wrong::Right { Op::RdmaRead } else { Op::RdmaWrite };
    p.post(good, vec![(0x3000, 8)], 0x3000)?;
    p.client_done(1, Status::SUCCESS)?;
    let mut request = p.request(op, vec![(0, size)], 0);
    match wrong {
        Wrong::Key => request.rkey = request.rkey.map(|key| key ^ 0x55),
        Wrong::Range => request.addr = p.remote.addr + p.remote.size - u64::from(size) / 2,
        Wrong::Before => request.addr = p.remote.addr - 1,
        Wrong::Right => (),
    }
    p.client.post_send(&[request])?;
    p.post(Op::RdmaWrite, vec![(0, 8)], 0)?;
    let statuses: &[_] = match wrong {
        // A queue pair without the right: rxe answers NAK invalid request, others NAK remote access error.
        Wrong::Right => &[Status::REM_INV_REQ_ERR, Status::REM_ACCESS_ERR],
        _ => &[Status::REM_ACCESS_ERR],
    };
    p.client_done_as(statuses)?;
    p.client_done(1, Status::WR_FLUSH_ERR)?;
    expect_pattern(p.server, 0, 0x3000, 99, 0)
}

/// A SEND longer than the receive that waits for it.
fn send_too_long(p: &mut Pair<'_>, size: u32) -> Outcome {
    p.server.fill(0, 0x4000, 99, 0)?;
    p.recv(vec![(0, 100)])?;
    p.post(Op::RdmaWrite, vec![(0, 8)], 0x3000)?;
    p.client_done(1, Status::SUCCESS)?;
    p.post(Op::Send, vec![(0, size)], 0)?;
    p.post(Op::RdmaWrite, vec![(0, 8)], 0)?;
    // Linux 6.1's rxe answers NAK remote operational error.
    p.client_done_as(&[Status::REM_INV_REQ_ERR, Status::REM_OP_ERR])?;
    p.client_done(1, Status::WR_FLUSH_ERR)?;
    expect_pattern(p.server, 100, 0x2000, 99, 100)
}

/// A connection that ended with a NAK does not disturb the next one between the same sides.
fn reconnect_after_nak(p: &mut Pair<'_>) -> Outcome {
    nak(p, Op::RdmaWrite, 64, Wrong::Key)?;
    let (client, server): (&mut dyn Side, &mut dyn Side) = (&mut *p.client, &mut *p.server);
    mix(&mut Pair::connect(client, server, &Setup::new(1024))?)
}

/// Where the server's window lies, and how long it is.
const WINDOW: (u64, u32) = (0x1000, 0x4000);

/// A request of the client through the window whose key is `rkey`, `at` bytes behind its start.
fn through(p: &mut Pair<'_>, op: Op, rkey: u32, at: u64, size: u32) -> Outcome {
    let mut request = p.request(op, vec![(0, size)], WINDOW.0 + at);
    request.rkey = Some(rkey);
    p.client.post_send(&[request])
}

/// A key that was taken back opens nothing, and what it opened stays as it is.
fn dead(p: &mut Pair<'_>, rkey: u32) -> Outcome {
    p.server.fill(WINDOW.0, 64, 150, 0)?;
    through(p, Op::RdmaWrite, rkey, 0, 64)?;
    p.client_done(1, Status::REM_ACCESS_ERR)?;
    expect_pattern(p.server, WINDOW.0, 64, 150, 0)
}

/// A type 2 window at the server, bound twice: written and read through, then taken back by the server.
fn window(p: &mut Pair<'_>) -> Outcome {
    let (at, len) = WINDOW;
    p.server.fill(0, 0x8000, 99, 0)?;
    let mut keys = Vec::new();
    for seed in [3, 4] {
        let rkey = p.server.bind(at, len.into())?;
        p.client.fill(0, 5000, seed, 0)?;
        through(p, Op::RdmaWrite, rkey, u64::from(len) - 5000, 5000)?;
        p.client_done(1, Status::SUCCESS)?;
        expect_pattern(p.server, at + u64::from(len) - 5000, 5000, seed, 0)?;
        expect_pattern(p.server, at + u64::from(len), 16, 99, at + u64::from(len))?;
        p.client.fill(0, 5000, 200, 0)?;
        through(p, Op::RdmaRead, rkey, u64::from(len) - 5000, 5000)?;
        p.client_done(1, Status::SUCCESS)?;
        expect_pattern(p.client, 0, 5000, seed, 0)?;
        p.server.invalidate(rkey)?;
        keys.push(rkey);
    }
    check(keys[0] != keys[1], || format!("the same key twice: {keys:x?}"))?;
    dead(p, keys[1])
}

/// A window ends where it ends, though its region goes on.
fn window_out_of_range(p: &mut Pair<'_>) -> Outcome {
    let (at, len) = WINDOW;
    p.server.fill(0, 0x8000, 99, 0)?;
    let rkey = p.server.bind(at, len.into())?;
    p.client.fill(0, 64, 3, 0)?;
    through(p, Op::RdmaWrite, rkey, u64::from(len) - 64, 64)?;
    p.client_done(1, Status::SUCCESS)?;
    // Linux 6.1's rxe holds what comes through a window against the end of the region alone.
    let strict = p.server.name() == "card";
    let beyond = if strict { u64::from(len) - 63 } else { REGION - at - 63 };
    through(p, Op::RdmaWrite, rkey, beyond, 64)?;
    p.client_done(1, Status::REM_ACCESS_ERR)?;
    expect_pattern(p.server, at + u64::from(len), 64, 99, at + u64::from(len))
}

/// The client takes the server's keys back with SENDs of one packet and of several.
fn send_with_inv(p: &mut Pair<'_>) -> Outcome {
    let mut last = 0;
    for size in [0, 8, 5000] {
        let rkey = p.server.bind(WINDOW.0, WINDOW.1.into())?;
        p.client.fill(0, 5000, 3, 0)?;
        p.server.fill(0x8000, 5000, 99, 0)?;
        through(p, Op::RdmaWrite, rkey, 0, 3000)?;
        p.client_done(1, Status::SUCCESS)?;
        expect_pattern(p.server, WINDOW.0, 3000, 3, 0)?;
        p.recv(vec![(0x8000, 5000)])?;
        let mut request = p.request(Op::SendWithInv, vec![(0, size)], 0);
        request.rkey = Some(rkey);
        p.client.post_send(&[request])?;
        p.client_done(1, Status::SUCCESS)?;
        let got = p.server_done(1)?;
        check(got[0].opcode == 128 && got[0].len == size, || format!("receive {:?}", got[0]))?;
        check(got[0].inv == Some(rkey), || format!("invalidated {:x?}, expected {rkey:x}", got[0].inv))?;
        expect_pattern(p.server, 0x8000, size.into(), 3, 0)?;
        last = rkey;
    }
    dead(p, last)
}

/// Eight bytes, as they are.
fn atomic_write(p: &mut Pair<'_>) -> Outcome {
    p.need(Op::AtomicWrite)?;
    p.client.put(WORD_AT, &[1, 2, 3, 4, 5, 6, 7, 8])?;
    p.server.put(WORD_AT, &[0xee; 16])?;
    p.post(Op::AtomicWrite, vec![(WORD_AT, 8)], WORD_AT)?;
    let done = p.client_done(1, Status::SUCCESS)?;
    check(done[0].opcode == Op::AtomicWrite.completion(), || format!("completion {:?}", done[0]))?;
    let found = p.server.get(WORD_AT, 9)?;
    check(found == [1, 2, 3, 4, 5, 6, 7, 8, 0xee], || format!("{found:x?} in memory"))
}

/// What was written before is there when a FLUSH completes.
fn flush(p: &mut Pair<'_>) -> Outcome {
    p.need(Op::Flush)?;
    p.client.fill(0, 5000, 3, 0)?;
    let mut flush = p.request(Op::Flush, Vec::new(), 0x100);
    flush.len = 5000;
    let write = p.request(Op::RdmaWrite, vec![(0, 5000)], 0x100);
    p.client.post_send(&[write, flush])?;
    let done = p.client_done(2, Status::SUCCESS)?;
    check(done[1].opcode == Op::Flush.completion(), || format!("completion {:?}", done[1]))?;
    expect_pattern(p.server, 0x100, 5000, 3, 0)
}
