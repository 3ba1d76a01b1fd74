//! Requests that a kernel or a test program sent, into our responder; its answers next to the kernel's.

use qp::{
    Access, CqId, MrInfo, MwRange, MwType, Nic, NicConfig, PdId, Profile, QpCap, QpInit, QpType, RecvWr,
    SendWr, Sge,
};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::ext::{AtomicEth, Ieth, Reth};
use wire::opcode::Kind;
use wire::repr::PacketRepr;
use wire::{Duration, Ext, Instant, Mtu, Psn, Qpn, RKey, VirtAddr};

use super::recording::Conversation;
use crate::harness::{Conn, Sent};

/// Bytes of the responder's region in all recorded programs.
const REGION: usize = 64 << 10;

/// A NIC whose queue pair takes the recorded responder's place.
pub(super) struct Replay<'a> {
    conversation: &'a Conversation,
    setup: &'a Setup,
    nic: Nic,
    qpn: Qpn,
    region: MrInfo,
    buffer: MrInfo,
    /// Address and key of the region in the recording.
    base: u64,
    key: Option<RKey>,
    /// The key in its place here.
    own_key: RKey,
}

/// What the program on the responder had set up.
pub(super) struct Setup {
    pub(super) first_psn: Psn,
    pub(super) receives: usize,
    pub(super) receive_len: u32,
    /// The receives were posted at this time of the recording.
    pub(super) posted_at: Instant,
    pub(super) min_rnr_timer: u8,
    pub(super) access: Access,
}

impl<'a> Replay<'a> {
    pub(super) fn new(conversation: &'a Conversation, setup: &'a Setup, profile: Profile) -> Self {
        let caps = Caps {
            max_segments: 16,
            max_bytes: 65_000,
            ip_id: IpIdRule::Ours,
            sees_ip_header: true,
            window: 64,
            credit: u32::MAX,
            src_port: None,
        };
        let gids = vec![conversation.responder];
        let mut nic = Nic::new(NicConfig::new(gids, Mtu::B4096, caps, 1, profile));
        let pd = nic.alloc_pd();
        let cq: CqId = nic.create_cq(256).unwrap();
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let all = remote | Access::LOCAL_WRITE | Access::MW_BIND;
        let used = conversation.requests().filter_map(place).collect::<Vec<_>>();
        // The recorded regions begin on a page.
        let base = used.iter().map(|(va, _)| va.value()).min().unwrap_or(0) & !0xFFF;
        let region = nic.reg_mr(pd, first_bytes(conversation, base), all).unwrap();
        let buffer = nic.reg_mr(pd, vec![0; 1 << 16], Access::LOCAL_WRITE).unwrap();
        let cap = QpCap::default();
        let init = QpInit { cap, sq_sig_all: true, ..QpInit::new(QpType::Rc, pd, cq, cq) };
        let qpn = nic.create_qp(init).unwrap();
        let peer = (conversation.requester, Qpn::new(0x77));
        let conn = Conn {
            mtu: conversation.mtu,
            access: setup.access,
            min_rnr_timer: setup.min_rnr_timer,
            ..Conn::default()
        };
        let psns = [0x00_ABCD, setup.first_psn.value()];
        conn.establish(&mut nic, Instant::ZERO, qpn, peer, psns).unwrap();
        let key = used.first().map(|(_, key)| *key);
        let own_key = region.rkey;
        let mut replay = Self { conversation, setup, nic, qpn, region, buffer, base, key, own_key };
        if conversation.requests().any(|packet| packet.ext.iter().any(|ext| matches!(ext, Ext::Ieth(_)))) {
            // What a peer invalidates is a type 2 window.
            replay.own_key = replay.bind_window(pd);
        }
        replay
    }

    /// Binds a window to all of the region, as the recorded program did; gives its key.
    fn bind_window(&mut self, pd: PdId) -> RKey {
        let (window, region) = (self.nic.alloc_mw(pd, MwType::Type2).unwrap(), &self.region);
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let range = MwRange { mr: region.lkey, va: region.addr, length: region.length as u64, access };
        self.nic.post_send(Instant::ZERO, self.qpn, SendWr::bind_mw(0, window, 0x42, &range)).unwrap();
        assert!(!self.nic.poll_transmit(Instant::ZERO, &mut TxBatch::new()), "it sends nothing");
        window.with_variant(0x42)
    }

    fn post_receives(&mut self) {
        for n in 0..self.setup.receives {
            let Self { buffer, setup, .. } = self;
            let sge = Sge { addr: buffer.addr, length: setup.receive_len, lkey: buffer.lkey };
            self.nic.post_recv(Instant::ZERO, self.qpn, RecvWr::new(n as u64, &[sge])).unwrap();
        }
    }

