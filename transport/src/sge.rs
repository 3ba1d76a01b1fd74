//! Scatter and gather: a message's bytes to and from pieces of local memory.

use crate::ports::{AccessError, Memory, PdId};
use crate::wqe::Sge;

/// Copies `out.len()` bytes of the message, from byte `offset` on, out of the pieces.
///
/// # Errors
/// A piece that may not be read, or pieces shorter than the message.
pub fn gather(
    memory: &dyn Memory,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    out: &mut [u8],
) -> Result<(), AccessError> {
    let mut done = 0;
    for_each_part(sges, offset, out.len(), |sge, skip, len| {
        let part = &mut out[done..done + len];
        done += len;
        memory.read_local(pd, sge.lkey, sge.addr.wrapping_add(skip), part)
    })
}

/// Copies `data` into the pieces, as the bytes of the message from `offset` on.
///
/// # Errors
/// A piece that may not be written, or pieces shorter than the message.
pub fn scatter(
    memory: &mut dyn Memory,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    data: &[u8],
) -> Result<(), AccessError> {
    let mut done = 0;
    for_each_part(sges, offset, data.len(), |sge, skip, len| {
        let part = &data[done..done + len];
        done += len;
        memory.write_local(pd, sge.lkey, sge.addr.wrapping_add(skip), part)
    })
}

/// Calls `f` with each piece that `len` bytes from `offset` on touch: the piece, where in it, how many bytes.
fn for_each_part(
    sges: &[Sge],
    mut offset: u64,
    mut len: usize,
    mut f: impl FnMut(&Sge, u64, usize) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    for sge in sges {
        if len == 0 {
            break;
        }
        let size = u64::from(sge.length);
        if offset >= size {
            offset -= size;
            continue;
        }
        let part = usize::try_from(size - offset).unwrap_or(usize::MAX).min(len);
        f(sge, offset, part)?;
        offset = 0;
        len -= part;
    }
    if len == 0 { Ok(()) } else { Err(AccessError::OutOfBounds) }
}
