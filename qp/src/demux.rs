//! Admission: which queue pair a packet is for, or why it is for none.
//!
//! Everything here is a silent drop with a counted reason; no packet that fails is ever answered.

use transport::DropReason;
use wire::batch::HeaderKnowledge;
use wire::{Gid, PKey, Packet, ParseError, icrc};

use crate::pair::QueuePair;

/// The reason for a packet that does not parse.
pub(crate) fn unparsable(error: ParseError) -> DropReason {
    match error {
        ParseError::UnknownOpcode(_) => DropReason::UnknownOpcode,
        _ => DropReason::Malformed,
    }
}

/// Checks of a packet against the queue pair its BTH names, in the order of the rules R-ADM.
pub(crate) fn admit(
    pair: &QueuePair,
    gids: &[Gid],
    packet: &Packet<'_>,
    knowledge: HeaderKnowledge,
) -> Result<(), DropReason> {
    let (info, state) = (packet.info(), pair.state());
    if info.transport != pair.init.qp_type.transport() {
        return Err(DropReason::WrongTransport);
    }
    let takes = if info.kind.is_request() { state.takes_requests() } else { state.takes_responses() };
    if !takes {
        return Err(DropReason::QpState);
    }
    // A connected queue pair has one peer and one address of its own (rule R-ADM-7); all others take what is
    // sent to the port (rule R-ADR-8).
    let addressed = if pair.init.qp_type.is_connected() {
        pair.net.is_some_and(|net| net.src() == packet.net.dst() && net.dst() == packet.net.src())
    } else {
        gids.contains(&packet.net.dst_gid())
    };
    if !addressed {
        return Err(DropReason::WrongAddress);
    }
    if !packet.bth().pkey().matches(PKey::DEFAULT) {
        return Err(DropReason::PKeyMismatch);
    }
    if packet.deth().is_some_and(|deth| deth.qkey() != pair.params.qkey) {
        return Err(DropReason::QKeyMismatch);
    }
    icrc_matches(packet, knowledge).then_some(()).ok_or(DropReason::BadIcrc)
}

/// Whether the ICRC is right, as far as the header is known.
pub(crate) fn icrc_matches(packet: &Packet<'_>, knowledge: HeaderKnowledge) -> bool {
    match knowledge {
        HeaderKnowledge::Seen | HeaderKnowledge::Assumed => packet.icrc_ok(),
        HeaderKnowledge::Unknown => packet.icrc_ok() || icrc::solve_id(&packet.net, packet.body()).is_some(),
    }
}
