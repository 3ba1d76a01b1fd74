//! SIGINT and SIGTERM end a command early, but not before it has said what it measured.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cmd::Failure;

/// Whether one of the signals has come. The second one ends the process at once.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts to listen.
    pub(crate) fn watch() -> Result<Self, Failure> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: the first signal finds the flag down and only raises it.
            let armed = signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)));
            armed
                .map_err(|error: io::Error| Failure::Failed(format!("cannot watch for signals: {error}")))?;
        }
        Ok(Self(flag))
    }

    /// Whether to stop.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
