//! Routes and neighbours of the kernel, asked one at a time over an rtnetlink socket.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use wire::Mac;

/// Message types and attributes of linux/netlink.h, linux/rtnetlink.h and linux/neighbour.h.
const NETLINK_ROUTE: i32 = 0;
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const NEW_NEIGHBOUR: u16 = 28;
const GET_NEIGHBOUR: u16 = 30;
const ROUTE_DESTINATION: u16 = 1;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
const ROUTE_UNICAST: u8 = 1;
const NEIGHBOUR_DESTINATION: u16 = 1;
const NEIGHBOUR_ADDRESS: u16 = 2;

const HEADER_LEN: usize = 16;
/// Both rtmsg and ndmsg.
const BODY_LEN: usize = 12;

/// Neighbour states in which its address can be used.
const USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// Of these, the ones that need no confirmation: reachable, static, permanent.
const CONFIRMED: u16 = 0x02 | 0x40 | 0x80;

/// The kernel answers within the call; a longer wait means that it never will.
const LIMIT: Duration = Duration::from_secs(1);

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Neighbour {
    /// Its Ethernet address.
    pub(super) mac: Mac,
    /// Whether it answered lately.
    pub(super) confirmed: bool,
}

/// An rtnetlink socket.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub(super) fn new() -> io::Result<Self> {
        let socket =
            Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(Protocol::from(NETLINK_ROUTE)))?;
        socket.set_read_timeout(Some(LIMIT))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// The next hop towards `dst` through `interface`: `dst` itself or a gateway. `None` without a route.
    pub(super) fn next_hop(&mut self, dst: IpAddr, interface: u32) -> io::Result<Option<IpAddr>> {
        let (family, address) = family_and_bytes(dst);
        let mut body = [0; BODY_LEN];
        body[0] = family;
        body[1] = u8::try_from(address.len() * 8).unwrap_or(u8::MAX);
        let interface = interface.to_ne_bytes();
        let attributes = [(ROUTE_DESTINATION, &address[..]), (ROUTE_INTERFACE, &interface[..])];
        let Some(answer) = self.ask(GET_ROUTE, body, &attributes, NEW_ROUTE)? else { return Ok(None) };
        if answer.get(7) != Some(&ROUTE_UNICAST) {
            return Ok(None);
        }
        let via = attribute(&answer, ROUTE_INTERFACE);
        if via.is_some_and(|via| via != &interface[..]) {
            return Ok(None);
        }
        Ok(match attribute(&answer, ROUTE_GATEWAY) {
            Some(gateway) => address_of(gateway),
            None => Some(dst),
        })
    }

    /// What the kernel knows of the neighbour `address` on `interface`; `None` while it knows no address.
    pub(super) fn neighbour(&mut self, address: IpAddr, interface: u32) -> io::Result<Option<Neighbour>> {
        let (family, bytes) = family_and_bytes(address);
        let mut body = [0; BODY_LEN];
        body[0] = family;
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        let attributes = [(NEIGHBOUR_DESTINATION, &bytes[..])];
        let answer = self.ask(GET_NEIGHBOUR, body, &attributes, NEW_NEIGHBOUR)?;
        Ok(answer.and_then(|answer| {
            let state = u16::from_ne_bytes([*answer.get(8)?, *answer.get(9)?]);
            let mac = attribute(&answer, NEIGHBOUR_ADDRESS)?.first_chunk().copied().map(Mac)?;
            (state & USABLE != 0).then_some(Neighbour { mac, confirmed: state & CONFIRMED != 0 })
        }))
    }

    /// Sends a request and returns the answer without its header; `None` where the kernel says that there is
    /// no such thing.
    fn ask(
        &mut self,
        kind: u16,
        body: [u8; BODY_LEN],
        attributes: &[(u16, &[u8])],
        expected: u16,
    ) -> io::Result<Option<Vec<u8>>> {
        self.sequence += 1;
        let mut request = vec![0; HEADER_LEN];
        request.extend_from_slice(&body);
        for (kind, value) in attributes {
            let len = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
            request.extend_from_slice(&len.to_ne_bytes());
            request.extend_from_slice(&kind.to_ne_bytes());
            request.extend_from_slice(value);
            request.resize(request.len().next_multiple_of(4), 0);
        }
        let len = u32::try_from(request.len()).unwrap_or(u32::MAX);
        request[..4].copy_from_slice(&len.to_ne_bytes());
        request[4..6].copy_from_slice(&kind.to_ne_bytes());
        request[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
        request[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        (&self.socket).write_all(&request)?;
        let mut answer = [0; 4096];
        loop {
            let len = (&self.socket).read(&mut answer)?;
            let Some((header, body)) = answer[..len].split_at_checked(HEADER_LEN) else { continue };
            let of_sequence = header[8..12] == self.sequence.to_ne_bytes();
            match u16::from_ne_bytes([header[4], header[5]]) {
                kind if of_sequence && kind == expected => return Ok(Some(body.to_vec())),
                ERROR if of_sequence => {
                    let code = body.first_chunk().copied().map_or(0, i32::from_ne_bytes);
                    return match -code {
                        libc::ENOENT | libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ESRCH => Ok(None),
                        code => Err(io::Error::from_raw_os_error(code)),
                    };
                }
                _ => {}
            }
        }
    }
}

fn family_and_bytes(address: IpAddr) -> (u8, Vec<u8>) {
    let (family, bytes) = match address {
        IpAddr::V4(v4) => (libc::AF_INET, v4.octets().to_vec()),
        IpAddr::V6(v6) => (libc::AF_INET6, v6.octets().to_vec()),
    };
    (u8::try_from(family).unwrap_or_default(), bytes)
}

fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => bytes.first_chunk::<4>().map(|raw| IpAddr::from(*raw)),
        16 => bytes.first_chunk::<16>().map(|raw| IpAddr::from(*raw)),
        _ => None,
    }
}

