//! Ways to destinations: which Ethernet address packets for an IP address go to.
//!
//! The packet back end calls it. The table here keeps what is known, repeats questions on time and holds a
//! few packets per destination until the answer comes; whom to ask is a [`Resolver`]'s business. It does no
//! I/O of its own and takes time as an argument.

use std::collections::HashMap;
use std::net::IpAddr;

use wire::{Duration, Gid, Instant, Mac};

use crate::backend::{Reachability, Unreachable};

mod host;
mod kernel;
mod netlink;

pub(crate) use host::Host;
pub(crate) use kernel::Kernel;

/// Packets that wait per destination.
const HELD: usize = 64;

/// How long an answer is trusted before it is asked for again, while packets go on.
const FRESH: Duration = Duration::from_secs(10);

/// How long a failure is believed before the next packet starts another try.
const FAILED: Duration = Duration::from_secs(1);

/// How packets for a destination leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// To this Ethernet address, known without asking.
    Mac(Mac),
    /// To the Ethernet address of this neighbour: the destination itself or a gateway.
    Ask(IpAddr),
}

/// What came of one try to resolve a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It has this address.
    Mac(Mac),
    /// Not known yet; try again after this time.
    Wait(Duration),
    /// It does not answer.
    GiveUp,
}

/// Whom to ask.
pub(crate) trait Resolver {
    /// The way to `dst`.
    fn route(&mut self, dst: IpAddr) -> Result<Hop, Unreachable>;

    /// Tries to resolve the neighbour `hop`; `attempt` counts from 0.
    fn ask(&mut self, hop: IpAddr, attempt: u32) -> Answer;
}

/// A packet that waited, and the Ethernet address it goes to now.
pub(crate) type Released = (Mac, Vec<u8>);

/// Known ways, by destination.
#[derive(Debug)]
pub(crate) struct Table<R> {
    resolver: R,
    paths: HashMap<IpAddr, Path>,
    released: Vec<Released>,
    lost: u64,
}

#[derive(Debug)]
struct Path {
    /// The neighbour asked for.
    hop: IpAddr,
    state: State,
    /// When the state calls for something.
    due: Instant,
    waiting: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Resolved. When due, the next use asks again, for the `attempt`th time.
    Known { mac: Mac, attempt: u32 },
    /// Being asked for. When due, it is asked again.
    Asking { attempt: u32 },
    /// Failed. When due, the next use starts anew.
    Failed(Unreachable),
}

/// A result of looking up a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Send to this Ethernet address.
    Mac(Mac),
    /// Hold packets with [`Table::hold`].
    Pending,
    /// Drop packets.
    Unreachable(Unreachable),
}

impl From<Lookup> for Reachability {
    fn from(lookup: Lookup) -> Self {
        match lookup {
            Lookup::Mac(_) => Self::Ready,
            Lookup::Pending => Self::Pending,
            Lookup::Unreachable(why) => Self::Unreachable(why),
        }
    }
}

impl<R: Resolver> Table<R> {
    /// An empty table that asks `resolver`.
    pub(crate) fn new(resolver: R) -> Self {
        Self { resolver, paths: HashMap::new(), released: Vec::new(), lost: 0 }
    }

    /// Whom it asks.
    pub(crate) fn resolver(&mut self) -> &mut R {
        &mut self.resolver
    }

    /// Packets that were held and then lost: too many, or no answer.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// The way to `dst`; starts to find it where it is not known.
    pub(crate) fn lookup(&mut self, now: Instant, dst: IpAddr) -> Lookup {
        let overdue = match self.paths.get(&dst) {
            None => true,
            Some(path) => path.due <= now,
        };
        if overdue {
            self.advance(now, dst);
        }
        match self.paths.get(&dst).map(|path| path.state) {
            Some(State::Known { mac, .. }) => Lookup::Mac(mac),
            Some(State::Asking { .. }) => Lookup::Pending,
            Some(State::Failed(why)) => Lookup::Unreachable(why),
            None => Lookup::Unreachable(Unreachable::NoRoute),
        }
    }

    /// Keeps `packet` until the way to `dst`, which is [`Lookup::Pending`], is known.
    pub(crate) fn hold(&mut self, dst: IpAddr, packet: Vec<u8>) {
        match self.paths.get_mut(&dst) {
            Some(path) if path.waiting.len() < HELD => path.waiting.push(packet),
            _ => self.lost += 1,
        }
    }

