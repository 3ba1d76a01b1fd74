//! Which of the host's addresses a back end takes, and the RoCE port on them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};

use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockAddr, Socket, Type};
use wire::batch::{Caps, IpIdRule};
use wire::{Gid, ROCE_V2_PORT};

use super::{BURST, OpenError, filter};
use crate::interfaces::Interface;
use crate::sys;

/// What the kernel charges to the receive buffer for one full packet that is a datagram of its own (measured: 50
/// such datagrams fill a buffer that reads back as 425984).
pub(super) const CHARGE: u32 = 8520;

/// What it charges for a full packet that is one of a run (measured: 90 of runs of 15; more of shorter ones).
pub(super) const CHARGE_IN_RUN: u32 = 4734;

/// Receive buffer asked for; the kernel gives what its limit and the process's privileges allow.
const RECEIVE_BUFFER: i32 = 4 << 20;

/// Where a back end that shares the host's addresses binds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Local {
    /// The first of 127.0.0.2, 127.0.0.3, … whose RoCE port is free.
    #[default]
    FreeLoopback,
    /// This address, and the link-local address of its interface where that is free.
    Address(IpAddr),
    /// All addresses of this interface whose RoCE port is free, at least one.
    Interface(String),
}

impl Local {
    /// Calls `bind` with each address that is meant and its interface. Returns what could be bound.
    pub(super) fn bind<T>(
        &self,
        mut bind: impl FnMut(IpAddr, &Interface) -> Result<T, OpenError>,
    ) -> Result<(Vec<T>, Interface), OpenError> {
        match self {
            Self::FreeLoopback => {
                let lo = holder_of(Ipv4Addr::LOCALHOST.into())?;
                for n in 2..=254 {
                    match bind(Ipv4Addr::new(127, 0, 0, n).into(), &lo) {
                        Err(OpenError::PortInUse { .. }) => {}
                        other => return Ok((vec![other?], lo)),
                    }
                }
                Err(OpenError::NoFreeAddress)
            }
            Self::Address(address) => {
                let interface = holder_of(*address)?;
                let mut bound = vec![bind(*address, &interface)?];
                // Another device on the same interface may hold it already; this one then does without.
                if let Some(link_local) = interface.link_local().filter(|other| other != address) {
                    bound.extend(bind(link_local, &interface));
                }
                Ok((bound, interface))
            }
            Self::Interface(name) => {
                let interface = OpenError::interface(name)?;
                let (mut bound, mut first_error) = (Vec::new(), None);
                for (address, _) in &interface.addresses {
                    match bind(*address, &interface) {
                        Ok(one) => bound.push(one),
                        Err(error) => first_error = first_error.or(Some(error)),
                    }
                }
                match first_error {
                    _ if !bound.is_empty() => Ok((bound, interface)),
                    Some(error) => Err(error),
                    None => Err(OpenError::Interface { name: name.into(), reason: "has no IP address" }),
                }
            }
        }
    }
}

fn holder_of(address: IpAddr) -> Result<Interface, OpenError> {
    Interface::by_address(address)
        .map_err(OpenError::io("list the interfaces"))?
        .ok_or(OpenError::NoSuchAddress { address })
}

/// The RoCE port of `address`. `scope` is the interface's index, which link-local addresses need.
pub(super) fn roce_port(address: IpAddr, scope: u32) -> SockAddr {
    match address {
        IpAddr::V6(v6) if Gid::from(v6).is_link_local() || v6.is_multicast() => {
            SocketAddrV6::new(v6, ROCE_V2_PORT, 0, scope).into()
        }
        _ => SocketAddr::new(address, ROCE_V2_PORT).into(),
    }
}

/// The address family of `address`.
pub(crate) fn domain(address: IpAddr) -> Domain {
    if address.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 }
}

