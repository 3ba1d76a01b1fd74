//! Ethernet frames on one receive queue of an interface, through an AF_XDP socket: rings shared with the kernel, which
//! are read without a system call.
//!
//! Who the device is and who resolves addresses is as in the packet back end. A small XDP program on the interface
//! steers what is for the device into the socket, ahead of the rest of the kernel; what is for others, and what comes
//! on other queues or with a VLAN tag, passes by. Needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token, Waker};
use socket2::{Domain, Socket, Type};
use wire::batch::{Caps, HeaderKnowledge, RxBurst, TxBatch};
use wire::{Duration, EthHeader, Instant, Mac, NetHeader, ParseError, ROCE_V2_PORT};

use self::program::Wanted;
use self::rings::Rings;
use super::identity::{Identity, Neighbours, join_group, leave_group};
use super::local::InFlight;
use super::{BURST, Backend, IoCounters, JoinError, OpenError, Reachability, SendFailure};
use crate::interfaces::GidTable;
use crate::neigh::{Lookup, Table};
use crate::ring::Torn;
use crate::sys;

pub use crate::sys::XdpMode;

mod program;
mod rings;

/// Packets in flight: veth interfaces queue so many towards a receiver.
const IN_FLIGHT: u32 = 256;

/// Send buffer asked for: what the kernel charges to it for all that can be under way.
const SEND_BUFFER: i32 = 4 << 20;

/// Frames that the kernel takes with one kick, where it lets itself be told; 32 otherwise.
const KICK_BUDGET: i32 = 256;

/// When to kick again what the kernel did not take.
const KICK_AGAIN: Duration = Duration::from_micros(100);
/// The same while the interface is down, where each wait is twice as long as the one before.
const KICK_AGAIN_AT_LAST: Duration = Duration::from_millis(100);

/// `XDP_MAX_TX_SKB_BUDGET`, of Linux 6.18.
const MAX_TX_SKB_BUDGET: i32 = 9;

/// How to open the XDP back end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XdpConfig {
    /// Name of the interface.
    pub interface: String,
    /// Addresses of a host of its own, with their prefix lengths. Empty: the device shares the interface's
    /// addresses.
    pub own: Vec<(IpAddr, u8)>,
    /// Ethernet address of a host of its own; `None` makes a locally administered one of its first address.
    pub mac: Option<Mac>,
    /// Receive queue. A card with several must be told to put everything there (`ethtool -L IFNAME combined 1`).
    pub queue: u32,
    /// Where the XDP program runs; `None` takes the driver where it can, and the kernel's receive path otherwise.
    pub mode: Option<XdpMode>,
}

/// The XDP back end.
#[derive(Debug)]
pub struct Xdp {
    rings: Rings,
    table: GidTable,
    neighbours: Table<Neighbours>,
    mac: Mac,
    mode: XdpMode,
    /// Packets to the device itself, which no wire brings back.
    looped: VecDeque<(NetHeader, Vec<u8>)>,
    waker: Option<Arc<Waker>>,
    /// Index of the interface.
    interface: u32,
    /// Multicast groups that it takes packets of.
    groups: Vec<IpAddr>,
    /// The kernel has not taken all of the send ring.
    unsent: bool,
    /// How long to wait then.
    kick_again: Duration,
    /// The interface was down when it was last heard of.
    down: bool,
    now: Instant,
    counters: IoCounters,
    /// Receives nothing; holds the interface's promiscuous mode and Ethernet groups.
    memberships: Socket,
    /// Detach the program and free the port when they are closed; never read.
    _attached: [OwnedFd; 2],
    _shields: Vec<Socket>,
}

