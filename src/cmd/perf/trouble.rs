//! What went wrong, in one line.

use driver_shim::Device;
use qp::{Completion, WcStatus};

use crate::cmd::Failure;
use crate::cmd::counters::dropped;

/// A work request failed.
pub(super) fn failed(device: &Device, wc: &Completion, messages: u64) -> Failure {
    let advice = match (device.path_error(), wc.status) {
        (Some(error), _) => format!("; the network device is gone: {error}"),
        // Such packets are dropped by the socket's filter, where nobody counts them.
        (None, WcStatus::RetryExcErr) if device.backend_name() == "udp" => {
            "; the other end does not answer: has it ended, or is it not on udp too (then give --foreign-senders)?".into()
        }
        (None, WcStatus::RetryExcErr) => "; the other end does not answer: has it ended?".into(),
        (None, WcStatus::RnrRetryExcErr) => "; the other end has no receives: was -n the same there?".into(),
        (None, WcStatus::LocLenErr) => "; the other end sent more than -s says here".into(),
        (None, WcStatus::RemAccessErr | WcStatus::RemInvReqErr | WcStatus::RemOpErr) => {
            "; do both ends run the same command with the same -s, -q, -m and -c?".into()
        }
        (None, _) => String::new(),
    };
    Failure::Failed(format!(
        "failed with status {} for wr_id {} after {messages} messages{advice}{}",
        wc.status,
        wc.wr_id,
        dropped(device)
    ))
}

/// The other end has gone in the middle.
pub(super) fn gone(device: &Device, messages: u64) -> Failure {
    Failure::Failed(format!("the other end has gone after {messages} messages{}", dropped(device)))
}

/// The other end has done its part, and this end waits for more of it.
pub(super) fn fewer(device: &Device, messages: u64) -> Failure {
    Failure::Failed(format!(
        "the other end is done, but this end waits for more after {messages} messages: are -n, -q and -b the same \
         there?{}",
        dropped(device)
    ))
}

/// The other end answers, but takes nothing any more.
pub(super) fn refused(device: &Device, messages: u64) -> Failure {
    Failure::Failed(format!(
        "the other end has had no receives for five seconds after {messages} messages: are -n, -q and -b the same \
         there?{}",
        dropped(device)
    ))
}

/// The other end takes everything and sends nothing, in a test both ways.
pub(super) fn silent(device: &Device, messages: u64) -> Failure {
    Failure::Failed(format!(
        "the other end has taken {messages} messages and sends none: is -b given there too?{}",
        dropped(device)
    ))
}

/// A message that is waited for has got lost.
pub(super) fn lost(device: &Device, messages: u64) -> Failure {
    Failure::Failed(format!(
        "nothing has come after {messages} messages: one was lost, and an unreliable connection repeats none; use \
         -c RC{}",
        dropped(device)
    ))
}
