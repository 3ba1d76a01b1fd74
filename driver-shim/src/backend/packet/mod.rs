//! Ethernet frames on one interface, through a packet socket.
//!
//! The device is known by the interface's own addresses, the kernel keeps ARP and neighbour discovery, and
//! shield sockets keep it from answering RoCE packets; or it is a host of its own on that wire, with its own
//! Ethernet and IP addresses, and answers and asks itself. Needs CAP_NET_RAW.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token, Waker};
use socket2::{Domain, Socket, Type};
use wire::batch::{Caps, HeaderKnowledge, RxBurst, TxBatch};
use wire::{Instant, Mac, NetHeader, ParseError, ROCE_V2_PORT};

use self::frame::{Frame, Head, OFFLOAD_LEN, SUPER_FRAME};
use super::identity::{Identity, Neighbours, join_group, leave_group};
use super::local::{CHARGE, CHARGE_IN_RUN, InFlight, receive_buffer, send_buffer};
use super::runs::Runs;
use super::{
    BURST, Backend, IoCounters, JoinError, OpenError, Places, Reachability, filter, send_all, sent_as_one,
};
use crate::interfaces::GidTable;
use crate::neigh::{Lookup, Table};
use crate::sys::{self, Inbox, Outgoing};

mod frame;

/// Most packets of one queue pair in flight, whatever the buffer holds: veth interfaces queue 256.
const MAX_WINDOW: u32 = 256;

/// Send buffer asked for: a few bursts of full frames.
const SEND_BUFFER: i32 = 1 << 20;

/// Most bytes of one super-frame, from the first BTH to the last ICRC.
const MOST_BYTES: usize = 65_507;

/// How to open the packet back end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketConfig {
    /// Name of the interface.
    pub interface: String,
    /// Addresses of a host of its own, with their prefix lengths. Empty: the device shares the interface's
    /// addresses.
    pub own: Vec<(IpAddr, u8)>,
    /// Ethernet address of a host of its own; `None` makes a locally administered one of its first address.
    pub mac: Option<Mac>,
    /// Hand runs of packets to the kernel as one frame, which it or the interface segments where the way needs it.
    /// Without it each packet is a frame of its own, which is several times slower, and what a capture program shows
    /// are the packets that a network card would send.
    pub offload: bool,
}

impl Default for PacketConfig {
    fn default() -> Self {
        Self { interface: String::new(), own: Vec::new(), mac: None, offload: true }
    }
}

/// The packet back end.
#[derive(Debug)]
pub struct Packet {
    socket: Socket,
    table: GidTable,
    in_flight: InFlight,
    inbox: Inbox,
    places: Places,
    /// Where the kernel takes super-frames.
    runs: Runs,
    neighbours: Table<Neighbours>,
    mac: Mac,
    /// Packets to the device itself, which no wire brings back.
    looped: VecDeque<(NetHeader, Vec<u8>)>,
    waker: Option<Arc<Waker>>,
    /// Index of the interface.
    interface: u32,
    /// Multicast groups that it takes packets of.
    groups: Vec<IpAddr>,
    /// The interface was down when it was last heard of.
    down: bool,
    now: Instant,
    /// The kernel's count of dropped frames, as of the last frame.
    dropped: u32,
    counters: IoCounters,
    /// Hold the port of a device that shares the interface's addresses; never read.
    _shields: Vec<Socket>,
}

