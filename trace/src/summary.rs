//! Counts of a whole capture.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use serde::Serialize;

use crate::capture::CapturedFrame;
use crate::cm::CmMessage;
use crate::dissect::{Dissection, FrameKind, IcrcCheck, RocePacket};
use crate::flow::Flow;

/// Counts of a capture. A key that nothing was counted under is absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Frames of any kind.
    pub frames: u64,
    /// Frames by kind.
    pub kinds: BTreeMap<FrameKind, u64>,
    /// RoCE packets by opcode.
    pub opcodes: BTreeMap<String, u64>,
    /// RoCE packets by the state of their ICRC.
    pub icrc: BTreeMap<IcrcCheck, u64>,
    /// RoCE packets whose wrong ICRC would be right with port 4791, which a mirror has rewritten.
    #[serde(skip_serializing_if = "is_zero")]
    pub icrc_right_for_4791: u64,
    /// Flows in the order of their first packets.
    pub flows: Vec<Flow>,
    /// Management datagrams to queue pair 1, in order.
    pub cm: Vec<CmMessage>,
    /// RoCE packets by TOS byte or traffic class.
    pub tos: BTreeMap<u8, u64>,
    /// RoCE packets by pad count.
    pub pad: BTreeMap<usize, u64>,
    /// RoCE packets by MigReq bit.
    pub migreq: BTreeMap<u8, u64>,
    /// Link types of the frames.
    pub linktypes: BTreeSet<u32>,
    /// Where each flow is in `flows`.
    #[serde(skip)]
    index: HashMap<(IpAddr, IpAddr, u32), usize>,
}

impl Summary {
    /// Counts `frame`, of which `dissection` was made.
    pub fn add(&mut self, frame: &CapturedFrame<'_>, dissection: &Dissection<'_>) {
        self.frames += 1;
        self.linktypes.insert(frame.link_type);
        *self.kinds.entry(dissection.kind).or_default() += 1;
        if let Some(packet) = &dissection.roce {
            self.add_roce(frame.number, packet);
        }
    }

    fn add_roce(&mut self, number: u64, packet: &RocePacket<'_>) {
        *self.icrc.entry(packet.icrc).or_default() += 1;
        self.icrc_right_for_4791 += u64::from(packet.icrc_right_for_4791);
        *self.tos.entry(packet.net.traffic_class()).or_default() += 1;
        let Some(bth) = packet.bth() else { return };
        *self.opcodes.entry(bth.opcode().to_string()).or_default() += 1;
        *self.pad.entry(bth.pad_count()).or_default() += 1;
        *self.migreq.entry(bth.migreq().into()).or_default() += 1;
        self.cm.extend(CmMessage::read(number, packet));
        let key = (packet.net.src(), packet.net.dst(), bth.dest_qp().value());
        let at = *self.index.entry(key).or_insert_with(|| {
            let (src, dst, dest_qp) = key;
            self.flows.push(Flow::new(src, dst, dest_qp));
            self.flows.len() - 1
        });
        self.flows[at].add(packet, bth);
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}
