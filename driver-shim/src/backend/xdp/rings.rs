//! The four rings of an AF_XDP socket, and the packet memory that their descriptors point into.
//!
//! The back end fills descriptors and takes them; the kernel is on the other side. Chunks move in a circle: those for
//! receiving from the fill ring to the receive ring and back, pairs of those for sending from a list of free ones to
//! the send ring and by the completion ring back to the list.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use wire::batch::RxBurst;

use crate::ring::{Consumer, MappedIndex, Producer, Torn};
use crate::sys::{self, Mapping};

/// Size of a chunk: the largest that the kernel allows.
pub(super) const CHUNK: usize = 4096;

/// Bytes of a frame to send: two chunks, so that every frame of a path MTU of 4096 has room.
const PLACE: usize = 2 * CHUNK;

/// Frames to send that may be under way.
const PLACES: u32 = 256;

/// Chunks for receiving. A frame of a path MTU of 4096 takes two.
const RECEIVE_CHUNKS: u32 = 1024;

/// Slots of each ring: room for all chunks there are, so that only the receive ring can ever be full.
const SLOTS: u32 = 1024;

/// Where the chunks for receiving begin; those for sending are before.
const RECEIVE_AREA: usize = PLACES as usize * PLACE;

/// Bytes of packet memory.
const AREA: usize = RECEIVE_AREA + RECEIVE_CHUNKS as usize * CHUNK;

/// Bit of a descriptor: the frame goes on in the next one.
const CONTINUED: u32 = libc::XDP_PKT_CONTD;

/// What a slot of the receive and send rings says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Descriptor {
    address: u64,
    len: u32,
    options: u32,
}

impl Descriptor {
    const SIZE: usize = 16;

    fn read(map: &Mapping, at: usize) -> Self {
        let mut raw = [0; Self::SIZE];
        assert!(map.read(at, &mut raw), "slots lie within the ring's mapping");
        let number = |at: usize| u32::from_ne_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        Self { address: address(&raw), len: number(8), options: number(12) }
    }

    fn write(self, map: &Mapping, at: usize) {
        let mut raw = [0; Self::SIZE];
        raw[..8].copy_from_slice(&self.address.to_ne_bytes());
        raw[8..12].copy_from_slice(&self.len.to_ne_bytes());
        raw[12..].copy_from_slice(&self.options.to_ne_bytes());
        assert!(map.write(at, &raw), "slots lie within the ring's mapping");
    }
}

/// The address at the start of a slot.
fn address(slot: &[u8]) -> u64 {
    slot.first_chunk().map_or(u64::MAX, |raw| u64::from_ne_bytes(*raw))
}

/// One ring: its mapping, where its slots begin, and one side of it.
#[derive(Debug)]
struct Ring<S> {
    map: Arc<Mapping>,
    slots: usize,
    side: S,
}

impl<S> Ring<S> {
    /// Maps the ring of `socket` that is at `page_offset`; `side` is made of its producer and consumer index.
    fn map(
        socket: &OwnedFd,
        page_offset: i64,
        offsets: &sys::RingOffsets,
        slot: usize,
        side: impl FnOnce(MappedIndex, MappedIndex, u32) -> S,
    ) -> io::Result<Self> {
        let place = |offset: u64| usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidData);
        let slots = place(offsets.desc)?;
        let map = Arc::new(Mapping::shared(socket, slots + SLOTS as usize * slot, page_offset)?);
        let index = |offset| Ok::<_, io::Error>(MappedIndex::new(&map, place(offset)?));
        let side = side(index(offsets.producer)?, index(offsets.consumer)?, SLOTS);
        Ok(Self { map, slots, side })
    }
}

/// An AF_XDP socket with its rings and its packet memory.
#[derive(Debug)]
pub(super) struct Rings {
    receive: Ring<Consumer<MappedIndex>>,
    send: Ring<Producer<MappedIndex>>,
    fill: Ring<Producer<MappedIndex>>,
    completion: Ring<Consumer<MappedIndex>>,
    area: Mapping,
    places: Places,
    /// Descriptors written to the send ring and not yet published.
    written: u32,
    // Last, so that no mapping of it is left when it is closed: one would keep the queue.
    socket: OwnedFd,
}