impl Packet {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(config: &PacketConfig) -> Result<Self, OpenError> {
        let interface = OpenError::interface(&config.interface)?;
        let identity = Identity::on(&interface, &config.own, config.mac)?;
        let own = !config.own.is_empty();
        let failed = OpenError::io("set up a packet socket");
        // Protocol 0 receives nothing, until the filter is there and the socket is bound.
        let socket = Socket::new(Domain::PACKET, Type::RAW, None).map_err(OpenError::privileged("packet"))?;
        socket.set_nonblocking(true).map_err(&failed)?;
        socket.attach_filter(&filter::frames_to_port(ROCE_V2_PORT, own)).map_err(&failed)?;
        let on = |level, option| sys::set_option(&socket, level, option, 1).map_err(&failed);
        on(libc::SOL_SOCKET, libc::SO_RXQ_OVFL)?;
        on(libc::SOL_PACKET, libc::PACKET_VNET_HDR)?;
        on(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING)?;
        let buffer = receive_buffer(&socket).map_err(&failed)?;
        send_buffer(&socket, SEND_BUFFER).map_err(&failed)?;
        if own {
            sys::join_promiscuous(&socket, interface.index).map_err(&failed)?;
        }
        sys::bind_link(&socket, interface.index).map_err(&failed)?;
        let mut packet = Self {
            socket,
            table: GidTable::new(&identity.addresses, identity.mac, interface.mtu)
                .with_speed(interface.speed),
            mac: identity.mac,
            in_flight: InFlight::new(buffer, if config.offload { CHARGE_IN_RUN } else { CHARGE }, MAX_WINDOW),
            inbox: Inbox::new(),
            places: Places::new(),
            runs: Runs::new(config.offload),
            neighbours: Table::new(identity.neighbours),
            looped: VecDeque::new(),
            waker: None,
            interface: interface.index,
            groups: Vec::new(),
            down: false,
            now: Instant::ZERO,
            dropped: 0,
            counters: IoCounters::default(),
            _shields: identity.shields,
        };
        packet.send_pending();
        Ok(packet)
    }

    /// Sends what address resolution has to say, and the packets that waited for its answers.
    fn send_pending(&mut self) {
        if let Neighbours::Own(host) = self.neighbours.resolver() {
            for frame in host.take_outbox() {
                // A question that is lost is repeated, and so is one whose answer is lost.
                self.counters.tx_lost += u64::from(!send_one(&self.socket, &[&[0; OFFLOAD_LEN], &frame]));
            }
        }
        for (mac, mut frame) in self.neighbours.released() {
            frame::set_destination(&mut frame, mac);
            self.counters.tx_lost += u64::from(!send_one(&self.socket, &[&frame, &[]]));
        }
    }

    /// Sends the packets of `tx` from index `from` on, frame by frame.
    fn send_single(&mut self, tx: &TxBatch, from: usize, dst: Mac) -> io::Result<usize> {
        let mut heads = [Head::EMPTY; BURST];
        send_all(tx.len(), from, &mut self.counters.tx_lost, |at| {
            for (head, (net, _)) in heads.iter_mut().zip(tx.iter_from(at)) {
                *head = Head::new(self.mac, dst, &net);
            }
            let frames = heads.iter().zip(tx.bodies_from(at)).map(|(head, body)| Outgoing {
                parts: [head.bytes(), body, &[]],
                to: None,
                control: None,
            });
            sys::send_many(self.socket.as_fd(), frames)
        })
    }

    /// Sends the packets of `tx` from index `from` on, of which `net` is the first one's header, as one frame. `None`
    /// where it is refused.
    fn send_run(
        &mut self,
        tx: &TxBatch,
        from: usize,
        net: &NetHeader,
        dst: Mac,
    ) -> io::Result<Option<usize>> {
        let body = &tx.bytes()[from * tx.segment_len()..];
        // The kernel would not tell that a part is too long for the interface.
        if net.len() + tx.segment_len() > self.table.interface_mtu() as usize {
            return Ok(None);
        }
        let head = Head::of_run(self.mac, dst, net, tx.segment_len(), body.len());
        let frame = Outgoing { parts: [head.bytes(), body, &[]], to: None, control: None };
        sent_as_one(sys::send_many(self.socket.as_fd(), std::iter::once(frame)), tx.len() - from)
    }

