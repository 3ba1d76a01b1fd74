//! Packet I/O: the seam between the engine and the ways packets reach a wire.
//!
//! The engine owns one boxed [`Backend`] and is its only caller, under the device's lock. A back end moves
//! bursts and batches; it knows nothing of queue pairs, and reads no clock: time is an argument.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use mio::{Registry, Token, Waker};
use qp::Lane;
use wire::Instant;
use wire::batch::{Caps, RxBurst, TxBatch};

mod bridge;
mod error;
mod faulty;
mod filter;
mod identity;
mod lanes;
mod local;
mod loopback;
mod owner;
mod packet;
mod raw;
mod runs;
mod shm;
mod sockets;
mod udp;
mod xdp;

#[cfg(test)]
mod namespace;
#[cfg(test)]
pub(crate) mod own;

pub use bridge::BridgePort;
pub use error::{JoinError, OpenError};
pub use faulty::Faulty;
pub use local::Local;
pub(crate) use local::{domain, receive_buffer, send_buffer};
pub use loopback::{Hub, Loopback};
pub use owner::PortOwner;
pub use packet::{Packet, PacketConfig};
pub use raw::Raw;
pub use shm::Shm;
pub use udp::{Udp, UdpConfig};
pub use xdp::{Xdp, XdpConfig, XdpMode};

use crate::interfaces::GidTable;
use crate::sys::Incoming;

/// Most datagrams that one [`Backend::recv_burst`] takes.
pub const BURST: usize = crate::sys::BURST;

/// A way to send and receive RoCE packets.
pub trait Backend: Send + fmt::Debug {
    /// Name, as `--backend` takes it.
    fn name(&self) -> &'static str;

    /// What the core must know before it builds batches. Constant from the opening on.
    fn caps(&self) -> Caps;

    /// GIDs, MAC and interface MTU. Constant from the opening on.
    fn addresses(&self) -> &GidTable;

    /// Appends what has arrived to `rx` without waiting and returns how many datagrams it took off the wire, up to
    /// [`BURST`]; 0 only when there are none. Some may have been no RoCE packets, so `rx` may grow by less; with
    /// segmentation offload a datagram may be many packets, so it may grow by more.
    ///
    /// # Errors
    /// When the path is gone for good. What a peer sends is never an error.
    fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize>;

    /// Sends the packets of `tx` from index `from` on and returns how many were taken, in order. Fewer than
    /// all means that there was no room: send the rest a moment later (rule F18). A packet that the host
    /// cannot route is taken and lost, as on any network, and counted.
    ///
    /// # Errors
    /// When the path is gone for good.
    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize>;

    /// Puts on the wire what [`Backend::send_batch`] took and held back to send together with what follows. The
    /// engine calls it when it has no more batches for now.
    ///
    /// # Errors
    /// When the path is gone for good.
    fn kick(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Registers whatever becomes readable when packets arrive under `token`. Readiness is reported as an
    /// edge: call [`Backend::recv_burst`] until it gives 0, and then [`Backend::before_wait`], before waiting.
    ///
    /// # Errors
    /// Those of the poll.
    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()>;

    /// Prepares for waiting: packets that come from now on make something readable. False where there may be some
    /// already: look again instead.
    fn before_wait(&mut self) -> bool {
        true
    }

    /// Gives the waker of the engine's poll to back ends that have nothing to register.
    fn set_waker(&mut self, waker: Arc<Waker>) {
        drop(waker);
    }

    /// Which of several lanes it is that share its addresses: the queue pairs of its device are of this lane. Constant
    /// from the opening on.
    fn lane(&self) -> Lane {
        Lane::ONLY
    }

    /// Starts to find the way to `dst`, or asks how that went: call it before the first packet and again
    /// after [`Backend::poll`]. Sending without it works too; packets then wait for the answer, a few per
    /// destination.
    fn prepare(&mut self, now: Instant, dst: IpAddr) -> Reachability {
        let _ = (now, dst);
        Reachability::Ready
    }

    /// Lets in what is sent to a multicast group. The caller joins a group once, however many of its queue pairs are
    /// members.
    ///
    /// # Errors
    /// Where the back end cannot, or the system does not let it.
    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        let _ = group;
        Err(JoinError::Unsupported { backend: self.name() })
    }

    /// No longer lets in what is sent to a multicast group.
    fn leave(&mut self, group: IpAddr) {
        let _ = group;
    }