impl Rings {
    /// Makes a socket with its rings; it is bound to nothing yet.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let area = Mapping::anonymous(AREA)?;
        #[expect(clippy::cast_possible_truncation, reason = "the size of a page")]
        sys::register_packet_memory(socket.as_fd(), &area, CHUNK as u32)?;
        for ring in
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING]
        {
            sys::set_option(&socket, libc::SOL_XDP, ring, SLOTS.cast_signed())?;
        }
        let [rx, tx, fr, cr] = sys::ring_offsets(socket.as_fd())?;
        let page = |offset: u64| offset.cast_signed();
        let (fill, completion) = (libc::XDP_UMEM_PGOFF_FILL_RING, libc::XDP_UMEM_PGOFF_COMPLETION_RING);
        let mut rings = Self {
            receive: Ring::map(&socket, libc::XDP_PGOFF_RX_RING, &rx, Descriptor::SIZE, Consumer::new)?,
            send: Ring::map(&socket, libc::XDP_PGOFF_TX_RING, &tx, Descriptor::SIZE, Producer::new)?,
            fill: Ring::map(&socket, page(fill), &fr, size_of::<u64>(), Producer::new)?,
            completion: Ring::map(&socket, page(completion), &cr, size_of::<u64>(), Consumer::new)?,
            area,
            places: Places::new(PLACES),
            written: 0,
            socket,
        };
        for chunk in 0..RECEIVE_CHUNKS {
            rings.give_back((RECEIVE_AREA + chunk as usize * CHUNK) as u64, chunk);
        }
        rings.fill.side.publish(RECEIVE_CHUNKS);
        Ok(rings)
    }

    /// The socket.
    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Writes a frame, of which `parts` are the bytes, to the send ring; false where there is no room. A frame that is
    /// longer than [`Rings::MAX_FRAME`] is not possible.
    pub(super) fn push(&mut self, parts: [&[u8]; 2]) -> Result<bool, Torn> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        assert!(len <= Self::MAX_FRAME, "the caller looks at lengths");
        let pieces = if len > CHUNK { 2 } else { 1 };
        if self.send.side.room(self.written + pieces)? < self.written + pieces {
            return Ok(false);
        }
        let Some(start) = self.places.take(pieces) else { return Ok(false) };
        let written = self.area.write(start, parts[0]) && self.area.write(start + parts[0].len(), parts[1]);
        assert!(written, "places lie within the packet memory");
        #[expect(clippy::cast_possible_truncation, reason = "at most two chunks")]
        let mut piece = |at: usize, len: usize, options| {
            let slot = self.send.slots + self.send.side.slot(self.written) * Descriptor::SIZE;
            Descriptor { address: at as u64, len: len as u32, options }.write(&self.send.map, slot);
            self.written += 1;
        };
        if len > CHUNK {
            piece(start, CHUNK, CONTINUED);
            piece(start + CHUNK, len - CHUNK, 0);
        } else {
            piece(start, len, 0);
        }
        Ok(true)
    }

    /// Longest frame that can be sent.
    pub(super) const MAX_FRAME: usize = PLACE;

    /// Gives the kernel the frames pushed since; says whether there is anything for it to take.
    pub(super) fn publish(&mut self) -> Result<u32, Torn> {
        if self.written > 0 {
            self.send.side.publish(self.written);
            self.written = 0;
        }
        self.send.side.queued()
    }

    /// Takes back the places of frames that have left.
    pub(super) fn reap(&mut self) -> Result<(), Torn> {
        let ready = self.completion.side.ready(SLOTS)?;
        for ahead in 0..ready {
            let at = self.completion.slots + self.completion.side.slot(ahead) * size_of::<u64>();
            let mut slot = [0; 8];
            assert!(self.completion.map.read(at, &mut slot), "slots lie within the ring's mapping");
            self.places.piece_has_left(address(&slot));
        }
        if ready > 0 {
            self.completion.side.release(ready);
        }
        Ok(())
    }

    /// Takes up to `limit` frames that have arrived. Each is put together in a room of `rx` that is as long as it, and
    /// `frame` is told its length. Returns how many there were, and how many of them were not to be had.
    pub(super) fn receive(
        &mut self,
        limit: usize,
        rx: &mut RxBurst,
        mut frame: impl FnMut(&mut RxBurst, usize),
    ) -> Result<(usize, u64), Torn> {
        let ready = self.receive.side.ready(SLOTS)?;
        let (mut taken, mut frames, mut lost) = (0, 0, 0);
        while frames < limit {
            let Some((pieces, len)) = self.next_frame(taken, ready) else { break };
            frames += 1;
            if len <= Self::LONGEST && self.gather(taken, rx.room(len)) {
                frame(rx, len);
            } else {
                lost += 1;
            }
            for ahead in taken..taken + pieces {
                let Descriptor { address, .. } = self.descriptor(ahead);
                self.give_back(address, ahead);
            }
            taken += pieces;
        }
        if taken > 0 {
            self.receive.side.release(taken);
            self.fill.side.publish(taken);
        }
        Ok((frames, lost))
    }

    /// Longest frame that is believed to have arrived.
    const LONGEST: usize = 1 << 16;

    /// Number of pieces and length of the frame that begins `from` ahead in the receive ring; `None` where it is not
    /// there as a whole.
    fn next_frame(&self, from: u32, ready: u32) -> Option<(u32, usize)> {
        let mut len = 0usize;
        for ahead in from..ready {
            let piece = self.descriptor(ahead);
            len = len.saturating_add(piece.len as usize);
            if piece.options & CONTINUED == 0 {
                return Some((ahead - from + 1, len));
            }
        }
        None
    }

    /// Copies the frame that begins `from` ahead in the receive ring to `place`, which is as long as it.
    fn gather(&self, from: u32, mut place: &mut [u8]) -> bool {
        let mut ahead = from;
        while !place.is_empty() {
            let piece = self.descriptor(ahead);
            let Some((head, rest)) = place.split_at_mut_checked(piece.len as usize) else { return false };
            let Ok(at) = usize::try_from(piece.address) else { return false };
            if !self.area.read(at, head) {
                return false;
            }
            place = rest;
            ahead += 1;
        }
        true
    }

    fn descriptor(&self, ahead: u32) -> Descriptor {
        let slot = self.receive.side.slot(ahead) * Descriptor::SIZE;
        Descriptor::read(&self.receive.map, self.receive.slots + slot)
    }

    /// Writes the chunk that holds `address` to the fill ring, `ahead` of the next to be published. There are as many
    /// slots as chunks, so there is always room.
    fn give_back(&mut self, address: u64, ahead: u32) {
        let chunk = address & !(CHUNK as u64 - 1);
        let at = self.fill.slots + self.fill.side.slot(ahead) * size_of::<u64>();
        assert!(self.fill.map.write(at, &chunk.to_ne_bytes()), "slots lie within the ring's mapping");
    }
}

