//! What a case asks of either end of its connection.
//!
//! A case is written once, for a client and a server, and runs with the card under test as one and a peer as
//! the other, then the other way round. Addresses in work requests are offsets into the side's own region.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Bytes of memory each side registers.
pub(crate) const REGION: u64 = 8 << 20;

/// Why a case did not pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Something came out otherwise than the case expects.
    #[error("{0}")]
    Wrong(String),
    /// The peer's device lacks what the case needs.
    #[error("{0}")]
    Unsupported(String),
    /// Completions did not come, and nothing else was wrong.
    #[error("{side}: {got} of {of} completions came")]
    Missing {
        /// Name of the side that waited for them.
        side: &'static str,
        /// How many came.
        got: usize,
        /// How many were to come.
        of: usize,
    },
    /// A side could not do its part.
    #[error("{side}: {what}")]
    Broken {
        /// Name of that side.
        side: &'static str,
        /// What it said.
        what: String,
    },
}

/// What came of something a case did.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Fails the case with a message unless `condition` holds.
pub(crate) fn check(condition: bool, what: impl FnOnce() -> String) -> Outcome {
    if condition { Ok(()) } else { Err(Failure::Wrong(what())) }
}

/// Completion status, by its verbs number (`enum ibv_wc_status`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Status(pub(crate) u32);

impl Status {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const WR_FLUSH_ERR: Self = Self(5);
    pub(crate) const REM_INV_REQ_ERR: Self = Self(9);
    pub(crate) const REM_ACCESS_ERR: Self = Self(10);
    pub(crate) const REM_OP_ERR: Self = Self(11);
    pub(crate) const RETRY_EXC_ERR: Self = Self(12);
    pub(crate) const RNR_RETRY_EXC_ERR: Self = Self(13);
}

/// Type of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Rc,
    Uc,
    Ud,
}

impl Kind {
    /// Bytes that a receive has in front of the message.
    pub(crate) const fn header(self) -> u32 {
        if matches!(self, Self::Ud) { 40 } else { 0 }
    }
}

/// Queue key of all queue pairs for datagrams; the agent in the guest knows it too.
pub(crate) const QKEY: u32 = 0x1111_1111;

/// Operation of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum Op {
    Send,
    SendWithImm,
    RdmaWrite,
    RdmaWriteWithImm,
    RdmaRead,
    CmpSwap,
    FetchAdd,
    SendWithInv,
    AtomicWrite,
    Flush,
}

impl Op {
    /// The five that move a message of any size.
    pub(crate) const MESSAGES: [Self; 5] =
        [Self::Send, Self::SendWithImm, Self::RdmaWrite, Self::RdmaWriteWithImm, Self::RdmaRead];
    /// The two on a 64-bit word.
    pub(crate) const ATOMICS: [Self; 2] = [Self::CmpSwap, Self::FetchAdd];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendWithImm => "SEND_WITH_IMM",
            Self::RdmaWrite => "RDMA_WRITE",
            Self::RdmaWriteWithImm => "RDMA_WRITE_WITH_IMM",
            Self::RdmaRead => "RDMA_READ",
            Self::CmpSwap => "CMP_SWAP",
            Self::FetchAdd => "FETCH_ADD",
            Self::SendWithInv => "SEND_WITH_INV",
            Self::AtomicWrite => "ATOMIC_WRITE",
            Self::Flush => "FLUSH",
        }
    }

    pub(crate) const fn has_imm(self) -> bool {
        matches!(self, Self::SendWithImm | Self::RdmaWriteWithImm)
    }

    pub(crate) const fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendWithImm | Self::SendWithInv)
    }

    /// Whether the responder needs a receive for it.
    pub(crate) const fn takes_receive(self) -> bool {
        self.is_send() || self.has_imm()
    }

    /// Its completion opcode, by its verbs number (`enum ibv_wc_opcode`).
    pub(crate) const fn completion(self) -> u32 {
        match self {
            Self::Send | Self::SendWithImm | Self::SendWithInv => 0,
            Self::RdmaWrite | Self::RdmaWriteWithImm => 1,
            Self::RdmaRead => 2,
            Self::CmpSwap => 3,
            Self::FetchAdd => 4,
            Self::Flush => 8,
            Self::AtomicWrite => 9,
        }
    }

    /// The responder's completion opcode for it, where it takes a receive.
    pub(crate) const fn receive_completion(self) -> u32 {
        if self.is_send() { 128 } else { 129 }
    }
}

/// Option of a send work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Flag {
    Signaled,
    Solicited,
    Fence,
    Inline,
}