    /// Receives up to `limit` frames into `rx`.
    fn receive(&mut self, limit: usize, rx: &mut RxBurst) -> io::Result<usize> {
        let room = rx.room(SUPER_FRAME * self.places.next(limit));
        let count = match self.inbox.receive(self.socket.as_fd(), room, SUPER_FRAME) {
            // Reported once when the interface goes down; it may come up again.
            Err(error) if error.raw_os_error() == Some(libc::ENETDOWN) => {
                self.down = true;
                0
            }
            other => other?,
        };
        if count > 0 {
            self.down = false;
        }
        self.places.learn(self.inbox.iter());
        for received in self.inbox.iter() {
            let drops = received.control().filter(|item| item.is(libc::SOL_SOCKET, libc::SO_RXQ_OVFL));
            for total in drops.filter_map(|item| item.number()) {
                self.counters.rx_lost += u64::from(total.wrapping_sub(self.dropped));
                self.dropped = total;
            }
            let frame = Frame::parse(&rx.lent()[received.at.clone()]).filter(|_| !received.truncated);
            let Some(frame) = frame else {
                self.counters.rx_lost += 1;
                continue;
            };
            // Promiscuous mode shows what is for others.
            if frame.dst != self.mac && frame.dst.0[0] & 1 == 0 {
                continue;
            }
            if frame.is_udp() {
                match frame.packets() {
                    Ok(packets) => {
                        let net = &packets.net;
                        if self.table.index_of(net.dst_gid()).is_some() || self.groups.contains(&net.dst()) {
                            packets.record(rx, received.at.start);
                        }
                    }
                    Err(ParseError::NotRoce) => {}
                    Err(_) => rx.add_malformed(1),
                }
            } else if let Neighbours::Own(host) = self.neighbours.resolver()
                && let Some((address, mac)) = host.on_frame(frame.bytes)
            {
                self.neighbours.learn(self.now, address, mac);
            }
        }
        Ok(count)
    }
}

impl Backend for Packet {
    fn name(&self) -> &'static str {
        "packet"
    }

    fn caps(&self) -> Caps {
        Caps { max_bytes: MOST_BYTES, ..self.in_flight.of_whole_packets() }
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
        if count > 0 {
            self.send_pending();
        }
        Ok(looped + count)
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        let Some(net) = tx.header(from) else { return Ok(0) };
        let taken = tx.len() - from;
        if self.table.index_of(net.dst_gid()).is_some() {
            self.looped.extend(tx.iter_from(from).map(|(net, body)| (net, body.to_vec())));
            if let Some(waker) = &self.waker {
                waker.wake()?;
            }
            return Ok(taken);
        }
        let lookup = match net.dst() {
            group if group.is_multicast() => Lookup::Mac(Mac::of_group(group)),
            host => self.neighbours.lookup(self.now, host),
        };
        let dst = match lookup {
            Lookup::Mac(mac) => mac,
            Lookup::Pending => {
                for (packet, body) in tx.iter_from(from) {
                    let head = Head::new(self.mac, Mac::default(), &packet);
                    self.neighbours.hold(net.dst(), [head.bytes(), body].concat());
                }
                self.send_pending();
                return Ok(taken);
            }
            Lookup::Unreachable(_) => {
                self.counters.tx_lost += taken as u64;
                return Ok(taken);
            }
        };
        let as_one = taken > 1 && self.runs.may_go_to(net.dst());
        if as_one && let Some(sent) = self.send_run(tx, from, &net, dst)? {
            return Ok(sent);
        }
        let lost = self.counters.tx_lost;
        let sent = self.send_single(tx, from, dst)?;
        // Else it was the packets that could not be sent, one by one or together.
        if as_one && sent > 0 && self.counters.tx_lost == lost {
            self.runs.on_refusal(net.dst());
        }
        Ok(sent)
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(&mut SourceFd(&self.socket.as_raw_fd()), token, Interest::READABLE)
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
        self.send_pending();
        lookup.into()
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        join_group(&self.socket, self.interface, &self.table, group)?;
        self.groups.push(group);
        Ok(())
    }

    fn leave(&mut self, group: IpAddr) {
        self.groups.retain(|joined| *joined != group);
        leave_group(&self.socket, self.interface, group);
    }

    fn link_is_up(&self) -> bool {
        !self.down
    }

    fn poll(&mut self, now: Instant) {
        self.now = now;
        self.runs.poll(now);
        if self.neighbours.poll(now) {
            self.send_pending();
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.neighbours.poll_timeout()
    }

    fn counters(&self) -> IoCounters {
        IoCounters { tx_lost: self.counters.tx_lost + self.neighbours.lost(), ..self.counters }
    }
}

/// Sends one frame; says whether it left.
fn send_one(socket: &Socket, [head, rest]: &[&[u8]; 2]) -> bool {
    let frame = Outgoing { parts: [head, rest, &[]], to: None, control: None };
    match sys::send_many(socket.as_fd(), std::iter::once(frame)) {
        Ok(sent) => sent == 1,
        Err(error) => {
            tracing::debug!(%error, "a frame could not be sent");
            false
        }
    }
}

#[cfg(test)]
mod tests;
