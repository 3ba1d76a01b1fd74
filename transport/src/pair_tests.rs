//! A requester and a responder, joined by a network that does its worst: whatever it drops, repeats and
//! reorders, each message arrives once, in order and whole, or the connection ends with an error that the
//! rules allow.

use proptest::prelude::*;
use proptest::sample::Index;
use wire::{LKey, Msn, PacketRepr, Psn, RKey, VirtAddr, WrId};

use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::kit::{ALL, End, PD, other_end, params, pattern};
use crate::local::LocalOp;
use crate::params::RcParams;
use crate::ports::{Access, Side};
use crate::requester::read_request_end;
use crate::wqe::{Placement, RecvWqe, SendFlags, SendOp, Sge};

/// Room of one message in each region.
const ROOM: usize = 4096;
const MAX_MESSAGES: usize = 12;

/// A region of either end: its key, from which its address follows.
#[derive(Clone, Copy)]
struct Area(u32);

/// At the requester: what is sent, and where READs and atomics leave what they found.
const LOCAL: Area = Area(0x200);
/// At the responder.
const RECEIVES: Area = Area(0x300);
const WRITTEN: Area = Area(0x400);
const SOURCE: Area = Area(0x500);
const WORDS: Area = Area(0x600);

impl Area {
    fn base(self) -> u64 {
        u64::from(self.0) << 24
    }

    fn va(self, offset: usize) -> VirtAddr {
        VirtAddr::new(self.base() + offset as u64)
    }

    fn rkey(self) -> RKey {
        RKey::new(self.0)
    }

    fn sge(self, index: usize, length: u32) -> Sge {
        Sge { addr: self.va(index * ROOM), length, lkey: LKey::new(self.0) }
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CmpSwap,
    SendInv,
    AtomicWrite,
    Flush,
    /// A local operation.
    Local,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    kind: Kind,
    len: u32,
    flags: SendFlags,
}

/// What the network, or the clock, does next.
#[derive(Clone, Debug)]
enum Step {
    Request,
    Reply,
    Deliver { to_responder: bool, which: Option<Index> },
    Drop { to_responder: bool, which: Index },
    Repeat { to_responder: bool, which: Index },
    PostReceive,
    Expire,
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let kind = prop::sample::select(vec![
        Kind::Send,
        Kind::SendImm,
        Kind::Write,
        Kind::WriteImm,
        Kind::Read,
        Kind::FetchAdd,
        Kind::CmpSwap,
        Kind::SendInv,
        Kind::AtomicWrite,
        Kind::Flush,
        Kind::Local,
    ]);
    let len = prop_oneof![Just(0), 1..300_u32, 0..=4096_u32];
    let message = (kind, len, any::<bool>(), any::<bool>()).prop_map(|(kind, len, fence, signaled)| {
        let len = match kind {
            Kind::FetchAdd | Kind::CmpSwap | Kind::AtomicWrite => 8,
            Kind::Flush | Kind::Local => 0,
            _ => len,
        };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::FENCE, fence);
        flags.set(SendFlags::SIGNALED, signaled);
        Message { kind, len, flags }
    });
    prop::collection::vec(message, 1..=MAX_MESSAGES)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        20 => Just(Step::Request),
        16 => Just(Step::Reply),
        24 => any::<bool>().prop_map(|to_responder| Step::Deliver { to_responder, which: None }),
        6 => any::<(bool, Index)>()
            .prop_map(|(to_responder, which)| Step::Deliver { to_responder, which: Some(which) }),
        4 => any::<(bool, Index)>().prop_map(|(to_responder, which)| Step::Drop { to_responder, which }),
        4 => any::<(bool, Index)>().prop_map(|(to_responder, which)| Step::Repeat { to_responder, which }),
        4 => Just(Step::PostReceive),
        1 => Just(Step::Expire),
    ];
    prop::collection::vec(step, 0..800)
}

