//! The vectors of the reference (P1 to P5 of the paper's profile, N1 to N5 of the NIC's), and properties.

use proptest::prelude::*;

use super::*;

mod props;
mod vectors;

/// Time in microseconds; vectors have tenths.
fn at(micros: f64) -> Instant {
    Instant::ZERO + crate::keys::nanos(micros * 1e3)
}

fn rp(params: Params, line_gbps: f64) -> Rp {
    assert_eq!(params.check(), Ok(()));
    Rp::new(Arc::new(params), Rate::from_gbps(line_gbps), Duration::ZERO)
}

/// What happens in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Input {
    Cnp,
    Sent(u64),
    /// Nothing: the timers are looked at.
    Look,
}
use Input::{Cnp, Look, Sent};

/// Gives `rp` an input as its owner would: it is woken for whatever is due before, and looks at what is due after it.
fn give(rp: &mut Rp, now: Instant, input: Input) {
    match input {
        Cnp => assert!(rp.on_cnp(now)),
        Sent(bytes) => rp.on_sent(now, bytes),
        Look => rp.handle_timeout(now),
    }
}
