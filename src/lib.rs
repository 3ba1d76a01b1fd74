//! A RoCE v2 network card in user space.
//!
//! The public interface of the project, re-exported from its crates: what a program needs to open a device,
//! connect queue pairs and move data. The `ferroce` command stands on the same.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod cmd;

pub use wire;
