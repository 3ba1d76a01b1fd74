//! Recorded messages of unreliable connections and datagrams: into our receiver, and out of our sender once more.
//! Nothing is answered, so what arrives and what is sent is all there is.

use qp::{
    Access, AddressVector, AttrMask, CqId, DropReason, MrInfo, Nic, NicConfig, PdId, Profile, QpAttr, QpCap,
    QpInit, QpState, QpType, RecvWr, SendWr, Sge, WcOpcode,
};
use transport::{Completion, WcStatus};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::ext::{Deth, Reth};
use wire::opcode::Kind;
use wire::repr::PacketRepr;
use wire::{Ext, Gid, Instant, Mtu, QKey, Qpn, RKey, VirtAddr};

use super::recording::Conversation;

/// Queue key of all recorded datagram queue pairs.
const QKEY: QKey = QKey::new(0x1111_1111);
/// Bytes of local memory for each message, and what they hold before.
const SLOT: usize = 16 << 10;
const UNTOUCHED: u8 = 0xEE;
/// Where the network header of a datagram ends and its payload begins (field case F36).
const GRH: usize = 40;

/// A message, as its packets show it.
pub(super) struct Message {
    kind: Kind,
    content: Vec<u8>,
    reth: Option<Reth>,
    imm: Option<[u8; 4]>,
    deth: Option<Deth>,
}

impl Message {
    fn uses_receive(&self) -> bool {
        self.kind == Kind::Send || self.imm.is_some()
    }
}

/// The messages of a recording, in order.
pub(super) fn messages(conversation: &Conversation) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::new();
    for packet in conversation.requests() {
        let info = packet.bth.opcode().info().unwrap();
        if info.position.starts() {
            let content = Vec::new();
            out.push(Message { kind: info.kind, content, reth: None, imm: None, deth: None });
        }
        let message = out.last_mut().unwrap();
        message.content.extend(&packet.payload);
        for ext in &packet.ext {
            match ext {
                Ext::Reth(reth) => message.reth = Some(*reth),
                Ext::ImmDt(imm) => message.imm = Some(imm.bytes()),
                Ext::Deth(deth) => message.deth = Some(*deth),
                other => panic!("{}: {other:?}", conversation.name),
            }
        }
    }
    out
}

/// A NIC in the place of one of the recorded ends, with a slot of memory for each message.
struct End<'a> {
    conversation: &'a Conversation,
    messages: &'a [Message],
    nic: Nic,
    pd: PdId,
    cq: CqId,
    qpn: Qpn,
    memory: MrInfo,
}

impl<'a> End<'a> {
    fn new(
        conversation: &'a Conversation,
        messages: &'a [Message],
        ends: [Gid; 2],
        profile: Profile,
    ) -> Self {
        let [own, peer] = ends;
        let caps = Caps {
            max_segments: 16,
            max_bytes: 65_000,
            ip_id: IpIdRule::Ours,
            sees_ip_header: true,
            window: 64,
            credit: u32::MAX,
            src_port: None,
        };
        let mut nic = Nic::new(NicConfig::new(vec![own], Mtu::B4096, caps, 1, profile));
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(64).unwrap();
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = nic.reg_mr(pd, vec![UNTOUCHED; SLOT * messages.len()], all).unwrap();
        let cap = QpCap::default();
        let qp_type = if messages[0].deth.is_some() { QpType::Ud } else { QpType::Uc };
        let init = QpInit { cap, sq_sig_all: true, ..QpInit::new(qp_type, pd, cq, cq) };
        let qpn = nic.create_qp(init).unwrap();
        let mut end = Self { conversation, messages, nic, pd, cq, qpn, memory };
        end.establish(qp_type, peer);
        end
    }

