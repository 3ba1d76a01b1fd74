//! Windows, fast registration, re-registration: what each key opens, and when.

use std::collections::HashMap;

use proptest::prelude::*;
use transport::{AccessError, AtomicOp, KeyError, LocalOp, Memory, Via};
use wire::Qpn;

use super::*;

const PD: PdId = PdId(1);
const OTHER_PD: PdId = PdId(2);
const A: Via = Via { pd: PD, qpn: Qpn::new(0x11) };
const B: Via = Via { pd: PD, qpn: Qpn::new(0x12) };
const STRANGER: Via = Via { pd: OTHER_PD, qpn: Qpn::new(0x13) };
const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
const BINDABLE: Access = Access::MW_BIND.union(Access::LOCAL_WRITE);
const SIZE: usize = 4096;
const IOVA: u64 = 0x5_0000;

fn va(offset: u64) -> VirtAddr {
    VirtAddr::new(IOVA + offset)
}

/// A table with a region of `access` at `IOVA`.
fn with_region(access: Access) -> (MrTable, LKey) {
    let mut table = MrTable::new();
    let info = table.register(PD, vec![0; SIZE], Some(va(0)), access).unwrap();
    (table, info.lkey)
}

fn bind(mw: RKey, variant: u8, mr: LKey, (va, length): (VirtAddr, u64), access: Access) -> LocalOp {
    LocalOp::Bind { mw, variant, mr, va, length, access }
}

fn inv(rkey: RKey) -> LocalOp {
    LocalOp::Invalidate { rkey }
}

#[test]
fn a_type_2_window_is_for_one_queue_pair_until_invalidated() {
    let (mut table, mr) = with_region(BINDABLE);
    let mw = table.alloc_window(PD, MwType::Type2).unwrap();
    let key = mw.with_variant(0x42);
    let reads =
        |table: &MrTable, via, key: RKey| table.check_remote(via, key, va(16), 8, Access::REMOTE_READ);
    assert_eq!(reads(&table, A, mw), Err(AccessError::UnknownKey), "not bound yet");
    assert_eq!(table.execute(A, &inv(mw)), Err(KeyError::NotValid));

    let open = bind(mw, 0x42, mr, (va(16), 8), Access::REMOTE_READ);
    assert_eq!(table.execute(A, &open), Ok(()), "the region itself has no remote right (R-MEM-25)");
    assert_eq!(reads(&table, A, key), Ok(()));
    assert_eq!(reads(&table, A, mw), Err(AccessError::UnknownKey), "R-MEM-20: the new key alone");
    assert_eq!(reads(&table, B, key), Err(AccessError::WrongQp));
    assert_eq!(reads(&table, STRANGER, key), Err(AccessError::WrongPd));
    let write = table.check_remote(A, key, va(16), 8, Access::REMOTE_WRITE);
    assert_eq!(write, Err(AccessError::NoRight), "rights are the window's (R-MEM-25)");
    for (at, len) in [(15, 1), (24, 1), (16, 9), (0, 0)] {
        let result = table.check_remote(A, key, va(at), len, Access::REMOTE_READ);
        assert_eq!(result, Err(AccessError::OutOfBounds), "{at}+{len}: bounds are the window's");
    }
    let local = table.check_local(PD, LKey::new(key.value()), va(16), 8, Access::empty());
    assert_eq!(local, Err(AccessError::UnknownKey), "a window is for peers");

    assert_eq!(table.execute(A, &open), Err(KeyError::NotFree), "R-MEM-20");
    assert_eq!(table.execute(B, &inv(key)), Err(KeyError::WrongQp), "R-MEM-13");
    assert_eq!(table.execute(STRANGER, &inv(key)), Err(KeyError::WrongPd));
    assert_eq!(table.execute(A, &inv(key)), Ok(()));
    assert_eq!(reads(&table, A, key), Err(AccessError::UnknownKey));
    // Another queue pair may have it next.
    assert_eq!(table.execute(B, &bind(mw, 0x43, mr, (va(0), 1), Access::REMOTE_READ)), Ok(()));
    let result = table.check_remote(B, mw.with_variant(0x43), va(0), 1, Access::REMOTE_READ);
    assert_eq!(result, Ok(()));
}

