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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use wire::{LKey, VirtAddr};

    use super::*;
    use crate::kit::{ALL, Ram, pattern};

    const PD: PdId = crate::kit::PD;

    /// A region per piece, so that no piece can reach into another unseen.
    fn pieces(lengths: &[u32]) -> (Ram, Vec<Sge>) {
        let mut ram = Ram::default();
        let sges = (1_u8..).zip(lengths).map(|(i, &length)| {
            let (key, base) = (u32::from(i) << 8, u64::from(i) << 32);
            ram.add(key, base, ALL, pattern(length as usize, i));
            Sge { addr: VirtAddr::new(base), length, lkey: LKey::new(key) }
        });
        let sges = sges.collect();
        (ram, sges)
    }

    fn whole(ram: &mut Ram, sges: &[Sge]) -> Vec<u8> {
        sges.iter().flat_map(|sge| ram.bytes(sge.lkey.value()).to_vec()).collect()
    }

    proptest! {
        #[test]
        fn pieces_are_one_message(
            lengths in prop::collection::vec(0..40_u32, 0..6),
            (offset, len) in (0..150_usize, 0..150_usize),
        ) {
            let (mut ram, sges) = pieces(&lengths);
            let mut message = whole(&mut ram, &sges);
            let mut found = vec![0; len];
            let result = gather(&ram, PD, &sges, offset as u64, &mut found);
            if len == 0 {
                prop_assert_eq!(result, Ok(()));
            } else if offset + len <= message.len() {
                prop_assert_eq!(result, Ok(()));
                prop_assert_eq!(&found, &message[offset..offset + len]);
                let data = pattern(len, 99);
                prop_assert_eq!(scatter(&mut ram, PD, &sges, offset as u64, &data), Ok(()));
                message[offset..offset + len].copy_from_slice(&data);
                prop_assert_eq!(whole(&mut ram, &sges), message);
            } else {
                prop_assert_eq!(result, Err(AccessError::OutOfBounds));
            }
        }
    }

    #[test]
    fn offsets_beyond_four_gigabytes_are_counted_in_full() {
        let (ram, mut sges) = pieces(&[8, 8]);
        let huge = Sge { length: u32::MAX, lkey: LKey::new(0xBAD), ..sges[0] };
        sges.insert(0, huge);
        sges.insert(0, huge);
        let mut found = [0; 8];
        gather(&ram, PD, &sges, 2 * u64::from(u32::MAX) + 8, &mut found).unwrap();
        assert_eq!(found.as_slice(), pattern(8, 2));
        assert_eq!(gather(&ram, PD, &sges, 0, &mut found), Err(AccessError::UnknownKey));
    }
}
