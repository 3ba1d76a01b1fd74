//! Ports of TCP for the tests that start the command.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// A port that no other test has, of this process or of another that runs beside it. It lies below those that the system
/// gives to connections and to whoever asks for any, so that nobody takes it before the command does.
pub(crate) fn port() -> String {
    const FIRST: u32 = 20_000;
    const COUNT: u32 = 12_000;
    /// What one process has before the next one's begin.
    const EACH: u32 = 120;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let number =
            std::process::id().wrapping_mul(EACH).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed).into());
        let port = u16::try_from(FIRST + number % COUNT).unwrap();
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port.to_string();
        }
    }
}
