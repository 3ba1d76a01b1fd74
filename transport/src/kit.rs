//! What the unit tests stand on: memory, receives and packets, without a NIC around them.
//!
//! An [`End`] is one end of a connection with its world; packets are shown as the one-line printer of `wire`
//! shows them, from the operation on.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use wire::ext::{AtomicAckEth, AtomicEth, Reth};
use wire::{
    Bth, Duration, Ext, Instant, LKey, Msn, Mtu, NetHeader, Opcode, Operation, PKey, Packet, PacketRepr, Psn,
    Qpn, RKey, RnrTimer, Syndrome, VirtAddr, WrId,
};

use crate::completion::{Completion, WcStatus};
use crate::drop::DropReason;
use crate::local::{KeyError, LocalOp};
use crate::params::RcParams;
use crate::ports::{Access, AccessError, AtomicOp, Ctx, Effects, Memory, PdId, RecvQueue, Side, Via};
use crate::profile::Behaviour;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::wqe::{RecvWqe, SendFlags, SendOp, SendWqe, Sge, SgeList};

/// The domain of every queue pair here.
pub(crate) const PD: PdId = PdId(3);
/// Address of the first byte of the region that every end has.
pub(crate) const BASE: u64 = 0x1000;
/// Key of that region.
pub(crate) const KEY: u32 = 0x100;
/// Its size.
pub(crate) const SIZE: usize = 1 << 16;

pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

struct Region {
    key: u32,
    base: u64,
    access: Access,
    bytes: Vec<u8>,
}

/// Registered memory: a list of regions, and what was done with keys.
#[derive(Default)]
pub(crate) struct Ram {
    regions: Vec<Region>,
    /// Local operations and invalidations that were carried out, in order.
    pub(crate) executed: Vec<LocalOp>,
    /// FLUSHes that were carried out: the range, and where to.
    pub(crate) flushed: Vec<(Option<(VirtAddr, u64)>, Access)>,
}

impl Ram {
    pub(crate) fn add(&mut self, key: u32, base: u64, access: Access, bytes: Vec<u8>) {
        self.regions.push(Region { key, base, access, bytes });
    }

    pub(crate) fn remove(&mut self, key: u32) {
        self.regions.retain(|region| region.key != key);
    }

    pub(crate) fn bytes(&mut self, key: u32) -> &mut [u8] {
        &mut self.regions.iter_mut().find(|region| region.key == key).unwrap().bytes
    }

    fn find(&self, pd: PdId, key: u32, va: VirtAddr, len: u64, need: Access) -> Result<usize, AccessError> {
        let index =
            self.regions.iter().position(|region| region.key == key).ok_or(AccessError::UnknownKey)?;
        let region = &self.regions[index];
        if pd != PD {
            return Err(AccessError::WrongPd);
        }
        if !region.access.contains(need) {
            return Err(AccessError::NoRight);
        }
        let end = u128::from(va.value()) + u128::from(len);
        let inside = va.value() >= region.base && end <= u128::from(region.base) + region.bytes.len() as u128;
        if inside { Ok(index) } else { Err(AccessError::OutOfBounds) }
    }

    fn get(
        &mut self,
        pd: PdId,
        key: u32,
        va: VirtAddr,
        len: usize,
        need: Access,
    ) -> Result<&mut [u8], AccessError> {
        let index = self.find(pd, key, va, len as u64, need)?;
        let region = &mut self.regions[index];
        let start = usize::try_from(va.value() - region.base).unwrap();
        Ok(&mut region.bytes[start..start + len])
    }

    fn read(
        &self,
        pd: PdId,
        key: u32,
        va: VirtAddr,
        need: Access,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        let region = &self.regions[self.find(pd, key, va, out.len() as u64, need)?];
        let start = usize::try_from(va.value() - region.base).unwrap();
        out.copy_from_slice(&region.bytes[start..start + out.len()]);
        Ok(())
    }
}

