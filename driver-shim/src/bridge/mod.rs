//! A middlebox for real traffic: output queues of a slow rate, with ECN marks and losses.
//!
//! A [`Bridge`] stands between the clients of a Unix socket (`clients`, the back end [`crate::backend::BridgePort`]) or
//! between two network interfaces (`between`). What it does with packets is `switch`'s business, with the queue and
//! the marks of the crate `fabric`; here time passes, in one thread that sleeps while there is nothing to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mio::event::Event;
use mio::{Events, Poll, Token, Waker};
use wire::{Duration, Instant};

use crate::backend::OpenError;
use crate::capture::CaptureFile;
use crate::clock::Clock;

use self::between::Between;
use self::clients::Clients;
pub use self::report::{FlowReport, Lost, QueueReport, Report};
use self::switch::Switch;
pub use self::switch::Way;
use self::timer::Timer;

mod between;
mod clients;
pub(crate) mod hello;
mod report;
mod switch;
mod timer;

const WAKE: Token = Token(0);
const TIMER: Token = Token(1);
/// From this token on are those of [`Ports`].
const PORTS: usize = 2;

/// Shortest sleep while packets wait: so many are forwarded together, at times that are worked out to the nanosecond.
const NAP: Duration = Duration::from_micros(50);

/// How to make a [`Bridge`].
#[derive(Clone, Debug)]
pub struct BridgeConfig {
    /// What the way through it is like.
    pub way: Way,
    /// Addresses of clients that share one output queue; each other address has its own.
    pub shared: Vec<std::net::IpAddr>,
    /// From the first packet on, so long nothing is counted. Without it everything is, from the beginning.
    pub warm_up: Option<Duration>,
    /// It ends after having counted for so long.
    pub lasts: Option<Duration>,
    /// Where packets are written to, as they leave.
    pub capture: Option<CaptureFile>,
}

/// Why there is no bridge.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// Another bridge has the path.
    #[error("{} is in use by another bridge; choose another path, or end that one", .path.display())]
    PathInUse {
        /// Path that was asked for.
        path: PathBuf,
    },
    /// Something else has the path.
    #[error("{} exists and is no socket; choose another path", .path.display())]
    NoSocket {
        /// Path that was asked for.
        path: PathBuf,
    },
    /// The socket of another program has the path.
    #[error("{} is the socket of another program, which is no bridge; choose another path", .path.display())]
    OtherSocket {
        /// Path that was asked for.
        path: PathBuf,
    },
    /// The path cannot be had.
    #[error("cannot make the socket {}: {source}", .path.display())]
    Path {
        /// Path that was asked for.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The two interfaces are one.
    #[error("a bridge between {name} and itself goes nowhere; name two interfaces")]
    SameInterface {
        /// Its name.
        name: String,
    },
    /// An interface cannot be used.
    #[error(transparent)]
    Interface(#[from] OpenError),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl BridgeError {
    /// The error number of the system that comes closest.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::PathInUse { .. } | Self::OtherSocket { .. } => libc::EADDRINUSE,
            Self::NoSocket { .. } => libc::ENOTSOCK,
            Self::SameInterface { .. } => libc::EINVAL,
            Self::Interface(source) => source.errno(),
            Self::Path { source, .. } | Self::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
        }
    }

    fn io(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }
}

/// Where packets come from and go to.
trait Ports: Send + fmt::Debug {
    /// Something that it has registered is ready.
    fn handle(&mut self, now: Instant, event: &Event, switch: &mut Switch);

    /// Takes in some of what has come; true where there may be more.
    fn receive(&mut self, now: Instant, switch: &mut Switch) -> bool;

    /// A packet has come through, for whom the sender said: `false` where it cannot be delivered.
    fn deliver(&mut self, to: usize, bytes: Vec<u8>) -> bool;

    /// Where Ethernet frames begin in what is delivered; `None` where it is IP packets.
    fn frame_at(&self) -> Option<usize>;
}

/// A middlebox.
#[derive(Debug)]
pub struct Bridge {
    switch: Switch,
    ports: Box<dyn Ports>,
    poll: Poll,
    timer: Timer,
    stopper: Stopper,
    clock: Clock,
    phase: Phase,
    warm_up: Option<Duration>,
    lasts: Option<Duration>,
    capture: Option<Captured>,
}

/// Whether it counts.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// No packet has come.
    Waiting,
    /// It will, from then on.
    WarmingUp(Instant),
    /// Since when it has.
    Counting(Instant),
}

/// A capture, with the interface of each output.
#[derive(Debug)]
struct Captured {
    file: CaptureFile,
    interfaces: Vec<u32>,
}

/// Ends a [`Bridge`] from another thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    stop: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stopper {
    /// Ends it: [`Bridge::run`] returns.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Err(error) = self.waker.wake() {
            tracing::warn!(%error, "the bridge cannot be woken");
        }
    }
}