#[test]
fn a_type_1_window_moves_from_binding_to_binding() {
    let (mut table, mr) = with_region(BINDABLE);
    let mw = table.alloc_window(PD, MwType::Type1).unwrap();
    let reads = |table: &MrTable, via, variant, at| {
        table.check_remote(via, mw.with_variant(variant), va(at), 1, Access::REMOTE_READ)
    };
    for (variant, at) in [(7, 0), (8, 100)] {
        table.execute(A, &bind(mw, variant, mr, (va(at), 10), Access::REMOTE_READ)).unwrap();
        for via in [A, B] {
            assert_eq!(reads(&table, via, variant, at), Ok(()), "for every queue pair of its domain");
        }
        assert_eq!(reads(&table, STRANGER, variant, at), Err(AccessError::WrongPd));
    }
    assert_eq!(reads(&table, A, 7, 0), Err(AccessError::UnknownKey), "the older binding is over");
    assert_eq!(table.execute(A, &inv(mw.with_variant(8))), Err(KeyError::NotInvalidatable), "R-MEM-13");
    let busy = table.deregister(mr).unwrap_err();
    assert_eq!((busy, busy.errno()), (MrError::WindowsBound(1), 16), "R-MEM-22");
    table.execute(B, &bind(mw, 9, LKey::new(0), (va(0), 0), Access::empty())).unwrap();
    assert_eq!(reads(&table, A, 8, 100), Err(AccessError::UnknownKey), "no bytes unbind it");
    assert!(table.deregister(mr).is_ok());
    assert_eq!(
        table.execute(STRANGER, &bind(mw, 1, mr, (va(0), 0), Access::empty())),
        Err(KeyError::WrongPd)
    );
}

#[test]
fn bindings_that_may_not_be() {
    // R-MEM-15 and R-MEM-20, one wrong thing each.
    let read = Access::REMOTE_READ;
    let whole = (va(0), SIZE as u64);
    let zero = Access::ZERO_BASED;
    for (region, mw_type, range, access, error) in [
        (Access::LOCAL_WRITE, MwType::Type2, whole, read, KeyError::NoBindRight),
        (Access::MW_BIND, MwType::Type2, whole, Access::REMOTE_WRITE, KeyError::NoLocalWrite),
        (Access::MW_BIND, MwType::Type1, whole, Access::REMOTE_ATOMIC, KeyError::NoLocalWrite),
        (BINDABLE | zero, MwType::Type2, (VirtAddr::new(0), 1), read, KeyError::ZeroBased),
        (BINDABLE, MwType::Type1, whole, read | zero, KeyError::ZeroBased),
        (BINDABLE, MwType::Type2, (va(0), 0), read, KeyError::Empty),
        (BINDABLE, MwType::Type2, (va(0), SIZE as u64 + 1), read, KeyError::OutOfBounds),
        (BINDABLE, MwType::Type2, (VirtAddr::new(IOVA - 1), 2), read, KeyError::OutOfBounds),
        (BINDABLE, MwType::Type2, (va(8), u64::MAX), read, KeyError::OutOfBounds),
        (BINDABLE, MwType::Type2, (VirtAddr::new(u64::MAX), 1), read, KeyError::OutOfBounds),
        (
            BINDABLE,
            MwType::Type2,
            whole,
            read | Access::from_bits_retain(1 << 12),
            KeyError::BadAccess(1 << 12),
        ),
        (BINDABLE, MwType::Type2, whole, read | Access::FLUSH_GLOBAL, KeyError::BadAccess(0x100)),
    ] {
        let (mut table, mr) = with_region(region);
        let mw = table.alloc_window(PD, mw_type).unwrap();
        let case = format!("{region:?} {mw_type:?} {range:?} {access:?}");
        assert_eq!(table.execute(A, &bind(mw, 9, mr, range, access)), Err(error), "{case}");
        let key = mw.with_variant(9);
        assert_eq!(table.check_remote(A, key, range.0, 1, read), Err(AccessError::UnknownKey), "{case}");
        assert!(table.deregister(mr).is_ok(), "nothing is bound: {case}");
    }
    let (mut table, mr) = with_region(BINDABLE);
    let mw = table.alloc_window(PD, MwType::Type2).unwrap();
    let stale = LKey::new(mr.value() + 1);
    assert_eq!(table.execute(A, &bind(mw, 9, stale, whole, read)), Err(KeyError::UnknownKey));
    assert_eq!(table.execute(STRANGER, &bind(mw, 9, mr, whole, read)), Err(KeyError::WrongPd));
    let foreign = table.alloc_window(OTHER_PD, MwType::Type2).unwrap();
    assert_eq!(table.execute(STRANGER, &bind(foreign, 9, mr, whole, read)), Err(KeyError::WrongPd));
    assert_eq!(table.execute(A, &bind(mw.with_variant(77), 9, mr, whole, read)), Err(KeyError::UnknownKey));
    let not_a_window = RKey::new(mr.value());
    assert_eq!(table.execute(A, &bind(not_a_window, 9, mr, whole, read)), Err(KeyError::UnknownKey));
}