impl Memory for Ram {
    fn check_remote(
        &self,
        via: Via,
        rkey: RKey,
        va: VirtAddr,
        len: u64,
        need: Access,
    ) -> Result<(), AccessError> {
        self.find(via.pd, rkey.value(), va, len, need).map(|_| ())
    }

    fn read_remote(&self, via: Via, rkey: RKey, va: VirtAddr, out: &mut [u8]) -> Result<(), AccessError> {
        self.read(via.pd, rkey.value(), va, Access::REMOTE_READ, out)
    }

    fn write_remote(&mut self, via: Via, rkey: RKey, va: VirtAddr, data: &[u8]) -> Result<(), AccessError> {
        self.get(via.pd, rkey.value(), va, data.len(), Access::REMOTE_WRITE)?.copy_from_slice(data);
        Ok(())
    }

    fn atomic_remote(
        &mut self,
        via: Via,
        rkey: RKey,
        va: VirtAddr,
        op: AtomicOp,
    ) -> Result<u64, AccessError> {
        let word = self.get(via.pd, rkey.value(), va, 8, Access::REMOTE_ATOMIC)?;
        let original = u64::from_ne_bytes((&*word).try_into().unwrap());
        word.copy_from_slice(&op.apply(original).to_ne_bytes());
        Ok(original)
    }

    fn atomic_write_remote(
        &mut self,
        via: Via,
        rkey: RKey,
        va: VirtAddr,
        data: [u8; 8],
    ) -> Result<(), AccessError> {
        self.write_remote(via, rkey, va, &data)
    }

    fn flush_remote(
        &mut self,
        via: Via,
        rkey: RKey,
        range: Option<(VirtAddr, u64)>,
        need: Access,
    ) -> Result<(), AccessError> {
        let (va, len) = range.unwrap_or((VirtAddr::new(BASE), 0));
        self.find(via.pd, rkey.value(), va, len, need)?;
        self.flushed.push((range, need));
        Ok(())
    }

    /// An invalidation takes the region away; other operations are noted, but a binding of nothing fails.
    fn execute(&mut self, _: Via, op: &LocalOp) -> Result<(), KeyError> {
        match *op {
            LocalOp::Invalidate { rkey } if !self.regions.iter().any(|r| r.key == rkey.value()) => {
                return Err(KeyError::UnknownKey);
            }
            LocalOp::Invalidate { rkey } => self.remove(rkey.value()),
            LocalOp::Bind { length: 0, .. } => return Err(KeyError::Empty),
            LocalOp::Bind { .. } | LocalOp::Register { .. } => {}
        }
        self.executed.push(*op);
        Ok(())
    }

    fn check_local(
        &self,
        pd: PdId,
        lkey: LKey,
        va: VirtAddr,
        len: u64,
        need: Access,
    ) -> Result<(), AccessError> {
        self.find(pd, lkey.value(), va, len, need).map(|_| ())
    }

    fn read_local(&self, pd: PdId, lkey: LKey, va: VirtAddr, out: &mut [u8]) -> Result<(), AccessError> {
        self.read(pd, lkey.value(), va, Access::empty(), out)
    }

    fn write_local(&mut self, pd: PdId, lkey: LKey, va: VirtAddr, data: &[u8]) -> Result<(), AccessError> {
        self.get(pd, lkey.value(), va, data.len(), Access::LOCAL_WRITE)?.copy_from_slice(data);
        Ok(())
    }
}

/// Receives that are posted.
#[derive(Default)]
pub(crate) struct Receives(pub(crate) VecDeque<RecvWqe>);

impl RecvQueue for Receives {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self) -> Option<RecvWqe> {
        self.0.pop_front()
    }
}

/// Attributes as most tests want them: MTU 256, window 16, PSNs that start at 10 and 100.
pub(crate) fn params() -> RcParams {
    RcParams {
        qpn: Qpn::new(0x11),
        dest_qpn: Qpn::new(0x12),
        transport: wire::opcode::Transport::Rc,
        pd: PD,
        access: ALL,
        pkey: PKey::DEFAULT,
        mtu: Mtu::B256,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: RnrTimer::new(14).unwrap(),
        timeout: 8,
        retry_cnt: 3,
        rnr_retry: 2,
        max_send_wr: 64,
        window: 16,
        qkey: wire::QKey::new(0x1234),
        sq_psn: Psn::new(10),
        rq_psn: Psn::new(100),
        behaviour: &Behaviour::STRICT,
    }
}

