//! The host's network interfaces, and the GID tables made of their addresses.
//!
//! Back ends call it when they open. It looks once and never watches for changes.

use std::io;
use std::net::IpAddr;

use pnet::datalink::NetworkInterface;
use pnet::ipnetwork::IpNetwork;
use qp::Rate;
use socket2::{Domain, Socket, Type};
use wire::{Gid, Mac, Mtu};

use crate::sys;

/// One network interface of the host.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Name, as `ip link` shows it.
    pub name: String,
    /// Index, unique in the network namespace.
    pub index: u32,
    /// Ethernet address; `None` for an interface without one.
    pub mac: Option<Mac>,
    /// Addresses and their prefix lengths, as the kernel lists them.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Largest IP packet, in bytes.
    pub mtu: u32,
    /// Speed in Mb/s, where it has one: cards whose link is up, and virtual links that make one up.
    pub speed: Option<u32>,
    /// Whether it is switched on.
    pub is_up: bool,
    /// Whether it is the host's loopback interface.
    pub is_loopback: bool,
}

impl Interface {
    /// All interfaces of this network namespace.
    ///
    /// # Errors
    /// When the kernel gives no socket to ask through.
    pub fn all() -> io::Result<Vec<Self>> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
        let found = pnet::datalink::interfaces();
        // There is always one, loopback at least: the list is empty where it could not be asked for.
        if found.is_empty() {
            return Err(io::Error::other("the kernel lists none; is a file descriptor left?"));
        }
        // An interface that vanishes between the two questions is left out.
        Ok(found.into_iter().filter_map(|found| Self::from_pnet(&socket, found).ok()).collect())
    }

    /// The interface of this name.
    ///
    /// # Errors
    /// When the kernel gives no socket to ask through.
    pub fn by_name(name: &str) -> io::Result<Option<Self>> {
        Ok(Self::all()?.into_iter().find(|interface| interface.name == name))
    }

    /// The interface that holds `address`. The whole of 127.0.0.0/8 is the loopback interface's.
    ///
    /// # Errors
    /// When the kernel gives no socket to ask through.
    pub fn by_address(address: IpAddr) -> io::Result<Option<Self>> {
        Ok(Self::all()?.into_iter().find(|interface| {
            interface.holds(address) || interface.is_loopback && address.is_ipv4() && address.is_loopback()
        }))
    }

    /// Whether `address` is one of its own.
    #[must_use]
    pub fn holds(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == address)
    }

    /// Its link-local IPv6 address.
    #[must_use]
    pub fn link_local(&self) -> Option<IpAddr> {
        self.addresses.iter().map(|(own, _)| *own).find(|own| Gid::from(*own).is_link_local())
    }

    fn from_pnet(socket: &Socket, found: NetworkInterface) -> io::Result<Self> {
        Ok(Self {
            mtu: sys::interface_mtu(socket, &found.name)?,
            speed: speed(&found.name),
            index: found.index,
            mac: found.mac.map(|mac| Mac(mac.octets())).filter(|mac| *mac != Mac::default()),
            addresses: found.ips.iter().map(address_and_prefix).collect(),
            is_up: found.is_up(),
            is_loopback: found.is_loopback(),
            name: found.name,
        })
    }
}

/// Speed of an interface in Mb/s, as the kernel says.
fn speed(name: &str) -> Option<u32> {
    known_speed(&std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?)
}

/// Where the speed is not known the kernel says -1, some drivers 0, and some of them -1 without its sign.
fn known_speed(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|mbps| (1..u32::MAX).contains(mbps))
}

fn address_and_prefix(network: &IpNetwork) -> (IpAddr, u8) {
    (network.ip(), network.prefix())
}

/// The addresses that a back end answers to, in the order of its GID indices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidTable {
    gids: Vec<Gid>,
    mac: Mac,
    mtu: u32,
    speed: Option<u32>,
}

