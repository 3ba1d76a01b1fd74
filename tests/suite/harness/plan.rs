//! What one side of a connection is going to do, and what must come of it: a random but repeatable list of
//! messages, and the model that says what bytes and values the other side has to see.

use rand_core::RngCore;
use rand_pcg::Pcg64;

/// Bytes of the region that messages are read from; it never changes.
pub(crate) const SOURCE_LEN: u32 = 256 << 10;
/// Bytes of the region that the peer's WRITEs go to.
pub(crate) const SINK_LEN: u32 = 256 << 10;
/// Words that the peer's atomics work on.
pub(crate) const WORDS: u32 = 16;
/// Longest message.
pub(crate) const MAX_LEN: u32 = 64 << 10;

/// What a planned message does at the far side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlannedOp {
    Send {
        imm: Option<[u8; 4]>,
    },
    /// To the peer's sink, from this offset on.
    Write {
        at: u32,
        imm: Option<[u8; 4]>,
    },
    /// From the peer's source, from this offset on.
    Read {
        at: u32,
    },
    /// On a word of the peer.
    CmpSwap {
        word: u32,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        word: u32,
        add: u64,
    },
    /// Eight bytes to the peer's sink, at this offset.
    AtomicWrite {
        at: u32,
    },
    /// Of all of the peer's sink.
    Flush,
}

/// One message of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) op: PlannedOp,
    /// Pieces of the own source (offset and length) that a SEND or WRITE gathers.
    pub(crate) pieces: Vec<(u32, u32)>,
    /// Lengths of the pieces that a READ is scattered to.
    pub(crate) len: u32,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    pub(crate) solicited: bool,
    pub(crate) inline: bool,
}

impl Planned {
    /// Whether the peer needs a receive for it.
    pub(crate) fn takes_receive(&self) -> bool {
        matches!(self.op, PlannedOp::Send { .. } | PlannedOp::Write { imm: Some(_), .. })
    }
}

/// What the random numbers may choose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    pub(crate) messages: usize,
    pub(crate) mtu: u32,
    /// Most bytes that may be posted inline.
    pub(crate) max_inline: u32,
}

/// The messages of one side, in the order in which they are posted. Over a third take several packets.
pub(crate) fn plan(mix: Mix, rng: &mut Pcg64) -> Vec<Planned> {
    (0..mix.messages).map(|n| message(mix, n, rng)).collect()
}

fn message(mix: Mix, n: usize, rng: &mut Pcg64) -> Planned {
    let len = length(mix, rng);
    let imm = (below(rng, 3) == 0).then(|| rng.next_u32().to_be_bytes());
    let op = match below(rng, 10) {
        0..=2 => PlannedOp::Send { imm },
        3..=5 => PlannedOp::Write { at: below(rng, SINK_LEN - len + 1), imm },
        6..=8 => PlannedOp::Read { at: below(rng, SOURCE_LEN - len + 1) },
        _ => {
            let word = below(rng, WORDS);
            match below(rng, 4) {
                // Small numbers, so that comparisons are met now and then.
                0 => PlannedOp::CmpSwap { word, compare: below(rng, 4).into(), swap: below(rng, 4).into() },
                1 => PlannedOp::FetchAdd { word, add: rng.next_u64() >> below(rng, 64) },
                2 => PlannedOp::AtomicWrite { at: below(rng, SINK_LEN / 8) * 8 },
                _ => PlannedOp::Flush,
            }
        }
    };
    let len = match op {
        PlannedOp::CmpSwap { .. } | PlannedOp::FetchAdd { .. } | PlannedOp::AtomicWrite { .. } => 8,
        PlannedOp::Flush => 0,
        _ => len,
    };
    let takes_data =
        matches!(op, PlannedOp::Send { .. } | PlannedOp::Write { .. } | PlannedOp::AtomicWrite { .. });
    Planned {
        op,
        pieces: if takes_data { pieces(len, rng) } else { Vec::new() },
        len,
        // The last one is signalled, so that the end can be seen.
        signaled: n + 1 == mix.messages || below(rng, 4) != 0,
        fence: below(rng, 16) == 0,
        solicited: below(rng, 4) == 0,
        inline: takes_data && len <= mix.max_inline && below(rng, 2) == 0,
    }
}

