//! Makes the packets of an attack: of random bytes, and from real ones.

use std::net::Ipv4Addr;

use rand_core::RngCore;
use wire::ext::{Aeth, AtomicEth, Deth, Feth, Ieth, Reth, Xrceth};
use wire::icrc::{self, ICRC_LEN};
use wire::opcode::Transport;
use wire::repr::PacketRepr;
use wire::{
    Bth, Ext, Frame, NetHeader, Opcode, Operation, PKey, Psn, QKey, Qpn, RKey, Srqn, Syndrome, VirtAddr,
};
use zerocopy::{FromBytes, IntoBytes};

use super::target::{Kind, Targets};
use crate::captures;

/// A packet as the NIC will get it.
#[derive(Debug)]
pub(super) struct Packet {
    /// Network header; `None` where `bytes` begin with it.
    pub(super) net: Option<NetHeader>,
    pub(super) bytes: Vec<u8>,
    /// Index of the queue pair it was made for.
    pub(super) target: Option<usize>,
    /// Its ICRC is right, and it is for a live queue pair, near the PSN that is next there.
    pub(super) aimed: bool,
}

/// The real packets that others are made from.
pub(super) struct Crafter {
    real: Vec<PacketRepr>,
    opcodes: Vec<Opcode>,
}

/// How far from the next PSN is still near.
const NEAR: i32 = 16;

impl Crafter {
    /// Reads the RC packets of the recorded connections.
    pub(super) fn new() -> Self {
        let mut real = Vec::new();
        for file in captures::vectors("rxe") {
            captures::each_frame(&file, |captured| {
                let Ok(frame) = Frame::parse(captured.data) else { return };
                let Ok(packet) = PacketRepr::parse_body(frame.net, frame.body) else { return };
                let is_rc = packet.bth.opcode().info().is_some_and(|info| info.transport == Transport::Rc);
                if is_rc {
                    real.push(packet);
                }
            });
        }
        assert!(real.len() > 500, "only {} real packets to begin with", real.len());
        Self { real, opcodes: Opcode::all().collect() }
    }

    /// Random bytes: behind lengths that may be wrong, all of them, or a BTH that at least makes sense.
    pub(super) fn random(&self, r: &mut impl RngCore, targets: &Targets) -> Packet {
        let mut bytes = vec![0; below(r, 220)];
        r.fill_bytes(&mut bytes);
        let net = header(r, Targets::ATTACKER).with_transport_len(bytes.len());
        let kind = below(r, 4);
        if kind == 0 {
            let mut whole = vec![0; net.len()];
            net.emit(&mut whole);
            whole.extend(bytes);
            // The lengths in the IPv4 and the UDP header.
            let at = [2, 3, 24, 25][below(r, 4)];
            whole[at] ^= 1 << below(r, 8);
            return Packet { net: None, bytes: whole, target: None, aimed: false };
        }
        let index = below(r, targets.all.len());
        if kind >= 2 && bytes.len() >= Bth::SIZE {
            let target = &targets.all[index];
            let opcode = self.opcodes[below(r, self.opcodes.len())];
            let bth = Bth::new(opcode, target.qpn, target.expected).with_pad_count(below(r, 4));
            bytes[..Bth::SIZE].copy_from_slice(bth.as_bytes());
        }
        if kind == 3 && bytes.len() >= ICRC_LEN {
            icrc::fill(&net, &mut bytes);
        }
        Packet { net: Some(net), bytes, target: Some(index), aimed: false }
    }

