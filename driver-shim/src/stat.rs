//! What running devices tell of themselves: each that has a name listens on a socket in the directory of its user, and
//! whoever connects is given a JSON object with its counters and its queue pairs.
//!
//! A thread of its own answers; it takes the NIC's lock for moments only. The socket goes with the device. What a process
//! that was killed has left is removed by whoever finds it.

use std::fmt;
use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use qp::QpState;
use serde_json::{Map, Value, json};
use wire::{Gid, Qpn};

use crate::device::Device;
use crate::engine::{Engine, lock};
use crate::private;

/// What the names of sockets end with.
const SUFFIX: &str = ".stat";
/// Longest name of a device: the path of a socket is short.
const LONGEST_NAME: usize = 48;
/// Devices of one name, told apart by a number.
const MOST_OF_A_NAME: u32 = 1000;
/// How long a reader may take nothing, and an answer may take to come.
const PATIENCE: Duration = Duration::from_secs(2);
/// Devices that are asked at the same time, each by a thread.
const ASKED_AT_ONCE: usize = 64;
/// Queue pairs that are looked at under one lock.
const AT_A_TIME: usize = 64;
/// Longest answer that is read.
const LONGEST_ANSWER: u64 = 1 << 28;

const LISTENER: Token = Token(0);
const STOP: Token = Token(1);

/// Why a device was not asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatError {
    /// No device has this name.
    #[error("no running device of this user is called {name:?}{}", list(.running))]
    NoSuchDevice {
        /// Name that was asked for.
        name: String,
        /// Names that there are.
        running: Vec<String>,
    },
    /// The directory cannot be used.
    #[error("cannot look for running devices: {0}")]
    Directory(io::Error),
    /// The device does not answer.
    #[error("the device {name} does not answer: {source}")]
    NoAnswer {
        /// Its name.
        name: String,
        /// What happened.
        source: io::Error,
    },
}

impl StatError {
    /// The error number of the system that comes closest.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NoSuchDevice { .. } => libc::ENODEV,
            Self::Directory(source) | Self::NoAnswer { source, .. } => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
        }
    }
}

fn list(running: &[String]) -> String {
    if running.is_empty() {
        "; none is running".into()
    } else {
        format!("; there are: {}", running.join(", "))
    }
}

/// Whether a device can have this name: letters, digits, `.`, `_` and `-`, and no `.` in front.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=LONGEST_NAME).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(fits)
}

/// Names of the running devices of this user, in alphabetical order. What others have left behind is removed.
///
/// # Errors
/// Where their directory cannot be used.
pub fn running() -> io::Result<Vec<String>> {
    running_in(&private::directory()?)
}

fn running_in(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let file = entry.file_name();
        let Some(name) = file.to_str().and_then(|file| file.strip_suffix(SUFFIX)) else { continue };
        if is_name(name) && !remove_if_dead(&entry.path()) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Asks the device called `name`: its counters by name, its drops among them as `drop_…`, and its queue pairs.
///
/// # Errors
/// [`StatError`].
pub fn ask(name: &str) -> Result<Value, StatError> {
    ask_in(&private::directory().map_err(StatError::Directory)?, name)
}

/// Asks all of `names` at the same time, as [`ask`] does one, so that those that do not answer cost as much time as one.
#[must_use]
pub fn ask_all(names: &[&str]) -> Vec<Result<Value, StatError>> {
    match private::directory() {
        Ok(directory) => ask_all_in(&directory, names, PATIENCE),
        Err(_) => names.iter().map(|name| ask(name)).collect(),
    }
}

fn ask_all_in(directory: &Path, names: &[&str], patience: Duration) -> Vec<Result<Value, StatError>> {
    let mut answers = Vec::with_capacity(names.len());
    for some in names.chunks(ASKED_AT_ONCE) {
        std::thread::scope(|scope| {
            let ask = |name| move || ask_within(directory, name, patience);
            let begin = |name| std::thread::Builder::new().spawn_scoped(scope, ask(name)).map_err(|_| name);
            let asked: Vec<_> = some.iter().copied().map(begin).collect();
            answers.extend(asked.into_iter().map(|one| match one {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // Without a thread of its own it is asked here.
                Err(name) => ask(name)(),
            }));
        });
    }
    answers
}

fn ask_in(directory: &Path, name: &str) -> Result<Value, StatError> {
    ask_within(directory, name, PATIENCE)
}

fn ask_within(directory: &Path, name: &str, patience: Duration) -> Result<Value, StatError> {
    let missing = || StatError::NoSuchDevice {
        name: name.to_owned(),
        running: running_in(directory).unwrap_or_default(),
    };
    if !is_name(name) {
        return Err(missing());
    }
    let stream = match UnixStream::connect(socket_path(directory, name)) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Err(missing());
        }
        Err(source) => return Err(StatError::NoAnswer { name: name.to_owned(), source }),
    };
    let mut answer = Vec::new();
    let answered = stream
        .set_read_timeout(Some(patience))
        .and_then(|()| stream.take(LONGEST_ANSWER).read_to_end(&mut answer))
        .and_then(|_| serde_json::from_slice(&answer).map_err(io::Error::from));
    answered.map_err(|source| StatError::NoAnswer { name: name.to_owned(), source })
}

