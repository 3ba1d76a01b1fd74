//! The host's own ARP and neighbour discovery, for a device that shares its addresses.
//!
//! The kernel is asked for its route and its neighbour entry. Where there is none yet, an empty datagram to
//! the neighbour's discard port makes the kernel resolve it.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use socket2::{Protocol, SockAddr, Socket, Type};
use wire::{Duration, Gid};

use super::netlink::Netlink;
use super::{Answer, Hop, Resolver, mac_of_link_local, mac_of_multicast};
use crate::backend::{Unreachable, domain};
use crate::interfaces::Interface;

/// Port whose service, where there is one, ignores what it gets.
const DISCARD_PORT: u16 = 9;

/// First pause before the kernel is asked again; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE_SHIFT: u32 = 8;

/// Questions before a neighbour is given up: about 2.5 seconds; the kernel asks three times, a second apart.
const ATTEMPTS: u32 = 17;

/// Asks the kernel about the neighbours of one interface.
#[derive(Debug)]
pub(crate) struct Kernel {
    netlink: Netlink,
    interface: Interface,
}

impl Kernel {
    /// For neighbours on `interface`.
    pub(crate) fn new(interface: Interface) -> io::Result<Self> {
        Ok(Self { netlink: Netlink::new()?, interface })
    }

    fn kick(&self, hop: IpAddr) -> io::Result<()> {
        let socket = Socket::new(domain(hop), Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind_device(Some(self.interface.name.as_bytes()))?;
        let to: SockAddr = match hop {
            IpAddr::V6(v6) if Gid::from(v6).is_link_local() => {
                SocketAddrV6::new(v6, DISCARD_PORT, 0, self.interface.index).into()
            }
            _ => SocketAddr::new(hop, DISCARD_PORT).into(),
        };
        socket.send_to(&[], &to).map(drop)
    }
}

impl Resolver for Kernel {
    fn route(&mut self, dst: IpAddr) -> Result<Hop, Unreachable> {
        if let Some(mac) = mac_of_multicast(dst).or_else(|| mac_of_link_local(dst)) {
            return Ok(Hop::Mac(mac));
        }
        match self.netlink.next_hop(dst, self.interface.index) {
            Ok(Some(hop)) => Ok(Hop::Ask(hop)),
            Ok(None) => Err(Unreachable::NoRoute),
            Err(error) => {
                tracing::warn!(%error, %dst, "the kernel does not tell its route");
                Err(Unreachable::NoRoute)
            }
        }
    }

    fn ask(&mut self, hop: IpAddr, attempt: u32) -> Answer {
        let known = match self.netlink.neighbour(hop, self.interface.index) {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, %hop, "the kernel does not tell its neighbours");
                None
            }
        };
        // Traffic past the kernel confirms nothing to it, so it is made to ask now and then.
        if attempt == 0
            && known.is_none_or(|known| !known.confirmed)
            && let Err(error) = self.kick(hop)
        {
            tracing::debug!(%error, %hop, "the kernel does not resolve it");
        }
        match known {
            Some(known) => Answer::Mac(known.mac),
            None if attempt >= ATTEMPTS => Answer::GiveUp,
            None => {
                Answer::Wait(Duration::from_nanos(FIRST_PAUSE.as_nanos() << attempt.min(LONGEST_PAUSE_SHIFT)))
            }
        }
    }
}