    /// A real packet for one of the queue pairs, with up to two things wrong.
    pub(super) fn mutated(&self, r: &mut impl RngCore, targets: &Targets) -> Packet {
        let mut packet = self.real[below(r, self.real.len())].clone();
        let is_response = packet.bth.opcode().info().is_some_and(|info| info.kind.is_response());
        // Answers mostly go where something has been asked.
        let index = match is_response && !one_in(r, 4) {
            true => targets.some(r.next_u32(), if one_in(r, 3) { Kind::XrcIni } else { Kind::Asking }),
            false if one_in(r, 100) => targets.some(0, Kind::Init),
            false => below(r, targets.all.len() - 1),
        };
        let target = &targets.all[index];
        let next = if is_response { target.requested } else { target.expected };
        packet.bth = packet.bth.with_dest_qp(target.qpn).with_psn(near(r, next)).with_ack_req(!one_in(r, 8));
        let from = if one_in(r, 100) { Ipv4Addr::new(10, 0, 0, 9) } else { Targets::ATTACKER };
        packet.net = header(r, from);
        if one_in(r, 8) {
            make_rare(r, &mut packet, targets);
        }
        match target.kind {
            Kind::Uc => change_transport(&mut packet, Transport::Uc),
            Kind::Ud => {
                change_transport(&mut packet, Transport::Ud);
                let qkey = if one_in(r, 20) { QKey::new(r.next_u32()) } else { Targets::QKEY };
                packet.ext.insert(0, Deth::new(qkey, Qpn::new(0x77)).into());
                if one_in(r, 4) {
                    packet.bth = packet.bth.with_dest_qp(Qpn::MULTICAST);
                    packet.net = header_to(r, from, Targets::GROUP);
                }
            }
            Kind::XrcTgt | Kind::XrcIni => {
                change_transport(&mut packet, Transport::Xrc);
                if packet.bth.opcode().info().is_some_and(|info| info.kind.is_request()) {
                    let srqn = match below(r, 40) {
                        0 => Srqn::new(r.next_u32()),
                        1 | 2 => targets.srqns[below(r, targets.srqns.len())],
                        _ => targets.srqns[0],
                    };
                    packet.ext.insert(0, Xrceth::new(srqn).into());
                }
            }
            _ => {}
        }
        aim(r, &mut packet, targets);
        for _ in 0..below(r, 3) {
            self.spoil(r, &mut packet);
        }
        let mut bytes = Vec::new();
        packet.emit_body(&mut bytes);
        match below(r, 40) {
            0 => bytes.truncate(below(r, bytes.len())),
            1..=5 => {
                let at = below(r, bytes.len());
                bytes[at] ^= 1 << below(r, 8);
            }
            _ => {}
        }
        let net = packet.net.with_transport_len(bytes.len());
        let refilled = bytes.len() >= ICRC_LEN && !one_in(r, 40);
        if refilled {
            icrc::fill(&net, &mut bytes);
        }
        let named = [target.qpn, if target.kind == Kind::Ud { Qpn::MULTICAST } else { target.qpn }];
        let is_near = Bth::read_from_prefix(&bytes)
            .is_ok_and(|(bth, _)| named.contains(&bth.dest_qp()) && bth.psn().diff(next).abs() <= NEAR);
        let aimed = refilled && is_near && target.kind != Kind::Init;
        Packet { net: Some(net), bytes, target: Some(index), aimed }
    }

    /// Makes one thing wrong.
    fn spoil(&self, r: &mut impl RngCore, packet: &mut PacketRepr) {
        match below(r, 18) {
            0..=2 => packet.bth = packet.bth.with_opcode(self.opcodes[below(r, self.opcodes.len())]),
            3 => packet.bth = packet.bth.with_opcode(Opcode::from_byte(r.next_u32().to_be_bytes()[0])),
            4 => packet.bth = packet.bth.with_pad_count(below(r, 4)),
            5 => packet.payload.truncate(below(r, packet.payload.len() + 1)),
            6 => packet.payload.resize(packet.payload.len() + 1 + below(r, 8), 0x5A),
            7 => packet.payload.clear(),
            8 => packet.bth = packet.bth.with_solicited(true).with_migreq(one_in(r, 2)),
            9 => packet.net = packet.net.with_traffic_class(3),
            10 if one_in(r, 4) => packet.bth = packet.bth.with_tver(1 + r.next_u32().to_be_bytes()[0] % 15),
            11 if one_in(r, 4) => packet.bth = packet.bth.with_pkey(PKey::new(0x1234)),
            12 if one_in(r, 8) => packet.bth = packet.bth.with_dest_qp(Qpn::new(r.next_u32())),
            13..=16 => packet.ext.iter_mut().for_each(|ext| spoil_header(r, ext)),
            _ => {}
        }
    }
}

/// Makes it a packet of another transport: the same operation where that has it, else a SEND.
fn change_transport(packet: &mut PacketRepr, to: Transport) {
    let operation = packet.bth.opcode().info().map(|info| info.operation);
    let same = operation.and_then(|operation| Opcode::new(to, operation));
    let Some(opcode) = same.or(Opcode::new(to, Operation::SendOnly)) else { return };
    if same.is_none() {
        packet.ext.clear();
    }
    packet.bth = packet.bth.with_opcode(opcode);
}

