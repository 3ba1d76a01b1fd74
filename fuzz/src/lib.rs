//! Fuzz bodies: plain functions that take any bytes and panic where an invariant breaks.
//!
//! `cargo test` replays `corpus/` through them, and adds inputs made from it by a fixed seed; the wrappers in
//! `fuzz_targets/` give them to libFuzzer (see `README.md`). The bodies refill ICRCs themselves, so no product code
//! knows that it is being fuzzed.

#![forbid(unsafe_code)]

mod parse;
mod two_nics;

pub use parse::parse;
pub use two_nics::two_nics;