#[test]
fn f3_a_window_at_the_last_address_never_wraps() {
    let mut table = MrTable::new();
    let last = VirtAddr::new(u64::MAX - 63);
    let mr = table.register(PD, vec![0; 64], Some(last), BINDABLE).unwrap().lkey;
    let mw = table.alloc_window(PD, MwType::Type2).unwrap();
    let at = |n| VirtAddr::new(u64::MAX - 63 + n);
    table.execute(A, &bind(mw, 5, mr, (at(32), 32), Access::REMOTE_READ)).unwrap();
    let key = mw.with_variant(5);
    for (va, len, inside) in [
        (at(32), 32, true),
        (at(63), 1, true),
        (at(63), 2, false),
        (at(32), 33, false),
        (at(31), 1, false),
        (at(32), u64::MAX, false),
        (VirtAddr::new(0), 1, false),
    ] {
        let result = table.check_remote(A, key, va, len, Access::REMOTE_READ);
        assert_eq!(result.is_ok(), inside, "R-MEM-4: {va} + {len}");
    }
}

#[test]
fn a_zero_based_window_is_addressed_from_zero() {
    let (mut table, mr) = with_region(BINDABLE);
    table.bytes_mut(mr, 100, 4).unwrap().copy_from_slice(&[1, 2, 3, 4]);
    let mw = table.alloc_window(PD, MwType::Type2).unwrap();
    let access = Access::REMOTE_READ | Access::ZERO_BASED;
    table.execute(A, &bind(mw, 5, mr, (va(100), 4), access)).unwrap();
    let key = mw.with_variant(5);
    let mut found = [0; 4];
    assert_eq!(table.read_remote(A, key, VirtAddr::new(0), &mut found), Ok(()), "R-MEM-6");
    assert_eq!(found, [1, 2, 3, 4]);
    for beyond in [1, IOVA + 100] {
        let result = table.read_remote(A, key, VirtAddr::new(beyond), &mut found);
        assert_eq!(result, Err(AccessError::OutOfBounds));
    }
}

#[test]
fn a_window_ends_with_its_queue_pair_and_leaves_the_region_alone() {
    let (mut table, mr) = with_region(BINDABLE);
    let windows: Vec<_> = (0..3).map(|_| table.alloc_window(PD, MwType::Type2).unwrap()).collect();
    for (via, mw) in [(A, windows[0]), (A, windows[1]), (B, windows[2])] {
        table.execute(via, &bind(mw, 0xEE, mr, (va(0), 8), Access::REMOTE_READ)).unwrap();
    }
    table.forget_qp(A.qpn);
    let found: Vec<_> = [(A, 0), (A, 1), (B, 2)]
        .map(|(via, i)| {
            let key: RKey = windows[i].with_variant(0xEE);
            table.check_remote(via, key, va(0), 8, Access::REMOTE_READ).is_ok()
        })
        .into();
    assert_eq!(found, [false, false, true], "R-MEM-23");
    assert_eq!(table.deregister(mr), Err(MrError::WindowsBound(1)));
    assert_eq!(table.dealloc_window(windows[2]), Ok(PD));
    assert_eq!(table.dealloc_window(windows[2]), Err(MrError::NoSuchWindow(windows[2])));
    assert!(table.deregister(mr).is_ok());
    assert!(table.bound.is_empty());
}

