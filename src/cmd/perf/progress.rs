//! How far a run is, for whoever watches it on a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar on standard error; nothing where that is no terminal.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    calls: u32,
}

/// Looks at a bar are dearer than a pass of the loop.
const EVERY: u32 = 4096;

impl Progress {
    /// Of `all` messages; of 0 where the end is not known by number.
    pub(super) fn begin(all: u64) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            if all == 0 {
                return ProgressBar::new_spinner();
            }
            let bar = ProgressBar::new(all);
            match ProgressStyle::with_template("{wide_bar} {pos}/{len} {per_sec} {eta}") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        Self { bar, calls: 0 }
    }

    /// So many are done.
    pub(super) fn at(&mut self, done: u64) {
        let Some(bar) = &self.bar else { return };
        self.calls += 1;
        if self.calls >= EVERY {
            self.calls = 0;
            bar.set_position(done);
        }
    }

    /// Takes it off the screen.
    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