fn connections() -> impl Strategy<Value = RcParams> {
    let psn = prop_oneof![0xFF_FFC0..=0xFF_FFFF_u32, 0..1_u32 << 24];
    // ACK timeouts that leave no time to put a question off, little, and much (rule R-REQ-49).
    let timeout = prop::sample::select(vec![8, 11, 14]);
    (psn, 1..24_u32, 1..4_u8, 0..=7_u8, timeout).prop_map(|(psn, window, depth, retry_cnt, timeout)| {
        RcParams {
            sq_psn: Psn::new(psn),
            window,
            timeout,
            max_rd_atomic: depth,
            max_dest_rd_atomic: depth,
            retry_cnt,
            rnr_retry: 7,
            ..params()
        }
    })
}

struct Pair {
    a: End,
    b: End,
    to_b: Vec<PacketRepr>,
    to_a: Vec<PacketRepr>,
    messages: Vec<Message>,
    /// PSN after each message as the wire counts them: a READ in pieces is several.
    ends: Vec<Psn>,
    posted_receives: usize,
    sent_done: Vec<Completion>,
    received: Vec<Completion>,
}

impl Pair {
    fn new(connection: &RcParams, messages: Vec<Message>) -> Self {
        let mut a = End::new(connection.clone());
        let mut b = End::new(other_end(connection));
        let size = MAX_MESSAGES * ROOM;
        a.ram.add(LOCAL.0, LOCAL.base(), ALL, pattern(size, 11));
        b.ram.add(RECEIVES.0, RECEIVES.base(), ALL, vec![0; size]);
        b.ram.add(WRITTEN.0, WRITTEN.base(), ALL, vec![0; ROOM]);
        b.ram.add(SOURCE.0, SOURCE.base(), ALL, pattern(size, 22));
        b.ram.add(WORDS.0, WORDS.base(), ALL, vec![0; 24]);
        for i in 0..messages.len() {
            b.ram.add(key(i).value(), 0, ALL, vec![]);
        }
        let (mut psn, mut ends, mut swaps) = (connection.sq_psn, Vec::new(), 0);
        for (i, message) in messages.iter().enumerate() {
            let rkey = WORDS.rkey();
            let op = match message.kind {
                Kind::Send => SendOp::Send { imm: None },
                Kind::SendImm => SendOp::Send { imm: Some(imm(i)) },
                Kind::Write => SendOp::Write { va: WRITTEN.va(0), rkey: WRITTEN.rkey(), imm: None },
                Kind::WriteImm => {
                    SendOp::Write { va: WRITTEN.va(0), rkey: WRITTEN.rkey(), imm: Some(imm(i)) }
                }
                Kind::Read => SendOp::Read { va: SOURCE.va(i * ROOM), rkey: SOURCE.rkey() },
                Kind::FetchAdd => SendOp::FetchAdd { va: WORDS.va(0), rkey, add: i as u64 + 1 },
                Kind::CmpSwap => {
                    swaps += 1;
                    SendOp::CmpSwap { va: WORDS.va(8), rkey, compare: swaps - 1, swap: swaps }
                }
                Kind::SendInv => SendOp::SendInv { rkey: key(i) },
                Kind::AtomicWrite => SendOp::AtomicWrite { va: WORDS.va(16), rkey },
                Kind::Flush => {
                    let (va, rkey) = (WRITTEN.va(i), WRITTEN.rkey());
                    SendOp::Flush { va, rkey, length: 8, placement: Placement::GLOBAL, whole: false }
                }
                Kind::Local => SendOp::Local(local(i)),
            };
            if message.len == 0 && matches!(message.kind, Kind::Flush | Kind::Local) {
                a.post_sges(op, &[], message.flags);
                if matches!(message.kind, Kind::Flush) {
                    psn = psn.wrapping_add(1);
                    ends.push(psn);
                }
                continue;
            }
            a.post_sges(op, &[LOCAL.sge(i, message.len)], message.flags);
            let n = connection.packets(message.len);
            let mut index = 0;
            while index < n {
                let end = match message.kind {
                    Kind::Read => read_request_end(index, n, connection.window),
                    _ => n,
                };
                psn = psn.wrapping_add(end - index);
                ends.push(psn);
                index = end;
            }
        }
        let (to_b, to_a, sent_done, received) = (vec![], vec![], vec![], vec![]);
        Self { a, b, to_b, to_a, messages, ends, posted_receives: 0, sent_done, received }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Request => self.to_b.extend(self.a.request()),
            Step::Reply => self.to_a.extend(self.b.reply()),
            Step::Deliver { to_responder, which } => {
                let queue = self.queue(*to_responder);
                if !queue.is_empty() {
                    let packet = queue.remove(which.map_or(0, |which| which.index(queue.len())));
                    self.deliver(*to_responder, &packet);
                }
            }
            Step::Drop { to_responder, which } => {
                let queue = self.queue(*to_responder);
                if !queue.is_empty() {
                    queue.remove(which.index(queue.len()));
                }
            }
            Step::Repeat { to_responder, which } => {
                let queue = self.queue(*to_responder);
                if !queue.is_empty() {
                    queue.push(queue[which.index(queue.len())].clone());
                }
            }
            Step::PostReceive => self.post_receive(),
            Step::Expire => {
                if self.a.requester.poll_timeout().is_some() {
                    self.a.expire();
                }
            }
        }
        self.check();
    }

    fn queue(&mut self, to_responder: bool) -> &mut Vec<PacketRepr> {
        if to_responder { &mut self.to_b } else { &mut self.to_a }
    }

    /// A packet that has no effect is as good as lost.
    fn deliver(&mut self, to_responder: bool, packet: &PacketRepr) {
        let _ = if to_responder { self.b.take(packet) } else { self.a.take(packet) };
    }

    fn post_receive(&mut self) {
        if self.posted_receives < MAX_MESSAGES {
            let sge = RECEIVES.sge(self.posted_receives, 4096);
            let wr_id = WrId::new(self.posted_receives as u64);
            self.b.receives.0.push_back(RecvWqe {
                wr_id,
                sges: [sge].into_iter().collect(),
                pd: PD,
                side: Side::Recv,
            });
            self.posted_receives += 1;
        }
    }

    /// The network behaves at last: everything arrives, in order. With retries left that must do.
    fn finish(&mut self) {
        let (una, left) = (self.a.requester.oldest_unacknowledged(), self.a.requester.retries_left());
        let hopeless = self.a.out.fatal;
        for _ in 0..10_000 {
            if self.a.out.fatal {
                let moved = self.a.requester.oldest_unacknowledged() != una;
                let enough = left >= 3 || (moved && self.a.params.retry_cnt >= 3);
                assert!(hopeless || !enough, "given up with {left} retries left");
                return;
            }
            if self.a.requester.is_empty() {
                return;
            }
            self.post_receive();
            let mut quiet = true;
            while let Some(packet) = self.a.request() {
                self.to_b.push(packet);
            }
            for packet in core::mem::take(&mut self.to_b) {
                quiet = false;
                self.deliver(true, &packet);
                self.check();
            }
            self.to_a.extend(self.b.replies());
            for packet in core::mem::take(&mut self.to_a) {
                quiet = false;
                if !self.a.out.fatal {
                    self.deliver(false, &packet);
                    self.check();
                }
            }
            // Where only local operations were left, nothing is to be waited for.
            if quiet && !self.a.requester.is_empty() {
                self.a.expire();
                self.check();
            }
        }
        panic!("no end in sight");
    }

    /// What holds at any time.
    fn check(&mut self) {
        assert!(!self.b.out.fatal, "nothing that was asked for is wrong");
        for (side, wc) in self.a.out.completions.drain(..) {
            assert_eq!(side, Side::Send);
            self.sent_done.push(wc);
        }
        for (side, wc) in self.b.out.completions.drain(..) {
            assert_eq!(side, Side::Recv);
            self.received.push(wc);
        }
        if self.a.out.fatal {
            return;
        }
        self.a.requester.assert_consistent(&self.a.params);
        let (una, high) = (self.a.requester.oldest_unacknowledged(), self.a.requester.next_psn());
        let epsn = self.b.responder.expected_psn();
        assert!(epsn.diff(una) >= 0 && epsn.diff(high) <= 0, "una {una}, ePSN {epsn}, high {high}");
        let executed = self.ends.iter().filter(|end| end.diff(epsn) <= 0).count();
        assert_eq!(self.b.responder.msn(), Msn::new(u32::try_from(executed).unwrap()), "R-RSP-24");
    }

    /// What holds at the end; gives how many messages were carried out for sure.
    fn verdict(&mut self) {
        let failed = self.a.out.fatal.then(|| self.sent_done.pop()).flatten();
        let done = match &failed {
            None => self.messages.len(),
            Some(wc) => {
                assert_eq!(wc.status, WcStatus::RetryExcErr, "the only error that loss may cause");
                usize::try_from(wc.wr_id.value()).unwrap()
            }
        };
        // Signalled ones before that completed, once each and in order (R-CMP-23, R-REQ-37).
        let signaled = (0..done).filter(|i| self.messages[*i].flags.contains(SendFlags::SIGNALED));
        let found: Vec<_> = self.sent_done.iter().map(|wc| (wc.wr_id.value(), wc.status)).collect();
        assert_eq!(found, signaled.map(|i| (i as u64, WcStatus::Success)).collect::<Vec<_>>());

        let (mut receives, mut sum, mut swaps) = (0, 0_u64, 0_u64);
        let mut written = vec![0; ROOM];
        let mut stored = [0; 8];
        for i in 0..self.messages.len() {
            let Message { kind, len, .. } = self.messages[i];
            let size = len as usize;
            let local = self.a.ram.bytes(LOCAL.0)[i * ROOM..i * ROOM + size].to_vec();
            let certain = i < done;
            match kind {
                Kind::Send | Kind::SendImm | Kind::SendInv | Kind::WriteImm => {
                    let Some(wc) = self.received.get(receives) else {
                        assert!(!certain, "message {i} was acknowledged and not received");
                        break;
                    };
                    assert_eq!((wc.wr_id.value(), wc.status), (receives as u64, WcStatus::Success));
                    let wants_imm = matches!(kind, Kind::SendImm | Kind::WriteImm);
                    let invalidated = matches!(kind, Kind::SendInv).then(|| key(i));
                    assert_eq!(wc.invalidated, invalidated);
                    assert_eq!((wc.byte_len, wc.imm), (len, wants_imm.then(|| imm(i))));
                    if wc.opcode == WcOpcode::Recv {
                        assert!(!matches!(kind, Kind::WriteImm));
                        let found = &self.b.ram.bytes(RECEIVES.0)[receives * ROOM..receives * ROOM + size];
                        assert!(found == local, "data of message {i}");
                    } else {
                        assert!(matches!(kind, Kind::WriteImm));
                        written[..size].copy_from_slice(&local);
                    }
                    receives += 1;
                }
                Kind::Write => written[..size].copy_from_slice(&local),
                Kind::Read if certain => {
                    let source = &self.b.ram.bytes(SOURCE.0)[i * ROOM..i * ROOM + size];
                    assert!(source == local, "data of READ {i}");
                }
                Kind::FetchAdd if certain => {
                    assert_eq!(local, sum.to_ne_bytes(), "FETCH_ADD {i}");
                    sum += i as u64 + 1;
                }
                Kind::CmpSwap if certain => {
                    assert_eq!(local, swaps.to_ne_bytes(), "CMP_SWAP {i}");
                    swaps += 1;
                }
                Kind::AtomicWrite => stored.copy_from_slice(&local),
                Kind::Read | Kind::FetchAdd | Kind::CmpSwap | Kind::Flush | Kind::Local => {}
            }
        }
        self.verdict_on_keys(done);
        if failed.is_none() {
            assert_eq!(self.received.len(), receives, "nothing is received twice");
            assert!(self.b.ram.bytes(WRITTEN.0) == written, "WRITEs are executed once and in order");
            assert_eq!(self.b.ram.bytes(WORDS.0), [sum.to_ne_bytes(), swaps.to_ne_bytes(), stored].concat());
        }
    }

    /// Local operations, invalidations and FLUSHes took effect once each, in order: those of the first `done` messages
    /// all, of the later ones the first few (R-REQ-46, R-RSP-60).
    fn verdict_on_keys(&self, done: usize) {
        let of = |wanted: fn(Kind) -> bool| {
            (0..self.messages.len()).filter(move |i| wanted(self.messages[*i].kind)).collect::<Vec<_>>()
        };
        let locals = of(|kind| matches!(kind, Kind::Local));
        let expected: Vec<_> = locals.iter().map(|i| local(*i)).collect();
        assert!(expected.starts_with(&self.a.ram.executed));
        assert!(self.a.ram.executed.len() >= locals.iter().filter(|i| **i < done).count());
        let sends = of(|kind| matches!(kind, Kind::SendInv));
        let expected: Vec<_> = sends.iter().map(|i| LocalOp::Invalidate { rkey: key(*i) }).collect();
        assert!(expected.starts_with(&self.b.ram.executed));
        assert!(self.b.ram.executed.len() >= sends.iter().filter(|i| **i < done).count());
        let flushes = of(|kind| matches!(kind, Kind::Flush));
        let expected: Vec<_> =
            flushes.iter().map(|i| (Some((WRITTEN.va(*i), 8)), Access::FLUSH_GLOBAL)).collect();
        assert!(expected.starts_with(&self.b.ram.flushed));
        assert!(self.b.ram.flushed.len() >= flushes.iter().filter(|i| **i < done).count());
    }
}

