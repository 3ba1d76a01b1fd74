//! Ordinary UDP sockets: no privilege, exact ICRCs.
//!
//! The ICRC covers the IPv4 identification, which a UDP socket neither chooses nor sees. But an unconnected
//! socket that forbids fragmentation always sends identification 0, and a socket filter that lets only such
//! packets in makes the receiver know it too. The source port is the RoCE port, since the port that is
//! bound is the one sent from. A self-test at the opening shows that the kernel keeps to this.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use socket2::{Protocol, Socket, Type};
use wire::batch::{Caps, HeaderKnowledge, IpIdRule, RxBurst, TxBatch};
use wire::{NetHeader, ROCE_V2_PORT};

use super::local::{Local, domain, join_group, receive_capacity, roce_port, send_to_groups_from, window};
use super::{BURST, Backend, IoCounters, JoinError, OpenError, filter, receive_in_turns, send_all};
use crate::interfaces::GidTable;
use crate::sys::{self, ControlBuf, Inbox, Outgoing};

/// Longest datagram that is received whole: a 4096-byte payload with every header.
const DATAGRAM: usize = 4608;

/// Most packets of one queue pair in flight, whatever the buffer holds.
const MAX_WINDOW: u32 = 32;

/// How long the self-test waits for its own datagram. It arrives within the send call on loopback.
const SELF_TEST_LIMIT: Duration = Duration::from_millis(250);

/// How to open the udp back end.
#[derive(Clone, Debug, Default)]
pub struct UdpConfig {
    /// Where to bind.
    pub local: Local,
    /// Also take packets whose IPv4 identification is not known, from senders that are not bound by the
    /// ID-0 rule (network cards, rdma_rxe). They are passed on as [`HeaderKnowledge::Unknown`].
    pub foreign_senders: bool,
}

/// The udp back end: one socket per address, and one per multicast group.
#[derive(Debug)]
pub struct Udp {
    sockets: Vec<Bound>,
    /// Where sockets are registered that are opened later.
    registration: Option<(Registry, Token)>,
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
    /// Full packets that its receive buffer holds.
    capacity: u32,
    /// The kernel's count of dropped packets, as of the last packet.
    dropped: u32,
}

impl Udp {
    /// Opens the sockets and tests that they keep the ID-0 rule.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(config: &UdpConfig) -> Result<Self, OpenError> {
        let (sockets, interface) =
            config.local.bind(|address, on| Bound::new(address, on.index, config.foreign_senders))?;
        let addresses: Vec<IpAddr> = sockets.iter().map(|bound| bound.address).collect();
        let capacity = sockets.iter().map(|bound| bound.capacity).min().unwrap_or(0);
        let table = GidTable::new(&addresses, interface.mac.unwrap_or_default(), interface.mtu);
        let mut udp = Self {
            sockets,
            registration: None,
            table,
            window: window(capacity, MAX_WINDOW),
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
        let to = roce_port(bound.address, bound.scope);
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
        let Self { sockets, next, inbox, counters, foreign_senders, .. } = self;
        receive_in_turns(sockets, next, inbox, Bound::fd, |bound, datagram| {
            counters.rx_lost += bound.take(datagram, *foreign_senders, rx);
        })
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        let Some(net) = tx.header(from) else { return Ok(0) };
        let Some(bound) = self.sockets.iter().find(|bound| bound.address == net.src()) else {
            let taken = tx.len() - from;
            self.counters.tx_lost += taken as u64;
            return Ok(taken);
        };
        let to = roce_port(net.dst(), bound.scope);
        let control = ip_options(&net);
        send_all(tx.len(), from, &mut self.counters.tx_lost, |at| {
            let packets = tx.bodies_from(at).map(|body| Outgoing {
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
        self.registration = Some((registry.try_clone()?, token));
        Ok(())
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        let own = self.sockets.iter().find(|bound| bound.address.is_ipv4() == group.is_ipv4());
        let scope = own.ok_or(JoinError::NoAddress { group })?.scope;
        // A socket of its own: one that is bound to an address takes nothing else, and the address that a datagram
        // was sent to is known by the socket.
        let bound = Bound::new(group, scope, self.foreign_senders)
            .map_err(|source| JoinError::Open { group, source })?;
        let membership = |source| JoinError::Membership { group, source };
        join_group(&bound.socket, group, scope).map_err(membership)?;
        if let Some((registry, token)) = &self.registration {
            let mut fd = SourceFd(&bound.socket.as_raw_fd());
            registry.register(&mut fd, *token, Interest::READABLE).map_err(membership)?;
        }
        self.sockets.push(bound);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        // Closing the socket ends the membership, and its registration.
        self.sockets.retain(|bound| bound.address != group);
        self.next = 0;
    }

    fn counters(&self) -> IoCounters {
        self.counters
    }
}

impl Bound {
    /// Binds the RoCE port of `address`. `scope` is the interface's index.
    fn new(address: IpAddr, scope: u32, foreign_senders: bool) -> Result<Self, OpenError> {
        let failed = OpenError::io("set up a UDP socket");
        let socket = Socket::new(domain(address), Type::DGRAM, Some(Protocol::UDP)).map_err(&failed)?;
        socket.set_nonblocking(true).map_err(&failed)?;
        let capacity = receive_capacity(&socket).map_err(&failed)?;
        if address.is_multicast() {
            // Every device of a group has a socket on its port.
            socket.set_reuse_address(true).map_err(&failed)?;
        } else {
            send_to_groups_from(&socket, address, scope).map_err(&failed)?;
        }
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
        socket.bind(&roce_port(address, scope)).map_err(OpenError::bind(address))?;
        Ok(Self { socket, address, scope, capacity, dropped: 0 })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
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

#[cfg(test)]
mod tests;