/// The same connection, seen from its other end.
pub(crate) fn other_end(params: &RcParams) -> RcParams {
    RcParams {
        qpn: params.dest_qpn,
        dest_qpn: params.qpn,
        sq_psn: params.rq_psn,
        rq_psn: params.sq_psn,
        ..params.clone()
    }
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) now: Instant,
    pub(crate) params: RcParams,
    pub(crate) ram: Ram,
    pub(crate) receives: Receives,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) out: Effects,
    next_wr: u64,
}

impl End {
    pub(crate) fn new(params: RcParams) -> Self {
        let mut ram = Ram::default();
        ram.add(KEY, BASE, ALL, pattern(SIZE, 1));
        Self {
            now: Instant::ZERO,
            ram,
            receives: Receives::default(),
            requester: Requester::new(&params),
            responder: Responder::new(&params),
            out: Effects::default(),
            next_wr: 0,
            params,
        }
    }

    /// With attributes changed by `change`.
    pub(crate) fn with(change: impl FnOnce(&mut RcParams)) -> Self {
        let mut params = params();
        change(&mut params);
        Self::new(params)
    }

    /// Posts a signalled `op` on `len` bytes from the start of the region; gives its mark, counted from 0.
    pub(crate) fn post(&mut self, op: SendOp, len: u32) -> u64 {
        self.post_sges(op, &[sge(0, len)], SendFlags::SIGNALED)
    }

    pub(crate) fn post_sges(&mut self, op: SendOp, sges: &[Sge], flags: SendFlags) -> u64 {
        self.post_wqe(SendWqe {
            wr_id: WrId::new(0),
            op,
            sges: SgeList::from_slice(sges),
            inline: None,
            flags,
            length: sges.iter().map(|sge| sge.length).sum(),
            datagram: None,
            remote_srqn: None,
            psns: None,
        })
    }

    /// Posts `wqe` under the next mark.
    pub(crate) fn post_wqe(&mut self, mut wqe: SendWqe) -> u64 {
        let id = self.next_wr;
        self.next_wr += 1;
        wqe.wr_id = WrId::new(id);
        self.requester.post(wqe);
        id
    }

    /// Posts a receive of `len` bytes at `offset` of the region.
    pub(crate) fn post_recv(&mut self, offset: u64, len: u32) -> u64 {
        let id = self.next_wr;
        self.next_wr += 1;
        self.receives.0.push_back(RecvWqe {
            wr_id: WrId::new(id),
            sges: [sge(offset, len)].into_iter().collect(),
            pd: PD,
            side: Side::Recv,
        });
        id
    }

    fn parts(&mut self) -> (Ctx<'_>, &mut Requester, &mut Responder, &mut Receives) {
        let Self { now, params, ram, receives, requester, responder, out, .. } = self;
        (Ctx { now: *now, params, memory: ram, out }, requester, responder, receives)
    }

    /// The next request that may leave now.
    pub(crate) fn request(&mut self) -> Option<PacketRepr> {
        let (mut ctx, requester, ..) = self.parts();
        loop {
            let mut body = vec![0; requester.prepare(&mut ctx)?];
            if requester.write(&mut ctx, &mut body) {
                return Some(reparse(&body));
            }
        }
    }

    /// The next answer.
    pub(crate) fn reply(&mut self) -> Option<PacketRepr> {
        let (mut ctx, _, responder, _) = self.parts();
        loop {
            let mut body = vec![0; responder.prepare(&mut ctx)?];
            if responder.write(&mut ctx, &mut body) {
                return Some(reparse(&body));
            }
        }
    }

    /// All requests that may leave now.
    pub(crate) fn requests(&mut self) -> Vec<PacketRepr> {
        core::iter::from_fn(|| self.request()).collect()
    }