    /// All answers to the recorded requests, in order.
    pub(super) fn run(&mut self) -> Vec<Sent> {
        let mut now = Instant::ZERO;
        let mut out = Vec::new();
        let mut batch = TxBatch::new();
        let mut posted = false;
        for recorded in self.conversation.packets.iter().filter(|recorded| recorded.is_request) {
            now += Duration::from_micros(10);
            if recorded.at >= self.setup.posted_at && !core::mem::replace(&mut posted, true) {
                self.post_receives();
            }
            let packet = self.translate(&recorded.packet);
            let mut body = Vec::new();
            packet.emit_body(&mut body);
            let mut burst = RxBurst::new();
            burst.push(packet.net, HeaderKnowledge::Seen, &body);
            self.nic.handle_burst(now, &burst);
            while self.nic.poll_transmit(now, &mut batch) {
                out.extend(batch.iter().map(|(net, body)| Sent::parse(net, body)));
            }
        }
        out
    }

    /// The request with our queue pair, keys and addresses in place of the recorded ones.
    fn translate(&self, request: &PacketRepr) -> PacketRepr {
        let mut packet = request.clone();
        let was_right = {
            let mut copy = packet.clone();
            copy.refill_icrc();
            copy.icrc == packet.icrc
        };
        if packet.bth.dest_qp() == self.conversation.responder_qpn && self.conversation.name != "no_qp" {
            packet.bth = packet.bth.with_dest_qp(self.qpn);
        }
        for ext in &mut packet.ext {
            match ext {
                Ext::Reth(reth) => {
                    *reth = Reth::new(self.va(reth.va()), self.rkey(reth.rkey()), reth.dma_len());
                }
                Ext::Ieth(ieth) => *ieth = Ieth::new(self.rkey(ieth.rkey())),
                Ext::AtomicEth(atomic) => {
                    let (va, rkey) = (self.va(atomic.va()), self.rkey(atomic.rkey()));
                    *atomic = AtomicEth::new(va, rkey, atomic.swap_or_add(), atomic.compare());
                }
                _ => {}
            }
        }
        packet.refill_icrc();
        if !was_right {
            packet.icrc ^= 1;
        }
        packet
    }

    fn va(&self, recorded: VirtAddr) -> VirtAddr {
        VirtAddr::new(recorded.value().wrapping_sub(self.base).wrapping_add(self.region.addr.value()))
    }

    /// The recorded programs use one key; one that differs from it is wrong on purpose.
    fn rkey(&self, recorded: RKey) -> RKey {
        let wrong = Some(recorded) != self.key;
        RKey::new(self.own_key.value() ^ if wrong { 0x55 } else { 0 })
    }
}

/// Address and key that a request names.
fn place(request: &PacketRepr) -> Option<(VirtAddr, RKey)> {
    request.ext.iter().find_map(|ext| match ext {
        Ext::Reth(reth) => Some((reth.va(), reth.rkey())),
        Ext::AtomicEth(atomic) => Some((atomic.va(), atomic.rkey())),
        _ => None,
    })
}

/// What the region held before the first request, as far as the answers tell: the recording shows only what was
/// read. A byte that was written before it was read is left to our own responder.
fn first_bytes(conversation: &Conversation, base: u64) -> Vec<u8> {
    let mtu = u64::from(conversation.mtu.bytes());
    let mut bytes = vec![0; REGION];
    let mut settled = vec![false; REGION];
    // Where the data of a PSN lie, for READs and atomics; and the WRITE that is under way.
    let mut asked: Vec<(Psn, u32, u64)> = Vec::new();
    let mut write = None;
    let mut settle = |at: u64, data: &[u8], known: bool| {
        for (n, byte) in data.iter().enumerate() {
            let place = usize::try_from(at - base).unwrap() + n;
            if place < REGION && !core::mem::replace(&mut settled[place], true) && known {
                bytes[place] = *byte;
            }
        }
    };
    for recorded in &conversation.packets {
        let (packet, psn) = (&recorded.packet, recorded.packet.bth.psn());
        let Some(info) = packet.bth.opcode().info() else { continue };
        let place = place(packet).map(|(va, _)| va.value());
        let dma_len = packet.ext.iter().find_map(|ext| match ext {
            Ext::Reth(reth) => Some(reth.dma_len()),
            _ => None,
        });
        match info.kind {
            Kind::Write => {
                write = place.map(|va| (psn, va)).or(write);
                if let Some((first, va)) = write {
                    settle(va + u64::from(psn.steps_from(first)) * mtu, &packet.payload, false);
                }
            }
            Kind::Read | Kind::Atomic => {
                let span = dma_len.unwrap_or(8).div_ceil(conversation.mtu.bytes()).max(1);
                asked.push((psn, span, place.unwrap()));
            }
            Kind::ReadResponse | Kind::AtomicAcknowledge => {
                let Some((first, _, va)) = asked.iter().find(|(first, span, _)| psn.in_window(*first, *span))
                else {
                    continue;
                };
                let data = packet.ext.iter().find_map(|ext| match ext {
                    Ext::AtomicAckEth(ack) => Some(ack.original().to_ne_bytes().to_vec()),
                    _ => None,
                });
                let at = va + u64::from(psn.steps_from(*first)) * mtu;
                settle(at, data.as_deref().unwrap_or(&packet.payload), true);
            }
            _ => {}
        }
    }
    bytes
}
