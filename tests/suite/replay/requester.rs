//! Answers that a kernel's responder sent, into our requester; its requests and completions next to the kernel's.

use qp::{Access, CqId, MrInfo, Nic, NicConfig, Profile, QpCap, QpInit, QpType, SendWr, Sge};
use transport::{Completion, WcStatus};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::ext::AtomicEth;
use wire::opcode::Kind;
use wire::{Duration, Ext, Instant, Mtu, Operation, Psn, Qpn, RKey, VirtAddr};

use super::parse;
use super::recording::{Conversation, Recorded};
use crate::harness::{Conn, Sent};

/// Bytes of local memory for each work request.
const SLOT: usize = 16 << 10;

/// A work request, as the recorded requests show it.
struct Work {
    /// When its first packet was sent.
    at: Instant,
    operation: Operation,
    first: Psn,
    /// Address, key and length.
    reth: Option<(u64, u32, u32)>,
    atomic: Option<AtomicEth>,
    imm: Option<[u8; 4]>,
    inv: Option<RKey>,
    solicited: bool,
    content: Vec<u8>,
}

impl Work {
    fn kind(&self) -> Kind {
        wire::Opcode::rc(self.operation).info().unwrap().kind
    }

    fn span(&self, mtu: Mtu) -> u32 {
        let length = match self.kind() {
            Kind::Read => self.reth.unwrap().2,
            _ => u32::try_from(self.content.len()).unwrap(),
        };
        length.div_ceil(mtu.bytes()).max(1)
    }
}

/// What our requester did.
pub(super) struct Outcome {
    /// Every packet, in order.
    pub(super) sent: Vec<Sent>,
    pub(super) statuses: Vec<WcStatus>,
}

/// The recorded requests that were sent for the first time: repeats are left out.
pub(super) fn first_sent(conversation: &Conversation) -> Vec<(Instant, Sent)> {
    let mut next: Option<Psn> = None;
    let mut out = Vec::new();
    for Recorded { at, packet, .. } in conversation.packets.iter().filter(|recorded| recorded.is_request) {
        let sent = parse(packet);
        if next.is_none_or(|next| sent.psn == next) {
            next = Some(sent.psn.wrapping_add(span(&sent, conversation.mtu)));
            out.push((*at, sent));
        }
    }
    out
}

/// PSNs that one request packet takes.
fn span(sent: &Sent, mtu: Mtu) -> u32 {
    match (sent.operation, sent.reth) {
        (Operation::ReadRequest, Some((.., len))) => len.div_ceil(mtu.bytes()).max(1),
        _ => 1,
    }
}

fn works(conversation: &Conversation) -> Vec<Work> {
    let atomic = |psn: Psn| {
        let mut same = conversation.requests().filter(|packet| packet.bth.psn() == psn);
        same.next()?.ext.iter().find_map(|ext| match ext {
            Ext::AtomicEth(atomic) => Some(*atomic),
            _ => None,
        })
    };
    let mut out: Vec<Work> = Vec::new();
    for (at, sent) in first_sent(conversation) {
        let info = wire::Opcode::rc(sent.operation).info().unwrap();
        if info.position.starts() {
            out.push(Work {
                at,
                operation: sent.operation,
                first: sent.psn,
                reth: sent.reth,
                atomic: atomic(sent.psn),
                imm: None,
                inv: None,
                solicited: false,
                content: Vec::new(),
            });
        }
        let work = out.last_mut().unwrap();
        work.content.extend(&sent.payload);
        work.imm = sent.imm.or(work.imm);
        work.inv = sent.inv.or(work.inv);
        work.solicited |= sent.solicited;
    }
    out
}

/// Our requester in the place of the recorded one.
pub(super) struct Replay<'a> {
    conversation: &'a Conversation,
    nic: Nic,
    qpn: Qpn,
    cq: CqId,
    memory: MrInfo,
    works: Vec<Work>,
    now: Instant,
    sent: Vec<Sent>,
}