impl Xdp {
    /// Opens the socket and attaches the program. Dropping what is returned, or the end of the process, undoes both.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(config: &XdpConfig) -> Result<Self, OpenError> {
        let interface = OpenError::interface(&config.interface)?;
        let identity = Identity::on(&interface, &config.own, config.mac)?;
        let failed = OpenError::io("set up an AF_XDP socket");
        let socket = sys::xdp_socket().map_err(OpenError::privileged("xdp"))?;
        // Fewer may be under way where these are refused.
        let _ = super::local::send_buffer(&Socket::from(socket.try_clone().map_err(&failed)?), SEND_BUFFER);
        let _ = sys::set_option(&socket, libc::SOL_XDP, MAX_TX_SKB_BUDGET, KICK_BUDGET);
        let rings = Rings::new(socket).map_err(&failed)?;
        let queue = config.queue;
        bind(rings.socket(), interface.index, queue).map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY) => OpenError::QueueInUse { name: interface.name.clone(), queue },
            Some(libc::EINVAL) if queue > 0 => OpenError::NoSuchQueue { name: interface.name.clone(), queue },
            _ => OpenError::Io { what: "bind an AF_XDP socket (this needs Linux 6.6)", source },
        })?;
        let of_bpf = |what| {
            move |source: io::Error| match source.kind() {
                io::ErrorKind::PermissionDenied => {
                    OpenError::NoPermission { backend: "xdp", needs: "CAP_BPF and CAP_NET_ADMIN" }
                }
                _ => OpenError::Io { what, source },
            }
        };
        let map = sys::socket_map(queue + 1).map_err(of_bpf("make a map of AF_XDP sockets"))?;
        let own = !config.own.is_empty();
        let wanted = Wanted { addresses: &identity.addresses, port: ROCE_V2_PORT, neighbours: own };
        let program = program::load(&wanted, &map).map_err(of_bpf("load an XDP program"))?;
        let (link, mode) =
            attach(&program, interface.index, config.mode).map_err(|source| match source.raw_os_error() {
                Some(libc::EBUSY | libc::EEXIST) => OpenError::ProgramInUse { name: interface.name.clone() },
                _ => of_bpf("attach an XDP program")(source),
            })?;
        sys::set_socket(&map, queue, rings.socket()).map_err(&failed)?;
        let memberships =
            Socket::new(Domain::PACKET, Type::RAW, None).map_err(OpenError::privileged("xdp"))?;
        if own {
            sys::join_promiscuous(&memberships, interface.index).map_err(&failed)?;
        }
        let mut xdp = Self {
            rings,
            table: GidTable::new(&identity.addresses, identity.mac, interface.mtu)
                .with_speed(interface.speed),
            mac: identity.mac,
            mode,
            neighbours: Table::new(identity.neighbours),
            looped: VecDeque::new(),
            waker: None,
            interface: interface.index,
            groups: Vec::new(),
            unsent: false,
            kick_again: KICK_AGAIN,
            down: false,
            now: Instant::ZERO,
            counters: IoCounters::default(),
            memberships,
            _attached: [link, map],
            _shields: identity.shields,
        };
        xdp.send_what_is_due();
        Ok(xdp)
    }

    /// Where the program runs.
    #[must_use]
    pub fn mode(&self) -> XdpMode {
        self.mode
    }

    /// Puts what address resolution has to say, and the packets that waited for its answers, into the send ring; says
    /// whether there were any.
    fn send_pending(&mut self) -> Result<bool, Torn> {
        let mut frames = Vec::new();
        if let Neighbours::Own(host) = self.neighbours.resolver() {
            frames.extend(host.take_outbox());
        }
        for (mac, mut frame) in self.neighbours.released() {
            frame[..6].copy_from_slice(&mac.0);
            frames.push(frame);
        }
        for frame in &frames {
            // A question that is lost is repeated, and so is one whose answer is lost.
            self.counters.tx_lost += u64::from(!self.rings.push([frame, &[]])?);
        }
        Ok(!frames.is_empty())
    }

    /// Sends what address resolution has to say. A path that is gone shows when packets are sent.
    fn send_what_is_due(&mut self) {
        let sent = self
            .send_pending()
            .map_err(io::Error::from)
            .and_then(|any| if any { self.kick() } else { Ok(()) });
        if let Err(error) = sent {
            tracing::debug!(%error, "address resolution cannot ask");
        }
    }

    /// Receives up to `limit` frames into `rx`.
    fn receive(&mut self, limit: usize, rx: &mut RxBurst) -> io::Result<usize> {
        let (table, groups, neighbours) = (&self.table, &self.groups, &mut self.neighbours);
        let (mac, now) = (self.mac, self.now);
        let received = self.rings.receive(limit, rx, |rx, len| {
            let frame = rx.room(len);
            // Promiscuous mode shows what is for others.
            let Ok((EthHeader { dst, .. }, packet)) = EthHeader::parse(frame) else { return };
            if dst != mac && dst.0[0] & 1 == 0 {
                return;
            }
            let start = len - packet.len();
            match NetHeader::parse_ip(packet) {
                Ok((net, body)) => {
                    if table.index_of(net.dst_gid()).is_some() || groups.contains(&net.dst()) {
                        let start = start + net.len();
                        let body = start..start + body.len();
                        rx.record(net, HeaderKnowledge::Seen, body);
                    }
                }
                Err(ParseError::NotRoce) => {
                    if let Neighbours::Own(host) = neighbours.resolver()
                        && let Some((address, mac)) = host.on_frame(frame)
                    {
                        neighbours.learn(now, address, mac);
                    }
                }
                Err(_) => rx.add_malformed(1),
            }
        });
        let (frames, lost) = received?;
        self.counters.rx_lost += lost;
        if frames > 0 {
            self.down = false;
        }
        Ok(frames)
    }

    /// Writes one packet to the send ring; false where there is no room.
    fn push(&mut self, dst: Mac, net: &NetHeader, body: &[u8]) -> Result<bool, Torn> {
        if net.len() + body.len() > self.table.interface_mtu() as usize {
            self.counters.tx_lost += 1;
            return Ok(true);
        }
        let (head, len) = head(self.mac, dst, net);
        self.rings.push([&head[..len], body])
    }
}

