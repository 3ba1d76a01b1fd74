//! Memory that others write to: a process behind a shared file, or the kernel.
//!
//! What is read is copied out and then looked at; no reference to the bytes ever exists. So it does not matter to
//! memory safety what the other side does to them, nor when.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU32;

/// A mapping, undone when it is dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is this value's own until it is dropped, and all access to it is by copies and atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above. Two threads of this process that copy to and from the same bytes at once would race; owners of
// the bytes at a given moment are told apart by the rings, which hand them over with release and acquire.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Private memory of `len` bytes, all zero, that starts at a page.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        Self::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// `len` bytes of what `fd` stands for, from `offset` on. Of a file that someone else could shorten nothing may be
    /// mapped: reading beyond its end would end the process.
    pub(crate) fn shared(fd: impl AsFd, len: usize, offset: libc::off_t) -> io::Result<Self> {
        Self::map(len, libc::MAP_SHARED, fd.as_fd().as_raw_fd(), offset)
    }

    fn map(len: usize, flags: libc::c_int, fd: libc::c_int, offset: libc::off_t) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the place, so no memory that exists is changed.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), len, protection, flags | libc::MAP_POPULATE, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// Where it starts, for the kernel.
    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The 32-bit word at byte `at`.
    ///
    /// # Panics
    /// Where it is not within the mapping, or `at` is not a multiple of four.
    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at.checked_add(4).is_some_and(|end| end <= self.len), "a word in it");
        // SAFETY: the word lies within the mapping, which starts at a page and outlives the reference, and is
        // aligned. This process accesses words that are used so in no other way.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(at).cast()) }
    }

    /// Copies `bytes` to byte `at`; false, and nothing done, where they do not fit.
    #[must_use]
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> bool {
        if !self.holds(at, bytes.len()) {
            return false;
        }
        // SAFETY: the place is within the mapping, which was just checked, and a mapping overlaps no object that
        // `bytes` could be of.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(at), bytes.len()) };
        true
    }

    /// Fills `bytes` with what is at byte `at`; false, and nothing done, where there is not that much.
    #[must_use]
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) -> bool {
        if !self.holds(at, bytes.len()) {
            return false;
        }
        // SAFETY: as in `write`; any bytes that the other side may write are legal values.
        unsafe { ptr::copy_nonoverlapping(self.start.as_ptr().add(at), bytes.as_mut_ptr(), bytes.len()) };
        true
    }

    fn holds(&self, at: usize, len: usize) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it is left.
        if unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) } != 0 {
            let error = io::Error::last_os_error();
            tracing::warn!(%error, "a mapping stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_beyond_the_end() {
        let map = Mapping::anonymous(4096).expect("memory");
        assert!(map.write(4090, &[1, 2, 3, 4, 5, 6]) && !map.write(4091, &[9; 6]));
        let mut out = [0; 6];
        assert!(map.read(4090, &mut out) && !map.read(4092, &mut out) && !map.read(usize::MAX, &mut out));
        assert_eq!(out, [1, 2, 3, 4, 5, 6]);
        map.word(8).store(0x0403_0201, Ordering::Relaxed);
        let mut word = [0; 4];
        assert!(map.read(8, &mut word));
        assert_eq!(u32::from_ne_bytes(word), 0x0403_0201);
        assert!(map.write(4096, &[]));
    }

    #[test]
    #[should_panic(expected = "a word in it")]
    fn a_word_beyond_the_end_is_refused() {
        Mapping::anonymous(4096).expect("memory").word(4096);
    }
}
