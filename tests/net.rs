//! Addresses of loopback for the tests that start the command.

use std::sync::atomic::{AtomicU8, Ordering};

/// The first three numbers of addresses of loopback that no other test has, of this process or of one that runs beside it.
pub(crate) fn net() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    format!("127.{}.{}", 64 + std::process::id() % 128, NEXT.fetch_add(1, Ordering::Relaxed))
}
