//! Raw IP sockets on the host's own addresses: packets leave with the header that the core wrote.
//!
//! The kernel routes and resolves addresses. It fills in the IPv4 total length and header checksum and
//! leaves the rest alone, given that fragmentation is forbidden. Needs CAP_NET_RAW.
//!
//! A raw socket does not tell where the packets of a run begin that a sender on the same host, or on one behind a
//! virtual wire, hands over as one. Such senders must do without segmentation offload (`--gso off`).

use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::AsFd;

use mio::{Registry, Token};
use socket2::{Protocol, SockAddr, Socket, Type};
use wire::batch::{Caps, RxBurst, TxBatch};
use wire::ip::{Ipv6Header, UdpHeader};
use wire::{NetHeader, ROCE_V2_PORT};

use super::local::{CHARGE, InFlight, Local, domain, receive_buffer, roce_port, send_to_groups_from, shield};
use super::sockets::{self, Sockets};
use super::{BURST, Backend, IoCounters, JoinError, OpenError, filter, send_all};
use crate::interfaces::GidTable;
use crate::sys::{self, Inbox, Incoming, Outgoing};

/// Longest IP packet that is received whole: a 4096-byte payload with every header.
const PACKET: usize = 4608;

/// Most packets of one queue pair in flight, whatever the buffer holds.
const MAX_WINDOW: u32 = 128;

/// Length of an IPv6 header.
const IPV6_LEN: usize = 40;

/// The raw back end: sockets per address and multicast group.
#[derive(Debug)]
pub struct Raw {
    sockets: Sockets<Bound>,
    table: GidTable,
    in_flight: InFlight,
    inbox: Inbox,
    /// What is received, packet by packet.
    room: Vec<u8>,
    /// An IPv6 packet, whose header the kernel keeps to itself, put together again.
    whole: Vec<u8>,
    counters: IoCounters,
}

/// The sockets of one address or group.
#[derive(Debug)]
struct Bound {
    address: IpAddr,
    /// Index of the interface, for link-local addresses.
    scope: u32,
    send: Socket,
    receive: Socket,
    /// Size of the receive buffer, as the kernel counts.
    buffer: u32,
    /// The kernel's count of dropped packets, as of the last packet.
    dropped: u32,
    /// Told of what it cannot receive.
    told: bool,
    /// Holds the port of an address; never read.
    _shield: Option<Socket>,
}

impl Raw {
    /// Opens the sockets.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(local: &Local) -> Result<Self, OpenError> {
        let (sockets, interface) = local.bind(|address, on| Bound::new(address, on.index))?;
        let buffer = sockets.iter().map(|bound| bound.buffer).min().unwrap_or(0);
        let sockets = Sockets::new(sockets);
        Ok(Self {
            table: GidTable::new(&sockets.addresses(), interface.mac.unwrap_or_default(), interface.mtu)
                .with_speed(interface.speed),
            sockets,
            in_flight: InFlight::new(buffer, CHARGE, MAX_WINDOW),
            inbox: Inbox::new(),
            room: vec![0; PACKET * BURST],
            whole: Vec::new(),
            counters: IoCounters::default(),
        })
    }
}

impl Backend for Raw {
    fn name(&self) -> &'static str {
        "raw"
    }

    fn caps(&self) -> Caps {
        Caps { max_bytes: 1 << 16, ..self.in_flight.of_whole_packets() }
    }

    fn addresses(&self) -> &GidTable {
        &self.table
    }

    fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
        let Self { sockets, inbox, room, whole, counters, .. } = self;
        sockets.receive(|bound, limit| {
            let count = inbox.receive(bound.receive.as_fd(), &mut room[..PACKET * limit], PACKET)?;
            for packet in inbox.iter() {
                counters.rx_lost += bound.take(&packet, &room[packet.at.clone()], whole, rx);
            }
            Ok(count)
        })
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        let Some(net) = tx.header(from) else { return Ok(0) };
        let Some(bound) = self.sockets.of(net.src()) else {
            let taken = tx.len() - from;
            self.counters.tx_lost += taken as u64;
            return Ok(taken);
        };
        let to = bound.destination(net.dst());
        let mut heads = [[0; NetHeader::MAX_LEN]; BURST];
        let head_len = net.len();
        send_all(tx.len(), from, &mut self.counters.tx_lost, |at| {
            for (head, (net, _)) in heads.iter_mut().zip(tx.iter_from(at)) {
                net.emit(head);
            }
            let packets = heads.iter().zip(tx.bodies_from(at)).map(|(head, body)| Outgoing {
                parts: [&head[..head_len], body, &[]],
                to: Some(&to),
                control: None,
            });
            sys::send_many(bound.send.as_fd(), packets)
        })
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.sockets.register(registry, token)
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        self.sockets.join(group, |scope| Bound::new(group, scope))
    }

    fn leave(&mut self, group: IpAddr) {
        self.sockets.leave(group);
    }

    fn counters(&self) -> IoCounters {
        self.counters
    }
}