/// A UDP socket bound to the RoCE port of `address` that takes no packet. It keeps the kernel from answering
/// "port unreachable" to packets that reach the device another way, and other programs from the port.
/// `runs` says whether the device takes packets that the kernel has joined.
pub(super) fn shield(address: IpAddr, scope: u32, runs: bool) -> Result<Socket, OpenError> {
    let failed = OpenError::io("set up a UDP socket");
    let socket = Socket::new(domain(address), Type::DGRAM, Some(Protocol::UDP)).map_err(&failed)?;
    socket.attach_filter(&filter::nothing()).map_err(&failed)?;
    if address.is_ipv6() {
        socket.set_only_v6(true).map_err(&failed)?;
        // Or the kernel would log each packet that comes without a UDP checksum.
        sys::set_option(&socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1).map_err(&failed)?;
    }
    // Or the kernel would take runs of packets apart for it, only to drop them one by one.
    if runs && let Err(error) = sys::set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1) {
        tracing::debug!(%error, "the kernel takes runs of packets apart before it drops them");
    }
    socket.bind(&roce_port(address, scope)).map_err(OpenError::bind(address))?;
    Ok(socket)
}

/// Makes `socket`, which is bound to `group`, take what is sent to that group on the interface of index `scope`; and
/// nothing that only another program has asked for.
pub(super) fn join_group(socket: &Socket, group: IpAddr, scope: u32) -> io::Result<()> {
    match group {
        IpAddr::V4(v4) => {
            socket.set_multicast_all_v4(false)?;
            socket.join_multicast_v4_n(&v4, &InterfaceIndexOrAddress::Index(scope))
        }
        IpAddr::V6(v6) => {
            socket.set_multicast_all_v6(false)?;
            socket.join_multicast_v6(&v6, scope)
        }
    }
}

/// Makes what `socket` sends to groups leave by the interface that holds `address` and has index `scope`.
pub(super) fn send_to_groups_from(socket: &Socket, address: IpAddr, scope: u32) -> io::Result<()> {
    match address {
        IpAddr::V4(v4) => socket.set_multicast_if_v4(&v4),
        IpAddr::V6(_) => socket.set_multicast_if_v6(scope),
    }
}

/// Gives `socket` as large a receive buffer as the process may, and returns its size as the kernel counts it.
pub(crate) fn receive_buffer(socket: &Socket) -> io::Result<u32> {
    // The first goes beyond the system's limit, with CAP_NET_ADMIN.
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER)
        .or_else(|_| sys::set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER))?;
    Ok(u32::try_from(socket.recv_buffer_size()?).unwrap_or(u32::MAX))
}

/// Gives `socket` a send buffer of `bytes`, or what comes closest.
pub(crate) fn send_buffer(socket: &Socket, bytes: i32) -> io::Result<()> {
    sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, bytes)
        .or_else(|_| sys::set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes))
}

/// Packets that may be in flight towards a receiver like this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InFlight {
    /// Of one queue pair.
    pub(super) window: u32,
    /// Of all together.
    pub(super) credit: u32,
}

impl InFlight {
    /// What a receive buffer of `bytes` holds, of which each packet takes `charge`: half of that, since the requests to
    /// it and the READ responses to it may be under way together. `most` bounds one queue pair.
    pub(super) fn new(bytes: u32, charge: u32, most: u32) -> Self {
        let credit = (bytes / charge / 2).max(1);
        Self { window: credit.min(most), credit }
    }

    /// What a back end can do that carries whole packets, IP header and all, each by itself, with so many in flight.
    pub(super) const fn of_whole_packets(self) -> Caps {
        Caps {
            max_segments: BURST,
            max_bytes: 1 << 18,
            ip_id: IpIdRule::Ours,
            sees_ip_header: true,
            window: self.window,
            credit: self.credit,
            src_port: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_without_privileges_may_have_in_flight() {
        // What a stock system allows.
        let [single, in_runs] = [CHARGE, CHARGE_IN_RUN].map(|charge| InFlight::new(425_984, charge, 128));
        assert_eq!((single.window, in_runs.window), (24, 44));
        assert_eq!(InFlight::new(8 << 20, CHARGE_IN_RUN, 128), InFlight { window: 128, credit: 885 });
        assert_eq!(InFlight::new(1, CHARGE, 128), InFlight { window: 1, credit: 1 });
    }
}
