//! Test support: addresses of loopback, devices on them, and processes beside them.

use std::io;
use std::process::{Child, Command};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use super::OpenError;

/// Held while a process is started. Until it runs its program it has a copy of each descriptor of this process: what another
/// test closes then is still open.
static STARTING: RwLock<()> = RwLock::new(());

/// Starts a process.
pub(crate) fn start(command: &mut Command) -> io::Result<Child> {
    let _held = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    command.spawn()
}

/// No test starts a process while what is returned is held: what is closed is closed.
pub(crate) fn nothing_starts() -> RwLockReadGuard<'static, ()> {
    STARTING.read().unwrap_or_else(PoisonError::into_inner)
}

/// The address of loopback that ends so (`2.1`), in a network that this process has for itself: other tests run beside it.
/// There is no such choice in IPv6, and `::1` is what it is.
pub(super) fn own(end: &str) -> String {
    if end.contains(':') { end.into() } else { format!("127.{}.{end}", 64 + std::process::id() % 128) }
}

/// Opens a device on an address of [`own`]. That of IPv6 is waited for, as long as another test has it.
pub(super) fn open_when_free<T>(
    address: &str,
    open: impl Fn() -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    for _ in 0..if address.contains(':') { 10_000 } else { 0 } {
        match open() {
            Err(OpenError::PortInUse { .. }) => std::thread::yield_now(),
            other => return other,
        }
    }
    open()
}
