//! What a device promises for memory that several queue pairs use at once, and the numbers that programs know.

use std::collections::BTreeSet;

use qp::{Access, QpCap, SendWr, Sge, WcStatus};
use transport::WcOpcode;

use crate::harness::{Conn, World, WorldConfig, seed};

const ALL: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Rule R-RSP-51.
#[test]
fn atomics_of_several_queue_pairs_do_not_meet() {
    const EACH: u32 = 100;
    let mut world = World::new(WorldConfig { hosts: 3, ..WorldConfig::new("atomics of many", seed(51)) });
    let pairs: Vec<_> =
        [0, 1, 0, 1].map(|from| world.connect([from, 2], Conn::default(), QpCap::default())).into();
    let word = world.register(2, vec![0; 8], ALL);
    let landings: Vec<_> = pairs
        .iter()
        .map(|[near, _]| world.register(near.host, vec![0; 8 * EACH as usize], Access::LOCAL_WRITE))
        .collect();
    let now = world.now;
    for ([near, _], landing) in pairs.iter().zip(&landings) {
        for n in 0..EACH {
            let at = Sge { addr: landing.addr.wrapping_add(u64::from(n) * 8), length: 8, lkey: landing.lkey };
            let wr = SendWr::fetch_add(n.into(), at, word.addr, word.rkey, 1).signaled();
            world.nic(*near).post_send(now, near.qpn, wr).expect("the post");
        }
    }
    // The owner's own access through the device comes between.
    world.drive_until(now + wire::Duration::from_micros(40));
    let bytes = world.hosts[2].nic.mr_bytes_mut(word.lkey, 0, 8).expect("the word");
    let value = u64::from_ne_bytes((&*bytes).try_into().expect("eight bytes"));
    bytes.copy_from_slice(&(value + 1_000_000).to_ne_bytes());
    world.drive();
    let mut found = BTreeSet::new();
    for ([near, _], landing) in pairs.iter().zip(&landings) {
        assert!(world.send_completions(*near).iter().all(|wc| wc.status == WcStatus::Success));
        let bytes = world.nic(*near).mr_bytes(landing.lkey, 0, 8 * EACH as usize).expect("inside");
        found.extend(bytes.chunks(8).map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes"))));
    }
    assert_eq!(found.len(), 4 * EACH as usize, "each finds another value");
    let bytes = world.hosts[2].nic.mr_bytes(word.lkey, 0, 8).expect("the word");
    let total = u64::from(4 * EACH) + 1_000_000;
    assert_eq!(bytes, total.to_ne_bytes());
}

/// Rule R-MEM-16.
#[test]
fn relaxed_ordering_is_taken_and_changes_nothing() {
    let (mut world, [a, b]) = World::pair(WorldConfig::new("relaxed", seed(16)), Conn::default());
    let target = world.register(b.host, vec![0; 4096], ALL | Access::RELAXED_ORDERING);
    let source = world.register(a.host, (0..=u8::MAX).cycle().take(8192).collect(), Access::LOCAL_WRITE);
    let now = world.now;
    for n in 0..50_u32 {
        let from = Sge { addr: source.addr.wrapping_add(u64::from(n) * 7), length: 3000, lkey: source.lkey };
        let wr = SendWr::write(n.into(), &[from], target.addr, target.rkey).signaled();
        world.nic(a).post_send(now, a.qpn, wr).expect("the post");
    }
    world.drive();
    assert_eq!(world.send_completions(a).len(), 50);
    let last: Vec<u8> = (0..=u8::MAX).cycle().skip(49 * 7).take(3000).collect();
    assert!(world.nic(b).mr_bytes(target.lkey, 0, 3000).expect("the region") == last);
}

/// Rule R-CQE-1.
#[test]
fn statuses_have_the_names_and_numbers_of_verbs() {
    for (status, number, name) in [
        (WcStatus::Success, 0, "SUCCESS"),
        (WcStatus::LocLenErr, 1, "LOC_LEN_ERR"),
        (WcStatus::LocQpOpErr, 2, "LOC_QP_OP_ERR"),
        (WcStatus::LocProtErr, 4, "LOC_PROT_ERR"),
        (WcStatus::WrFlushErr, 5, "WR_FLUSH_ERR"),
        (WcStatus::MwBindErr, 6, "MW_BIND_ERR"),
        (WcStatus::BadRespErr, 7, "BAD_RESP_ERR"),
        (WcStatus::RemInvReqErr, 9, "REM_INV_REQ_ERR"),
        (WcStatus::RemAccessErr, 10, "REM_ACCESS_ERR"),
        (WcStatus::RemOpErr, 11, "REM_OP_ERR"),
        (WcStatus::RetryExcErr, 12, "RETRY_EXC_ERR"),
        (WcStatus::RnrRetryExcErr, 13, "RNR_RETRY_EXC_ERR"),
        (WcStatus::RemInvRdReqErr, 15, "REM_INV_RD_REQ_ERR"),
    ] {
        assert_eq!((status as u8, status.to_string()), (number, name.to_owned()));
    }
}

/// Rule R-CQE-8.
#[test]
fn completion_opcodes_have_the_numbers_of_verbs() {
    use WcOpcode::{
        AtomicWrite, BindMw, CompSwap, FetchAdd, Flush, LocalInv, RdmaRead, RdmaWrite, Recv, RecvRdmaWithImm,
        Send,
    };
    let sent = [Send, RdmaWrite, RdmaRead, CompSwap, FetchAdd, BindMw, LocalInv, Flush, AtomicWrite];
    assert_eq!(sent.map(|opcode| opcode as u32), [0, 1, 2, 3, 4, 5, 6, 8, 9]);
    assert_eq!([Recv, RecvRdmaWithImm].map(|opcode| opcode as u32), [128, 129]);
}

/// Rule R-MEM-14.
#[test]
fn access_flags_have_the_numbers_of_verbs() {
    for (flag, bits) in [
        (Access::LOCAL_WRITE, 0x1),
        (Access::REMOTE_WRITE, 0x2),
        (Access::REMOTE_READ, 0x4),
        (Access::REMOTE_ATOMIC, 0x8),
        (Access::MW_BIND, 0x10),
        (Access::ZERO_BASED, 0x20),
        (Access::ON_DEMAND, 0x40),
        (Access::HUGETLB, 0x80),
        (Access::FLUSH_GLOBAL, 0x100),
        (Access::FLUSH_PERSISTENT, 0x200),
        (Access::RELAXED_ORDERING, 0x10_0000),
    ] {
        assert_eq!(flag.bits(), bits);
    }
}