    /// To RTS, with the recorded PSN as the first of either direction.
    fn establish(&mut self, qp_type: QpType, peer: Gid) {
        let first = self.conversation.requests().next().unwrap().bth.psn();
        let attr = QpAttr {
            access: Access::REMOTE_WRITE,
            addr: AddressVector { dgid: peer, ..AddressVector::default() },
            path_mtu: self.conversation.mtu,
            dest_qpn: self.conversation.responder_qpn,
            rq_psn: first,
            sq_psn: first,
            qkey: QKEY,
            ..QpAttr::default()
        };
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let attr = QpAttr { state, ..attr };
            let mask = AttrMask::to_enter(qp_type, state);
            self.nic.modify_qp(Instant::ZERO, self.qpn, &attr, mask).unwrap();
        }
    }

    fn slot(&self, n: usize, length: usize) -> Sge {
        let addr = self.memory.addr.wrapping_add((n * SLOT) as u64);
        Sge { addr, length: u32::try_from(length).unwrap(), lkey: self.memory.lkey }
    }

    fn completions(&mut self) -> Vec<Completion> {
        let mut out = Vec::new();
        self.nic.poll_cq(self.cq, usize::MAX, &mut out);
        out
    }
}

/// The recorded packets into our receiver: what arrives is what they say, and nothing else changes. `headers` are
/// the IP headers of the frames.
pub(super) fn receive(conversation: &Conversation, headers: &[Vec<u8>], profile: Profile) {
    let (name, messages) = (&conversation.name, messages(conversation));
    let ends = [conversation.responder, conversation.requester];
    let mut end = End::new(conversation, &messages, ends, profile);
    // Message n lies in slot n; those that need no receive, or do not get one, leave it to the next.
    let accepted = |message: &Message| message.deth.is_none_or(|deth| deth.qkey() == QKEY);
    let taken: Vec<usize> =
        (0..messages.len()).filter(|n| accepted(&messages[*n]) && messages[*n].uses_receive()).collect();
    for n in &taken {
        let length = if messages[*n].kind == Kind::Send { SLOT } else { 0 };
        let wr = RecvWr::new(*n as u64, &[end.slot(*n, length)]);
        end.nic.post_recv(Instant::ZERO, end.qpn, wr).unwrap();
    }
    let mut message = 0;
    for packet in conversation.requests() {
        let info = packet.bth.opcode().info().unwrap();
        let packet = to_slot(&end, message, packet);
        message += usize::from(info.position.ends());
        let mut body = Vec::new();
        packet.emit_body(&mut body);
        let mut burst = RxBurst::new();
        burst.push(packet.net, HeaderKnowledge::Seen, &body);
        end.nic.handle_burst(Instant::ZERO, &burst);
        assert!(!end.nic.poll_transmit(Instant::ZERO, &mut TxBatch::new()), "{name}: it is answered");
    }
    check_completions(&mut end, &taken);
    for (n, message) in messages.iter().enumerate() {
        let mut expected = vec![UNTOUCHED; SLOT];
        let mut at = 0;
        if message.deth.is_some() && accepted(message) {
            // Each datagram is one packet.
            let header = &headers[n];
            expected[..GRH].fill(0);
            expected[GRH - header.len()..GRH].copy_from_slice(header);
            at = GRH;
        }
        if accepted(message) {
            expected[at..at + message.content.len()].copy_from_slice(&message.content);
        }
        let bytes = end.nic.mr_bytes(end.memory.lkey, n * SLOT, SLOT).unwrap();
        assert!(bytes == expected, "{name}: message {n} has other data");
    }
    let refused = messages.iter().filter(|message| !accepted(message)).count() as u64;
    let dropped: Vec<_> = end.nic.drops().iter().filter(|(_, count)| *count > 0).collect();
    let expected = if refused == 0 { vec![] } else { vec![(DropReason::QKeyMismatch, refused)] };
    assert_eq!(dropped, expected, "{name}");
}

/// One good completion for each of these messages.
fn check_completions(end: &mut End<'_>, taken: &[usize]) {
    let done = end.completions();
    assert_eq!(done.len(), taken.len(), "{}: {done:?}", end.conversation.name);
    for (wc, n) in done.iter().zip(taken) {
        let message = &end.messages[*n];
        let (header, src_qp) = match message.deth {
            Some(deth) => (GRH, deth.src_qp()),
            None => (0, end.conversation.responder_qpn),
        };
        let opcode = if message.kind == Kind::Send { WcOpcode::Recv } else { WcOpcode::RecvRdmaWithImm };
        let length = u32::try_from(header + message.content.len()).unwrap();
        let seen = (wc.wr_id.value(), wc.status, wc.opcode, wc.byte_len, wc.imm, wc.src_qp, wc.grh);
        let expected =
            (*n as u64, WcStatus::Success, opcode, length, message.imm, src_qp, message.deth.is_some());
        assert_eq!(seen, expected, "{}", end.conversation.name);
    }
}

