//! A host of its own on the wire: it answers ARP and neighbour solicitations for its addresses, and asks for
//! those of others.
//!
//! Frames go in and come out as bytes; the packet back end moves them. What is malformed is ignored.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::icmpv6::{Icmpv6PayloadSlice, NdpOptionSlice, NeighborAdvertisementHeader};
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, EtherType, Icmpv6Type, LinkSlice, NetSlice, PacketBuilder, SlicedPacket,
    TransportSlice,
};
use wire::{Duration, Mac};

use super::{Answer, Hop, Resolver, mac_of_link_local, mac_of_multicast};
use crate::backend::Unreachable;

/// Time between two questions for the same neighbour.
const INTERVAL: Duration = Duration::from_millis(250);

/// Questions before a neighbour is given up.
const ATTEMPTS: u32 = 8;

/// Neighbours remembered that nobody has asked for.
const TOLD: usize = 1024;

/// Hop limit that shows that a neighbour discovery message was not routed.
const NOT_ROUTED: u8 = 255;

/// A host of its own on the wire.
#[derive(Debug)]
pub(crate) struct Host {
    mac: Mac,
    /// Addresses with their prefix lengths.
    addresses: Vec<(IpAddr, u8)>,
    outbox: Vec<Vec<u8>>,
    /// What neighbours said of themselves, until it is first used.
    told: HashMap<IpAddr, Mac>,
}

impl Host {
    /// A host with these addresses, their prefix lengths, and the link-local address of `mac`.
    pub(crate) fn new(mac: Mac, addresses: &[(IpAddr, u8)]) -> Self {
        let link_local = mac.link_local_gid().ip();
        let mut all = vec![(link_local, 64)];
        all.extend(addresses.iter().filter(|(address, _)| *address != link_local));
        Self { mac, addresses: all, outbox: Vec::new(), told: HashMap::new() }
    }