    /// All answers.
    pub(crate) fn replies(&mut self) -> Vec<PacketRepr> {
        core::iter::from_fn(|| self.reply()).collect()
    }

    /// As [`End::requests`], as text.
    pub(crate) fn shown_requests(&mut self) -> Vec<String> {
        self.requests().iter().map(show).collect()
    }

    /// As [`End::replies`], as text.
    pub(crate) fn shown_replies(&mut self) -> Vec<String> {
        self.replies().iter().map(show).collect()
    }

    /// Takes a packet that arrived.
    pub(crate) fn take(&mut self, packet: &PacketRepr) -> Result<(), DropReason> {
        let mut body = Vec::new();
        packet.emit_body(&mut body);
        let packet = Packet::parse_body(packet.net, &body).unwrap();
        let (mut ctx, requester, responder, receives) = self.parts();
        if packet.info().kind.is_request() {
            responder.on_request(&mut ctx, receives, &packet)
        } else {
            requester.on_response(&mut ctx, &packet)
        }
    }

    /// Takes packets that arrived, each of which has its effect.
    pub(crate) fn take_all(&mut self, packets: &[PacketRepr]) {
        for packet in packets {
            assert_eq!(self.take(packet), Ok(()), "{}", show(packet));
        }
    }

    /// Takes an ACK or NAK of `psn`.
    pub(crate) fn ack(&mut self, psn: u32, syndrome: Syndrome) -> Result<(), DropReason> {
        self.take(&ack(psn, syndrome))
    }

    /// Lets the time of the requester's timer come.
    pub(crate) fn expire(&mut self) {
        self.now = self.requester.poll_timeout().unwrap();
        let (mut ctx, requester, ..) = self.parts();
        requester.handle_timeout(&mut ctx);
    }

    /// Lets time pass, and the requester do what is due then.
    pub(crate) fn wait(&mut self, span: Duration) {
        self.now += span;
        let (mut ctx, requester, ..) = self.parts();
        requester.handle_timeout(&mut ctx);
    }

    pub(crate) fn flush(&mut self) {
        let (mut ctx, requester, ..) = self.parts();
        requester.flush(&mut ctx);
    }

    /// Completions since the last call, in order.
    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        self.out.completions.drain(..).map(|(_, wc)| wc).collect()
    }

    /// As [`End::completions`]: marks and statuses only.
    pub(crate) fn done(&mut self) -> Vec<(u64, WcStatus)> {
        self.completions().iter().map(|wc| (wc.wr_id.value(), wc.status)).collect()
    }

    /// As [`End::done`], with the side that reports it.
    pub(crate) fn done_by_side(&mut self) -> Vec<(Side, u64, WcStatus)> {
        let done = self.out.completions.drain(..);
        done.map(|(side, wc)| (side, wc.wr_id.value(), wc.status)).collect()
    }

    /// `len` bytes of the region.
    pub(crate) fn bytes(&mut self, offset: usize, len: usize) -> &mut [u8] {
        &mut self.ram.bytes(KEY)[offset..offset + len]
    }
}

/// Bytes that differ from their neighbours and from those of another `seed`.
pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..=250_u8).cycle().map(|i| i.wrapping_mul(seed.wrapping_add(2)) ^ seed).take(len).collect()
}

/// `length` bytes at `offset` of the region.
pub(crate) fn sge(offset: u64, length: u32) -> Sge {
    Sge { addr: VirtAddr::new(BASE + offset), length, lkey: LKey::new(KEY) }
}

pub(crate) fn va(offset: u64) -> VirtAddr {
    VirtAddr::new(BASE + offset)
}

pub(crate) const RKEY: RKey = RKey::new(KEY);

pub(crate) const SEND: SendOp = SendOp::Send { imm: None };
pub(crate) const SEND_IMM: SendOp = SendOp::Send { imm: Some([1, 2, 3, 4]) };

pub(crate) fn write_op() -> SendOp {
    SendOp::Write { va: va(0x4000), rkey: RKEY, imm: None }
}

