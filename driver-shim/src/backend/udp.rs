//! Ordinary UDP sockets: no privilege, exact ICRCs.
//!
//! The ICRC covers the IPv4 identification, which a UDP socket neither chooses nor sees. But an unconnected
//! socket that forbids fragmentation always sends identification 0, and a socket filter that lets only such
//! packets in makes the receiver know it too. The source port is the RoCE port, since the port that is
//! bound is the one sent from. A self-test at the opening shows that the kernel keeps to this.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::{Gid, Mac, NetHeader, ROCE_V2_PORT};

use super::{BURST, Backend, IoCounters, OpenError, filter, send_all};
use crate::interfaces::{GidTable, Interface};
use crate::sys::{self, ControlBuf, Inbox, Outgoing};

/// Longest datagram that is received whole: a 4096-byte payload with every header.
const DATAGRAM: usize = 4608;

/// What the kernel charges to the receive buffer for one datagram of a full packet (measured: 50 such fill a
/// buffer that reads back as 425984).
const CHARGE: u32 = 8520;

/// Most packets of one queue pair in flight, whatever the buffer holds.
const MAX_WINDOW: u32 = 32;

/// Receive buffer asked for; the kernel gives what its limit allows.
const RECEIVE_BUFFER: usize = 4 << 20;

/// How long the self-test waits for its own datagram. It arrives within the send call on loopback.
const SELF_TEST_LIMIT: Duration = Duration::from_millis(250);

/// How to open the udp back end.
#[derive(Clone, Debug, Default)]
pub struct UdpConfig {
    /// Where to bind.
    pub local: UdpLocal,
    /// Also take packets whose IPv4 identification is not known, from senders that are not bound by the
    /// ID-0 rule (network cards, rdma_rxe). They are passed on as [`HeaderKnowledge::Unknown`].
    pub foreign_senders: bool,
}

/// Where the udp back end binds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UdpLocal {
    /// The first of 127.0.0.2, 127.0.0.3, … whose RoCE port is free.
    #[default]
    FreeLoopback,
    /// This address, and the link-local address of its interface where that is free.
    Address(IpAddr),
    /// All addresses of this interface whose RoCE port is free, at least one.
    Interface(String),
}

/// The udp back end: one socket per address.
#[derive(Debug)]
pub struct Udp {
    sockets: Vec<Bound>,
    table: GidTable,
    window: u32,
    foreign_senders: bool,
    inbox: Inbox,
    /// The socket that [`Backend::recv_burst`] asks first.
    next: usize,
    counters: IoCounters,
}

/// One bound socket.
#[derive(Debug)]
struct Bound {
    socket: Socket,
    address: IpAddr,
    /// Index of the interface, for link-local addresses.
    scope: u32,
    /// The kernel's count of dropped packets, as of the last packet.
    dropped: u32,
}