impl sockets::Bound for Bound {
    fn address(&self) -> IpAddr {
        self.address
    }

    fn scope(&self) -> u32 {
        self.scope
    }

    fn receiver(&self) -> &Socket {
        &self.receive
    }
}

impl Bound {
    fn new(address: IpAddr, scope: u32) -> Result<Self, OpenError> {
        let failed = OpenError::io("set up a raw socket");
        let open = |protocol| {
            let socket = Socket::new(domain(address), Type::RAW, Some(protocol))
                .map_err(OpenError::privileged("raw"))?;
            socket.set_nonblocking(true).map_err(&failed)?;
            Ok(socket)
        };
        let receive = open(Protocol::UDP)?;
        // Protocol 255 means: what is sent begins with the IP header, and nothing is received.
        let send = open(Protocol::from(libc::IPPROTO_RAW))?;
        let shield = if address.is_multicast() {
            // To groups the kernel answers nothing.
            None
        } else {
            send_to_groups_from(&send, address, scope).map_err(&failed)?;
            Some(shield(address, scope, false)?)
        };
        let buffer = receive_buffer(&receive).map_err(&failed)?;
        let on = |level, option| sys::set_option(&receive, level, option, 1).map_err(&failed);
        on(libc::SOL_SOCKET, libc::SO_RXQ_OVFL)?;
        let filter = if address.is_ipv4() {
            filter::ipv4_to_port(ROCE_V2_PORT)
        } else {
            // The header is not shown; these are its fields that may vary.
            on(libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO)?;
            on(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)?;
            filter::ipv6_to_port(ROCE_V2_PORT)
        };
        receive.attach_filter(&filter::nothing()).map_err(&failed)?;
        let bound = Self { address, scope, send, receive, buffer, dropped: 0, told: false, _shield: shield };
        bound.receive.bind(&bound.destination(address)).map_err(OpenError::bind(address))?;
        // Until it was bound and let nothing in, it got packets to every address of the host.
        while (&bound.receive).read(&mut [0]).is_ok() {}
        bound.receive.attach_filter(&filter).map_err(&failed)?;
        Ok(bound)
    }

    /// `address` as the destination of a raw packet: a port there would be taken for a protocol.
    fn destination(&self, address: IpAddr) -> SockAddr {
        let mut to = roce_port(address, self.scope).as_socket().expect("an IP address");
        to.set_port(0);
        to.into()
    }

    /// Puts a received packet of these `bytes` into `rx`. Returns how many were lost since the one before.
    fn take(&mut self, packet: &Incoming<'_>, bytes: &[u8], whole: &mut Vec<u8>, rx: &mut RxBurst) -> u64 {
        let (mut flow_info, mut hop_limit, mut lost) = (0, 0, 0);
        for item in packet.control() {
            let Some(value) = item.number() else { continue };
            match (item.level, item.kind) {
                (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO) => flow_info = u32::from_be(value),
                #[expect(clippy::cast_possible_truncation, reason = "a one-byte header field")]
                (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => hop_limit = value as u8,
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    lost = u64::from(value.wrapping_sub(self.dropped));
                    self.dropped = value;
                }
                _ => {}
            }
        }
        if packet.truncated && !self.told {
            self.told = true;
            tracing::warn!(
                address = %self.address,
                "a peer sends runs of packets as one, which the raw back end cannot take apart: use udp or packet here, \
                 or --gso off there"
            );
        }
        let (Some(from), false) = (packet.sender(), packet.truncated) else { return lost + 1 };
        match (from.ip(), self.address) {
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                #[expect(clippy::cast_possible_truncation, reason = "the buffer is shorter than 64 KiB")]
                let payload_len = bytes.len() as u16;
                let traffic_class = (flow_info >> 20 & 0xFF) as u8;
                let flow_label = flow_info & 0x000F_FFFF;
                let ip = Ipv6Header { traffic_class, flow_label, payload_len, hop_limit, src, dst };
                put_together(whole, ip, bytes);
                rx.push_ip(whole);
            }
            _ => rx.push_ip(bytes),
        }
        lost
    }
}

/// Makes `whole` the IPv6 packet whose bytes after the IP header are `datagram`.
fn put_together(whole: &mut Vec<u8>, ip: Ipv6Header, datagram: &[u8]) {
    let udp = UdpHeader { src_port: 0, dst_port: 0, len: 0, checksum: 0 };
    whole.resize(NetHeader::MAX_LEN, 0);
    NetHeader::V6(ip, udp).emit(whole);
    whole.truncate(IPV6_LEN);
    whole.extend_from_slice(datagram);
}

#[cfg(test)]
mod tests;
