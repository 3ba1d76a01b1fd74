//! Who runs the engine, and how a caller that finds nothing to do treats its core.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use wire::{Duration, Instant};

/// Who runs the engine of a device: receives packets, lets the protocol work, sends.
///
/// Every device has one thread. They differ in what the program's own calls do, and so in what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Driver {
    /// Posting sends and polling completion queues run the engine in the calling thread; the device's thread serves
    /// one-sided traffic while the program is silent. Lowest latency without a core of its own: no packet changes
    /// threads while the program polls, and a silent device takes no processor time. A program that stops calling is
    /// stood in for after a fraction of a millisecond. The default.
    #[default]
    Inline,
    /// Only the device's thread runs the engine. Posting wakes it and polling a completion queue reads the queue only,
    /// so the program's calls are short. A packet changes threads both ways, which costs a wake-up (several
    /// microseconds, tens across cores) whenever the thread has gone to sleep.
    Background,
    /// As `Background`, but the thread never sleeps: no wake-ups, at the price of a whole core for each device,
    /// busy or not. For cores that are set aside; with fewer cores than such threads and the programs that poll
    /// beside them, all are slower than with the others.
    Spin,
}

impl Driver {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Inline, Self::Background, Self::Spin];

    const fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Background => "background",
            Self::Spin => "spin",
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is none of a driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such driver: write inline, background or spin")]
pub struct UnknownDriver;

impl FromStr for Driver {
    type Err = UnknownDriver;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|driver| driver.name() == name).ok_or(UnknownDriver)
    }
}

/// Idle passes before a caller that polls on lets others have its core for a moment: several round trips on an idle
/// machine, so that who has a core of its own gives nothing away.
const MOST: u32 = 64;
/// Attempts in vain before a caller waits for whoever keeps it off.
const MOST_FOR_OTHERS: u32 = 8;
/// A yield that takes longer than this has let somebody else run: it takes a fraction of this when nobody wants to.
const SOMEBODY_RAN: Duration = Duration::from_micros(2);

/// A yield that takes longer has let somebody run who computes: no peer that answers within a moment, and nothing is
/// gained by waiting for it sooner.
const SOMEBODY_COMPUTED: Duration = Duration::from_micros(100);

/// Waits for packets before a yield shows again whether others still compute: it costs a slice of theirs, and a wait
/// about a sixth of one.
const WAITS: u32 = 16;

/// How long a caller that finds nothing to do keeps its core before it yields. Whoever is to send what it waits for
/// may want the same core: then it waits for a short time only. Yields tell which it is. Where others compute on the
/// core, who can sleep until packets come does that instead: looking and yielding would use up its share of the core,
/// and it would have to wait for its turn when they are there.
#[derive(Debug)]
pub(super) struct Patience {
    /// Passes without work, in a row.
    idle: AtomicU32,
    /// How many are borne.
    limit: AtomicU32,
    /// Waits for packets that are to take the place of yields.
    waits: AtomicU32,
}

impl Patience {
    pub(super) const fn new() -> Self {
        Self { idle: AtomicU32::new(0), limit: AtomicU32::new(MOST), waits: AtomicU32::new(0) }
    }

    /// A pass found work.
    pub(super) fn worked(&self) {
        self.idle.store(0, Ordering::Relaxed);
    }

    /// A pass found nothing: lets others have the core by `give_way` where that has gone on for long enough.
    pub(super) fn idled(&self, now: impl Fn() -> Instant, give_way: impl FnOnce()) {
        if let Some(took) = self.bear(MOST, now, give_way) {
            self.yielded(took);
            let waits = if took > SOMEBODY_COMPUTED { WAITS } else { 0 };
            self.waits.store(waits, Ordering::Relaxed);
        }
    }

    /// As [`Patience::idled`], of a caller that can `wait` until packets come: does so where others compute.
    pub(super) fn idled_or_waits(
        &self,
        now: impl Fn() -> Instant,
        give_way: impl FnOnce(),
        wait: impl FnOnce(),
    ) {
        let waits = self.waits.load(Ordering::Relaxed);
        if waits == 0 {
            self.idled(now, give_way);
        } else if let Some(took) = self.bear(MOST, now, wait) {
            self.worked();
            // Where it cannot wait there is only to yield.
            let left = if took > SOMEBODY_RAN { waits - 1 } else { 0 };
            self.waits.store(left, Ordering::Relaxed);
        }
    }

    /// Another has what a pass needs: waits for it by `give_way` where that has gone on for a moment. It may have lost
    /// the core to who asks.
    pub(super) fn stood_off(&self, now: impl Fn() -> Instant, give_way: impl FnOnce()) {
        if let Some(took) = self.bear(MOST_FOR_OTHERS, now, give_way) {
            self.yielded(took);
        }
    }