#[test]
fn windows_reach_through_to_the_bytes() {
    let (mut table, mr) = with_region(BINDABLE);
    let mw = table.alloc_window(PD, MwType::Type1).unwrap();
    table.execute(A, &bind(mw, 1, mr, (va(64), 64), REMOTE)).unwrap();
    let key = mw.with_variant(1);
    table.write_remote(A, key, va(64), &[9; 8]).unwrap();
    assert_eq!(table.atomic_remote(A, key, va(72), AtomicOp::FetchAdd { add: 5 }), Ok(0));
    table.atomic_write_remote(B, key, va(80), [3; 8]).unwrap();
    let expected = [[9; 8], 5_u64.to_ne_bytes(), [3; 8], [0; 8]].concat();
    assert_eq!(table.bytes(mr, 64, 32).unwrap(), expected);
    assert_eq!(table.bytes(mr, 0, 64).unwrap(), [0; 64]);
}

fn reg(mr: LKey, variant: u8, length: u64, access: Access) -> LocalOp {
    LocalOp::Register { mr, variant, iova: va(0), length, access }
}

#[test]
fn fast_registration_opens_and_invalidation_closes() {
    let mut table = MrTable::new();
    let info = table.alloc_fast(PD, SIZE).unwrap();
    let (name, key) = (info.lkey, info.rkey);
    table.bytes_mut(name, 0, 1).unwrap()[0] = 7;
    let reads = |table: &MrTable, key: RKey, at| {
        let peer = table.check_remote(A, key, va(at), 1, Access::REMOTE_READ);
        (peer, table.check_local(PD, LKey::new(key.value()), va(at), 1, Access::empty()))
    };
    let nothing = (Err(AccessError::UnknownKey), Err(AccessError::UnknownKey));
    assert_eq!(reads(&table, key, 0), nothing, "R-MEM-21: not before it is registered");
    assert_eq!(table.execute(A, &inv(key)), Err(KeyError::NotValid));
    assert_eq!(table.execute(STRANGER, &reg(name, 3, 8, REMOTE)), Err(KeyError::WrongPd));
    let all = REMOTE | Access::LOCAL_WRITE;
    assert_eq!(table.execute(A, &reg(name, 3, SIZE as u64 + 1, all)), Err(KeyError::OutOfBounds));
    assert_eq!(table.execute(A, &reg(name, 3, 8, REMOTE)), Err(KeyError::BadAccess(REMOTE.bits())));
    assert_eq!(table.execute(A, &reg(name, 3, 100, all)), Ok(()));
    let key = key.with_variant(3);
    assert_eq!(reads(&table, key, 99), (Ok(()), Ok(())));
    let beyond = (Err(AccessError::OutOfBounds), Err(AccessError::OutOfBounds));
    assert_eq!(reads(&table, key, 100), beyond);
    assert_eq!(table.execute(A, &reg(name, 4, 100, all)), Err(KeyError::NotFree), "R-MEM-21");
    assert_eq!(table.execute(STRANGER, &inv(key)), Err(KeyError::WrongPd), "R-MEM-13");
    // Any queue pair of the domain may take it back.
    assert_eq!(table.execute(B, &inv(key)), Ok(()));
    assert_eq!(reads(&table, key, 0), nothing);
    assert_eq!(table.execute(A, &reg(name, 4, SIZE as u64, Access::REMOTE_READ)), Ok(()));
    assert_eq!(reads(&table, key, 0), nothing, "the key of the last time");
    assert_eq!(reads(&table, key.with_variant(4), SIZE as u64 - 1), (Ok(()), Ok(())));
    assert_eq!(table.bytes(name, 0, 1).unwrap(), [7], "its owner's view is always there");
    assert_eq!(table.deregister(name).map(|(pd, bytes)| (pd, bytes.len())), Ok((PD, SIZE)));
    assert_eq!(reads(&table, key.with_variant(4), 0), nothing);
}