impl Udp {
    /// Opens the sockets and tests that they keep the ID-0 rule.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(config: &UdpConfig) -> Result<Self, OpenError> {
        let (sockets, interface) = match &config.local {
            UdpLocal::FreeLoopback => {
                let bound = first_free_loopback(config.foreign_senders)?;
                let interface = interface_of(bound.address)?;
                (vec![bound], interface)
            }
            UdpLocal::Address(address) => bind_address(*address, config.foreign_senders)?,
            UdpLocal::Interface(name) => bind_interface(name, config.foreign_senders)?,
        };
        let addresses: Vec<IpAddr> = sockets.iter().map(|bound| bound.address).collect();
        let table = GidTable::new(&addresses, interface.mac.unwrap_or(Mac::default()), interface.mtu);
        let mut window = MAX_WINDOW;
        for bound in &sockets {
            window = window.min(bound.window().map_err(OpenError::io("read the receive buffer's size"))?);
        }
        let mut udp = Self {
            sockets,
            table,
            window,
            foreign_senders: config.foreign_senders,
            inbox: Inbox::new(DATAGRAM),
            next: 0,
            counters: IoCounters::default(),
        };
        for i in 0..udp.sockets.len() {
            udp.self_test(i)?;
        }
        Ok(udp)
    }

    /// Sends a datagram to itself, which must come back through the filter.
    fn self_test(&mut self, i: usize) -> Result<(), OpenError> {
        let address = self.sockets[i].address;
        let failed = |reason| OpenError::SelfTest { address, reason };
        // No RoCE packet, so that a peer that already sends to this port is not confused by it.
        let probe = format!("self-test of {address} in process {}", std::process::id()).into_bytes();
        if self.probe_returns(i, &probe)? {
            return Ok(());
        }
        let bound = &self.sockets[i];
        if !address.is_ipv4() || self.foreign_senders {
            return Err(failed(
                "a datagram to itself did not come back; look for a firewall rule on UDP 4791",
            ));
        }
        bound.socket.detach_filter().map_err(OpenError::io("detach the socket filter"))?;
        Err(failed(if self.probe_returns(i, &probe)? {
            "this kernel puts an IP identification other than 0 on its datagrams, so their ICRC cannot be \
             right; use the raw or packet back end"
        } else {
            "a datagram to itself did not come back; look for a firewall rule on UDP 4791"
        }))
    }

    fn probe_returns(&mut self, i: usize, probe: &[u8]) -> Result<bool, OpenError> {
        let bound = &self.sockets[i];
        let to = bound.peer(bound.address);
        bound.socket.send_to(probe, &to).map_err(OpenError::io("send the self-test's datagram"))?;
        // A wait that times out ends the test; every datagram before the right one is a live peer's.
        while sys::wait_readable(bound.fd(), SELF_TEST_LIMIT).map_err(OpenError::io("wait for a datagram"))? {
            self.inbox.receive(bound.fd(), 1).map_err(OpenError::io("receive a datagram"))?;
            if self
                .inbox
                .iter()
                .any(|got| got.data == probe && got.sender().is_some_and(|from| from.ip() == bound.address))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Backend for Udp {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn caps(&self) -> Caps {
        Caps {
            max_segments: BURST,
            max_bytes: 1 << 16,
            ip_id: IpIdRule::Fixed0,
            sees_ip_header: false,
            window: self.window,
            src_port: Some(ROCE_V2_PORT),
        }
    }

    fn addresses(&self) -> &GidTable {
        &self.table
    }

    fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
        let sockets = self.sockets.len();
        let mut count = 0;
        for step in 0..sockets {
            let i = (self.next + step) % sockets;
            let bound = &mut self.sockets[i];
            count += self.inbox.receive(bound.socket.as_fd(), BURST - count)?;
            for datagram in self.inbox.iter() {
                self.counters.rx_lost += bound.take(&datagram, self.foreign_senders, rx);
            }
            if count == BURST {
                break;
            }
        }
        // Each gets its turn, however busy another is.
        self.next = (self.next + 1) % sockets;
        Ok(count)
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        let Some(net) = tx.header(from) else { return Ok(0) };
        let Some(bound) = self.sockets.iter().find(|bound| bound.address == net.src()) else {
            let taken = tx.len() - from;
            self.counters.tx_lost += taken as u64;
            return Ok(taken);
        };
        let to = bound.peer(net.dst());
        let control = ip_options(&net);
        send_all(tx.len(), from, &mut self.counters.tx_lost, |at| {
            let packets = tx.iter().skip(at).map(|(_, body)| Outgoing {
                parts: [body, &[], &[]],
                to: Some(&to),
                control: Some(&control),
            });
            sys::send_many(bound.fd(), packets)
        })
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        for bound in &self.sockets {
            registry.register(&mut SourceFd(&bound.socket.as_raw_fd()), token, Interest::READABLE)?;
        }
        Ok(())
    }

    fn counters(&self) -> IoCounters {
        self.counters
    }
}

impl Bound {
    /// Binds the RoCE port of `address`. `scope` is the interface's index.
    fn new(address: IpAddr, scope: u32, foreign_senders: bool) -> Result<Self, OpenError> {
        let failed = OpenError::io("set up a UDP socket");
        let domain = if address.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).map_err(&failed)?;
        socket.set_nonblocking(true).map_err(&failed)?;
        socket.set_recv_buffer_size(RECEIVE_BUFFER).map_err(&failed)?;
        let on = |level, option| sys::set_option(&socket, level, option, 1).map_err(&failed);
        on(libc::SOL_SOCKET, libc::SO_RXQ_OVFL)?;
        if address.is_ipv4() {
            sys::set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
                .map_err(&failed)?;
            on(libc::IPPROTO_IP, libc::IP_RECVTOS)?;
            on(libc::IPPROTO_IP, libc::IP_RECVTTL)?;
            if !foreign_senders {
                // Before the bind, so that no packet slips in unfiltered.
                socket.attach_filter(&filter::known_ipv4_header()).map_err(&failed)?;
            }
        } else {
            socket.set_only_v6(true).map_err(&failed)?;
            sys::set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
                .map_err(&failed)?;
            on(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS)?;
            on(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT)?;
            // RoCE over IPv6 may come without a UDP checksum.
            on(libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX)?;
        }
        let bound = Self { socket, address, scope, dropped: 0 };
        bound.socket.bind(&bound.peer(address)).map_err(OpenError::bind(address))?;
        Ok(bound)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The RoCE port of `address`, seen from this socket.
    fn peer(&self, address: IpAddr) -> SockAddr {
        match address {
            IpAddr::V6(v6) if Gid::from(v6).is_link_local() => {
                SocketAddrV6::new(v6, ROCE_V2_PORT, 0, self.scope).into()
            }
            _ => SocketAddr::new(address, ROCE_V2_PORT).into(),
        }
    }

    /// Packets that one queue pair may have in flight: half of what the receive buffer holds, since its
    /// requests and its READ responses may be under way together.
    fn window(&self) -> io::Result<u32> {
        let size = u32::try_from(self.socket.recv_buffer_size()?).unwrap_or(u32::MAX);
        Ok((size / CHARGE / 2).max(1))
    }

    /// Puts a received datagram into `rx`, with the header that it must have had. Returns how many packets
    /// were lost since the one before.
    fn take(&mut self, datagram: &sys::Incoming<'_>, foreign_senders: bool, rx: &mut RxBurst) -> u64 {
        let (mut class, mut hop_limit, mut lost) = (0, 0, 0);
        for item in datagram.control() {
            let Some(value) = item.number() else { continue };
            #[expect(clippy::cast_possible_truncation, reason = "both are one-byte header fields")]
            match (item.level, item.kind) {
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    class = value as u8
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    hop_limit = value as u8;
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    lost = u64::from(value.wrapping_sub(self.dropped));
                    self.dropped = value;
                }
                _ => {}
            }
        }
        let Some(from) = datagram.sender().filter(|_| !datagram.truncated) else { return lost + 1 };
        let net = NetHeader::v2(from.ip(), self.address, from.port(), class, hop_limit);
        let Some(net) = net.map(|net| net.with_transport_len(datagram.data.len())) else { return lost + 1 };
        let knowledge = match foreign_senders && self.address.is_ipv4() {
            true => HeaderKnowledge::Unknown,
            false => HeaderKnowledge::Assumed,
        };
        rx.push(net, knowledge, datagram.data);
        lost
    }
}

