//! A device's counters as JSON.

use driver_shim::{Device, stat};
use serde_json::Value;

/// Counters of a device by name: those of the NIC, drops as `drop_…`, losses below the NIC as `io_…`.
pub(super) fn as_json(device: &Device) -> Value {
    Value::Object(stat::counters(device))
}