fn socket_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}{SUFFIX}"))
}

/// Removes the socket at `path` if nobody listens any more; says whether that was so.
fn remove_if_dead(path: &Path) -> bool {
    let is_dead =
        UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if is_dead {
        remove(path);
    }
    is_dead
}

/// Sockets of this process's devices.
static SOCKETS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes the sockets of this process's devices, for a process that is about to end without closing them.
pub fn forget_devices() {
    for path in lock(&SOCKETS).drain(..) {
        remove(&path);
    }
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::debug!(%error, "a device's socket is gone already");
    }
}

/// Counters of a device by name: those of the NIC, drops as `drop_…`, losses below the NIC as `io_…`.
#[must_use]
pub fn counters(device: &Device) -> Map<String, Value> {
    counters_of(device.engine())
}

fn counters_of(engine: &Engine) -> Map<String, Value> {
    let mut all: Map<String, Value> = {
        let nic = engine.nic();
        let counters = nic.counters().iter().map(|(name, value)| (name.to_owned(), json!(value)));
        counters
            .chain(nic.drops().iter().map(|(reason, count)| (format!("drop_{reason}"), json!(count))))
            .collect()
    };
    let io = engine.io_counters();
    all.insert("io_tx_lost".into(), json!(io.tx_lost));
    all.insert("io_rx_lost".into(), json!(io.rx_lost));
    all
}

/// A device that answers.
pub(crate) struct Teller {
    path: PathBuf,
    stop: Waker,
    thread: Option<JoinHandle<()>>,
}

/// What a device says beside its counters.
pub(crate) struct About {
    pub(crate) backend: &'static str,
    pub(crate) gids: Vec<Gid>,
    pub(crate) engine: Arc<Engine>,
}

impl Teller {
    /// Lets a device be asked under `name`, or where others have that, under this and a number.
    pub(crate) fn start(name: &str, about: About) -> io::Result<Self> {
        Self::start_in(&private::directory()?, name, about)
    }

    fn start_in(directory: &Path, name: &str, about: About) -> io::Result<Self> {
        if !is_name(name) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name:?} is no name for a device"),
            ));
        }
        let poll = Poll::new()?;
        let stop = Waker::new(poll.registry(), STOP)?;
        let (listener, path, name) = listen(directory, name)?;
        // From here on the path is removed whatever happens.
        lock(&SOCKETS).push(path.clone());
        let mut teller = Self { path, stop, thread: None };
        listener.set_nonblocking(true)?;
        poll.registry().register(&mut SourceFd(&listener.as_raw_fd()), LISTENER, Interest::READABLE)?;
        let thread = std::thread::Builder::new().name("ferroce-stat".into());
        teller.thread = Some(thread.spawn(move || about.tell(&name, &listener, poll))?);
        Ok(teller)
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        lock(&SOCKETS).retain(|path| *path != self.path);
        remove(&self.path);
        if let Err(error) = self.stop.wake() {
            tracing::warn!(%error, "the thread that tells of the device cannot be ended");
        } else if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that tells of the device panicked");
        }
    }
}