/// Value of the first attribute of this kind in a message without its header.
fn attribute(message: &[u8], wanted: u16) -> Option<&[u8]> {
    let mut rest = message.get(BODY_LEN..)?;
    loop {
        let head = rest.first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = rest.get(4..len)?;
        if u16::from_ne_bytes([head[2], head[3]]) == wanted {
            return Some(value);
        }
        rest = rest.get(len.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interfaces::Interface;

    #[test]
    fn the_kernel_answers_about_routes_and_neighbours() {
        let mut netlink = Netlink::new().expect("rtnetlink needs no privilege");
        let lo = Interface::by_name("lo").expect("interfaces").expect("a loopback interface");
        // Local routes are none that a wire could carry.
        assert_eq!(netlink.next_hop(IpAddr::from([127, 0, 0, 1]), lo.index).expect("asks"), None);
        assert_eq!(netlink.neighbour(IpAddr::from([10, 99, 99, 99]), lo.index).expect("asks"), None);
    }

    #[test]
    fn attributes_are_found_and_broken_ones_are_not_read_past() {
        let mut message = vec![0; BODY_LEN];
        message.extend([5_u16.to_ne_bytes(), 7_u16.to_ne_bytes()].concat());
        message.extend([1, 0, 0, 0]);
        message.extend([8_u16.to_ne_bytes(), 9_u16.to_ne_bytes()].concat());
        message.extend([2, 3, 4, 5]);
        assert_eq!(attribute(&message, 7), Some(&[1][..]));
        assert_eq!(attribute(&message, 9), Some(&[2, 3, 4, 5][..]));
        assert_eq!(attribute(&message, 8), None);
        for len in 0..message.len() {
            assert_eq!(attribute(&message[..len], 9), None, "cut at {len}");
        }
        message[BODY_LEN] = 0;
        assert_eq!(attribute(&message, 9), None, "a length of 0 ends the search");
    }
}