impl Backend for Xdp {
    fn name(&self) -> &'static str {
        "xdp"
    }

    fn caps(&self) -> Caps {
        InFlight { window: IN_FLIGHT, credit: IN_FLIGHT }.of_whole_packets()
    }

    fn addresses(&self) -> &GidTable {
        &self.table
    }

    fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
        let looped = self.looped.len().min(BURST);
        for (net, body) in self.looped.drain(..looped) {
            rx.push(net, HeaderKnowledge::Seen, &body);
        }
        let count = if looped < BURST { self.receive(BURST - looped, rx)? } else { 0 };
        if (count > 0 && self.send_pending()?) || self.unsent {
            self.kick()?;
        }
        Ok(looped + count)
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        let Some(net) = tx.header(from) else { return Ok(0) };
        let all = tx.len() - from;
        if self.table.index_of(net.dst_gid()).is_some() {
            self.looped.extend(tx.iter_from(from).map(|(net, body)| (net, body.to_vec())));
            if let Some(waker) = &self.waker {
                waker.wake()?;
            }
            return Ok(all);
        }
        let lookup = match net.dst() {
            group if group.is_multicast() => Lookup::Mac(Mac::of_group(group)),
            host => self.neighbours.lookup(self.now, host),
        };
        let dst = match lookup {
            Lookup::Mac(mac) => mac,
            Lookup::Pending => {
                for (packet, body) in tx.iter_from(from) {
                    let (head, len) = head(self.mac, Mac::default(), &packet);
                    self.neighbours.hold(net.dst(), [&head[..len], body].concat());
                }
                self.send_pending()?;
                return Ok(all);
            }
            Lookup::Unreachable(_) => {
                self.counters.tx_lost += all as u64;
                return Ok(all);
            }
        };
        let mut taken = 0;
        for (net, body) in tx.iter_from(from) {
            if !self.push(dst, &net, body)? {
                // What has left makes room, and what waits in the ring leaves.
                self.kick()?;
                if !self.push(dst, &net, body)? {
                    if self.down {
                        self.counters.tx_lost += (all - taken) as u64;
                        return Ok(all);
                    }
                    break;
                }
            }
            taken += 1;
        }
        Ok(taken)
    }

    fn kick(&mut self) -> io::Result<()> {
        let mut before = u32::MAX;
        loop {
            let queued = self.rings.publish()?;
            self.unsent = queued > 0;
            // Each kick takes some; where one takes none, its time has not come.
            if queued == 0 || queued >= before {
                break;
            }
            before = queued;
            if let Err(error) = sys::kick_xdp(self.rings.socket().as_fd()) {
                match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS) => {}
                    // It may come up again.
                    Some(libc::ENETDOWN) => {
                        self.down = true;
                        self.kick_again = KICK_AGAIN_AT_LAST.min(self.kick_again + self.kick_again);
                        break;
                    }
                    _ => match SendFailure::of(error) {
                        SendFailure::Fatal(error) => return Err(error),
                        SendFailure::Later | SendFailure::Lost => break,
                    },
                }
            } else {
                self.down = false;
                self.kick_again = KICK_AGAIN;
            }
        }
        self.rings.reap()?;
        Ok(())
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.rings.socket().as_raw_fd()), token, Interest::READABLE)
    }

    fn set_waker(&mut self, waker: Arc<Waker>) {
        self.waker = Some(waker);
    }

    fn prepare(&mut self, now: Instant, dst: IpAddr) -> Reachability {
        self.now = now;
        if dst.is_multicast() || self.table.index_of(dst.into()).is_some() {
            return Reachability::Ready;
        }
        let lookup = self.neighbours.lookup(now, dst);
        self.send_what_is_due();
        lookup.into()
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        join_group(&self.memberships, self.interface, &self.table, group)?;
        self.groups.push(group);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.groups.retain(|joined| *joined != group);
        leave_group(&self.memberships, self.interface, group);
    }

    fn link_is_up(&self) -> bool {
        !self.down
    }

    fn poll(&mut self, now: Instant) {
        self.now = now;
        if self.neighbours.poll(now) {
            self.send_what_is_due();
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let kick = self.unsent.then(|| self.now + self.kick_again);
        self.neighbours.poll_timeout().into_iter().chain(kick).min()
    }

    fn counters(&self) -> IoCounters {
        let lost = sys::lost_by_xdp(self.rings.socket().as_fd()).unwrap_or_default();
        IoCounters {
            tx_lost: self.counters.tx_lost + self.neighbours.lost(),
            rx_lost: self.counters.rx_lost + lost,
            ..self.counters
        }
    }
}

