//! Records of any length in memory that two processes share: one writes, the other takes copies.
//!
//! The memory holds the two indices of a ring of cells, the reader's note that it sleeps, and the cells. A record is
//! its length and an IP packet, in as many cells as that takes. The reader trusts neither indices nor lengths, and looks
//! at a packet only when it has a copy of its own.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use wire::NetHeader;

use crate::ring::{Consumer, MappedIndex, Producer, Torn};
use crate::sys::{self, Mapping};

/// Bytes of all cells.
pub(super) const CAPACITY: u32 = 2 << 20;

/// Bytes of a cell: a line of the caches.
const CELL: u32 = 64;

/// Cells of a ring.
pub(super) const CELLS: u32 = CAPACITY / CELL;

/// Longest IP packet in a record.
pub(super) const LONGEST: u32 = 4200;

/// Most cells of a record.
const MOST_CELLS: u32 = cells_of(LONGEST);

/// Bytes in front of the packet: its length, and nothing.
const PREFIX: u32 = 8;

// Each in a pair of lines of its own, which processors fetch together.
const PRODUCED_AT: usize = 0;
const CONSUMED_AT: usize = 128;
const SLEEPS_AT: usize = 256;
const CELLS_AT: usize = 4096;

/// Bytes of the memory.
pub(super) const MEMORY: usize = CELLS_AT + CAPACITY as usize;

/// Cells that are written before the reader is let at them: enough to be worth it, few enough for it to work meanwhile.
const PUBLISH_AT: u32 = (16 << 10) / CELL;

/// Longest network header.
const HEADERS: usize = 48;

/// Cells of a record with a packet of `len` bytes.
const fn cells_of(len: u32) -> u32 {
    (PREFIX + len).div_ceil(CELL)
}

/// Most full packets that a ring holds.
pub(super) const fn packets() -> u32 {
    CELLS / MOST_CELLS
}

/// The side that writes, which makes the memory.
#[derive(Debug)]
pub(super) struct Writer {
    map: Arc<Mapping>,
    ring: Producer<MappedIndex>,
    /// Cells that are written and not published.
    ahead: u32,
    /// Something has been published since the reader's sleep was asked for last.
    told: bool,
}

impl Writer {
    /// New memory, and the file to hand to the reader.
    pub(super) fn new() -> io::Result<(Self, File)> {
        let file = sys::sealed_memory(c"ferroce", MEMORY as u64)?;
        let map = Arc::new(Mapping::shared(&file, MEMORY, 0)?);
        // The reader does not know yet that there is a ring.
        map.word(SLEEPS_AT).store(1, Ordering::Relaxed);
        let [produced, consumed] = [PRODUCED_AT, CONSUMED_AT].map(|at| MappedIndex::new(&map, at));
        let ring = Producer::new(produced, consumed, CELLS);
        Ok((Self { map, ring, ahead: 0, told: true }, file))
    }

    /// Writes a packet of at most [`LONGEST`] bytes; false where there is no room.
    pub(super) fn push(&mut self, net: &NetHeader, body: &[u8]) -> Result<bool, Torn> {
        let mut head = [0; PREFIX as usize + HEADERS];
        let head_len = PREFIX as usize + net.emit(&mut head[PREFIX as usize..]);
        let Ok(len) = u32::try_from(head_len + body.len()) else { return Ok(false) };
        let len = len - PREFIX;
        debug_assert!(len <= LONGEST, "the caller looks at the length");
        head[..4].copy_from_slice(&len.to_ne_bytes());
        let want = self.ahead + cells_of(len);
        if self.ring.room(want)? < want {
            self.publish();
            return Ok(false);
        }
        let at = self.ring.slot(self.ahead) * CELL as usize;
        let written =
            write_around(&self.map, at, &head[..head_len]) && write_around(&self.map, at + head_len, body);
        debug_assert!(written, "slots are within the memory");
        self.ahead = want;
        if self.ahead >= PUBLISH_AT {
            self.publish();
        }
        Ok(true)
    }

