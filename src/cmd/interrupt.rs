//! SIGINT and SIGTERM end a command early, but not before it has said what it measured.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use driver_shim::stat;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cmd::Failure;

/// Whoever ends a command may signal it twice at once: itself, and with its whole process group. Only a signal that
/// comes later than this after the first is one more person who has lost patience.
const GRACE: Duration = Duration::from_millis(500);

/// Whether some command ends by itself when a signal comes.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// From now on a signal that ends the process before a command listens to signals takes along what tells of the process's
/// devices.
pub(crate) fn leave_nothing() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok(mut signals) = Signals::new([SIGINT, SIGTERM]) else { return };
        let thread = std::thread::Builder::new().name("signals".into());
        let spawned = thread.spawn(move || {
            for signal in signals.forever() {
                if !WATCHED.load(Ordering::Relaxed) {
                    stat::forget_devices();
                    // Both end the process; where that fails, nothing is lost but tidiness.
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            }
        });
        drop(spawned);
    });
}

/// Whether one of the signals has come. One more, a while later, ends the process at once.
#[derive(Clone, Debug)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Starts to listen.
    pub(crate) fn watch() -> Result<Self, Failure> {
        Self::watch_and(|| {})
    }

    /// Starts to listen, and with the first signal calls `act` too, for what does not ask whether one has come.
    pub(crate) fn watch_and(act: impl Fn() + Send + 'static) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::Failed(format!("cannot watch for signals: {error}"));
        let signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        let flag = Arc::new(AtomicBool::new(false));
        let watcher = Arc::clone(&flag);
        let thread = std::thread::Builder::new().name("signals".into());
        thread.spawn(move || listen(signals, &watcher, act)).map_err(failed)?;
        WATCHED.store(true, Ordering::Relaxed);
        Ok(Self(flag))
    }

    /// Whether to stop.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn listen(mut signals: Signals, flag: &AtomicBool, act: impl Fn()) {
    let mut first = None;
    for _ in signals.forever() {
        let now = now();
        if now.duration_since(*first.get_or_insert(now)) > GRACE {
            stat::forget_devices();
            std::process::exit(1);
        }
        flag.store(true, Ordering::Relaxed);
        act();
    }
}

#[expect(clippy::disallowed_methods, reason = "a person's patience is of real time")]
fn now() -> Instant {
    Instant::now()
}
