//! Packets made and read by hand, for a peer that is no NIC.

use wire::ext::{Aeth, AtomicEth, Deth, Ieth, ImmDt, Reth};
use wire::icrc::{self, ICRC_LEN};
use wire::{Bth, Msn, NetHeader, Opcode, Operation, Packet, Psn, QKey, Qpn, RKey, Syndrome, VirtAddr};
use zerocopy::IntoBytes;

/// A packet to be sent: every field can be set, right or wrong.
#[derive(Clone, Debug)]
pub(crate) struct Crafted {
    bth: Bth,
    ext: Vec<u8>,
    payload: Vec<u8>,
}

impl Crafted {
    /// A packet of an RC operation, without extension headers and payload.
    pub(crate) fn rc(operation: Operation, to: Qpn, psn: Psn) -> Self {
        Self { bth: Bth::new(Opcode::rc(operation), to, psn), ext: Vec::new(), payload: Vec::new() }
    }

    /// A packet of any opcode, without extension headers and payload.
    pub(crate) fn of(opcode: Opcode, to: Qpn, psn: Psn) -> Self {
        Self { bth: Bth::new(opcode, to, psn), ext: Vec::new(), payload: Vec::new() }
    }

    /// A positive or negative acknowledge.
    pub(crate) fn acknowledge(to: Qpn, psn: Psn, syndrome: Syndrome, msn: u32) -> Self {
        Self::rc(Operation::Acknowledge, to, psn).aeth(syndrome, msn)
    }

    /// With AckReq.
    pub(crate) fn ack_req(mut self) -> Self {
        self.bth = self.bth.with_ack_req(true);
        self
    }

    /// With its BTH changed.
    pub(crate) fn with(mut self, change: impl FnOnce(Bth) -> Bth) -> Self {
        self.bth = change(self.bth);
        self
    }

    /// With a DETH.
    pub(crate) fn deth(mut self, qkey: QKey, from: Qpn) -> Self {
        self.ext.extend(Deth::new(qkey, from).as_bytes());
        self
    }

    /// With immediate data.
    pub(crate) fn imm(mut self, imm: [u8; 4]) -> Self {
        self.ext.extend(ImmDt::new(imm).as_bytes());
        self
    }

    /// With a RETH.
    pub(crate) fn reth(mut self, va: u64, rkey: RKey, len: u32) -> Self {
        self.ext.extend(Reth::new(VirtAddr::new(va), rkey, len).as_bytes());
        self
    }

    /// With an AtomicETH.
    pub(crate) fn atomic(mut self, va: u64, rkey: RKey, swap_or_add: u64, compare: u64) -> Self {
        self.ext.extend(AtomicEth::new(VirtAddr::new(va), rkey, swap_or_add, compare).as_bytes());
        self
    }

    /// With an AETH.
    pub(crate) fn aeth(mut self, syndrome: Syndrome, msn: u32) -> Self {
        self.ext.extend(Aeth::new(syndrome, Msn::new(msn)).as_bytes());
        self
    }

    /// With a payload, padded to a multiple of four.
    pub(crate) fn payload(mut self, payload: &[u8]) -> Self {
        let pad = payload.len().wrapping_neg() & 3;
        self.bth = self.bth.with_pad_count(pad);
        self.payload = payload.to_vec();
        self.payload.resize(payload.len() + pad, 0);
        self
    }

    /// Its bytes from BTH to ICRC, right for `net`; and `net` with its lengths.
    pub(crate) fn finish(&self, net: NetHeader) -> (NetHeader, Vec<u8>) {
        let mut body = self.bth.as_bytes().to_vec();
        body.extend(&self.ext);
        body.extend(&self.payload);
        body.extend([0; ICRC_LEN]);
        let net = net.with_transport_len(body.len());
        icrc::fill(&net, &mut body);
        (net, body)
    }
}

/// A packet that the NIC under test sent, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) operation: Operation,
    pub(crate) to: Qpn,
    pub(crate) psn: Psn,
    pub(crate) ack_req: bool,
    pub(crate) migreq: bool,
    pub(crate) solicited: bool,
    /// Syndrome and MSN.
    pub(crate) aeth: Option<(Syndrome, u32)>,
    /// Address, key and length.
    pub(crate) reth: Option<(u64, u32, u32)>,
    /// The value an atomic found.
    pub(crate) original: Option<u64>,
    pub(crate) imm: Option<[u8; 4]>,
    /// The key to invalidate.
    pub(crate) inv: Option<RKey>,
    pub(crate) payload: Vec<u8>,
}

impl Sent {
    /// Takes apart a packet that must be right in every way.
    pub(crate) fn parse(net: NetHeader, body: &[u8]) -> Self {
        let packet = Packet::parse_body(net, body).expect("the NIC sent a malformed packet");
        assert!(packet.icrc_ok(), "the NIC sent a wrong ICRC: {packet:?}");
        assert_eq!(net, net.with_transport_len(body.len()), "the NIC sent wrong lengths");
        assert!(packet.pad().iter().all(|byte| *byte == 0), "pad is zero: {packet:?}");
        let bth = packet.bth();
        Self {
            operation: packet.info().operation,
            to: bth.dest_qp(),
            psn: bth.psn(),
            ack_req: bth.ack_req(),
            migreq: bth.migreq(),
            solicited: bth.solicited(),
            aeth: packet.aeth().map(|aeth| (aeth.syndrome(), aeth.msn().value())),
            reth: packet.reth().map(|reth| (reth.va().value(), reth.rkey().value(), reth.dma_len())),
            original: packet.atomic_ack_eth().map(wire::ext::AtomicAckEth::original),
            imm: packet.imm_dt().map(ImmDt::bytes),
            inv: packet.ieth().map(Ieth::rkey),
            payload: packet.payload().to_vec(),
        }
    }
}
