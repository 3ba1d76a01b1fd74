//! Ordinary UDP sockets: no privilege, exact ICRCs, segmentation offload.
//!
//! The ICRC covers the IPv4 identification, which a UDP socket neither chooses nor sees. But an unconnected
//! socket that forbids fragmentation always sends identification 0, and segment `i` of what it lets the kernel
//! segment gets `i`. A socket filter that lets only identifications below the most segments in makes the receiver
//! know them too, but for a little doubt (rule R-ADM-17): the path may have split and joined runs differently. The
//! source port is the RoCE port, since the port that is bound is the one sent from. A self-test at the opening shows
//! that the kernel keeps to this.

use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use mio::{Registry, Token, Waker};
use qp::Lane;
use socket2::{Protocol, SockAddr, Socket, Type};
use wire::batch::{Caps, HeaderKnowledge, ID_BOUND, IpIdRule, RxBurst, TxBatch};
use wire::{Instant, NetHeader, ROCE_V2_PORT, icrc};

use super::lanes::{HandOver, Lanes};
use super::local::{
    CHARGE, CHARGE_IN_RUN, InFlight, Local, domain, receive_buffer, roce_port, send_buffer,
    send_to_groups_from,
};
use super::runs::Runs;
use super::sockets::{self, Sockets};
use super::{Backend, IoCounters, JoinError, OpenError, Places, filter, send_all, sent_as_one};
use crate::interfaces::GidTable;
use crate::sys::{self, ControlBuf, Inbox, Outgoing};

/// Place for one received datagram, which may be as long as a datagram can be. Beyond that only so that equal parts
/// of several do not all fall on the same lines of a cache.
const PLACE: usize = (64 << 10) + 320;

/// Most bytes of one datagram that is sent, all its segments together: the most that IPv4 carries.
const MOST_BYTES: usize = 65_507;

/// Most packets of one queue pair in flight, whatever the buffer holds.
const MAX_WINDOW: u32 = 256;

/// Send buffer asked for: a few full datagrams on their way through a network card.
const SEND_BUFFER: i32 = 1 << 20;

/// How long the self-test waits for its own datagram. It arrives within the send call on loopback.
const SELF_TEST_LIMIT: Duration = Duration::from_millis(250);

/// How to open the udp back end.
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// Where to bind.
    pub local: Local,
    /// Also take packets whose IPv4 identification is not known, from senders that are not bound by the
    /// ID-0 rule (network cards, rdma_rxe). They are passed on as [`HeaderKnowledge::Unknown`].
    pub foreign_senders: bool,
    /// Let the kernel segment what is sent. Without it each packet is a datagram of its own, which is several times
    /// slower, and what a capture program shows are the packets that a network card would send.
    pub offload: bool,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self { local: Local::default(), foreign_senders: false, offload: true }
    }
}

/// The udp back end: one socket per address, and one per multicast group.
#[derive(Debug)]
pub struct Udp {
    sockets: Sockets<Bound>,
    table: GidTable,
    in_flight: InFlight,
    foreign_senders: bool,
    /// Rule that batches are made by; which of the two is decided when the device opens.
    id_rule: IpIdRule,
    /// Where the kernel segments. Batches are made by the same rule where a path has refused.
    runs: Runs,
    inbox: Inbox,
    places: Places,
    /// Bodies of a batch that is sent packet by packet though it was made for offload.
    resealed: Vec<u8>,
    counters: IoCounters,
    /// Where others share its addresses.
    lanes: Option<Lanes>,
}

/// One bound socket.
#[derive(Debug)]
struct Bound {
    socket: Socket,
    address: IpAddr,
    /// Index of the interface, for link-local addresses.
    scope: u32,
    /// Size of its receive buffer, as the kernel counts.
    buffer: u32,
    /// The kernel's count of dropped packets, as of the last packet.
    dropped: u32,
}