    /// Lets the reader at what is written.
    pub(super) fn publish(&mut self) {
        if self.ahead > 0 {
            self.ring.publish(self.ahead);
            self.ahead = 0;
            self.told = false;
        }
    }

    /// Whether the reader sleeps and has not been told of what is published: tell it then. Says so once for each sleep.
    pub(super) fn must_tell(&mut self) -> bool {
        if self.told {
            return false;
        }
        self.told = true;
        // What was published is seen by a reader that lies down, or that it sleeps is seen here: there is a fence
        // between the two on its side too.
        fence(Ordering::SeqCst);
        let sleeps = self.map.word(SLEEPS_AT);
        sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0
    }
}

/// The side that reads.
#[derive(Debug)]
pub(super) struct Reader {
    map: Arc<Mapping>,
    ring: Consumer<MappedIndex>,
}

impl Reader {
    /// Over memory that somebody else has made; refused where it is not of the right size, or could be shortened.
    pub(super) fn new(file: impl AsFd + Into<File>) -> io::Result<Self> {
        if !sys::is_sealed_against_shrinking(&file) {
            return Err(io::Error::other("a sender's memory is not sealed"));
        }
        let file = file.into();
        if file.metadata()?.len() != MEMORY as u64 {
            return Err(io::Error::other("a sender's memory has another size"));
        }
        let map = Arc::new(Mapping::shared(&file, MEMORY, 0)?);
        let [produced, consumed] = [PRODUCED_AT, CONSUMED_AT].map(|at| MappedIndex::new(&map, at));
        let ring = Consumer::new(produced, consumed, CELLS);
        Ok(Self { map, ring })
    }

    /// Gives up to `limit` records to `take`, which is told a packet's length and how to copy it out: into exactly so
    /// many bytes. Returns how many there were.
    pub(super) fn take(
        &mut self,
        limit: usize,
        mut take: impl FnMut(usize, &dyn Fn(&mut [u8])),
    ) -> Result<usize, Torn> {
        let (mut ahead, mut count) = (0, 0);
        while count < limit && self.ring.ready(ahead + 1)? > ahead {
            let at = self.ring.slot(ahead) * CELL as usize;
            let mut len = [0; 4];
            let mut whole = read_around(&self.map, at, &mut len);
            // Read once: what it says later does not matter.
            let len = u32::from_ne_bytes(len);
            if len > LONGEST {
                return Err(Torn);
            }
            let end = ahead + cells_of(len);
            whole &= self.ring.ready(end)? >= end;
            if !whole {
                return Err(Torn);
            }
            let copy = |out: &mut [u8]| {
                let copied = read_around(&self.map, at + PREFIX as usize, out);
                debug_assert!(copied, "slots are within the memory");
            };
            take(len as usize, &copy);
            ahead = end;
            count += 1;
        }
        if ahead > 0 {
            self.ring.release(ahead);
        }
        Ok(count)
    }

    /// Notes that this side sleeps, so that it is told of the next record; false where there is one already.
    pub(super) fn sleep(&mut self) -> Result<bool, Torn> {
        self.map.word(SLEEPS_AT).store(1, Ordering::Relaxed);
        // See `Writer::must_tell`.
        fence(Ordering::SeqCst);
        Ok(self.ring.ready(1)? == 0)
    }
}

/// Writes to the cells from byte `at` on, and on at their start where they end.
fn write_around(map: &Mapping, at: usize, bytes: &[u8]) -> bool {
    let at = at % CAPACITY as usize;
    let (first, rest) = bytes.split_at(bytes.len().min(CAPACITY as usize - at));
    map.write(CELLS_AT + at, first) && map.write(CELLS_AT, rest)
}

/// As [`write_around`], but reads.
fn read_around(map: &Mapping, at: usize, out: &mut [u8]) -> bool {
    let at = at % CAPACITY as usize;
    let (first, rest) = out.split_at_mut(out.len().min(CAPACITY as usize - at));
    map.read(CELLS_AT + at, first) && map.read(CELLS_AT, rest)
}

#[cfg(test)]
mod tests;
