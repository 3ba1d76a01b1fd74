//! The device's happenings as `tracing` events: packets at trace level, drops, state changes, CNPs
//! and rates at debug.

use qp::{TraceEvent, Tracer};
use tracing::{Span, debug, debug_span, trace};
use wire::Instant;

/// Passes on what the NIC tells. The span `nic` names the device.
#[derive(Debug)]
pub(crate) struct Events {
    span: Span,
}

impl Events {
    pub(crate) fn new(address: std::net::IpAddr) -> Self {
        Self { span: debug_span!("nic", %address) }
    }
}

impl Tracer for Events {
    fn event(&mut self, now: Instant, event: &TraceEvent<'_>) {
        let _entered = self.span.enter();
        let at = now.as_nanos();
        match event {
            TraceEvent::Received(packet) => {
                let bth = packet.bth();
                trace!(at, qp = %bth.dest_qp(), psn = %bth.psn(), opcode = packet.info().name, "received");
            }
            TraceEvent::Dropped { qpn: Some(qpn), reason } => debug!(at, qp = %qpn, %reason, "dropped"),
            TraceEvent::Dropped { qpn: None, reason } => debug!(at, %reason, "dropped"),
            TraceEvent::Sent { qpn, packets } => trace!(at, qp = %qpn, packets, "sent"),
            TraceEvent::State { qpn, from, to } => debug!(at, qp = %qpn, %from, %to, "state"),
            TraceEvent::Notified { qpn, handled } => debug!(at, qp = %qpn, handled, "CNP received"),
            TraceEvent::Notifies { to, dest } => debug!(at, %to, qp = %dest, "CNP sent"),
            TraceEvent::Rate { qpn, state } => {
                let bps = |rate: Option<qp::Rate>| rate.map(qp::Rate::bps);
                debug!(
                    at,
                    qp = %qpn,
                    rate = bps(state.rate),
                    target = bps(state.target),
                    alpha = state.alpha,
                    "rate"
                );
            }
            _ => {}
        }
    }
}