#[test]
fn only_what_was_fast_registered_can_be_invalidated() {
    let (mut table, mr) = with_region(BINDABLE);
    let key = RKey::new(mr.value());
    assert_eq!(table.execute(A, &inv(key)), Err(KeyError::NotInvalidatable), "R-MEM-13");
    assert_eq!(table.execute(A, &inv(RKey::new(0))), Err(KeyError::UnknownKey));
    assert_eq!(table.execute(A, &reg(mr, 1, 1, Access::empty())), Err(KeyError::UnknownKey));
    let wraps = LocalOp::Register {
        mr: table.alloc_fast(PD, 8).unwrap().lkey,
        variant: 1,
        iova: VirtAddr::new(u64::MAX - 6),
        length: 8,
        access: Access::empty(),
    };
    assert_eq!(table.execute(A, &wraps), Err(KeyError::OutOfBounds), "R-MEM-19");
}

#[test]
fn a_region_with_windows_can_neither_go_nor_change() {
    let mut table = MrTable::new();
    let info = table.alloc_fast(PD, SIZE).unwrap();
    table.execute(A, &reg(info.lkey, 1, 100, BINDABLE)).unwrap();
    let key = info.rkey.with_variant(1);
    let mw = table.alloc_window(PD, MwType::Type2).unwrap();
    let range = (va(0), 100);
    table.execute(A, &bind(mw, 1, LKey::new(key.value()), range, Access::REMOTE_READ)).unwrap();
    assert_eq!(table.execute(A, &inv(key)), Err(KeyError::WindowsBound), "R-MEM-22");
    assert_eq!(table.deregister(info.lkey), Err(MrError::WindowsBound(1)));
    assert_eq!(table.execute(A, &inv(mw.with_variant(1))), Ok(()));
    assert_eq!(table.execute(A, &inv(key)), Ok(()));
    let late = bind(mw, 2, LKey::new(key.value()), range, Access::REMOTE_READ);
    assert_eq!(table.execute(A, &late), Err(KeyError::NotValid), "the region is not registered");

    let (mut table, mr) = with_region(BINDABLE);
    let mw = table.alloc_window(PD, MwType::Type2).unwrap();
    table.execute(A, &bind(mw, 1, mr, range, Access::REMOTE_READ)).unwrap();
    assert_eq!(table.reregister(mr, Rereg::default()).unwrap_err(), MrError::WindowsBound(1));
}

