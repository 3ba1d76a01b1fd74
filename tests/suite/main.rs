//! Tests that need whole captures or more than one peer: one binary with a module for each behaviour.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod captures;
mod compliance;
mod congestion;
mod counters;
mod errnos;
mod fields_a;
mod fields_b;
mod fields_c;
mod fields_d;
mod golden;
mod gsi;
mod harness;
mod hostile;
mod life;
mod losses;
mod memory;
mod replay;
mod scenarios;
mod shared;
mod sweep;