    /// Its addresses, the link-local one first.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        self.addresses.iter().map(|(address, _)| *address).collect()
    }

    /// Tells the neighbours where its addresses are now, in case they remember another place.
    pub(crate) fn announce(&mut self) {
        for address in self.addresses() {
            match address {
                IpAddr::V4(v4) => {
                    self.send_arp(ArpOperation::REQUEST, Mac::BROADCAST, v4, v4, Mac::default())
                }
                IpAddr::V6(v6) => self.advertise_to_all(v6),
            }
        }
    }

    /// Frames to send.
    pub(crate) fn take_outbox(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.outbox)
    }

    /// Answers `frame` where it asks for an address of this host. Returns what it says about its sender.
    pub(crate) fn on_frame(&mut self, frame: &[u8]) -> Option<(IpAddr, Mac)> {
        let (address, mac) = self.read_frame(frame)?;
        if self.told.len() < TOLD || self.told.contains_key(&address) {
            self.told.insert(address, mac);
        }
        Some((address, mac))
    }

    fn read_frame(&mut self, frame: &[u8]) -> Option<(IpAddr, Mac)> {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        match (&packet.link, &packet.net, &packet.transport) {
            (_, Some(NetSlice::Arp(arp)), _) => self.on_arp(&arp.to_packet().try_eth_ipv4().ok()?),
            (
                Some(LinkSlice::Ethernet2(link)),
                Some(NetSlice::Ipv6(ip)),
                Some(TransportSlice::Icmpv6(icmp)),
            ) => {
                let (src, dst) = (ip.header().source_addr(), ip.header().destination_addr());
                let untouched = icmp.is_checksum_valid(src.octets(), dst.octets());
                if ip.header().hop_limit() != NOT_ROUTED || icmp.code_u8() != 0 || !untouched {
                    return None;
                }
                self.on_neighbour_discovery(Mac(link.source()), src, &icmp.payload_slice().ok()?)
            }
            _ => None,
        }
    }

    fn on_arp(&mut self, arp: &ArpEthIpv4Packet) -> Option<(IpAddr, Mac)> {
        let (sender, target) = (arp.sender_ipv4_addr(), arp.target_ipv4_addr());
        let sender_mac = Mac(arp.sender_mac);
        if arp.operation == ArpOperation::REQUEST && self.holds(target.into()) && !self.holds(sender.into()) {
            self.send_arp(ArpOperation::REPLY, sender_mac, target, sender, sender_mac);
        }
        self.trusted(sender.into(), sender_mac)
    }

    fn on_neighbour_discovery(
        &mut self,
        link: Mac,
        src: Ipv6Addr,
        message: &Icmpv6PayloadSlice<'_>,
    ) -> Option<(IpAddr, Mac)> {
        match message {
            Icmpv6PayloadSlice::NeighborSolicitation(asked) => {
                let target = asked.target_address();
                let source = asked.options_iterator().map_while(Result::ok).find_map(|option| match option {
                    NdpOptionSlice::SourceLinkLayerAddress(option) => mac_in(option.link_layer_address()),
                    _ => None,
                });
                if self.holds(target.into()) {
                    // A host that tests whether an address is free has none itself to be answered to.
                    if src.is_unspecified() {
                        self.advertise_to_all(target);
                    } else {
                        self.send_advertisement(target, src, source.unwrap_or(link), true);
                    }
                }
                self.trusted(src.into(), source?)
            }
            Icmpv6PayloadSlice::NeighborAdvertisement(told) => {
                let mac = told.options_iterator().map_while(Result::ok).find_map(|option| match option {
                    NdpOptionSlice::TargetLinkLayerAddress(option) => mac_in(option.link_layer_address()),
                    _ => None,
                });
                self.trusted(told.target_address().into(), mac?)
            }
            _ => None,
        }
    }

    /// What a neighbour says of itself, where it can be true.
    fn trusted(&self, address: IpAddr, mac: Mac) -> Option<(IpAddr, Mac)> {
        let unicast = mac.0[0] & 1 == 0 && mac != Mac::default() && mac != self.mac;
        let other = !address.is_unspecified() && !address.is_multicast() && !self.holds(address);
        (unicast && other && self.source_for(address).is_some()).then_some((address, mac))
    }

    fn holds(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == address)
    }

    /// The own address on whose network `address` lies.
    fn source_for(&self, address: IpAddr) -> Option<IpAddr> {
        let own = self.addresses.iter().find(|(own, prefix)| same_network(*own, address, *prefix));
        own.map(|(own, _)| *own)
    }

    fn send_arp(&mut self, op: ArpOperation, to: Mac, sender: Ipv4Addr, target: Ipv4Addr, target_mac: Mac) {
        let arp = ArpEthIpv4Packet {
            operation: op,
            sender_mac: self.mac.0,
            sender_ipv4: sender.octets(),
            target_mac: target_mac.0,
            target_ipv4: target.octets(),
        };
        let mut frame = [to.0, self.mac.0].concat();
        frame.extend_from_slice(&EtherType::ARP.0.to_be_bytes());
        frame.extend_from_slice(&arp.to_bytes());
        self.outbox.push(frame);
    }

    fn send_solicitation(&mut self, source: Ipv6Addr, target: Ipv6Addr) {
        let raw = target.octets();
        let group = Ipv6Addr::new(
            0xFF02,
            0,
            0,
            0,
            0,
            1,
            0xFF00 | u16::from(raw[13]),
            u16::from_be_bytes([raw[14], raw[15]]),
        );
        let Some(to) = mac_of_multicast(group.into()) else { return };
        self.send_discovery(source, group, to, Icmpv6Type::NeighborSolicitation, target, SOURCE_OPTION);
    }

    fn advertise_to_all(&mut self, target: Ipv6Addr) {
        let all_nodes = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);
        self.send_advertisement(target, all_nodes, Mac([0x33, 0x33, 0, 0, 0, 1]), false);
    }

    fn send_advertisement(&mut self, target: Ipv6Addr, dst: Ipv6Addr, to: Mac, solicited: bool) {
        let header = NeighborAdvertisementHeader { router: false, solicited, r#override: true };
        self.send_discovery(
            target,
            dst,
            to,
            Icmpv6Type::NeighborAdvertisement(header),
            target,
            TARGET_OPTION,
        );
    }

    fn send_discovery(
        &mut self,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        to: Mac,
        kind: Icmpv6Type,
        target: Ipv6Addr,
        option: u8,
    ) {
        let mut payload = target.octets().to_vec();
        payload.extend_from_slice(&[option, 1]);
        payload.extend_from_slice(&self.mac.0);
        let builder = PacketBuilder::ethernet2(self.mac.0, to.0)
            .ipv6(src.octets(), dst.octets(), NOT_ROUTED)
            .icmpv6(kind);
        let mut frame = Vec::with_capacity(builder.size(payload.len()));
        builder.write(&mut frame, &payload).expect("a message of fixed length, written to memory");
        self.outbox.push(frame);
    }
}

/// Option types of RFC 4861.
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;

impl Resolver for Host {
    fn route(&mut self, dst: IpAddr) -> Result<Hop, Unreachable> {
        if let Some(mac) = mac_of_multicast(dst).or_else(|| mac_of_link_local(dst)) {
            return Ok(Hop::Mac(mac));
        }
        if self.source_for(dst).is_some() {
            return Ok(Hop::Ask(dst));
        }
        let family = |(own, _): &(IpAddr, u8)| own.is_ipv4() == dst.is_ipv4();
        Err(if self.addresses.iter().any(family) { Unreachable::NoRoute } else { Unreachable::NoSource })
    }

    fn ask(&mut self, hop: IpAddr, attempt: u32) -> Answer {
        if let Some(mac) = self.told.remove(&hop) {
            return Answer::Mac(mac);
        }
        if attempt >= ATTEMPTS {
            return Answer::GiveUp;
        }
        match (self.source_for(hop), hop) {
            (Some(IpAddr::V4(source)), IpAddr::V4(target)) => {
                self.send_arp(ArpOperation::REQUEST, Mac::BROADCAST, source, target, Mac::default());
            }
            (Some(IpAddr::V6(source)), IpAddr::V6(target)) => self.send_solicitation(source, target),
            _ => return Answer::GiveUp,
        }
        Answer::Wait(INTERVAL)
    }
}

/// Whether two addresses agree in their first `prefix` bits.
fn same_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let other = a.to_bits() ^ b.to_bits();
            other.leading_zeros() >= u32::from(prefix)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            let other = a.to_bits() ^ b.to_bits();
            other.leading_zeros() >= u32::from(prefix)
        }
        _ => false,
    }
}

fn mac_in(option: &[u8]) -> Option<Mac> {
    option.first_chunk().copied().map(Mac)
}

#[cfg(test)]
mod tests;
