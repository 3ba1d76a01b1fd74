//! Keys, rights and bounds.

use proptest::prelude::*;
use transport::{AccessError, AtomicOp, Memory, Via};
use wire::Qpn;

use super::*;

const PD: PdId = PdId(1);
const VIA: Via = Via { pd: PD, qpn: Qpn::new(0x11) };
const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

fn one(len: usize, access: Access) -> (MrTable, MrInfo) {
    let mut table = MrTable::new();
    let info = table.register(PD, vec![7; len], None, access).unwrap();
    (table, info)
}

#[test]
fn f34_rights_that_do_not_go_together_are_refused() {
    let mut table = MrTable::new();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::REMOTE_WRITE | Access::REMOTE_READ] {
        let error = table.register(PD, vec![0], None, access).unwrap_err();
        assert_eq!((error, error.errno()), (MrError::RemoteWithoutLocal, 22), "R-MEM-1");
    }
    for access in [Access::empty(), Access::REMOTE_READ, ALL, Access::LOCAL_WRITE | Access::ZERO_BASED] {
        table.register(PD, vec![0], None, access).unwrap();
    }
}

/// Rule R-MEM-2.
/// Rules R-MEM-2, R-MEM-26.
#[test]
fn f34_optional_bits_never_fail_and_unknown_ones_always() {
    let mut table = MrTable::new();
    for bit in 0..32 {
        let result =
            table.register(PD, vec![0], None, Access::from_bits_retain(1 << bit) | Access::LOCAL_WRITE);
        match bit {
            0..=9 | 20..=29 => assert!(result.is_ok(), "bit {bit}"),
            _ => assert_eq!(result, Err(MrError::UnknownAccess(1 << bit)), "bit {bit}"),
        }
    }
}

#[test]
fn f34_a_region_of_no_bytes_can_be_had_and_not_touched() {
    let (mut table, info) = one(0, ALL);
    assert_eq!(
        table.check_local(PD, info.lkey, info.addr, 1, Access::empty()),
        Err(AccessError::OutOfBounds)
    );
    assert_eq!(table.write_remote(VIA, info.rkey, info.addr, &[0]), Err(AccessError::OutOfBounds));
    assert_eq!(table.write_remote(VIA, info.rkey, info.addr, &[]), Ok(()), "R-MEM-7");
    assert_eq!(table.deregister(info.lkey), Ok((PD, vec![])));
}

#[test]
fn keys_are_never_zero_and_change_with_each_use_of_their_slot() {
    let mut table = MrTable::new();
    let first = table.register(PD, vec![0], None, ALL).unwrap();
    let mut seen = std::collections::HashSet::new();
    let mut key = first;
    for _ in 0..256 {
        assert_eq!(key.lkey.value() >> 8, first.lkey.value() >> 8, "the slot is used again");
        assert!(key.lkey.value() != 0 && key.lkey.value() == key.rkey.value());
        assert!(seen.insert(key.lkey), "R-MEM-5");
        table.deregister(key.lkey).unwrap();
        let stale = table.check_local(PD, key.lkey, key.addr, 1, Access::empty());
        assert_eq!(stale, Err(AccessError::UnknownKey), "R-MEM-12");
        assert_eq!(table.deregister(key.lkey), Err(MrError::NoSuchKey(key.lkey)));
        key = table.register(PD, vec![0], None, ALL).unwrap();
        assert_ne!(key.addr, first.addr, "addresses are not used again");
    }
    let other = table.register(PD, vec![0], None, ALL).unwrap();
    assert_ne!(other.lkey.value() >> 8, key.lkey.value() >> 8);
}

#[test]
fn every_bit_of_a_key_counts() {
    let (table, info) = one(8, ALL);
    for bit in 0..32 {
        let key = RKey::new(info.rkey.value() ^ (1 << bit));
        let result = table.check_remote(VIA, key, info.addr, 1, Access::REMOTE_READ);
        assert_eq!(result, Err(AccessError::UnknownKey), "bit {bit}");
    }
}

#[test]
fn checks_go_key_domain_right_bounds() {
    let (table, info) = one(8, Access::REMOTE_READ);
    let out = VirtAddr::new(0);
    let check = |pd, key, va, need| table.check_remote(Via { pd, ..VIA }, RKey::new(key), va, 1, need);
    let key = info.rkey.value();
    // R-MEM-3: each with everything after it wrong as well.
    assert_eq!(check(PdId(2), key + 1, out, ALL), Err(AccessError::UnknownKey));
    assert_eq!(check(PdId(2), key, out, ALL), Err(AccessError::WrongPd));
    assert_eq!(check(PD, key, out, ALL), Err(AccessError::NoRight));
    assert_eq!(check(PD, key, out, Access::REMOTE_READ), Err(AccessError::OutOfBounds));
    assert_eq!(check(PD, key, info.addr, Access::REMOTE_READ), Ok(()));
}

#[test]
fn each_way_to_touch_memory_needs_its_right() {
    let op = AtomicOp::FetchAdd { add: 1 };
    for access in [
        Access::empty(),
        Access::REMOTE_READ,
        Access::LOCAL_WRITE,
        Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        Access::LOCAL_WRITE | Access::REMOTE_ATOMIC,
    ] {
        let (mut table, MrInfo { lkey, rkey, addr, .. }) = one(8, access);
        let mut out = [0; 8];
        let has = |right| if access.contains(right) { Ok(()) } else { Err(AccessError::NoRight) };
        assert_eq!(table.read_local(PD, lkey, addr, &mut out), Ok(()), "R-MEM-1: always");
        assert_eq!(table.read_remote(VIA, rkey, addr, &mut out), has(Access::REMOTE_READ));
        assert_eq!(table.write_remote(VIA, rkey, addr, &out), has(Access::REMOTE_WRITE));
        assert_eq!(table.write_local(PD, lkey, addr, &out), has(Access::LOCAL_WRITE), "R-MEM-10");
        assert_eq!(table.atomic_remote(VIA, rkey, addr, op).map(|_| ()), has(Access::REMOTE_ATOMIC));
    }
}

