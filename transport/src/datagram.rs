//! Unreliable datagrams: every packet is a message of its own, from anyone who knows the queue key.

use wire::ip::ipv4_checksum;
use wire::{NetHeader, Packet};

use crate::completion::{Completion, WcOpcode, WcStatus, fail_receive};
use crate::drop::DropReason;
use crate::ports::{Ctx, RecvQueue};
use crate::sge::scatter;
use crate::wqe::RecvWqe;

/// Bytes in front of the payload of a received datagram: room for the network header (rule R-RSP-43).
pub const GRH_LEN: u32 = 40;

/// The receiving half of an unreliable datagram queue pair.
#[derive(Debug, Default)]
pub struct Datagrams {
    /// A receive that was too small for a datagram: the next one may fit.
    kept: Option<RecvWqe>,
}

impl Datagrams {
    /// Gives back the receive work request that was not used.
    pub fn take_unfinished(&mut self) -> Option<RecvWqe> {
        self.kept.take()
    }

    /// Handles a datagram, ICRC, partition and queue key checked.
    ///
    /// # Errors
    /// Why it had no effect.
    pub fn on_packet(
        &mut self,
        ctx: &mut Ctx<'_>,
        recv: &mut dyn RecvQueue,
        packet: &Packet<'_>,
    ) -> Result<(), DropReason> {
        // Rule R-RSP-54: its PSN means nothing.
        let deth = packet.deth().ok_or(DropReason::Malformed)?;
        let data = packet.payload();
        let length = GRH_LEN + u32::try_from(data.len()).map_err(|_| DropReason::Malformed)?;
        let Some(wqe) = self.kept.take().or_else(|| recv.take()) else {
            ctx.out.counters.out_of_buffer += 1;
            return Err(DropReason::NoReceive);
        };
        if wqe.capacity() < u64::from(length) {
            // Rule R-RSP-44, field case F37: the datagram is lost, nothing else.
            if recv.is_shared() {
                // Rule R-RSP-55.
                ctx.out.counters.resp_local_length_error += 1;
                fail_receive(ctx, &wqe, WcStatus::LocLenErr);
            } else {
                self.kept = Some(wqe);
            }
            return Err(DropReason::BadRequest);
        }
        let grh = network_header(&packet.net);
        let stored = scatter(ctx.memory, wqe.pd, &wqe.sges, 0, &grh)
            .and_then(|()| scatter(ctx.memory, wqe.pd, &wqe.sges, u64::from(GRH_LEN), data));
        if stored.is_err() {
            fail_receive(ctx, &wqe, WcStatus::LocProtErr);
            ctx.out.fatal = true;
            return Ok(());
        }
        let mut wc =
            Completion::receive(wqe.wr_id, WcOpcode::Recv, length, packet, ctx.params.qpn, deth.src_qp());
        wc.grh = true;
        ctx.out.completions.push((wqe.side, wc));
        Ok(())
    }
}

/// The forty bytes that a receiver finds in front of a datagram: an IPv6 header or GRH, or zeros and the IPv4
/// header, whose checksum is right whatever the packet path knew of it (field case F36).
#[must_use]
pub fn network_header(net: &NetHeader) -> [u8; GRH_LEN as usize] {
    let mut raw = [0; NetHeader::MAX_LEN];
    let mut out = [0; GRH_LEN as usize];
    match net {
        NetHeader::V4(ip, udp) => {
            let ip = wire::ip::Ipv4Header { checksum: ipv4_checksum(ip), ..*ip };
            NetHeader::V4(ip, *udp).emit(&mut raw);
            out[20..].copy_from_slice(&raw[..20]);
        }
        NetHeader::V6(..) | NetHeader::V1(_) => {
            net.emit(&mut raw);
            out.copy_from_slice(&raw[..GRH_LEN as usize]);
        }
    }
    out
}
