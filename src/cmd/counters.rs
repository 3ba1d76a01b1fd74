//! A device's counters as JSON, and its drops for whoever wonders why something failed.

use driver_shim::{Device, stat};
use qp::DropReason;
use serde_json::Value;

/// Counters of a device by name: those of the NIC, drops as `drop_…`, losses below the NIC as `io_…`.
pub(super) fn as_json(device: &Device) -> Value {
    Value::Object(stat::counters(device))
}

/// What `device` has dropped, to follow the message of a failure; nothing where it has dropped nothing.
pub(super) fn dropped(device: &Device) -> String {
    told(device.backend_name(), device.drops().iter())
}

fn told(backend: &str, drops: impl Iterator<Item = (DropReason, u64)>) -> String {
    let mut wrong_icrc = false;
    let counts: Vec<String> = drops
        .filter(|(_, n)| *n > 0)
        .inspect(|(reason, _)| wrong_icrc |= *reason == DropReason::BadIcrc)
        .map(|(reason, n)| format!("{reason} {n}"))
        .collect();
    if counts.is_empty() {
        return String::new();
    }
    let advice = if wrong_icrc && backend == "raw" {
        " (a raw socket is not told where the packets of a run begin: give --gso off at the other end)"
    } else {
        ""
    };
    format!("; dropped here: {}{advice}", counts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_icrcs_on_raw_have_their_likely_cause_named() {
        let drops = [(DropReason::NoSuchQp, 0), (DropReason::BadIcrc, 3)];
        assert_eq!(told("udp", drops.into_iter()), "; dropped here: bad_icrc 3");
        assert!(told("raw", drops.into_iter()).contains("--gso off at the other end"));
        assert_eq!(told("raw", drops.into_iter().take(1)), "");
    }
}