impl<'a> Replay<'a> {
    pub(super) fn new(conversation: &'a Conversation, conn: Conn, profile: Profile) -> Self {
        let caps = Caps {
            max_segments: 16,
            max_bytes: 65_000,
            ip_id: IpIdRule::Ours,
            sees_ip_header: true,
            window: 64,
            credit: u32::MAX,
            src_port: None,
        };
        let gids = vec![conversation.requester];
        let mut nic = Nic::new(NicConfig::new(gids, Mtu::B4096, caps, 1, profile));
        let works = works(conversation);
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(256).unwrap();
        let mut bytes = vec![0xEE; SLOT * works.len()];
        for (slot, work) in bytes.chunks_exact_mut(SLOT).zip(&works) {
            slot[..work.content.len()].copy_from_slice(&work.content);
        }
        let memory = nic.reg_mr(pd, bytes, Access::LOCAL_WRITE).unwrap();
        let cap = QpCap::default();
        let init = QpInit { cap, sq_sig_all: true, ..QpInit::new(QpType::Rc, pd, cq, cq) };
        let qpn = nic.create_qp(init).unwrap();
        let conn = Conn { mtu: conversation.mtu, ..conn };
        let peer = (conversation.responder, conversation.responder_qpn);
        let psns = [works[0].first.value(), 0x00_ABCD];
        conn.establish(&mut nic, Instant::ZERO, qpn, peer, psns).unwrap();
        Self { conversation, nic, qpn, cq, memory, works, now: Instant::ZERO, sent: Vec::new() }
    }

    /// Posts each work request when the kernel first sent it, gives each answer when the kernel got it, and lets
    /// time pass until nothing is left to wait for.
    pub(super) fn run(mut self) -> Outcome {
        let mut posted = 0;
        for recorded in &self.conversation.packets {
            self.pass_time(recorded.at);
            while self.works.get(posted).is_some_and(|work| work.at <= recorded.at) {
                self.post(posted);
                posted += 1;
            }
            self.transmit();
            if !recorded.is_request {
                self.answer(recorded);
                self.transmit();
            }
        }
        self.pass_time(self.now + Duration::from_secs(60));
        assert_eq!(self.nic.poll_timeout(), None, "{}: still waiting", self.conversation.name);
        let mut done: Vec<Completion> = Vec::new();
        self.nic.poll_cq(self.cq, usize::MAX, &mut done);
        let ids: Vec<_> = done.iter().map(|wc| wc.wr_id.value()).collect();
        assert_eq!(ids, (0..self.works.len() as u64).collect::<Vec<_>>(), "{}", self.conversation.name);
        let statuses: Vec<_> = done.iter().map(|wc| wc.status).collect();
        for (n, status) in statuses.iter().enumerate() {
            if *status == WcStatus::Success {
                self.check_data(n);
            }
        }
        Outcome { sent: self.sent, statuses }
    }

    fn slot(&self, n: usize, length: u32) -> Sge {
        Sge { addr: self.memory.addr.wrapping_add((n * SLOT) as u64), length, lkey: self.memory.lkey }
    }