impl Udp {
    /// Opens the sockets and tests that they keep the ID-0 rule.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(config: &UdpConfig) -> Result<Self, OpenError> {
        Self::tested(config, None)
    }

    /// Opens `count` lanes, which is 1, 2, 4 or 8: back ends with the same addresses for as many devices, each with
    /// sockets, queue pairs and memory of its own, which the kernel gives the packets of its own queue pairs. They
    /// share nothing while they work, so each may keep a core busy. A peer sees one NIC.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_lanes(config: &UdpConfig, count: u32) -> Result<Vec<Self>, OpenError> {
        let lanes = Lanes::all(count).ok_or(OpenError::NoSuchLanes { count })?;
        let mut all: Vec<Self> = Vec::with_capacity(lanes.len());
        for lane in lanes {
            let next = match all.first() {
                None => {
                    // While it is alone, all that it sends to itself comes back to it.
                    let mut first = Self::tested(config, Some(lane.own()))?;
                    first.lanes = Some(lane);
                    first
                }
                Some(first) => {
                    let same = |bound: &Bound| {
                        Bound::new(bound.address, bound.scope, config.foreign_senders, Some(lane.own()))
                    };
                    let sockets = first.sockets.all().iter().map(same).collect::<Result<_, _>>()?;
                    let mut next = Self::over(sockets, first.table.clone(), config.foreign_senders);
                    // The kernel is the same.
                    next.learn(first.runs.is_on());
                    next.lanes = Some(lane);
                    next
                }
            };
            all.push(next);
        }
        Ok(all)
    }

    /// Binds what `config` says, as `lane` where there are several, and tests it.
    fn tested(config: &UdpConfig, lane: Option<Lane>) -> Result<Self, OpenError> {
        let (sockets, interface) =
            config.local.bind(|address, on| Bound::new(address, on.index, config.foreign_senders, lane))?;
        let addresses: Vec<IpAddr> = sockets.iter().map(|bound| bound.address).collect();
        let table = GidTable::new(&addresses, interface.mac.unwrap_or_default(), interface.mtu)
            .with_speed(interface.speed);
        let mut udp = Self::over(sockets, table, config.foreign_senders);
        for i in 0..udp.sockets.all().len() {
            udp.self_test(i)?;
        }
        let segments = config.offload && udp.kernel_segments()?;
        udp.learn(segments);
        Ok(udp)
    }

    fn over(sockets: Vec<Bound>, table: GidTable, foreign_senders: bool) -> Self {
        Self {
            sockets: Sockets::new(sockets),
            table,
            in_flight: InFlight::new(0, CHARGE, MAX_WINDOW),
            foreign_senders,
            id_rule: IpIdRule::Fixed0,
            runs: Runs::new(false),
            inbox: Inbox::new(),
            places: Places::new(),
            resealed: Vec::new(),
            counters: IoCounters::default(),
            lanes: None,
        }
    }

    /// Whether the kernel segments what is sent, and so what may be in flight.
    fn learn(&mut self, segments: bool) {
        let buffer = self.sockets.all().iter().map(|bound| bound.buffer).min().unwrap_or(0);
        self.runs = Runs::new(segments);
        (self.id_rule, self.in_flight) = if segments {
            (IpIdRule::Index, InFlight::new(buffer, CHARGE_IN_RUN, MAX_WINDOW))
        } else {
            (IpIdRule::Fixed0, InFlight::new(buffer, CHARGE, MAX_WINDOW))
        };
    }

    /// Whether a datagram to itself may be handed over in segments.
    fn kernel_segments(&mut self) -> Result<bool, OpenError> {
        let probe = format!("offload test of process {}", std::process::id()).into_bytes();
        #[expect(clippy::cast_possible_truncation, reason = "a line of text")]
        let half = probe.len().div_ceil(2) as u16;
        let refused = match self.probe_returns(0, &probe, Some(half)) {
            Ok(true) => return Ok(true),
            Ok(false) => "it did not come back".to_owned(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(refused, "no segmentation offload for UDP sockets: sending packet by packet");
        Ok(false)
    }

    /// Sends a datagram to itself, which must come back through the filter.
    fn self_test(&mut self, i: usize) -> Result<(), OpenError> {
        let address = self.sockets.all()[i].address;
        let failed = |reason| OpenError::SelfTest { address, reason };
        // No RoCE packet, so that a peer that already sends to this port is not confused by it.
        let probe = format!("self-test of {address} in process {}", std::process::id()).into_bytes();
        if self.probe_returns(i, &probe, None)? {
            return Ok(());
        }
        let bound = &self.sockets.all()[i];
        if !address.is_ipv4() || self.foreign_senders {
            return Err(failed(
                "a datagram to itself did not come back; look for a firewall rule on UDP 4791",
            ));
        }
        bound.socket.detach_filter().map_err(OpenError::io("detach the socket filter"))?;
        Err(failed(if self.probe_returns(i, &probe, None)? {
            "this kernel puts an IP identification other than 0 on its datagrams, so their ICRC cannot be \
             right; use the raw or packet back end"
        } else {
            "a datagram to itself did not come back; look for a firewall rule on UDP 4791"
        }))
    }

    /// Sends `probe` to itself, in segments of `segment` bytes, and waits for it.
    fn probe_returns(&mut self, i: usize, probe: &[u8], segment: Option<u16>) -> Result<bool, OpenError> {
        let bound = &self.sockets.all()[i];
        let to = roce_port(bound.address, bound.scope);
        let mut control = ControlBuf::default();
        if let Some(len) = segment {
            control.push_segment_len(len);
        }
        let probes = Outgoing { parts: [probe, &[], &[]], to: Some(&to), control: Some(&control) };
        sys::send_many(bound.fd(), std::iter::once(probes))
            .map_err(OpenError::io("send the self-test's datagram"))?;
        let mut room = vec![0; PLACE];
        // A wait that times out ends the test; every datagram before the right one is a live peer's.
        while sys::wait_readable(bound.fd(), SELF_TEST_LIMIT).map_err(OpenError::io("wait for a datagram"))? {
            self.inbox.receive(bound.fd(), &mut room, PLACE).map_err(OpenError::io("receive a datagram"))?;
            let is_it = |got: sys::Incoming<'_>| {
                room[got.at.clone()] == *probe && got.sender().is_some_and(|from| from.ip() == bound.address)
            };
            if self.inbox.iter().any(is_it) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Makes `resealed` the bodies of `tx`, each with the ICRC of a packet with identification 0.
fn reseal(tx: &TxBatch, resealed: &mut Vec<u8>) {
    resealed.clear();
    resealed.extend_from_slice(tx.bytes());
    for ((net, _), body) in tx.iter().zip(resealed.chunks_mut(tx.segment_len().max(1))) {
        icrc::fill(&net.with_id(0), body);
    }
}

/// Where the packets of a batch go.
struct Way<'a> {
    /// The socket that has their source address.
    from: BorrowedFd<'a>,
    to: SockAddr,
    /// Traffic class and hop limit.
    control: ControlBuf,
}

impl Way<'_> {
    /// Sends all packets of `tx` with one call; `None` where the way refuses it.
    fn send_segments(&self, tx: &TxBatch) -> io::Result<Option<usize>> {
        let mut control = self.control;
        #[expect(clippy::cast_possible_truncation, reason = "one of several segments of a datagram")]
        control.push_segment_len(tx.segment_len() as u16);
        let datagram = Outgoing { control: Some(&control), ..self.message(tx.bytes()) };
        sent_as_one(sys::send_many(self.from, std::iter::once(datagram)), tx.len())
    }

    /// Sends the packets of `tx`, whose bodies are `bytes`, from index `from` on, each as a datagram of its own. Counts
    /// the lost in `lost`.
    fn send_single(&self, tx: &TxBatch, bytes: &[u8], from: usize, lost: &mut u64) -> io::Result<usize> {
        send_all(tx.len(), from, lost, |at| {
            let bodies = bytes.chunks(tx.segment_len().max(1)).skip(at);
            sys::send_many(self.from, bodies.map(|body| self.message(body)))
        })
    }

    fn message<'a>(&'a self, bytes: &'a [u8]) -> Outgoing<'a> {
        Outgoing { parts: [bytes, &[], &[]], to: Some(&self.to), control: Some(&self.control) }
    }
}

impl Backend for Udp {
    fn name(&self) -> &'static str {
        "udp"
    }

    fn caps(&self) -> Caps {
        Caps {
            max_segments: ID_BOUND.into(),
            max_bytes: MOST_BYTES,
            ip_id: self.id_rule,
            sees_ip_header: false,
            window: self.in_flight.window,
            credit: self.in_flight.credit,
            src_port: Some(ROCE_V2_PORT),
        }
    }

    fn addresses(&self) -> &GidTable {
        &self.table
    }

    fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
        let Self { sockets, inbox, places, counters, foreign_senders, lanes, .. } = self;
        let fetched = lanes.as_ref().map_or(0, |lanes| lanes.fetch(rx));
        let received = sockets.receive(|bound, limit| {
            let room = rx.room(PLACE * places.next(limit));
            let count = inbox.receive(bound.fd(), room, PLACE)?;
            places.learn(inbox.iter());
            for datagram in inbox.iter() {
                let mut to = Taker { rx: &mut *rx, lanes: lanes.as_ref(), counters: &mut *counters };
                bound.take(&datagram, *foreign_senders, &mut to);
            }
            Ok(count)
        })?;
        Ok(fetched + received)
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        let Some(net) = tx.header(from) else { return Ok(0) };
        let lost = &mut self.counters.tx_lost;
        let Some(bound) = self.sockets.of(net.src()) else {
            let taken = tx.len() - from;
            *lost += taken as u64;
            return Ok(taken);
        };
        let way = Way { from: bound.fd(), to: roce_port(net.dst(), bound.scope), control: ip_options(&net) };
        // A rest would begin with identification 0 again. There is one only after a refusal.
        let as_one = tx.len() > 1 && from == 0 && self.runs.may_go_to(net.dst());
        if as_one && let Some(sent) = way.send_segments(tx)? {
            return Ok(sent);
        }
        let bytes = if self.id_rule == IpIdRule::Index && tx.len() > 1 {
            reseal(tx, &mut self.resealed);
            &self.resealed
        } else {
            tx.bytes()
        };
        let lost_before = *lost;
        let sent = way.send_single(tx, bytes, from, lost)?;
        // Else it was the packets that could not be sent, one by one or together.
        if as_one && sent > 0 && *lost == lost_before {
            self.runs.on_refusal(net.dst());
        }
        Ok(sent)
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.sockets.register(registry, token)
    }

    fn poll(&mut self, now: Instant) {
        self.runs.poll(now);
    }

    fn set_waker(&mut self, waker: Arc<Waker>) {
        if let Some(lanes) = &self.lanes {
            lanes.set_waker(waker);
        }
    }

    fn lane(&self) -> Lane {
        self.lanes.as_ref().map_or(Lane::ONLY, Lanes::own)
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        self.sockets.join(group, |scope| Bound::new(group, scope, self.foreign_senders, None))
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
        &self.socket
    }
}