/// The packet with our queue pair in place of the recorded one; a WRITE goes to slot `n`.
fn to_slot(end: &End<'_>, n: usize, packet: &PacketRepr) -> PacketRepr {
    let mut packet = packet.clone();
    packet.bth = packet.bth.with_dest_qp(end.qpn);
    for ext in &mut packet.ext {
        if let Ext::Reth(reth) = ext {
            *reth = Reth::new(end.slot(n, 0).addr, end.memory.rkey, reth.dma_len());
        }
    }
    packet.refill_icrc();
    packet
}

/// The recorded work requests to our sender: the same packets leave, and all complete.
pub(super) fn send(conversation: &Conversation, profile: Profile) {
    let (name, messages) = (&conversation.name, messages(conversation));
    let ends = [conversation.requester, conversation.responder];
    let mut end = End::new(conversation, &messages, ends, profile);
    let addr = AddressVector { dgid: conversation.responder, ..AddressVector::default() };
    let way = end.nic.create_ah(end.pd, addr).unwrap();
    for (n, message) in messages.iter().enumerate() {
        let content = &message.content;
        end.nic.mr_bytes_mut(end.memory.lkey, n * SLOT, content.len()).unwrap().copy_from_slice(content);
        let (id, from) = (n as u64, [end.slot(n, content.len())]);
        let (va, rkey) =
            message.reth.map_or((VirtAddr::new(0), RKey::new(0)), |reth| (reth.va(), reth.rkey()));
        let mut wr = match (message.kind, message.imm) {
            (Kind::Send, None) => SendWr::send(id, &from),
            (Kind::Send, Some(imm)) => SendWr::send_imm(id, &from, imm),
            (_, None) => SendWr::write(id, &from, va, rkey),
            (_, Some(imm)) => SendWr::write_imm(id, &from, va, rkey, imm),
        };
        if let Some(deth) = message.deth {
            wr = wr.to(way, conversation.responder_qpn, deth.qkey());
        }
        end.nic.post_send(Instant::ZERO, end.qpn, wr).unwrap();
    }
    let mut batch = TxBatch::new();
    let mut ours = Vec::new();
    while end.nic.poll_transmit(Instant::ZERO, &mut batch) {
        ours.extend(batch.iter().map(|(net, body)| PacketRepr::parse_body(net, body).unwrap()));
    }
    let theirs: Vec<_> = conversation.requests().map(|packet| from_ours(&end, packet, profile)).collect();
    assert_eq!(ours.len(), theirs.len(), "{name}");
    for (our, their) in ours.iter().zip(&theirs) {
        let mut intact = our.clone();
        intact.refill_icrc();
        assert_eq!(our.icrc, intact.icrc, "{name}: wrong ICRC");
        let gids = |packet: &PacketRepr| (packet.net.src_gid(), packet.net.dst_gid());
        assert_eq!(gids(our), gids(their), "{name}");
        let parts = |packet: &PacketRepr| {
            (packet.bth, packet.ext.clone(), packet.payload.clone(), packet.pad.clone())
        };
        assert_eq!(parts(our), parts(their), "{name}");
    }
    let done = end.completions();
    let statuses: Vec<_> = done.iter().map(|wc| (wc.wr_id.value(), wc.status)).collect();
    let expected: Vec<_> = (0..messages.len() as u64).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(statuses, expected, "{name}");
}

/// The packet with our queue pair as the datagram's sender, and with MigReq as the profile has it; rxe 6.1 leaves it
/// out (R-WIR-34).
fn from_ours(end: &End<'_>, packet: &PacketRepr, profile: Profile) -> PacketRepr {
    let mut packet = packet.clone();
    packet.bth = packet.bth.with_migreq(profile.behaviour().migreq);
    for ext in &mut packet.ext {
        if let Ext::Deth(deth) = ext {
            *deth = Deth::new(deth.qkey(), end.qpn);
        }
    }
    packet
}