impl fmt::Debug for Teller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Teller").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A listening socket for a device that is to be called `name`, its path, and the name that was free.
fn listen(directory: &Path, name: &str) -> io::Result<(UnixListener, PathBuf, String)> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // It gets its name when it listens, so that whoever sees it does not take it for dead.
    let unique = NEXT.fetch_add(1, Ordering::Relaxed);
    let unnamed = directory.join(format!(".{}-{unique}", std::process::id()));
    let listener = UnixListener::bind(&unnamed)?;
    let named = fs::set_permissions(&unnamed, Permissions::from_mode(0o600))
        .and_then(|()| take_name(directory, name, &unnamed));
    let removed = fs::remove_file(&unnamed);
    let (path, name) = named?;
    removed?;
    Ok((listener, path, name))
}

fn take_name(directory: &Path, name: &str, socket: &Path) -> io::Result<(PathBuf, String)> {
    for number in 1..=MOST_OF_A_NAME {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        // The number has its place in what a name may be long.
        let name = format!("{}{suffix}", &name[..name.len().min(LONGEST_NAME - suffix.len())]);
        let path = socket_path(directory, &name);
        for _ in 0..2 {
            match fs::hard_link(socket, &path) {
                Ok(()) => return Ok((path, name)),
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Err(_) if remove_if_dead(&path) => {}
                Err(_) => break,
            }
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

impl About {
    /// Answers until it is to stop.
    fn tell(&self, name: &str, listener: &UnixListener, mut poll: Poll) {
        let mut events = Events::with_capacity(4);
        loop {
            if let Err(error) = poll.poll(&mut events, None)
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::warn!(%error, "the device does not tell of itself any more");
                return;
            }
            if events.iter().any(|event| event.token() == STOP) {
                return;
            }
            while let Ok((stream, _)) = listener.accept() {
                if let Err(error) = self.answer(name, stream) {
                    tracing::debug!(%error, "somebody has asked and not listened");
                }
            }
        }
    }

    fn answer(&self, name: &str, mut stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(self.snapshot(name).to_string().as_bytes())
    }

    fn snapshot(&self, name: &str) -> Value {
        json!({
            "name": name,
            "pid": std::process::id(),
            "backend": self.backend,
            "gids": self.gids.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "counters": counters_of(&self.engine),
            "qps": self.queue_pairs(),
        })
    }

    fn queue_pairs(&self) -> Vec<Value> {
        let mut all: Vec<Qpn> = self.engine.nic().qpns().collect();
        all.sort_unstable();
        let mut told = Vec::new();
        for some in all.chunks(AT_A_TIME) {
            let (nic, now) = (self.engine.nic(), self.engine.now());
            let states = some.iter().map(|qpn| Some((*qpn, nic.query_qp(*qpn)?, nic.cc_state(now, *qpn))));
            // Those that have gone since are left out. Text is made without the lock.
            let states: Vec<_> = states.flatten().collect();
            drop(nic);
            told.extend(states.into_iter().map(|(qpn, (attr, init), cc)| {
                let is_connected =
                    init.qp_type.is_connected() && !matches!(attr.state, QpState::Reset | QpState::Init);
                let rate = cc.unwrap_or_default().rate;
                json!({
                    "qpn": qpn.value(),
                    "type": init.qp_type.to_string(),
                    "state": attr.state.to_string(),
                    "remote": is_connected.then(|| attr.addr.dgid.ip().to_string()),
                    "dest_qpn": is_connected.then(|| attr.dest_qpn.value()),
                    "rate_bps": rate.rate.map(|rate| rate.bps()),
                    "target_bps": rate.target.map(|rate| rate.bps()),
                    "alpha": rate.alpha,
                    "cnps_handled": cc.map(|cc| cc.cnps_handled),
                })
            }));
        }
        told
    }
}

#[cfg(test)]
#[path = "stat_tests.rs"]
mod tests;
