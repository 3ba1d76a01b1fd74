//! A device's counters as JSON.

use driver_shim::Device;
use serde_json::{Map, Value, json};

/// Counters of a device by name: those of the NIC, drops as `drop_…`, losses below the NIC as `io_…`.
pub(super) fn as_json(device: &Device) -> Value {
    let mut all: Map<String, Value> =
        device.counters().iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
    for (reason, count) in device.drops().iter() {
        all.insert(format!("drop_{reason}"), json!(count));
    }
    let io = device.io_counters();
    all.insert("io_tx_lost".into(), json!(io.tx_lost));
    all.insert("io_rx_lost".into(), json!(io.rx_lost));
    Value::Object(all)
}