/// Makes it an operation that the recorded programs used seldom or never.
fn make_rare(r: &mut impl RngCore, packet: &mut PacketRepr, targets: &Targets) {
    let (opcode, len) = match below(r, 3) {
        0 => {
            let reth = Reth::new(VirtAddr::new(0), RKey::new(0), 8);
            packet.ext = vec![reth.into()];
            (Operation::AtomicWrite, 8)
        }
        1 => {
            // One placement and selectivity in four is none that there is.
            let feth = Feth::new(r.next_u32() % 5, one_in(r, 2));
            let reth = Reth::new(VirtAddr::new(0), RKey::new(0), r.next_u32() % 5000);
            packet.ext = vec![feth.into(), reth.into()];
            (Operation::Flush, 0)
        }
        _ => {
            let rkey = if one_in(r, 3) { RKey::new(r.next_u32()) } else { targets.window };
            packet.ext = vec![Ieth::new(rkey).into()];
            (Operation::SendOnlyInv, below(r, 64))
        }
    };
    packet.bth = packet.bth.with_opcode(Opcode::rc(opcode)).with_pad_count(len.wrapping_neg() & 3);
    packet.payload = vec![0xA7; len];
    packet.pad = vec![0; len.wrapping_neg() & 3];
}

/// Another address, length, key or syndrome.
fn spoil_header(r: &mut impl RngCore, ext: &mut Ext) {
    match ext {
        Ext::Reth(reth) => {
            let (va, rkey, len) = (reth.va(), reth.rkey(), reth.dma_len());
            *reth = match below(r, 6) {
                0 => Reth::new(va, rkey, r.next_u32()),
                1 => Reth::new(va, rkey, 0x8000_0001),
                2 => Reth::new(va, rkey, len.wrapping_add(1)),
                3 => Reth::new(VirtAddr::new(u64::MAX - u64::from(len / 2)), rkey, len),
                4 => Reth::new(va, RKey::new(r.next_u32()), len),
                _ => Reth::new(va.wrapping_add(Targets::OPEN_LEN as u64), rkey, len),
            };
        }
        Ext::AtomicEth(atomic) => {
            let va = if one_in(r, 2) { VirtAddr::new(u64::MAX - 7) } else { atomic.va().wrapping_add(1) };
            *atomic = AtomicEth::new(va, atomic.rkey(), atomic.swap_or_add(), atomic.compare());
        }
        Ext::Aeth(aeth) => {
            *aeth = Aeth::new(Syndrome::from_byte(r.next_u32().to_be_bytes()[0]), aeth.msn());
        }
        _ => {}
    }
}

/// Points RETH and AtomicETH into the open region, and now and then to one that peers may not write.
fn aim(r: &mut impl RngCore, packet: &mut PacketRepr, targets: &Targets) {
    let words = Targets::OPEN_LEN / 2 / 8;
    let inside = targets.open.addr.wrapping_add(below(r, words) as u64 * 8);
    let (rkey, va) =
        if one_in(r, 6) { targets.keys[below(r, targets.keys.len())] } else { (targets.open.rkey, inside) };
    for ext in &mut packet.ext {
        match ext {
            Ext::Reth(reth) => *reth = Reth::new(va, rkey, reth.dma_len()),
            Ext::AtomicEth(atomic) => {
                *atomic = AtomicEth::new(va, rkey, atomic.swap_or_add(), atomic.compare());
            }
            _ => {}
        }
    }
}

/// Mostly the next PSN itself, else one a little before or behind, and rarely any.
fn near(r: &mut impl RngCore, next: Psn) -> Psn {
    let step = r.next_u32() % 8 + 1;
    match below(r, 100) {
        0..=59 => next,
        60..=77 => next.wrapping_sub(step),
        78..=97 => next.wrapping_add(step),
        _ => Psn::new(r.next_u32()),
    }
}

fn header(r: &mut impl RngCore, from: Ipv4Addr) -> NetHeader {
    header_to(r, from, Targets::VICTIM)
}

fn header_to(r: &mut impl RngCore, from: Ipv4Addr, to: Ipv4Addr) -> NetHeader {
    let [class, hops, port @ ..] = r.next_u32().to_be_bytes();
    NetHeader::v2(from.into(), to.into(), u16::from_be_bytes(port), class, hops).unwrap()
}

fn below(r: &mut impl RngCore, limit: usize) -> usize {
    r.next_u32() as usize % limit
}

fn one_in(r: &mut impl RngCore, n: usize) -> bool {
    below(r, n) == 0
}