/// What a queue pair lets its peer do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Right {
    Write,
    Read,
    Atomic,
}

impl Right {
    pub(crate) const ALL: [Self; 3] = [Self::Write, Self::Read, Self::Atomic];
}

/// How the other side reaches a queue pair and the region behind it.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub(crate) struct Endpoint {
    pub(crate) qpn: u32,
    /// First PSN of the requests it sends.
    pub(crate) psn: u32,
    /// As an IPv6 address in text.
    pub(crate) gid: String,
    pub(crate) rkey: u32,
    /// Where its region starts, in the address space that `rkey` opens.
    pub(crate) addr: u64,
    /// Bytes of that region.
    pub(crate) size: u64,
}

/// Attributes of a connection, named and coded as in verbs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// Path MTU in bytes.
    pub(crate) mtu: u32,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) min_rnr_timer: u8,
    /// Outstanding READs and atomics, in both directions.
    pub(crate) rd_atomic: u8,
}

impl Link {
    /// Ordinary values; the timeout is code 14, 67 ms.
    pub(crate) const fn new(mtu: u32) -> Self {
        Self { mtu, timeout: 14, retry_cnt: 7, rnr_retry: 7, min_rnr_timer: 12, rd_atomic: 4 }
    }
}

/// Part of the side's region: offset and length in bytes.
pub(crate) type Piece = (u64, u32);

/// A send work request.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Send {
    pub(crate) id: u64,
    pub(crate) op: Op,
    pub(crate) sge: Vec<Piece>,
    pub(crate) imm: Option<u32>,
    pub(crate) rkey: Option<u32>,
    /// Remote address, for the operations that take an R_Key.
    pub(crate) addr: u64,
    /// FLUSH: how much.
    pub(crate) len: u32,
    /// CMP_SWAP compares with it, FETCH_ADD adds it.
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) flags: Vec<Flag>,
}

/// A receive work request.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Recv {
    pub(crate) id: u64,
    pub(crate) sge: Vec<Piece>,
}

/// A completion.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Completion {
    pub(crate) id: u64,
    pub(crate) status: Status,
    /// By its verbs number; means something on success only.
    pub(crate) opcode: u32,
    /// Bytes received.
    pub(crate) len: u32,
    pub(crate) imm: Option<u32>,
    /// The key that a SEND invalidated.
    pub(crate) inv: Option<u32>,
}

/// Where a region first differs from what it should hold: bytes after the start of the part compared.
pub(crate) type Difference = Option<u64>;

/// One end of a connection: a device with a registered region and at most one queue pair.
pub(crate) trait Side {
    /// Short name, for messages.
    fn name(&self) -> &'static str;

    /// Makes a new queue pair, in INIT unless it is one for datagrams, in place of the last one.
    fn open(&mut self, kind: Kind, psn: u32, rights: &[Right]) -> Outcome<Endpoint>;

    /// Brings it to RTS towards `remote`; datagrams will go there.
    fn connect(&mut self, remote: &Endpoint, link: &Link) -> Outcome;

    /// Writes the pattern of `seed`, from its byte `skip` on, to `len` bytes at `off`.
    fn fill(&mut self, off: u64, len: u64, seed: u8, skip: u64) -> Outcome;

    /// Compares with what [`Side::fill`] would write.
    fn difference(&mut self, off: u64, len: u64, seed: u8, skip: u64) -> Outcome<Difference>;

    fn put(&mut self, off: u64, data: &[u8]) -> Outcome;

    fn get(&mut self, off: u64, len: u64) -> Outcome<Vec<u8>>;

    fn post_send(&mut self, requests: &[Send]) -> Outcome;

    fn post_recv(&mut self, requests: &[Recv]) -> Outcome;

    /// Binds its type 2 window to part of its region, for the peer to read and write, and gives the key for it. The window
    /// has to be free.
    fn bind(&mut self, off: u64, len: u64) -> Outcome<u32>;

    /// Invalidates a key of its own.
    fn invalidate(&mut self, rkey: u32) -> Outcome;

    /// Whether its device has this operation.
    fn has(&mut self, op: Op) -> Outcome<bool>;

    /// Waits for `n` completions, at most for `limit`, and returns those that came.
    fn poll(&mut self, n: usize, limit: Duration) -> Outcome<Vec<Completion>>;
}

/// Byte `i` of the pattern of `seed`.
#[must_use]
pub(crate) fn pattern(seed: u8, i: u64) -> u8 {
    let low = (i.wrapping_mul(7)).wrapping_add((i >> 8).wrapping_mul(13)) & 0xff;
    u8::try_from(low).unwrap_or_default().wrapping_add(seed)
}
