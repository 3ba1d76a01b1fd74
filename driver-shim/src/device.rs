//! The device: a NIC, its packet path and its thread, behind one reference-counted handle.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, Once};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::Poll;
use qp::{
    AsyncEvent, CcConfig, CcState, Counters, Drops, Limits, Nic, NicConfig, Profile, QpState, Rate, Tracer,
};
use rand_core::{RngCore, SeedableRng};
use rand_pcg::Pcg32;
use wire::{Gid, Mtu, Psn, Qpn};

use crate::backend::{Backend, IoCounters};
use crate::channel::CompletionChannel;
use crate::cq::CompletionQueue;
use crate::engine::{Driver, Engine, lock};
use crate::interfaces::GidTable;
use crate::pd::ProtectionDomain;
use crate::stat::{About, Teller};
use crate::tracer::Events;
use crate::xrc::XrcDomain;

/// A soft NIC. Clones are the same device; it closes when the last handle to it or to anything on it goes.
#[derive(Clone)]
pub struct Device {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Arc<Engine>,
    name: &'static str,
    addresses: GidTable,
    window: u32,
    profile: Profile,
    rng: Mutex<Pcg32>,
    thread: Option<JoinHandle<()>>,
    /// Tells `ferroce stat` of the device.
    teller: Option<Teller>,
}

/// Makes a [`Device`].
#[must_use]
pub struct DeviceBuilder {
    backend: Box<dyn Backend>,
    seed: Option<u64>,
    profile: Profile,
    driver: Driver,
    tracer: Option<Box<dyn Tracer>>,
    cc: CcConfig,
    line_rate: Option<Rate>,
    stat: Option<String>,
}

/// A queue pair as its device's congestion control sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct PairCc {
    /// Its number.
    pub qpn: Qpn,
    /// Its state.
    pub state: QpState,
    /// Its rate, target and alpha, and the CNPs it has heeded; `None` where nothing controls its rate: without congestion
    /// control, before it is ready to receive, and for those that do not take part.
    pub cc: Option<CcState>,
}

impl Device {
    /// A device over `backend`.
    pub fn builder(backend: impl Backend + 'static) -> DeviceBuilder {
        Self::boxed(Box::new(backend))
    }

    /// A device over `backend`, for callers that choose the back end at run time.
    pub fn boxed(backend: Box<dyn Backend>) -> DeviceBuilder {
        DeviceBuilder {
            backend,
            seed: None,
            profile: Profile::Strict,
            driver: Driver::Inline,
            tracer: None,
            cc: CcConfig::default(),
            line_rate: None,
            stat: None,
        }
    }

    /// Name of its back end.
    #[must_use]
    pub fn backend_name(&self) -> &'static str {
        self.inner.name
    }

    /// What it can hold.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.inner.engine.nic().limits()
    }

    /// GIDs, MAC and MTU.
    #[must_use]
    pub fn addresses(&self) -> &GidTable {
        &self.inner.addresses
    }

    /// The GID at `index` of the port's table.
    #[must_use]
    pub fn gid(&self, index: usize) -> Option<Gid> {
        self.inner.addresses.get(index)
    }

    /// Largest path MTU of the port.
    #[must_use]
    pub fn active_mtu(&self) -> Mtu {
        self.inner.addresses.active_mtu()
    }

    /// Packets that a queue pair may have in flight.
    #[must_use]
    pub fn window(&self) -> u32 {
        self.inner.window
    }

    /// Whose behaviour it shows on the wire.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.inner.profile
    }

    /// A random first PSN.
    #[must_use]
    pub fn random_psn(&self) -> Psn {
        Psn::new(lock(&self.inner.rng).next_u32())
    }

    /// Makes a protection domain.
    #[must_use]
    pub fn alloc_pd(&self) -> ProtectionDomain {
        ProtectionDomain::new(self)
    }

    /// Makes an XRC domain.
    #[must_use]
    pub fn alloc_xrcd(&self) -> XrcDomain {
        XrcDomain::new(self)
    }

    /// Makes a completion queue for `depth` completions.
    ///
    /// # Errors
    /// Where `depth` is 0 or too large.
    pub fn create_cq(&self, depth: usize) -> Result<CompletionQueue, qp::CreateError> {
        CompletionQueue::new(self, depth)
    }

    /// Makes a completion channel: a place to wait for several completion queues.
    ///
    /// # Errors
    /// When the system gives no descriptor.
    pub fn create_channel(&self) -> io::Result<CompletionChannel> {
        CompletionChannel::new(self)
    }

    /// Counters of the NIC.
    #[must_use]
    pub fn counters(&self) -> Counters {
        *self.engine().nic().counters()
    }

    /// Packets dropped by the NIC, by reason.
    #[must_use]
    pub fn drops(&self) -> Drops {
        self.engine().nic().drops().clone()
    }

    /// Its congestion control.
    #[must_use]
    pub fn cc(&self) -> CcConfig {
        self.engine().nic().config().cc.clone()
    }

    /// What its port sends at most, as congestion control takes it.
    #[must_use]
    pub fn line_rate(&self) -> Rate {
        self.engine().nic().config().line_rate
    }

    /// All queue pairs with their states, rates, targets and alphas, as of now. Whoever shows a device to people calls it:
    /// it takes the NIC's lock for as long as it takes to copy that, and changes nothing.
    #[must_use]
    pub fn cc_states(&self) -> Vec<PairCc> {
        let now = self.engine().now();
        let nic = self.engine().nic();
        nic.cc_states(now).map(|(qpn, state, cc)| PairCc { qpn, state, cc }).collect()
    }

    /// Packets lost below the NIC.
    #[must_use]
    pub fn io_counters(&self) -> IoCounters {
        self.engine().io_counters()
    }

    /// The next asynchronous event, if there is one.
    #[must_use]
    pub fn poll_async_event(&self) -> Option<AsyncEvent> {
        self.engine().next_async_event()
    }

    /// Waits for the next asynchronous event until `timeout` has passed, without keeping a core busy.
    #[must_use]
    pub fn wait_async_event(&self, timeout: Duration) -> Option<AsyncEvent> {
        self.engine().wait_async_event(timeout)
    }

    /// Why packets no longer come or go, if the path is gone.
    #[must_use]
    pub fn path_error(&self) -> Option<String> {
        self.engine().broken()
    }

    /// Runs one pass of the engine, or lets whoever runs one make another; with another [`Driver`] than `Inline` wakes
    /// the device's thread for that.
    pub fn drive(&self) {
        self.engine().drive();
    }

    /// Writes captures out to their files.
    ///
    /// # Errors
    /// When that fails.
    pub fn flush(&self) -> io::Result<()> {
        self.engine().flush()
    }

    /// Whether `other` is a handle to the same device.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    #[cfg(test)]
    pub(crate) fn shared_engine(&self) -> Arc<Engine> {
        Arc::clone(&self.inner.engine)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.inner.engine
    }
}

