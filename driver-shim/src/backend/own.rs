//! Test support: addresses of loopback, and devices on them.

use super::OpenError;

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