/// A key at the responder that message `i` invalidates.
fn key(i: usize) -> RKey {
    RKey::new(0x1_0000 + u32::try_from(i).unwrap())
}

/// What message `i` does where it is a local operation.
fn local(i: usize) -> LocalOp {
    let (mr, iova) = (LKey::new(0x700), VirtAddr::new(i as u64));
    LocalOp::Register { mr, variant: 1, iova, length: 1, access: Access::empty() }
}

fn imm(i: usize) -> [u8; 4] {
    u32::try_from(i).unwrap().to_be_bytes()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_message_arrives_once_in_order_or_the_connection_ends(
        connection in connections(),
        messages in messages(),
        steps in steps(),
    ) {
        let mut pair = Pair::new(&connection, messages);
        for step in &steps {
            pair.run(step);
            if pair.a.out.fatal {
                break;
            }
        }
        pair.finish();
        pair.check();
        pair.verdict();
    }

    #[test]
    fn without_loss_there_is_no_retry(connection in connections(), messages in messages()) {
        // Rule R-REQ-49: one question for each message at most, and none where the timeout leaves no time for it.
        let questions = if connection.timeout == 8 { 0 } else { messages.len() as u64 };
        let mut pair = Pair::new(&connection, messages);
        for _ in 0..MAX_MESSAGES {
            pair.post_receive();
        }
        pair.finish();
        pair.check();
        pair.verdict();
        prop_assert!(!pair.a.out.fatal);
        let counters = &pair.a.out.counters;
        prop_assert_eq!(
            counters.local_ack_timeout_err + counters.packet_seq_err + counters.implied_nak_seq_err,
            0
        );
        prop_assert!(pair.b.out.counters.duplicate_request <= questions);
    }
}