#[test]
fn atomics_work_on_the_hosts_number() {
    let (mut table, info) = one(16, ALL);
    table.bytes_mut(info.lkey, 8, 8).unwrap().copy_from_slice(&u64::MAX.to_ne_bytes());
    let va = VirtAddr::new(info.addr.value() + 8);
    let mut atomic = |op| table.atomic_remote(VIA, info.rkey, va, op);
    assert_eq!(atomic(AtomicOp::FetchAdd { add: 3 }), Ok(u64::MAX));
    assert_eq!(atomic(AtomicOp::CmpSwap { compare: 1, swap: 9 }), Ok(2));
    assert_eq!(atomic(AtomicOp::CmpSwap { compare: 2, swap: 9 }), Ok(2));
    assert_eq!(atomic(AtomicOp::FetchAdd { add: 0 }), Ok(9));
    assert_eq!(table.bytes(info.lkey, 0, 8).unwrap(), [7; 8], "R-RSP-33");
}

#[test]
fn zero_based_regions_are_addressed_from_zero() {
    let (table, info) = one(8, Access::ZERO_BASED | Access::REMOTE_READ);
    assert_eq!(info.addr, VirtAddr::new(0), "R-MEM-6");
    assert_eq!(table.check_remote(VIA, info.rkey, VirtAddr::new(7), 1, Access::REMOTE_READ), Ok(()));
    let beyond = table.check_remote(VIA, info.rkey, VirtAddr::new(8), 1, Access::REMOTE_READ);
    assert_eq!(beyond, Err(AccessError::OutOfBounds));
}

#[test]
fn the_owners_view_is_bounded_too() {
    let (mut table, info) = one(8, Access::empty());
    assert_eq!(table.bytes(info.lkey, 6, 2), Ok(&[7, 7][..]));
    let error = |offset, end| MrError::OutOfBounds { offset, end, length: 8 };
    assert_eq!(table.bytes(info.lkey, 7, 2), Err(error(7, 9)));
    assert_eq!(table.bytes(info.lkey, usize::MAX, 2), Err(error(usize::MAX, usize::MAX)));
    assert_eq!(table.bytes_mut(info.lkey, 1, usize::MAX), Err(error(1, usize::MAX)));
    let stale = LKey::new(info.lkey.value() + 1);
    assert_eq!(table.bytes_mut(stale, 0, 1), Err(MrError::NoSuchKey(stale)));
}

#[test]
fn regions_do_not_touch_each_other() {
    let mut table = MrTable::new();
    let regions: Vec<_> =
        [1, 4096, 4097, 0, 5].map(|len| table.register(PD, vec![0; len], None, ALL).unwrap()).into();
    for pair in regions.windows(2) {
        assert!(pair[1].addr.value() > pair[0].addr.value() + pair[0].length as u64);
    }
}

/// Numbers near `points` as often as not.
fn near(points: Vec<u64>) -> impl Strategy<Value = u64> {
    let close =
        (prop::sample::select(points), 0..40_u64).prop_map(|(at, n)| at.wrapping_add(n).wrapping_sub(20));
    prop_oneof![3 => close, 1 => any::<u64>()]
}

proptest! {
    #[test]
    fn f3_bounds_never_wrap(
        size in 0..10_000_usize,
        zero_based in any::<bool>(),
        (va, len) in (near(vec![0, FIRST_ADDR, FIRST_ADDR + 5000, u64::MAX]), near(vec![0, 5000, u64::MAX])),
        snap in any::<bool>(),
    ) {
        let access = if zero_based { ALL | Access::ZERO_BASED } else { ALL };
        let (mut table, info) = one(size, access);
        let end = info.addr.value() + size as u64;
        // Often just at the end of the region.
        let va = if snap { end.wrapping_sub(va % 64) } else { va };
        let inside = va >= info.addr.value() && u128::from(va) + u128::from(len) <= u128::from(end);
        let expected = if inside { Ok(()) } else { Err(AccessError::OutOfBounds) };
        let va = VirtAddr::new(va);
        prop_assert_eq!(table.check_remote(VIA, info.rkey, va, len, Access::REMOTE_READ), expected);
        prop_assert_eq!(table.check_local(PD, info.lkey, va, len, Access::LOCAL_WRITE), expected);
        if len < 20_000 {
            let mut data = vec![9; usize::try_from(len).unwrap()];
            prop_assert_eq!(table.read_remote(VIA, info.rkey, va, &mut data), expected);
            data.fill(9);
            prop_assert_eq!(table.write_local(PD, info.lkey, va, &data), expected);
            let written = table.bytes(info.lkey, 0, size).unwrap().iter().filter(|byte| **byte == 9).count();
            prop_assert_eq!(written, if inside { data.len() } else { 0 }, "R-RSP-47");
        }
    }
}

#[test]
fn a_region_larger_than_the_machine_is_refused() {
    let mut table = MrTable::new();
    for capacity in [usize::MAX, 1 << 62] {
        assert_eq!(table.alloc_fast(PD, capacity), Err(MrError::NoMemory(capacity)));
    }
}
