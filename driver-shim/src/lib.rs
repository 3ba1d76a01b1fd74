//! Packet I/O back ends, clocks, threads and safe device handles.
//!
//! The one crate of the project that touches the operating system. [`backend`] moves packets; what is above
//! it drives the sans-IO core with them.

#![deny(unsafe_code)]

pub mod backend;
pub mod interfaces;
#[expect(unsafe_code, reason = "system calls that no crate wraps")]
mod sys;