#[test]
fn closing_a_region_unbinds_its_windows_and_no_others() {
    let (mut table, mr) = with_region(BINDABLE);
    let other = table.register(PD, vec![0; 8], Some(va(0)), BINDABLE).unwrap().lkey;
    let windows: Vec<_> = [mr, other, mr]
        .map(|region| {
            let mw = table.alloc_window(PD, MwType::Type2).unwrap();
            table.execute(A, &bind(mw, 1, region, (va(0), 8), Access::REMOTE_READ)).unwrap();
            mw.with_variant(1)
        })
        .into();
    assert!(table.close(mr).is_ok(), "R-MEM-22");
    let open = |key: &RKey| table.check_remote(A, *key, va(0), 8, Access::REMOTE_READ).is_ok();
    assert_eq!(windows.iter().map(open).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(table.deregister(other), Err(MrError::WindowsBound(1)));
}

#[test]
fn re_registration_changes_what_it_says_and_the_key() {
    let (mut table, first) = with_region(Access::LOCAL_WRITE);
    table.bytes_mut(first, 0, 2).unwrap().copy_from_slice(&[1, 2]);
    let (info, was, old) =
        table.reregister(first, Rereg { access: Some(Access::REMOTE_READ), ..Rereg::default() }).unwrap();
    assert_eq!((info.addr, info.length, was, old), (va(0), SIZE, PD, None));
    assert_ne!(info.lkey, first, "R-MEM-24");
    assert_eq!(table.check_local(PD, first, va(0), 1, Access::empty()), Err(AccessError::UnknownKey));
    assert_eq!(table.check_remote(A, info.rkey, va(0), 1, Access::REMOTE_READ), Ok(()));
    assert_eq!(table.check_local(PD, info.lkey, va(0), 1, Access::LOCAL_WRITE), Err(AccessError::NoRight));
    assert_eq!(table.bytes(info.lkey, 0, 2).unwrap(), [1, 2]);

    let change = Rereg { pd: Some(OTHER_PD), memory: Some((vec![5; 10], None)), access: None };
    let (next, was, old) = table.reregister(info.lkey, change).unwrap();
    assert_eq!((was, old.map(|bytes| bytes.len()), next.length), (PD, Some(SIZE), 10));
    assert_eq!(
        table.check_remote(A, next.rkey, next.addr, 1, Access::REMOTE_READ),
        Err(AccessError::WrongPd)
    );
    assert_eq!(table.check_remote(STRANGER, next.rkey, next.addr, 10, Access::REMOTE_READ), Ok(()));

    // All or nothing.
    let wraps = Some((vec![0; 2], Some(VirtAddr::new(u64::MAX))));
    for (change, error) in [
        (Rereg { access: Some(Access::REMOTE_WRITE), ..Rereg::default() }, MrError::RemoteWithoutLocal),
        (
            Rereg { pd: Some(PD), memory: wraps, access: None },
            MrError::Wraps { iova: VirtAddr::new(u64::MAX), length: 2 },
        ),
    ] {
        assert_eq!(table.reregister(next.lkey, change).unwrap_err(), error);
        assert_eq!(table.check_remote(STRANGER, next.rkey, next.addr, 10, Access::REMOTE_READ), Ok(()));
    }
    let access = Some(Access::REMOTE_READ | Access::ZERO_BASED);
    let (zero, ..) = table.reregister(next.lkey, Rereg { access, ..Rereg::default() }).unwrap();
    assert_eq!(zero.addr, VirtAddr::new(0), "R-MEM-6");
    let fast = table.alloc_fast(PD, 8).unwrap().lkey;
    assert_eq!(table.reregister(fast, Rereg::default()).unwrap_err(), MrError::FastRegistered);
}

#[test]
fn an_address_of_the_callers_choice_may_reach_the_last_byte() {
    let mut table = MrTable::new();
    let last = VirtAddr::new(u64::MAX - 7);
    let info = table.register(PD, vec![0; 8], Some(last), Access::REMOTE_READ).unwrap();
    let check = |at: u64, len| table.check_remote(A, info.rkey, VirtAddr::new(at), len, Access::REMOTE_READ);
    assert_eq!(check(u64::MAX - 7, 8), Ok(()), "R-MEM-19");
    assert_eq!(check(u64::MAX, 1), Ok(()));
    assert_eq!(check(u64::MAX, 2), Err(AccessError::OutOfBounds));
    let error = table.register(PD, vec![0; 9], Some(last), Access::empty()).unwrap_err();
    assert_eq!(error, MrError::Wraps { iova: last, length: 9 });
}

#[test]
fn the_lowest_keys_are_nobodys() {
    let mut table = MrTable::new();
    for _ in 0..300 {
        let info = table.register(PD, vec![0], None, Access::REMOTE_READ).unwrap();
        assert!(info.lkey.value() > 0xFF, "R-MEM-18");
        table.deregister(info.lkey).unwrap();
    }
    for key in 0..=0xFF {
        let local = table.check_local(PD, LKey::new(key), VirtAddr::new(0), 0, Access::empty());
        assert_eq!(local, Err(AccessError::UnknownKey));
        assert!(table.check_remote(A, RKey::new(key), VirtAddr::new(0), 0, Access::empty()).is_err());
    }
}

#[test]
fn a_million_regions_and_windows_each_with_a_key_of_its_own() {
    const N: usize = 1_000_000;
    let mut table = MrTable::new();
    let mr = table.register(PD, vec![0; 8], Some(va(0)), BINDABLE).unwrap().lkey;
    let keys: Vec<_> = (0..N)
        .map(|i| table.register(PD, vec![], Some(va(i as u64)), Access::empty()).unwrap().rkey)
        .collect();
    let mut distinct: Vec<_> = keys.iter().map(|key| key.value()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), N);
    let mw = table.alloc_window(PD, MwType::Type2).unwrap();
    table.execute(A, &bind(mw, 1, mr, (va(0), 8), Access::REMOTE_READ)).unwrap();
    for i in [0, N / 2, N - 1] {
        assert_eq!(table.check_remote(A, keys[i], va(i as u64), 0, Access::empty()), Ok(()));
    }
    assert_eq!(table.check_remote(A, mw.with_variant(1), va(0), 8, Access::REMOTE_READ), Ok(()));
}