pub(crate) fn write_imm_op() -> SendOp {
    SendOp::Write { va: va(0x4000), rkey: RKEY, imm: Some([1, 2, 3, 4]) }
}

pub(crate) fn read_op() -> SendOp {
    SendOp::Read { va: va(0x4000), rkey: RKEY }
}

pub(crate) fn fetch_add_op(add: u64) -> SendOp {
    SendOp::FetchAdd { va: va(0x4000), rkey: RKEY, add }
}

pub(crate) fn cmp_swap_op(compare: u64, swap: u64) -> SendOp {
    SendOp::CmpSwap { va: va(0x4000), rkey: RKEY, compare, swap }
}

/// A packet of an RC connection.
pub(crate) fn packet(operation: Operation, psn: u32, ext: Vec<Ext>, payload: &[u8]) -> PacketRepr {
    let bth = Bth::new(Opcode::rc(operation), Qpn::new(0x11), Psn::new(psn)).with_ack_req(true);
    PacketRepr::new(net(), bth, ext, payload).unwrap()
}

/// A SEND packet without immediate, or the later packets of a WRITE.
pub(crate) fn plain(operation: Operation, psn: u32, len: usize) -> PacketRepr {
    packet(operation, psn, vec![], &pattern(len, 7))
}

/// A packet with a RETH of `dma_len` bytes at `va`.
pub(crate) fn ranged(
    operation: Operation,
    psn: u32,
    (va, rkey, dma_len): (VirtAddr, RKey, u32),
    payload: &[u8],
) -> PacketRepr {
    packet(operation, psn, vec![Reth::new(va, rkey, dma_len).into()], payload)
}

/// A READ request of `len` bytes at `offset` of the region.
pub(crate) fn read_request(psn: u32, offset: u64, len: u32) -> PacketRepr {
    ranged(Operation::ReadRequest, psn, (va(offset), RKEY, len), &[])
}

/// A FETCH_ADD of the word at `offset` of the region.
pub(crate) fn fetch_add(psn: u32, offset: u64, add: u64) -> PacketRepr {
    packet(Operation::FetchAdd, psn, vec![AtomicEth::new(va(offset), RKEY, add, 0).into()], &[])
}

pub(crate) fn ack(psn: u32, syndrome: Syndrome) -> PacketRepr {
    PacketRepr::ack(net(), Qpn::new(0x11), Psn::new(psn), syndrome, Msn::new(0))
}

/// A READ response; it has a positive AETH where its opcode has one.
pub(crate) fn response(operation: Operation, psn: u32, payload: &[u8]) -> PacketRepr {
    let aeth = wire::ext::Aeth::new(Syndrome::ACK, Msn::new(0));
    let ext = if operation == Operation::ReadResponseMiddle { vec![] } else { vec![aeth.into()] };
    packet(operation, psn, ext, payload)
}

pub(crate) fn atomic_response(psn: u32, syndrome: Syndrome, original: u64) -> PacketRepr {
    let aeth = wire::ext::Aeth::new(syndrome, Msn::new(0));
    packet(Operation::AtomicAcknowledge, psn, vec![aeth.into(), AtomicAckEth::new(original).into()], &[])
}

/// The one-line form from the operation on, without the queue pair: `SEND_ONLY psn=7 len=5 ack`.
pub(crate) fn show(packet: &PacketRepr) -> String {
    let mut body = Vec::new();
    packet.emit_body(&mut body);
    let line = wire::pretty::line(&packet.net, &body).to_string();
    let (_, line) = line.split_once(" RC ").unwrap();
    line.split(' ').filter(|word| !word.starts_with("qp=")).collect::<Vec<_>>().join(" ")
}

fn net() -> NetHeader {
    let (src, dst) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
    NetHeader::v2(src.into(), dst.into(), 0xC000, 0, 64).unwrap()
}

pub(crate) fn reparse(body: &[u8]) -> PacketRepr {
    PacketRepr::parse_body(net(), body).unwrap()
}
