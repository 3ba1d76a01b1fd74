//! Who a device is on an Ethernet wire: the host itself on one interface, or a host of its own beside it.
//!
//! The back ends that write whole frames ask it when they open. It decides addresses and who resolves those of
//! others; it moves no packet.

use std::net::IpAddr;

use socket2::Socket;
use wire::{Gid, Mac};

use super::local::shield;
use super::{JoinError, OpenError, Unreachable};
use crate::interfaces::{GidTable, Interface};
use crate::neigh::{Answer, Hop, Host, Kernel, Resolver};
use crate::sys;

/// Who a device is on the wire.
pub(super) struct Identity {
    pub(super) neighbours: Neighbours,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) mac: Mac,
    /// Hold the port of a device that shares the interface's addresses; never read.
    pub(super) shields: Vec<Socket>,
}

/// Who resolves addresses.
#[derive(Debug)]
pub(super) enum Neighbours {
    Kernel(Kernel),
    Own(Host),
}

impl Resolver for Neighbours {
    fn route(&mut self, dst: IpAddr) -> Result<Hop, Unreachable> {
        match self {
            Self::Kernel(kernel) => kernel.route(dst),
            Self::Own(host) => host.route(dst),
        }
    }

    fn ask(&mut self, hop: IpAddr, attempt: u32) -> Answer {
        match self {
            Self::Kernel(kernel) => kernel.ask(hop, attempt),
            Self::Own(host) => host.ask(hop, attempt),
        }
    }
}

impl Identity {
    /// The host's on `interface`, or where `own` has addresses with their prefix lengths, a host with these and with
    /// `mac`, or an Ethernet address made of the first.
    pub(super) fn on(
        interface: &Interface,
        own: &[(IpAddr, u8)],
        mac: Option<Mac>,
    ) -> Result<Self, OpenError> {
        let unfit = |reason| OpenError::Interface { name: interface.name.clone(), reason };
        if !interface.is_up {
            return Err(unfit("is down; `ip link set` it up"));
        }
        let Some(interface_mac) = interface.mac else {
            return Err(unfit("has no Ethernet address; the udp and raw back ends work on any interface"));
        };
        if own.iter().any(|(address, _)| interface.holds(*address)) {
            return Err(unfit("holds that address itself; leave out --ip to share its addresses"));
        }
        if own.is_empty() { Self::shared(interface, interface_mac) } else { Ok(Self::own(own, mac)) }
    }

    /// A host of its own.
    fn own(own: &[(IpAddr, u8)], mac: Option<Mac>) -> Self {
        let first = own.first().map(|(address, _)| *address);
        let made = || GidTable::new(first.as_slice(), Mac::default(), 0).mac();
        let mac = mac.unwrap_or_else(made);
        let mut host = Host::new(mac, own);
        host.announce();
        Self { addresses: host.addresses(), neighbours: Neighbours::Own(host), mac, shields: Vec::new() }
    }

    /// The host's, on `interface`.
    fn shared(interface: &Interface, mac: Mac) -> Result<Self, OpenError> {
        let mut addresses: Vec<IpAddr> = interface.addresses.iter().map(|(address, _)| *address).collect();
        let mut shields = Vec::new();
        for address in &addresses {
            match shield(*address, interface.index, true) {
                Ok(socket) => shields.push(socket),
                // An address that is still being tested for duplicates cannot be bound; nobody else can either.
                Err(OpenError::NoSuchAddress { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if interface.link_local().is_none() {
            // Reached without neighbour discovery: the address says the Ethernet address.
            addresses.push(mac.link_local_gid().ip());
        }
        let kernel = Kernel::new(interface.clone()).map_err(OpenError::io("open an rtnetlink socket"))?;
        Ok(Self { neighbours: Neighbours::Kernel(kernel), addresses, mac, shields })
    }
}

/// The interface lets the group's Ethernet address in for as long as `socket` lives. No router is told: within one network
/// segment groups work without.
pub(super) fn join_group(
    socket: &Socket,
    interface: u32,
    own: &GidTable,
    group: IpAddr,
) -> Result<(), JoinError> {
    if !own.gids().iter().any(|own| *own != Gid::ZERO && own.is_v4() == group.is_ipv4()) {
        return Err(JoinError::NoAddress { group });
    }
    sys::join_ethernet_group(socket, interface, Mac::of_group(group).0)
        .map_err(|source| JoinError::Membership { group, source })
}

/// Undoes [`join_group`].
pub(super) fn leave_group(socket: &Socket, interface: u32, group: IpAddr) {
    if let Err(error) = sys::leave_ethernet_group(socket, interface, Mac::of_group(group).0) {
        tracing::debug!(%error, %group, "a group's Ethernet address stays");
    }
}

#[cfg(test)]
mod tests {
    use wire::Gid;

    use super::*;

    #[test]
    fn an_own_ethernet_address_is_made_of_the_ip_address() {
        let address = IpAddr::from([10, 88, 0, 7]);
        let identity = Identity::own(&[(address, 24)], None);
        assert_eq!(identity.mac, Mac([2, 0, 10, 88, 0, 7]));
        let expected = [identity.mac.link_local_gid(), Gid::from(address)];
        assert_eq!(identity.addresses.into_iter().map(Gid::from).collect::<Vec<_>>(), expected);
    }
}