impl Bound {
    /// Binds the RoCE port of `address`, which `lane` shares with others. `scope` is the interface's index.
    fn new(
        address: IpAddr,
        scope: u32,
        foreign_senders: bool,
        lane: Option<Lane>,
    ) -> Result<Self, OpenError> {
        let failed = OpenError::io("set up a UDP socket");
        let socket = Socket::new(domain(address), Type::DGRAM, Some(Protocol::UDP)).map_err(&failed)?;
        socket.set_nonblocking(true).map_err(&failed)?;
        let buffer = receive_buffer(&socket).map_err(&failed)?;
        send_buffer(&socket, SEND_BUFFER).map_err(&failed)?;
        if address.is_multicast() {
            // Every device of a group has a socket on its port.
            socket.set_reuse_address(true).map_err(&failed)?;
        } else {
            send_to_groups_from(&socket, address, scope).map_err(&failed)?;
        }
        let on = |level, option| sys::set_option(&socket, level, option, 1).map_err(&failed);
        on(libc::SOL_SOCKET, libc::SO_RXQ_OVFL)?;
        // Where the kernel is too old for it, it does not segment either.
        if let Err(error) = sys::set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1) {
            tracing::debug!(%error, "runs of packets are received one by one");
        }
        if address.is_ipv4() {
            sys::set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
                .map_err(&failed)?;
            on(libc::IPPROTO_IP, libc::IP_RECVTOS)?;
            on(libc::IPPROTO_IP, libc::IP_RECVTTL)?;
            if !foreign_senders {
                // Before the bind, so that no packet slips in unfiltered.
                socket.attach_filter(&filter::known_ipv4_header(ID_BOUND)).map_err(&failed)?;
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
        let place = roce_port(address, scope);
        if let Some(lane) = lane {
            if lane.index() == 0 {
                // Sharing would let it in beside another program that shares.
                let alone =
                    Socket::new(domain(address), Type::DGRAM, Some(Protocol::UDP)).map_err(&failed)?;
                alone.bind(&place).map_err(OpenError::bind(address))?;
            }
            socket.set_reuse_port(true).map_err(&failed)?;
        }
        socket.bind(&place).map_err(OpenError::bind(address))?;
        if let Some(lane) = lane {
            sys::choose_socket_by(&socket, &mut filter::lane_of_packet(lane.count())).map_err(&failed)?;
        }
        Ok(Self { socket, address, scope, buffer, dropped: 0 })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Makes packets of a received datagram in the room lent last, with the headers that they must have had, and counts
    /// how many were lost since the one before.
    fn take(&mut self, datagram: &sys::Incoming<'_>, foreign_senders: bool, to: &mut Taker<'_>) {
        let (mut class, mut hop_limit, mut segment) = (0, 0, 0);
        for item in datagram.control() {
            let Some(value) = item.number() else { continue };
            #[expect(clippy::cast_possible_truncation, reason = "two are one-byte header fields")]
            match (item.level, item.kind) {
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    class = value as u8
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    hop_limit = value as u8;
                }
                (libc::SOL_UDP, libc::UDP_GRO) => segment = value as usize,
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    to.counters.rx_lost += u64::from(value.wrapping_sub(self.dropped));
                    self.dropped = value;
                }
                _ => {}
            }
        }
        let from = datagram.sender().filter(|_| !datagram.truncated);
        let Some(net) =
            from.and_then(|from| NetHeader::v2(from.ip(), self.address, from.port(), class, hop_limit))
        else {
            to.counters.rx_lost += 1;
            return;
        };
        let knowledge = match self.address {
            IpAddr::V4(_) if foreign_senders => HeaderKnowledge::Unknown,
            IpAddr::V4(_) => HeaderKnowledge::Near,
            IpAddr::V6(_) => HeaderKnowledge::Assumed,
        };
        let Range { start, end } = datagram.at;
        if segment == 0 || end - start <= segment {
            to.take(net.with_transport_len(end - start), knowledge, start..end);
            return;
        }
        let full = net.with_transport_len(segment);
        for (i, start) in (0..).zip((start..end).step_by(segment)) {
            let len = segment.min(end - start);
            let net = if len == segment { full } else { full.with_transport_len(len) };
            to.take(net.with_id(i), knowledge, start..start + len);
        }
    }
}

/// Where received packets go.
struct Taker<'a> {
    rx: &'a mut RxBurst,
    lanes: Option<&'a Lanes>,
    counters: &'a mut IoCounters,
}

impl Taker<'_> {
    /// The packet at `body` in the room lent last. What is sent to a group every lane gets itself.
    fn take(&mut self, net: NetHeader, knowledge: HeaderKnowledge, body: Range<usize>) {
        if let Some(lanes) = self.lanes.filter(|_| !net.dst().is_multicast()) {
            match lanes.hand_over(net, knowledge, &self.rx.lent()[body.clone()]) {
                HandOver::Ours => {}
                HandOver::Done => {
                    self.counters.rx_handed_over += 1;
                    return;
                }
                HandOver::NoRoom => {
                    self.counters.rx_lost += 1;
                    return;
                }
            }
        }
        self.rx.record(net, knowledge, body);
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
mod lane_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod veth_tests;