impl Bridge {
    /// A bridge for the clients of the socket at `path`, which is made. One that a bridge has left behind is replaced.
    ///
    /// # Errors
    /// [`BridgeError`].
    pub fn listen(path: &Path, config: &BridgeConfig) -> Result<Self, BridgeError> {
        Self::assemble(config, |poll, _, _| {
            Ok(Box::new(Clients::listen(path, config.way.rate, &config.shared, poll.registry())?))
        })
    }

    /// A bridge between two network interfaces: every frame that comes by one leaves by the other.
    ///
    /// # Errors
    /// [`BridgeError`].
    pub fn between(names: [&str; 2], config: &BridgeConfig) -> Result<Self, BridgeError> {
        Self::assemble(config, |poll, now, switch| {
            Ok(Box::new(Between::open(names, poll.registry(), now, switch)?))
        })
    }

    fn assemble(
        config: &BridgeConfig,
        ports: impl FnOnce(&Poll, Instant, &mut Switch) -> Result<Box<dyn Ports>, BridgeError>,
    ) -> Result<Self, BridgeError> {
        let failed = BridgeError::io("prepare to wait");
        let poll = Poll::new().map_err(&failed)?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE).map_err(&failed)?);
        let timer = Timer::new(poll.registry(), TIMER).map_err(&failed)?;
        let clock = Clock::new();
        let mut switch = Switch::new(clock.now(), config.way);
        let ports = ports(&poll, clock.now(), &mut switch)?;
        Ok(Self {
            switch,
            ports,
            poll,
            timer,
            stopper: Stopper { stop: Arc::default(), waker },
            clock,
            phase: if config.warm_up.is_some() { Phase::Waiting } else { Phase::Counting(Instant::ZERO) },
            warm_up: config.warm_up,
            lasts: config.lasts,
            capture: config.capture.clone().map(|file| Captured { file, interfaces: Vec::new() }),
        })
    }

    /// What ends it.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Forwards until it is stopped or its time is over, and returns what it has counted.
    ///
    /// # Errors
    /// When the system no longer lets it wait. A capture that cannot be written ends with a warning, and it goes on.
    pub fn run(&mut self) -> Result<Report, BridgeError> {
        let mut events = Events::with_capacity(64);
        let mut over = false;
        while !over && !self.stopper.stop.load(Ordering::Relaxed) {
            let now = self.clock.now();
            self.deliver(now);
            let more = self.ports.receive(now, &mut self.switch);
            over = self.pass_time(now);
            let wait = if more { Some(std::time::Duration::ZERO) } else { None };
            self.timer
                .set(self.poll_timeout(now).map(|due| due - now))
                .map_err(BridgeError::io("set a timer"))?;
            match self.poll.poll(&mut events, wait) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(BridgeError::Io { what: "wait for packets", source: error });
                }
                _ => {}
            }
            let now = self.clock.now();
            for event in events.iter().filter(|event| event.token().0 >= PORTS) {
                self.ports.handle(now, event, &mut self.switch);
            }
        }
        if let Some(captured) = &self.capture
            && let Err(error) = captured.file.flush()
        {
            // The file has warned of it; what passed is to be told all the same.
            tracing::debug!(%error, "the capture is not whole");
        }
        Ok(self.switch.report(self.clock.now()))
    }

    /// Lets go what has come through.
    fn deliver(&mut self, now: Instant) {
        while let Some((output, to, bytes)) = self.switch.pop(now) {
            if let Some(captured) = &mut self.capture {
                captured.write(output, self.ports.frame_at(), &bytes);
            }
            if !self.ports.deliver(to, bytes) {
                self.switch.lost.not_taken += 1;
            }
        }
    }

    /// Begins and ends the counting; says whether it is over.
    fn pass_time(&mut self, now: Instant) -> bool {
        match self.phase {
            Phase::Waiting if self.switch.poll_timeout().is_some() => {
                self.phase = Phase::WarmingUp(now + self.warm_up.unwrap_or_default());
            }
            Phase::WarmingUp(until) if until <= now => {
                self.switch.restart(now);
                self.phase = Phase::Counting(now);
            }
            _ => {}
        }
        match (self.phase, self.lasts) {
            (Phase::Counting(since), Some(lasts)) => since + lasts <= now,
            _ => false,
        }
    }

    /// When there is something to do, if nothing comes.
    fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let phase = match self.phase {
            Phase::Waiting => None,
            Phase::WarmingUp(until) => Some(until),
            Phase::Counting(since) => self.lasts.map(|lasts| since + lasts),
        };
        let packets = self.switch.poll_timeout().map(|due| due.max(now + NAP));
        packets.into_iter().chain(phase).min()
    }
}

impl Captured {
    fn write(&mut self, output: usize, frame_at: Option<usize>, bytes: &[u8]) {
        while self.interfaces.len() <= output {
            let name = format!("output{}", self.interfaces.len());
            self.interfaces.push(self.file.add_link(&name, frame_at.is_some()));
        }
        let bytes = bytes.get(frame_at.unwrap_or(0)..).unwrap_or_default();
        self.file.write_bytes(self.interfaces[output], bytes);
    }
}