    /// How long it took to give way, where that was due.
    fn bear(&self, most: u32, now: impl Fn() -> Instant, give_way: impl FnOnce()) -> Option<Duration> {
        let idle = self.idle.load(Ordering::Relaxed);
        if idle < self.limit.load(Ordering::Relaxed).min(most) {
            self.idle.store(idle + 1, Ordering::Relaxed);
            std::hint::spin_loop();
            return None;
        }
        let before = now();
        give_way();
        Some(now() - before)
    }

    /// A yield took so long.
    fn yielded(&self, took: Duration) {
        let limit = self.limit.load(Ordering::Relaxed);
        let next = if took > SOMEBODY_COMPUTED {
            MOST
        } else if took > SOMEBODY_RAN {
            limit / 2
        } else {
            (2 * limit).clamp(1, MOST)
        };
        self.limit.store(next, Ordering::Relaxed);
        if took > SOMEBODY_RAN {
            // What the other did may be what was waited for.
            self.worked();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for driver in Driver::ALL {
            assert_eq!(driver.to_string().parse(), Ok(driver));
        }
        assert_eq!("Spin".parse::<Driver>(), Err(UnknownDriver));
    }

    /// Idle passes until the one that yields, which then takes `took`.
    fn passes_to_a_yield(patience: &Patience, took: Duration) -> u32 {
        let clock = Cell::new(Instant::from_nanos(0));
        for pass in 0.. {
            let asked = Cell::new(false);
            patience.idled(
                || clock.get(),
                || {
                    asked.set(true);
                    clock.set(clock.get() + took);
                },
            );
            if asked.get() {
                return pass;
            }
        }
        0
    }

    #[test]
    fn a_core_that_others_want_is_given_up_ever_sooner_and_one_of_its_own_kept() {
        let patience = Patience::new();
        let (nobody, somebody) = (Duration::from_nanos(600), Duration::from_micros(30));
        let until: Vec<u32> = (0..9).map(|_| passes_to_a_yield(&patience, somebody)).collect();
        assert_eq!(until, [64, 32, 16, 8, 4, 2, 1, 0, 0]);
        // Who computes is not waited for.
        let computed = Duration::from_millis(3);
        assert_eq!([computed; 3].map(|took| passes_to_a_yield(&patience, took)), [0, MOST, MOST]);
        assert_eq!(passes_to_a_yield(&patience, somebody), MOST);
        for _ in 0..7 {
            passes_to_a_yield(&patience, somebody);
        }
        // Nobody else wants it any more. A row of idle passes that goes on yields each time.
        let until: Vec<u32> = (0..9).map(|_| passes_to_a_yield(&patience, nobody)).collect();
        assert_eq!(until, [0, 1, 1, 2, 4, 8, 16, 32, 0]);
        patience.worked();
        assert_eq!(passes_to_a_yield(&patience, nobody), MOST);
    }

    /// What takes the place of each of `count` rests, which take `yielding` and `waiting`: y for a yield, w for a wait.
    fn rests(patience: &Patience, count: usize, yielding: Duration, waiting: Duration) -> String {
        let clock = Cell::new(Instant::from_nanos(0));
        let said = Cell::new(String::new());
        let rest = |what: &str, took| {
            said.set(said.take() + what);
            clock.set(clock.get() + took);
        };
        loop {
            let so_far = said.take();
            if so_far.len() == count {
                return so_far;
            }
            said.set(so_far);
            patience.idled_or_waits(|| clock.get(), || rest("y", yielding), || rest("w", waiting));
        }
    }

    #[test]
    fn where_others_compute_who_can_sleep_until_packets_come_does_so() {
        let [nobody, moment, slice] =
            [Duration::from_nanos(600), Duration::from_micros(30), Duration::from_millis(3)];
        let waits = "w".repeat(WAITS as usize);
        let patience = Patience::new();
        assert_eq!(rests(&patience, 3, nobody, moment), "yyy", "nobody wants the core");
        assert_eq!(rests(&patience, 3, moment, moment), "yyy", "who answers within a moment is let run");
        let patience = Patience::new();
        let twice = format!("y{waits}y{waits}");
        assert_eq!(rests(&patience, twice.len(), slice, moment), twice);
        // The next yield shows that nobody computes any more.
        assert_eq!(rests(&patience, 3, nobody, moment), "yyy");
        let patience = Patience::new();
        assert_eq!(rests(&patience, 5, slice, nobody), "ywywy", "waits that end at once are none");
    }
}