impl GidTable {
    /// A table in the order of rdma_rxe's (rules R-ADR-16, R-ADR-17): index 0 the link-local address, 1 the first
    /// IPv4 address, then the rest. Without a link-local address (on loopback) index 0 repeats index 1; without an
    /// IPv4 address the others move up. `mtu` is that of the interface.
    #[must_use]
    pub fn new(addresses: &[IpAddr], mac: Mac, mtu: u32) -> Self {
        let all: Vec<Gid> = addresses.iter().map(|address| Gid::from(*address)).collect();
        let link_local = all.iter().find(|gid| gid.is_link_local()).copied();
        let first_v4 = all.iter().find(|gid| gid.is_v4()).copied();
        let mut gids: Vec<Gid> = link_local.into_iter().chain(first_v4).collect();
        for gid in all {
            if !gids.contains(&gid) {
                gids.push(gid);
            }
        }
        if link_local.is_none() {
            gids.splice(..0, gids.first().copied());
        }
        Self { gids, mac, mtu, speed: None }
    }

    /// The same on an interface of this speed in Mb/s.
    #[must_use]
    pub const fn with_speed(mut self, speed: Option<u32>) -> Self {
        self.speed = speed;
        self
    }

    /// Speed of the interface, where it has one.
    #[must_use]
    pub fn speed(&self) -> Option<Rate> {
        self.speed.map(|mbps| Rate::from_mbps(mbps.into()))
    }

    /// GIDs by index.
    #[must_use]
    pub fn gids(&self) -> &[Gid] {
        &self.gids
    }

    /// The GID at `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Gid> {
        self.gids.get(index).copied()
    }

    /// Index of `gid`; of the later of two equal entries, since the first stands in for a link-local
    /// address that is missing.
    #[must_use]
    pub fn index_of(&self, gid: Gid) -> Option<usize> {
        self.gids.iter().rposition(|own| *own == gid)
    }

    /// Ethernet address, or a locally administered one made of the first IP address where the path has no
    /// Ethernet: unique enough for a node GUID.
    #[must_use]
    pub fn mac(&self) -> Mac {
        if self.mac != Mac::default() {
            return self.mac;
        }
        let raw = self.gids.last().copied().unwrap_or_default().raw();
        Mac([2, 0, raw[12], raw[13], raw[14], raw[15]])
    }

    /// Largest IP packet that the interface carries, in bytes.
    #[must_use]
    pub fn interface_mtu(&self) -> u32 {
        self.mtu
    }

    /// Largest path MTU that fits the interface; 256 where none fits.
    #[must_use]
    pub fn active_mtu(&self) -> Mtu {
        Mtu::for_interface(self.mtu).unwrap_or(Mtu::B256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(addresses: &[&str]) -> Vec<String> {
        let addresses: Vec<IpAddr> = addresses.iter().map(|text| text.parse().expect("address")).collect();
        GidTable::new(&addresses, Mac::default(), 1500).gids().iter().map(Gid::to_string).collect()
    }

    #[test]
    fn a_speed_that_is_none_is_not_known() {
        assert_eq!(["10000\n", "1"].map(known_speed), [Some(10_000), Some(1)]);
        assert_eq!(["-1\n", "0\n", "4294967295\n", "", "fast"].map(known_speed), [None; 5]);
    }

    /// Rules R-ADR-16, R-ADR-17.
    #[test]
    fn order_is_link_local_then_first_ipv4_then_the_rest() {
        assert_eq!(
            table(&["10.0.0.1", "10.0.0.2", "2001:db8::1", "fe80::1"]),
            ["fe80::1", "::ffff:10.0.0.1", "::ffff:10.0.0.2", "2001:db8::1"]
        );
        assert_eq!(table(&["2001:db8::1", "fe80::1"]), ["fe80::1", "2001:db8::1"]);
    }

    /// Rule R-ADR-17.
    #[test]
    fn loopback_has_its_address_at_0_and_1() {
        assert_eq!(table(&["127.0.0.2"]), ["::ffff:127.0.0.2", "::ffff:127.0.0.2"]);
        let table = GidTable::new(&["127.0.0.2".parse().expect("address")], Mac::default(), 65536);
        assert_eq!(table.index_of(table.gids()[0]), Some(1));
        assert_eq!(table.mac(), Mac([2, 0, 127, 0, 0, 2]));
        assert_eq!(table.active_mtu(), Mtu::B4096);
    }

    #[test]
    fn the_loopback_interface_is_found_by_any_of_its_addresses() {
        let found = Interface::by_address("127.3.4.5".parse().expect("address")).expect("interfaces");
        let lo = found.expect("a loopback interface");
        assert!(lo.is_loopback && lo.mac.is_none() && lo.mtu >= 1500, "{lo:?}");
        assert!(Interface::by_name("no-such-interface").expect("interfaces").is_none());
    }
}