/// Places for frames to send.
#[derive(Debug)]
struct Places {
    /// Those that are free; the one used last is used next, while the cache still has it.
    free: Vec<u32>,
    /// Pieces of each that have not left yet.
    pieces: Vec<u32>,
}

impl Places {
    fn new(count: u32) -> Self {
        Self { free: (0..count).rev().collect(), pieces: vec![0; count as usize] }
    }

    /// Where a frame of so many pieces may be written.
    fn take(&mut self, pieces: u32) -> Option<usize> {
        let place = self.free.pop()? as usize;
        self.pieces[place] = pieces;
        Some(place * PLACE)
    }

    /// The piece at `address` has left.
    fn piece_has_left(&mut self, address: u64) {
        let place = address / PLACE as u64;
        let Some(pieces) = usize::try_from(place).ok().and_then(|place| self.pieces.get_mut(place)) else {
            return;
        };
        match *pieces {
            // Never sent: not to be had twice.
            0 => {}
            1 => {
                *pieces = 0;
                #[expect(clippy::cast_possible_truncation, reason = "one of a few hundred")]
                self.free.push(place as u32);
            }
            _ => *pieces -= 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_all_its_pieces_have_left() {
        let mut places = Places::new(2);
        assert_eq!((places.take(2), places.take(1), places.take(1)), (Some(0), Some(PLACE), None));
        places.piece_has_left(0);
        assert_eq!(places.take(1), None);
        places.piece_has_left(CHUNK as u64);
        assert_eq!(places.take(1), Some(0));
    }

    #[test]
    fn what_never_left_does_not_come_back() {
        let mut places = Places::new(1);
        for address in [0, PLACE as u64, u64::MAX] {
            places.piece_has_left(address);
        }
        assert_eq!((places.take(1), places.take(1)), (Some(0), None));
    }
}