    /// Takes in that the neighbour `hop` has this address, where it matters.
    pub(crate) fn learn(&mut self, now: Instant, hop: IpAddr, mac: Mac) {
        for path in self.paths.values_mut().filter(|path| path.hop == hop && path.due != NEVER) {
            path.known(now, mac, &mut self.released);
        }
    }

    /// Repeats what is due; says whether anything was.
    pub(crate) fn poll(&mut self, now: Instant) -> bool {
        let due = |path: &Path| matches!(path.state, State::Asking { .. }) && path.due <= now;
        let due: Vec<IpAddr> = self.paths.iter().filter(|(_, path)| due(path)).map(|(dst, _)| *dst).collect();
        for dst in &due {
            self.advance(now, *dst);
        }
        !due.is_empty()
    }

    /// When [`Table::poll`] has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let asking = self.paths.values().filter(|path| matches!(path.state, State::Asking { .. }));
        asking.map(|path| path.due).min()
    }

    /// Packets that may go now.
    pub(crate) fn released(&mut self) -> Vec<Released> {
        std::mem::take(&mut self.released)
    }

    /// Takes the next step of a path that is new or due.
    fn advance(&mut self, now: Instant, dst: IpAddr) {
        let (hop, attempt) = match self.paths.get(&dst) {
            Some(Path { hop, state: State::Asking { attempt } | State::Known { attempt, .. }, .. }) => {
                (*hop, *attempt)
            }
            Some(Path { state: State::Failed(_), .. }) | None => {
                let fresh = |hop, state, due| Path { hop, state, due, waiting: Vec::new() };
                match self.resolver.route(dst) {
                    Err(why) => {
                        self.paths.insert(dst, fresh(dst, State::Failed(why), now + FAILED));
                        return;
                    }
                    Ok(Hop::Mac(mac)) => {
                        self.paths.insert(dst, fresh(dst, State::Known { mac, attempt: 0 }, NEVER));
                        return;
                    }
                    Ok(Hop::Ask(hop)) => {
                        self.paths.insert(dst, fresh(hop, State::Asking { attempt: 0 }, now));
                        (hop, 0)
                    }
                }
            }
        };
        let answer = self.resolver.ask(hop, attempt);
        let Some(path) = self.paths.get_mut(&dst) else { return };
        match answer {
            Answer::Mac(mac) => path.known(now, mac, &mut self.released),
            Answer::Wait(pause) => {
                path.due = now + pause;
                match &mut path.state {
                    State::Known { attempt, .. } | State::Asking { attempt } => *attempt += 1,
                    State::Failed(_) => {}
                }
            }
            Answer::GiveUp => {
                path.state = State::Failed(Unreachable::NoAnswer);
                path.due = now + FAILED;
                self.lost += path.waiting.len() as u64;
                path.waiting.clear();
            }
        }
    }
}

/// Due time of what needs no asking.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

impl Path {
    fn known(&mut self, now: Instant, mac: Mac, released: &mut Vec<Released>) {
        self.state = State::Known { mac, attempt: 0 };
        self.due = now + FRESH;
        released.extend(self.waiting.drain(..).map(|packet| (mac, packet)));
    }
}

/// The Ethernet address that a link-local address was made of, where it was (EUI-64; rule R-ADR-18). Neighbours of
/// RoCE devices are found so without asking.
fn mac_of_link_local(address: IpAddr) -> Option<Mac> {
    let gid = Gid::from(address);
    let raw = gid.raw();
    let eui64 = raw[11..13] == [0xFF, 0xFE] && raw[2..8] == [0; 6];
    (gid.is_link_local() && eui64).then(|| Mac([raw[8] ^ 2, raw[9], raw[10], raw[13], raw[14], raw[15]]))
}

/// The Ethernet address of a multicast IP address.
fn mac_of_multicast(address: IpAddr) -> Option<Mac> {
    match address {
        IpAddr::V4(v4) if v4.is_multicast() => {
            let [_, b, c, d] = v4.octets();
            Some(Mac([0x01, 0x00, 0x5E, b & 0x7F, c, d]))
        }
        IpAddr::V6(v6) if v6.is_multicast() => {
            let raw = v6.octets();
            Some(Mac([0x33, 0x33, raw[12], raw[13], raw[14], raw[15]]))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