/// Ancillary data that gives a packet the traffic class and hop limit of `net`.
fn ip_options(net: &NetHeader) -> ControlBuf {
    let mut control = ControlBuf::default();
    let (level, class, limit, hop_limit) = match net {
        NetHeader::V4(ip, _) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL, ip.ttl),
        NetHeader::V6(ip, _) | NetHeader::V1(ip) => {
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT, ip.hop_limit)
        }
    };
    control.push(level, class, net.traffic_class().into());
    // The kernel takes no time to live of 0; its default is then as good.
    if hop_limit > 0 {
        control.push(level, limit, hop_limit.into());
    }
    control
}

fn first_free_loopback(foreign_senders: bool) -> Result<Bound, OpenError> {
    for n in 2..=254 {
        match Bound::new(Ipv4Addr::new(127, 0, 0, n).into(), 0, foreign_senders) {
            Err(OpenError::PortInUse { .. }) => {}
            other => return other,
        }
    }
    Err(OpenError::NoFreeAddress)
}

fn interface_of(address: IpAddr) -> Result<Interface, OpenError> {
    Interface::by_address(address)
        .map_err(OpenError::io("list the interfaces"))?
        .ok_or(OpenError::NoSuchAddress { address })
}

fn bind_address(address: IpAddr, foreign_senders: bool) -> Result<(Vec<Bound>, Interface), OpenError> {
    let interface = interface_of(address)?;
    let mut sockets = vec![Bound::new(address, interface.index, foreign_senders)?];
    // Another device on the same interface may hold it already; this one then does without.
    if let Some(link_local) = interface.link_local().filter(|link_local| *link_local != address) {
        sockets.extend(Bound::new(link_local, interface.index, foreign_senders));
    }
    Ok((sockets, interface))
}

fn bind_interface(name: &str, foreign_senders: bool) -> Result<(Vec<Bound>, Interface), OpenError> {
    let interface = Interface::by_name(name).map_err(OpenError::io("list the interfaces"))?;
    let interface = interface.ok_or_else(|| OpenError::no_such_interface(name))?;
    let mut sockets = Vec::new();
    let mut first_error = None;
    for (address, _) in &interface.addresses {
        match Bound::new(*address, interface.index, foreign_senders) {
            Ok(bound) => sockets.push(bound),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    match first_error {
        Some(error) if sockets.is_empty() => Err(error),
        None if sockets.is_empty() => {
            Err(OpenError::Interface { name: name.into(), reason: "has no IP address" })
        }
        _ => Ok((sockets, interface)),
    }
}

#[cfg(test)]
mod tests;