/// What is done to the table in the property below.
#[derive(Clone, Copy, Debug)]
enum Step {
    AllocWindow(bool),
    DeallocWindow(usize),
    AllocFast,
    Deregister(usize),
    Register { mr: usize, variant: u8, length: u64, bindable: bool },
    Bind { mw: usize, mr: usize, variant: u8, start: u64, length: u64, by: bool },
    Invalidate { of: usize, variant: u8, by: bool },
    Forget(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let variant = || 0..6_u8;
    prop_oneof![
        2 => any::<bool>().prop_map(Step::AllocWindow),
        1 => (0..6_usize).prop_map(Step::DeallocWindow),
        2 => Just(Step::AllocFast),
        1 => (0..6_usize).prop_map(Step::Deregister),
        3 => (0..6_usize, variant(), 0..80_u64, any::<bool>())
            .prop_map(|(mr, variant, length, bindable)| Step::Register { mr, variant, length, bindable }),
        6 => (0..6_usize, 0..6_usize, variant(), 0..70_u64, 0..70_u64, any::<bool>()).prop_map(
            |(mw, mr, variant, start, length, by)| Step::Bind { mw, mr, variant, start, length, by }
        ),
        4 => (0..12_usize, variant(), any::<bool>())
            .prop_map(|(of, variant, by)| Step::Invalidate { of, variant, by }),
        1 => any::<bool>().prop_map(Step::Forget),
    ]
}

const CAPACITY: usize = 64;

/// The same table, told the plain way: objects by name, each with what its key is and opens.
#[derive(Default)]
struct Model {
    /// Name, and what it is registered as.
    regions: Vec<(LKey, Option<Registered>)>,
    /// Name, whether type 1, and key with queue pair, region and range, where bound.
    windows: Vec<(RKey, bool, Option<Opening>)>,
}

#[derive(Clone, Copy)]
struct Registered {
    key: RKey,
    length: u64,
    bindable: bool,
}

#[derive(Clone, Copy)]
struct Opening {
    key: RKey,
    by: Qpn,
    region: LKey,
    start: u64,
    length: u64,
}

impl Model {
    fn windows_of(&self, region: LKey) -> usize {
        self.windows.iter().filter(|(.., bound)| bound.is_some_and(|b| b.region == region)).count()
    }

