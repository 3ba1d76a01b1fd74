//! Admission: which queue pair a packet is for, or why it is for none.
//!
//! Everything here is a silent drop with a counted reason; no packet that fails is ever answered (rule R-ADM-1).

use transport::{Counters, DropReason};
use wire::batch::{HeaderKnowledge, ID_BOUND};
use wire::{Gid, NetHeader, PKey, Packet, ParseError, Qpn, icrc};

use crate::pair::QueuePair;
use crate::state::QpType;

/// The reason for a packet that does not parse.
pub(crate) fn unparsable(error: ParseError) -> DropReason {
    match error {
        ParseError::UnknownOpcode(_) => DropReason::UnknownOpcode,
        _ => DropReason::Malformed,
    }
}

/// Checks of a packet against the queue pair its BTH names, in the order of the rules R-ADM; the last of them,
/// [`check_icrc`], is the same for all queue pairs.
pub(crate) fn admit(pair: &QueuePair, gids: &[Gid], packet: &Packet<'_>) -> Result<(), DropReason> {
    let (info, state) = (packet.info(), pair.state());
    // Rule R-ADM-4.
    if info.transport != pair.init.qp_type.transport() {
        return Err(DropReason::WrongTransport);
    }
    // Rule R-RSP-63.
    let has_half = match pair.init.qp_type {
        QpType::XrcIni => !info.kind.is_request(),
        QpType::XrcTgt => info.kind.is_request(),
        _ => true,
    };
    if !has_half {
        return Err(DropReason::WrongHalf);
    }
    let takes = if info.kind.is_request() { state.takes_requests() } else { state.takes_responses() };
    if !takes {
        return Err(DropReason::QpState);
    }
    // A connected queue pair has one peer and one address of its own (rules R-ADM-7 and R-ADR-9); all others take
    // what is sent to the port (rule R-ADR-8).
    let addressed = if pair.init.qp_type.is_connected() {
        pair.net.is_some_and(|net| net.src() == packet.net.dst() && net.dst() == packet.net.src())
    } else {
        // Whoever comes here with a packet for a group has found the queue pair among its members.
        gids.contains(&packet.net.dst_gid()) || packet.bth().dest_qp() == Qpn::MULTICAST
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
    Ok(())
}

/// Whether the ICRC is right, as far as the header is known (rule R-ADM-11). It is computed once.
pub(crate) fn check_icrc(
    packet: &Packet<'_>,
    knowledge: HeaderKnowledge,
    counters: &mut Counters,
) -> Result<(), DropReason> {
    let right = match (knowledge, &packet.net) {
        // Rule R-ADM-17.
        (HeaderKnowledge::Unknown | HeaderKnowledge::Near, NetHeader::V4(ip, _)) => {
            let id = icrc::solve_id(&packet.net, packet.body());
            let solved = knowledge == HeaderKnowledge::Unknown || id.is_some_and(|id| id != ip.id);
            let right = id.is_some_and(|id| knowledge == HeaderKnowledge::Unknown || id < ID_BOUND);
            counters.rx_icrc_id_solved += u64::from(solved && right);
            right
        }
        _ => packet.icrc_ok(),
    };
    if right { Ok(()) } else { Err(DropReason::BadIcrc) }
}