/// Everything before the BTH of one frame, and its length.
fn head(src: Mac, dst: Mac, net: &NetHeader) -> ([u8; EthHeader::MIN_LEN + NetHeader::MAX_LEN], usize) {
    let mut bytes = [0; EthHeader::MIN_LEN + NetHeader::MAX_LEN];
    let at = EthHeader::new(src, dst, net).emit(&mut bytes);
    let len = at + net.emit(&mut bytes[at..]);
    (bytes, len)
}

/// Binds `socket` to a receive queue. The kernel gives a queue back some time after its last socket is gone, so one that
/// is busy is asked for a few times more.
fn bind(socket: &OwnedFd, interface: u32, queue: u32) -> io::Result<()> {
    const TRIES: usize = 50;
    let pause = sys::event_counter()?;
    for _ in 0..TRIES {
        match sys::bind_xdp(socket.as_fd(), interface, queue) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                // Never readable.
                sys::wait_readable(pause.as_fd(), Duration::from_millis(4).into())?;
            }
            other => return other,
        }
    }
    sys::bind_xdp(socket.as_fd(), interface, queue)
}

/// Attaches `program` in `mode`, or in the first that works.
fn attach(program: &OwnedFd, interface: u32, mode: Option<XdpMode>) -> io::Result<(OwnedFd, XdpMode)> {
    let attach = |mode| sys::attach_xdp(program, interface, mode).map(|link| (link, mode));
    match mode {
        Some(mode) => attach(mode),
        None => attach(XdpMode::Native).or_else(|error| match error.raw_os_error() {
            // Of the interface, not of the driver.
            Some(libc::EBUSY | libc::EEXIST | libc::EPERM) => Err(error),
            _ => attach(XdpMode::Generic),
        }),
    }
}

#[cfg(test)]
mod tests;
