//! Counts of one flow: all packets from one address to one queue pair at another.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Serialize;
use wire::bth::Bth;
use wire::ext::Aeth;
use wire::opcode::{ExtHeader, Info, Kind, Operation};
use wire::{NakCode, Psn, Syndrome};

use crate::dissect::RocePacket;
use crate::repeats::SeenPsns;

/// Counts of one flow. All are of packets as captured: what was sent twice counts twice.
#[derive(Clone, Debug, Serialize)]
pub struct Flow {
    /// Sender.
    pub src: IpAddr,
    /// Receiver.
    pub dst: IpAddr,
    /// Receiving queue pair.
    pub dest_qp: u32,
    /// Packets by opcode.
    pub opcodes: BTreeMap<String, u64>,
    /// Request messages by kind, each counted at its last packet.
    pub messages: BTreeMap<&'static str, u64>,
    /// Payload bytes of requests, without pad.
    pub request_payload: u64,
    /// PSN of the request that arrived first.
    pub psn_first: Option<u32>,
    /// PSN of the request that arrived last.
    pub psn_last: Option<u32>,
    /// Requests whose PSN had come before.
    pub repeated_psn: u64,
    /// Packets that ask for an acknowledgement.
    pub ack_req: u64,
    /// Length in bytes of every READ that was asked for, in order of arrival.
    pub read_lengths: Vec<u32>,
    /// Payload bytes of READ responses, without pad.
    pub read_response_payload: u64,
    /// Packets with an AETH by what it says.
    pub aeth: BTreeMap<String, u64>,
    /// PSN of the first and of the last packet with an AETH.
    pub ack_psn: Option<[u32; 2]>,
    /// MSN of the first and of the last AETH.
    pub msn: Option<[u32; 2]>,
    /// Sending queue pairs of datagrams.
    pub ud_src_qp: BTreeSet<u32>,
    /// UDP source ports.
    pub udp_sport: BTreeSet<u16>,
    #[serde(skip)]
    seen: SeenPsns,
}

impl Flow {
    /// A flow without a packet yet.
    #[must_use]
    pub fn new(src: IpAddr, dst: IpAddr, dest_qp: u32) -> Self {
        Self {
            src,
            dst,
            dest_qp,
            opcodes: BTreeMap::new(),
            messages: BTreeMap::new(),
            request_payload: 0,
            psn_first: None,
            psn_last: None,
            repeated_psn: 0,
            ack_req: 0,
            read_lengths: Vec::new(),
            read_response_payload: 0,
            aeth: BTreeMap::new(),
            ack_psn: None,
            msn: None,
            ud_src_qp: BTreeSet::new(),
            udp_sport: BTreeSet::new(),
            seen: SeenPsns::default(),
        }
    }

    /// Counts `packet`, whose base transport header is `bth`.
    pub fn add(&mut self, packet: &RocePacket<'_>, bth: &Bth) {
        *self.opcodes.entry(bth.opcode().to_string()).or_default() += 1;
        self.ack_req += u64::from(bth.ack_req());
        if let Some(udp) = packet.net.udp() {
            self.udp_sport.insert(udp.src_port);
        }
        if let Some(deth) = packet.deth() {
            self.ud_src_qp.insert(deth.src_qp().value());
        }
        if let Some(aeth) = packet.aeth() {
            self.add_aeth(bth.psn(), aeth);
        }
        if let Some(info) = packet.info() {
            if info.kind.is_request() {
                self.add_request(packet, info, bth.psn());
            } else if info.kind == Kind::ReadResponse {
                self.read_response_payload += packet.payload_len() as u64;
            }
        }
    }

    fn add_request(&mut self, packet: &RocePacket<'_>, info: &Info, psn: Psn) {
        self.psn_first.get_or_insert(psn.value());
        self.psn_last = Some(psn.value());
        self.repeated_psn += u64::from(self.seen.insert(psn));
        self.request_payload += packet.payload_len() as u64;
        if info.position.ends() {
            *self.messages.entry(message_name(info)).or_default() += 1;
        }
        if info.kind == Kind::Read
            && let Some(reth) = packet.reth()
        {
            self.read_lengths.push(reth.dma_len());
        }
    }

    fn add_aeth(&mut self, psn: Psn, aeth: &Aeth) {
        *self.aeth.entry(syndrome_name(aeth.syndrome())).or_default() += 1;
        let (psn, msn) = (psn.value(), aeth.msn().value());
        self.ack_psn.get_or_insert([psn; 2])[1] = psn;
        self.msn.get_or_insert([msn; 2])[1] = msn;
    }
}

/// The kind of request that a message is, as verbs name it.
fn message_name(info: &Info) -> &'static str {
    let (imm, inv) = (info.has(ExtHeader::ImmDt), info.has(ExtHeader::Ieth));
    match info.kind {
        Kind::Send if imm => "SEND_IMM",
        Kind::Send if inv => "SEND_INV",
        Kind::Send => "SEND",
        Kind::Write if imm => "WRITE_IMM",
        Kind::Write => "WRITE",
        Kind::Read => "READ",
        Kind::Atomic if info.operation == Operation::CmpSwap => "CMP_SWAP",
        Kind::Atomic => "FETCH_ADD",
        _ => info.operation_name(),
    }
}

/// What an AETH says, as one word.
fn syndrome_name(syndrome: Syndrome) -> String {
    match syndrome {
        Syndrome::Ack(_) => "ACK".into(),
        Syndrome::RnrNak(_) => "RNR_NAK".into(),
        Syndrome::Nak(NakCode::Reserved(code)) => format!("NAK_{code}"),
        Syndrome::Nak(code) => format!("NAK_{}", code.to_string().to_uppercase()),
        Syndrome::Reserved(byte) => format!("SYNDROME_{byte:#04x}"),
    }
}

#[cfg(test)]
#[path = "flow_tests.rs"]
mod tests;