    /// Whether the link is up, as far as the back end can know: `packet` is told when its interface goes down, and
    /// takes it for up again when a frame comes.
    fn link_is_up(&self) -> bool {
        true
    }

    /// Tells the time and does what is due: repeats unanswered address resolution, gives up on it, releases
    /// delayed packets. Call it once a pass, before the others, and when [`Backend::poll_timeout`] has passed.
    fn poll(&mut self, now: Instant) {
        let _ = now;
    }

    /// When [`Backend::poll`] has something to do.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Writes out what is buffered (captures).
    ///
    /// # Errors
    /// When it cannot be written.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// What was lost below the engine.
    fn counters(&self) -> IoCounters {
        IoCounters::default()
    }
}

/// Whether a destination can be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reachability {
    /// It can.
    Ready,
    /// Address resolution is under way; [`Backend::poll_timeout`] says when it is repeated.
    Pending,
    /// It cannot, for this reason.
    Unreachable(Unreachable),
}

/// Why a destination cannot be sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreachable {
    /// No answer to ARP or neighbour solicitations.
    #[error("no answer to address resolution")]
    NoAnswer,
    /// No route leads there.
    #[error("no route to it")]
    NoRoute,
    /// The back end has no address of that family.
    #[error("this device has no address of its family")]
    NoSource,
}

/// Packets lost between the engine and the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounters {
    /// Packets taken from the engine that never left: no route, no answer to address resolution, longer
    /// than the interface's MTU.
    pub tx_lost: u64,
    /// Packets that arrived but never reached the engine: the receive buffer was full, or the header was
    /// none that the back end's rule allows.
    pub rx_lost: u64,
    /// Packets that arrived in the lane of another device of the same addresses and were handed over to it.
    pub rx_handed_over: u64,
}

/// What an error of a send call means for the packets.
enum SendFailure {
    /// No room now; the packets may be sent later.
    Later,
    /// This packet cannot be sent, others may.
    Lost,
    /// The path is gone: the kernel says so of the socket, or the back end in words of its own.
    Fatal(io::Error),
}

impl SendFailure {
    fn of(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Self::Later,
            Some(libc::EBADF | libc::ENOTSOCK | libc::ENODEV | libc::ENXIO) | None => Self::Fatal(error),
            Some(_) => {
                tracing::debug!(%error, "a packet could not be sent");
                Self::Lost
            }
        }
    }
}

/// How many datagrams to make room for: many where they are small, few where they are runs of packets, so that what
/// has come is worked on and acknowledged before the sender has run out of what it may send.
#[derive(Debug)]
struct Places(usize);

impl Places {
    const MANY: usize = 16;
    const FEW: usize = 4;
    /// Mean length from which datagrams are taken for runs.
    const LONG: usize = 8 << 10;

    fn new() -> Self {
        Self(Self::MANY)
    }

    /// For the next call, of which at most `limit` are wanted.
    fn next(&self, limit: usize) -> usize {
        self.0.min(limit)
    }

    /// Learns from what has come.
    fn learn<'a>(&mut self, came: impl Iterator<Item = Incoming<'a>>) {
        let (count, bytes) = came.fold((0, 0), |(count, bytes), got| (count + 1, bytes + got.at.len()));
        if count > 0 {
            self.0 = if bytes > count * Self::LONG { Self::FEW } else { Self::MANY };
        }
    }
}

/// What became of `packets` packets that were sent as one; `None` where that is refused.
fn sent_as_one(result: io::Result<usize>, packets: usize) -> io::Result<Option<usize>> {
    match result.map_err(SendFailure::of) {
        Ok(sent) => Ok(Some(sent * packets)),
        Err(SendFailure::Later) => Ok(Some(0)),
        Err(SendFailure::Lost) => Ok(None),
        Err(SendFailure::Fatal(error)) => Err(error),
    }
}

/// Calls `send(at)`, which sends packets from index `at` on and returns how many, until `len` are taken or
/// there is no room. Counts the lost in `lost`.
fn send_all(
    len: usize,
    from: usize,
    lost: &mut u64,
    mut send: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut at = from;
    while at < len {
        match send(at).map_err(SendFailure::of) {
            Ok(0) | Err(SendFailure::Later) => break,
            Ok(sent) => at += sent,
            Err(SendFailure::Lost) => {
                *lost += 1;
                at += 1;
            }
            Err(SendFailure::Fatal(error)) => return Err(error),
        }
    }
    Ok(at - from)
}