impl DeviceBuilder {
    /// Seeds everything random, so that a run can be repeated.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Whose behaviour it shows on the wire; [`Profile::Strict`] where none is set.
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = profile;
        self
    }

    /// Who runs the engine; [`Driver::Inline`] where none is set.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.driver = driver;
        self
    }

    /// Congestion control of its queue pairs; off where none is set.
    pub fn cc(mut self, cc: CcConfig) -> Self {
        self.cc = cc;
        self
    }

    /// What the port sends at most: the highest rate of a queue pair that congestion control has slowed down, and the
    /// one it starts from. Where none is set it is the interface's speed, or where that is not known
    /// [`NicConfig::LINE_RATE`]. A middlebox or link that is slower is for congestion control to find out.
    pub fn line_rate(mut self, rate: Rate) -> Self {
        self.line_rate = Some(rate);
        self
    }

    /// Lets `tracer` watch. Without one, a device that is opened while `tracing` is enabled at debug level
    /// or finer tells it what happens.
    pub fn tracer(mut self, tracer: Box<dyn Tracer>) -> Self {
        self.tracer = Some(tracer);
        self
    }

    /// Lets other processes of this user ask the running device for its counters and queue pairs under `name`, or where
    /// that is taken, under it and a number; see [`crate::stat`]. Where that cannot be, the device works without, and the
    /// first one warns through `tracing`.
    pub fn stat(mut self, name: impl Into<String>) -> Self {
        self.stat = Some(name.into());
        self
    }

    /// Opens the device and starts its thread.
    ///
    /// # Errors
    /// When the system gives no poll or no thread.
    pub fn open(mut self) -> io::Result<Device> {
        let stat = self.stat.take();
        let (mut inner, poll) = self.assemble()?;
        inner.teller = stat.and_then(|name| inner.told_of_as(&name));
        let background = Arc::clone(&inner.engine);
        let thread = std::thread::Builder::new().name("ferroce-nic".into());
        inner.thread = Some(thread.spawn(move || background.run(poll))?);
        Ok(Device { inner: Arc::new(inner) })
    }

    /// One whose passes are only those that a test runs.
    #[cfg(test)]
    pub(crate) fn without_thread(self) -> Device {
        Device { inner: Arc::new(self.assemble().expect("a poll").0) }
    }

    /// All but the thread, and the poll that this is to block in.
    fn assemble(self) -> io::Result<(Inner, Poll)> {
        let seed = self.seed.unwrap_or_else(random_seed);
        let name = self.backend.name();
        let addresses = self.backend.addresses().clone();
        let caps = self.backend.caps();
        let line_rate = self.line_rate.or_else(|| addresses.speed()).unwrap_or(NicConfig::LINE_RATE);
        let config = NicConfig {
            cc: self.cc,
            line_rate,
            ..NicConfig::new(addresses.gids().to_vec(), addresses.active_mtu(), caps, seed, self.profile)
        };
        let mut nic = Nic::new(config);
        nic.set_lane(self.backend.lane());
        if let Some(tracer) = self.tracer {
            nic.set_tracer(tracer);
        } else if tracing::enabled!(tracing::Level::DEBUG) {
            nic.set_tracer(Box::new(Events::new(addresses.get(1).unwrap_or_default().ip())));
        }
        let (engine, poll) = Engine::new(nic, self.backend, self.driver)?;
        let inner = Inner {
            engine,
            name,
            addresses,
            window: caps.window,
            profile: self.profile,
            rng: Mutex::new(Pcg32::seed_from_u64(seed ^ 0x5053_4e00)),
            thread: None,
            teller: None,
        };
        Ok((inner, poll))
    }
}

impl Inner {
    fn told_of_as(&self, name: &str) -> Option<Teller> {
        static WARN: Once = Once::new();
        let about = About {
            backend: self.name,
            gids: self.addresses.gids().to_vec(),
            engine: Arc::clone(&self.engine),
        };
        Teller::start(name, about)
            .inspect_err(|error| {
                WARN.call_once(|| tracing::warn!(%error, "`ferroce stat` will not find this device"));
            })
            .ok()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(self.teller.take());
        self.engine.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the device's thread panicked");
        }
        if let Err(error) = self.engine.flush() {
            // A capture has warned of it.
            tracing::debug!(%error, "what was left could not be written");
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("backend", &self.inner.name)
            .field("addresses", &self.inner.addresses)
            .finish_non_exhaustive()
    }
}

/// A seed from the entropy that the standard library's hash maps are seeded with.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}