    fn post(&mut self, n: usize) {
        let work = &self.works[n];
        let id = n as u64;
        let length = u32::try_from(work.content.len()).unwrap();
        let (va, rkey, asked) = work.reth.unwrap_or_default();
        let (va, rkey) = (VirtAddr::new(va), RKey::new(rkey));
        let from = [self.slot(n, length)];
        let mut wr = match (work.kind(), work.imm) {
            (Kind::Send, None) => match work.inv {
                Some(rkey) => SendWr::send_inv(id, &from, rkey),
                None => SendWr::send(id, &from),
            },
            (Kind::Send, Some(imm)) => SendWr::send_imm(id, &from, imm),
            (Kind::Write, None) => SendWr::write(id, &from, va, rkey),
            (Kind::Write, Some(imm)) => SendWr::write_imm(id, &from, va, rkey, imm),
            (Kind::Read, _) => SendWr::read(id, &[self.slot(n, asked)], va, rkey),
            (Kind::Atomic, _) => {
                let (atomic, to) = (work.atomic.unwrap(), self.slot(n, 8));
                let (va, rkey, operand) = (atomic.va(), atomic.rkey(), atomic.swap_or_add());
                match work.operation {
                    Operation::CmpSwap => SendWr::cmp_swap(id, to, va, rkey, atomic.compare(), operand),
                    _ => SendWr::fetch_add(id, to, va, rkey, operand),
                }
            }
            (other, _) => panic!("a request {other:?}"),
        };
        if work.solicited {
            wr = wr.solicited();
        }
        self.nic.post_send(self.now, self.qpn, wr).unwrap();
    }

    fn answer(&mut self, recorded: &Recorded) {
        let mut packet = recorded.packet.clone();
        packet.bth = packet.bth.with_dest_qp(self.qpn);
        packet.refill_icrc();
        let mut body = Vec::new();
        packet.emit_body(&mut body);
        let mut burst = RxBurst::new();
        burst.push(packet.net, HeaderKnowledge::Seen, &body);
        self.nic.handle_burst(self.now, &burst);
    }

    fn pass_time(&mut self, until: Instant) {
        while let Some(at) = self.nic.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.nic.handle_timeout(self.now);
            self.transmit();
        }
        self.now = self.now.max(until);
    }

    fn transmit(&mut self) {
        let mut batch = TxBatch::new();
        while self.nic.poll_transmit(self.now, &mut batch) {
            self.sent.extend(batch.iter().map(|(net, body)| Sent::parse(net, body)));
        }
    }

    /// A READ or an atomic has brought what the answers hold, and else nothing has changed.
    fn check_data(&self, n: usize) {
        let work = &self.works[n];
        let mtu = self.conversation.mtu;
        let mut expected = vec![0xEE; SLOT];
        expected[..work.content.len()].copy_from_slice(&work.content);
        for answer in self.conversation.answers().map(parse) {
            if !answer.psn.in_window(work.first, work.span(mtu)) {
                continue;
            }
            let at = (answer.psn.steps_from(work.first) * mtu.bytes()) as usize;
            expected[at..at + answer.payload.len()].copy_from_slice(&answer.payload);
            if let Some(original) = answer.original {
                expected[..8].copy_from_slice(&original.to_ne_bytes());
            }
        }
        let bytes = self.nic.mr_bytes(self.memory.lkey, n * SLOT, SLOT).unwrap();
        assert!(bytes == expected, "{}: work request {n} has other data", self.conversation.name);
    }
}

/// Our packets that went out for the first time, and for each other one whether it is the same as it was then, or
/// asks for the rest of a READ.
pub(super) fn split_repeats(name: &str, sent: &[Sent], mtu: Mtu) -> Vec<Sent> {
    let mut first: Vec<Sent> = Vec::new();
    let mut next: Option<Psn> = None;
    for packet in sent {
        if next.is_none_or(|next| packet.psn == next) {
            next = Some(packet.psn.wrapping_add(span(packet, mtu)));
            first.push(packet.clone());
            continue;
        }
        let before = first.iter().find(|before| packet.psn.in_window(before.psn, span(before, mtu)));
        let before = before.unwrap_or_else(|| panic!("{name}: a PSN is left out before {packet:?}"));
        let skipped = packet.psn.steps_from(before.psn) * mtu.bytes();
        let reth = before.reth.map(|(va, key, len)| (va + u64::from(skipped), key, len - skipped));
        let expected = Sent { psn: packet.psn, ack_req: packet.ack_req, reth, ..before.clone() };
        assert_eq!(*packet, expected, "{name}: repeated otherwise than it was sent");
    }
    first
}