/// 0 to [`MAX_LEN`]: a quarter short, a quarter up to a packet, half longer than a packet.
fn length(mix: Mix, rng: &mut Pcg64) -> u32 {
    match below(rng, 16) {
        0 => 0,
        1..=3 => below(rng, 64),
        4..=6 => below(rng, mix.mtu + 1),
        7 => mix.mtu,
        8..=12 => mix.mtu + 1 + below(rng, 3 * mix.mtu),
        13..=14 => mix.mtu * (2 + below(rng, 3)),
        _ => MAX_LEN - below(rng, MAX_LEN / 2),
    }
}

/// Up to three pieces that are `len` bytes together.
fn pieces(len: u32, rng: &mut Pcg64) -> Vec<(u32, u32)> {
    let mut cuts = [0, len, below(rng, len + 1), below(rng, len + 1)];
    cuts.sort_unstable();
    let several = below(rng, 4) == 0;
    let cuts = if several { &cuts[..] } else { &[0, len][..] };
    cuts.windows(2).map(|w| (below(rng, SOURCE_LEN - (w[1] - w[0]) + 1), w[1] - w[0])).collect()
}

/// A number below `n`.
pub(crate) fn below(rng: &mut Pcg64, n: u32) -> u32 {
    u32::try_from(rng.next_u64() % u64::from(n.max(1))).expect("less than a u32")
}

/// The source region of a side.
pub(crate) fn source(rng: &mut Pcg64) -> Vec<u8> {
    let mut bytes = vec![0; SOURCE_LEN as usize];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// What must have happened at the peer after some of a plan's messages, in order.
#[derive(Debug)]
pub(crate) struct Model {
    /// The peer's sink.
    pub(crate) sink: Vec<u8>,
    /// The peer's words.
    pub(crate) words: Vec<u64>,
}

/// A receive completion that the peer must get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Bytes of a SEND; `None` for a WRITE with immediate, which leaves the receive buffer alone.
    pub(crate) data: Option<Vec<u8>>,
    pub(crate) byte_len: u32,
    pub(crate) imm: Option<[u8; 4]>,
    pub(crate) solicited: bool,
}

impl Model {
    /// Before the first message: all zero.
    pub(crate) fn new() -> Self {
        Self { sink: vec![0; SINK_LEN as usize], words: vec![0; WORDS as usize] }
    }

    /// Executes a message whose data come from `source`; gives the value found by an atomic.
    pub(crate) fn execute(&mut self, message: &Planned, source: &[u8]) -> Option<u64> {
        match message.op {
            PlannedOp::Write { at, .. } | PlannedOp::AtomicWrite { at } => {
                let data = gathered(message, source);
                self.sink[at as usize..at as usize + data.len()].copy_from_slice(&data);
                None
            }
            PlannedOp::CmpSwap { word, compare, swap } => {
                let word = &mut self.words[word as usize];
                let original = *word;
                if original == compare {
                    *word = swap;
                }
                Some(original)
            }
            PlannedOp::FetchAdd { word, add } => {
                let word = &mut self.words[word as usize];
                let original = *word;
                *word = original.wrapping_add(add);
                Some(original)
            }
            PlannedOp::Send { .. } | PlannedOp::Read { .. } | PlannedOp::Flush => None,
        }
    }
}

/// The bytes of a SEND or WRITE.
pub(crate) fn gathered(message: &Planned, source: &[u8]) -> Vec<u8> {
    message.pieces.iter().flat_map(|&(at, len)| &source[at as usize..(at + len) as usize]).copied().collect()
}

/// The receive completions that a plan causes, in order.
pub(crate) fn receives(plan: &[Planned], source: &[u8]) -> Vec<Expected> {
    let receive = |message: &Planned| {
        let (data, imm) = match message.op {
            PlannedOp::Send { imm } => (Some(gathered(message, source)), imm),
            PlannedOp::Write { imm, .. } => (None, imm),
            _ => return None,
        };
        let solicited = message.solicited;
        message.takes_receive().then_some(Expected { data, byte_len: message.len, imm, solicited })
    };
    plan.iter().filter_map(receive).collect()
}