    /// Bytes each key opens, for queue pair `qpn`: the range within the region that owns them.
    fn opens(&self, qpn: Qpn) -> HashMap<RKey, (u64, u64)> {
        let regions = self.regions.iter().filter_map(|(_, valid)| valid.map(|v| (v.key, (0, v.length))));
        let windows = self.windows.iter().filter_map(|(_, type_1, bound)| {
            let bound = bound.filter(|b| *type_1 || b.by == qpn)?;
            Some((bound.key, (bound.start, bound.length)))
        });
        regions.chain(windows).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// R-MEM-13, R-MEM-15, R-MEM-20 to R-MEM-23 against a model without cleverness.
    #[test]
    fn keys_open_what_a_plain_model_says(steps in prop::collection::vec(step(), 1..120)) {
        let mut table = MrTable::new();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::AllocWindow(type_1) => {
                    let mw_type = if type_1 { MwType::Type1 } else { MwType::Type2 };
                    if model.windows.len() < 6 {
                        model.windows.push((table.alloc_window(PD, mw_type).unwrap(), type_1, None));
                    }
                }
                Step::AllocFast if model.regions.len() < 6 => {
                    model.regions.push((table.alloc_fast(PD, CAPACITY).unwrap().lkey, None));
                }
                Step::AllocFast => {}
                Step::DeallocWindow(i) => {
                    if i < model.windows.len() {
                        prop_assert_eq!(table.dealloc_window(model.windows.remove(i).0), Ok(PD));
                    }
                }
                Step::Deregister(i) => {
                    if let Some(&(name, _)) = model.regions.get(i) {
                        let free = model.windows_of(name) == 0;
                        prop_assert_eq!(table.deregister(name).is_ok(), free);
                        if free {
                            model.regions.remove(i);
                        }
                    }
                }
                Step::Register { mr, variant, length, bindable } => {
                    if let Some((name, valid)) = model.regions.get_mut(mr) {
                        let access = if bindable { BINDABLE | REMOTE } else { Access::REMOTE_READ };
                        let works = valid.is_none() && length <= CAPACITY as u64;
                        prop_assert_eq!(table.execute(A, &reg(*name, variant, length, access)).is_ok(), works);
                        if works {
                            let key = RKey::new(name.value()).with_variant(variant);
                            *valid = Some(Registered { key, length, bindable });
                        }
                    }
                }
                Step::Bind { mw, mr, variant, start, length, by } => {
                    let (Some(&(window, type_1, bound)), Some(&(region, valid))) =
                        (model.windows.get(mw), model.regions.get(mr)) else { continue };
                    let via = if by { A } else { B };
                    let mr_key = valid.map_or(region, |valid| LKey::new(valid.key.value()));
                    let op = bind(window, variant, mr_key, (va(start), length), Access::REMOTE_READ);
                    let fits = valid.is_some_and(|valid| valid.bindable && start + length <= valid.length);
                    let works = if type_1 { length == 0 || fits } else { bound.is_none() && length > 0 && fits };
                    prop_assert_eq!(table.execute(via, &op).is_ok(), works);
                    if works {
                        let key = window.with_variant(variant);
                        let opening = Opening { key, by: via.qpn, region, start, length };
                        model.windows[mw].2 = (length > 0).then_some(opening);
                    }
                }
                Step::Invalidate { of, variant, by } => {
                    let via = if by { A } else { B };
                    if let Some((name, valid)) = model.regions.get(of).copied() {
                        let key = RKey::new(name.value()).with_variant(variant);
                        let works = valid.is_some_and(|valid| valid.key == key) && model.windows_of(name) == 0;
                        prop_assert_eq!(table.execute(via, &inv(key)).is_ok(), works);
                        if works {
                            model.regions[of].1 = None;
                        }
                    } else if let Some((name, type_1, bound)) =
                        model.windows.get_mut(of.wrapping_sub(6))
                    {
                        let key = name.with_variant(variant);
                        let works = !*type_1 && bound.is_some_and(|b| b.key == key && b.by == via.qpn);
                        prop_assert_eq!(table.execute(via, &inv(key)).is_ok(), works);
                        if works {
                            *bound = None;
                        }
                    }
                }
                Step::Forget(by) => {
                    let gone = if by { A.qpn } else { B.qpn };
                    table.forget_qp(gone);
                    for (_, type_1, bound) in &mut model.windows {
                        *bound = bound.filter(|b| *type_1 || b.by != gone);
                    }
                }
            }
            // Every key that ever was, at both ends of what it opens.
            for via in [A, B] {
                let opens = model.opens(via.qpn);
                let names = model.regions.iter().map(|(name, _)| RKey::new(name.value()));
                for name in names.chain(model.windows.iter().map(|(name, ..)| *name)) {
                    for variant in 0..6 {
                        let key = name.with_variant(variant);
                        let ok = |at: u64, len| {
                            table.check_remote(via, key, va(at), len, Access::REMOTE_READ).is_ok()
                        };
                        match opens.get(&key) {
                            Some(&(start, len)) => {
                                prop_assert!(ok(start, len), "{key}");
                                prop_assert!(!ok(start, len + 1) && !ok(start + len, 1) && !ok(start + len + 1, 0));
                            }
                            None => prop_assert!(!ok(0, 0), "{key}"),
                        }
                    }
                }
            }
        }
    }
}
