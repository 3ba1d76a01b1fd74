//! Field cases F34 to F37, F38, F39 and F41: memory, sizes, datagrams and addresses, as programs and peers have met
//! them. (F21 to F33 are in `fields_c`.)

use std::net::IpAddr;

use driver_shim::interfaces::GidTable;
use qp::{
    Access, AddressVector, AttrMask, CqId, MrError, Nic, NicConfig, PostError, QpAttr, QpInit, QpState,
    QpType, SendWr, Sge,
};
use transport::WcStatus;
use wire::batch::{Caps, IpIdRule};
use wire::num::Mac;
use wire::opcode::Transport;
use wire::{Gid, Instant, LKey, Mtu, NakCode, Opcode, Operation, PKey, Psn, Qpn, RKey, Syndrome, VirtAddr};

use crate::harness::{Conn, Crafted, Lone};

const EINVAL: i32 = 22;

/// A NIC with these GIDs on a port of this MTU, and a queue pair in RESET.
fn nic(gids: &[Gid], active_mtu: Mtu) -> (Nic, Qpn, CqId) {
    let caps = Caps {
        max_segments: 16,
        max_bytes: 65_000,
        ip_id: IpIdRule::Ours,
        sees_ip_header: true,
        window: 64,
        credit: u32::MAX,
        src_port: None,
    };
    let profile = transport::Profile::Strict;
    let mut nic = Nic::new(NicConfig::new(gids.to_vec(), active_mtu, caps, 1, profile));
    let pd = nic.alloc_pd();
    let cq = nic.create_cq(16).unwrap();
    let qpn = nic.create_qp(QpInit::new(QpType::Rc, pd, cq, cq)).unwrap();
    (nic, qpn, cq)
}

fn gid(text: &str) -> Gid {
    text.parse::<IpAddr>().unwrap().into()
}

/// To INIT, and then to RTR with the attributes that `change` makes of good ones; the error number where there is one.
fn to_rtr(nic: &mut Nic, qpn: Qpn, change: impl FnOnce(&mut QpAttr)) -> Result<(), i32> {
    let peer = (Lone::peer_gid(), Lone::PEER);
    let [init, rtr, _] = Conn::default().steps(QpType::Rc, peer, Psn::new(0), Psn::new(0));
    let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    nic.modify_qp(Instant::ZERO, qpn, &reset, AttrMask::STATE).unwrap();
    nic.modify_qp(Instant::ZERO, qpn, &init.0, init.1).unwrap();
    let (mut attr, mask) = rtr;
    change(&mut attr);
    let result = nic.modify_qp(Instant::ZERO, qpn, &attr, mask).map_err(|error| error.errno());
    let state = nic.query_qp(qpn).unwrap().0.state;
    assert_eq!(
        state,
        if result.is_ok() { QpState::Rtr } else { QpState::Init },
        "nothing changes where it fails"
    );
    result
}

// ---- F34 ----

/// Rules R-MEM-1, R-MEM-2, R-MEM-7.
#[test]
fn f34_registration_takes_and_refuses_the_right_flags() {
    let (mut nic, ..) = nic(&[gid("10.0.0.1")], Mtu::B4096);
    let pd = nic.alloc_pd();
    let mut register = |bits: u32, len| {
        nic.reg_mr(pd, vec![0; len], Access::from_bits_retain(bits)).map_err(|error| (error, error.errno()))
    };
    let (local, write, read, atomic) = (1, 2, 4, 8);
    for bits in [write, atomic, write | read, write | atomic] {
        assert_eq!(register(bits, 8), Err((MrError::RemoteWithoutLocal, EINVAL)), "{bits:#x}");
        register(bits | local, 8).unwrap();
    }
    for bit in 20..30 {
        register(local | 1 << bit, 8).unwrap();
    }
    for bit in (10..20).chain(30..32) {
        assert_eq!(
            register(local | 1 << bit, 8),
            Err((MrError::UnknownAccess(1 << bit), EINVAL)),
            "bit {bit}"
        );
    }
    let empty = register(local | write | read, 0).unwrap();
    assert_eq!(empty.length, 0);
    assert!(nic.mr_bytes(empty.lkey, 0, 0).is_ok() && nic.mr_bytes(empty.lkey, 0, 1).is_err());
}

// ---- F35 ----

/// Rule R-WIR-31.
#[test]
fn f35_one_message_limit_and_no_truncation() {
    let max = Lone::new(Conn::default()).nic.limits().max_msg_sz;
    assert_eq!(max, 1 << 31);
    let pieces = |lengths: &[u32]| -> Vec<Sge> {
        let piece = |length: &u32| Sge { addr: VirtAddr::new(0), length: *length, lkey: LKey::new(7) };
        lengths.iter().map(piece).collect()
    };
    let half = 1 << 30;
    for (lengths, total) in [
        (vec![1 << 31], max),
        (vec![half, half], max),
        (vec![(1 << 31) - 1], max - 1),
        (vec![1 << 31, 1], max + 1),
        (vec![half, half, 1], max + 1),
        (vec![half; 4], 4 * u64::from(half)),
    ] {
        for write in [true, false] {
            let mut lone = Lone::new(Conn::default());
            let (sges, va, rkey) = (pieces(&lengths), VirtAddr::new(0), RKey::new(7));
            let wr = if write { SendWr::write(1, &sges, va, rkey) } else { SendWr::read(1, &sges, va, rkey) };
            let result = lone.nic.post_send(lone.now, lone.qpn, wr);
            if total <= max {
                // Taken as long as it is; that there is no such memory is for its completion to say.
                assert_eq!(result, Ok(()), "{total} bytes");
                assert_eq!(lone.sent(), []);
                assert_eq!(lone.completions()[0].status, WcStatus::LocProtErr);
            } else {
                let error = result.unwrap_err();
                assert_eq!((error, error.errno()), (PostError::TooLong(total), EINVAL));
            }
        }
    }
}

/// Rules R-WIR-31, R-REQ-4.
#[test]
fn f35_the_longest_read_of_a_peer_takes_its_psns() {
    let send = |lone: &Lone, n| Crafted::rc(Operation::SendOnly, lone.qpn, Lone::psn(n)).ack_req();
    // A READ of 2^31 bytes cannot be here: it is refused for its range, one byte more for its length.
    for (len, nak) in [(1_u32 << 31, NakCode::RemoteAccessError), ((1 << 31) + 1, NakCode::InvalidRequest)] {
        let mut lone = Lone::new(Conn::default());
        let read = Crafted::rc(Operation::ReadRequest, lone.qpn, Lone::psn(0)).ack_req();
        let sent = lone.answer(&[read.reth(lone.va(0), lone.mr.rkey, len)]);
        assert_eq!(sent[0].aeth, Some((Syndrome::Nak(nak), 0)), "{len} bytes");
    }
    // One of all the bytes there are takes one PSN for each packet of its answer.
    let mut lone = Lone::new(Conn::default());
    lone.post_recv(1, 64);
    let len = u32::try_from(Lone::MR_LEN).unwrap();
    let read =
        Crafted::rc(Operation::ReadRequest, lone.qpn, Lone::psn(0)).reth(lone.va(0), lone.mr.rkey, len);
    assert_eq!(lone.answer(&[read]).len(), 64);
    assert_eq!(lone.answer(&[send(&lone, 64)])[0].aeth, Some((Syndrome::ACK, 2)));
}

// ---- F36 ----

/// What `ibv_init_ah_from_wc` makes of the forty bytes in front of a datagram: the sender's address.
fn sender(grh: &[u8]) -> Option<Gid> {
    let v4 = &grh[20..40];
    let sum: u32 = v4.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let checksum_is_right = (sum & 0xFFFF) + (sum >> 16) == 0xFFFF;
    let looks_v6 = grh[0] >> 4 == 6;
    let looks_v4 = v4[0] == 0x45 && checksum_is_right;
    match (looks_v6, looks_v4) {
        (_, true) if !looks_v6 => Some(Gid::from(std::net::Ipv4Addr::new(v4[12], v4[13], v4[14], v4[15]))),
        (true, false) => grh[8..24].try_into().ok().map(Gid::new),
        _ => None,
    }
}

/// Rule R-RSP-43.
#[test]
fn f36_a_datagram_shows_its_sender_for_both_families() {
    let families = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];
    for (own, peer) in families.map(|(own, peer)| (gid(own), gid(peer))) {
        let mut lone = Lone::between(QpType::Ud, Conn::default(), own, peer);
        // The buffer held the header of an IPv6 datagram before.
        lone.bytes(0, 100).fill(0x66);
        lone.post_recv(1, 100);
        let send_only = Opcode::new(Transport::Ud, Operation::SendOnly).unwrap();
        let datagram = Crafted::of(send_only, lone.qpn, Lone::psn(0)).deth(Lone::QKEY, Lone::PEER);
        lone.inject(&[datagram.payload(b"hello")]);
        let wc = lone.completions()[0];
        assert_eq!((wc.status, wc.byte_len, wc.grh), (WcStatus::Success, 45, true));
        assert_eq!(wc.src_qp, Lone::PEER);
        let bytes = lone.bytes(0, 46).to_vec();
        assert_eq!((&bytes[40..45], bytes[45]), (&b"hello"[..], 0x66));
        assert_eq!(sender(&bytes), Some(peer));
    }
}

// ---- F37 ----

/// Rules R-RSP-44, R-REQ-34.
#[test]
fn f37_what_does_not_fit_is_lost_or_refused() {
    let mut lone = Lone::of_type(QpType::Ud, Conn::default());
    lone.post_recv(1, 40 + 16);
    let send_only = Opcode::new(Transport::Ud, Operation::SendOnly).unwrap();
    for (n, len) in [(0, 17), (1, 16)] {
        let datagram = Crafted::of(send_only, lone.qpn, Lone::psn(n)).deth(Lone::QKEY, Lone::PEER);
        lone.inject(&[datagram.payload(&vec![u8::try_from(len).unwrap(); len])]);
    }
    let completions = lone.completions();
    assert_eq!(completions.iter().map(|wc| wc.byte_len).collect::<Vec<_>>(), [56]);
    assert_eq!(lone.bytes(40, 16), [16; 16]);
    assert_eq!(lone.nic.query_qp(lone.qpn).unwrap().0.state, QpState::Rts);
    // A port of MTU 1024.
    let (mut nic, _, cq) = nic(&[gid("10.0.0.1")], Mtu::B1024);
    let pd = nic.alloc_pd();
    let qpn = nic.create_qp(QpInit::new(QpType::Ud, pd, cq, cq)).unwrap();
    let base = QpAttr { qkey: Lone::QKEY, ..QpAttr::default() };
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let mask = AttrMask::to_enter(QpType::Ud, state);
        nic.modify_qp(Instant::ZERO, qpn, &QpAttr { state, ..base }, mask).unwrap();
    }
    let to = AddressVector { dgid: Lone::peer_gid(), ..AddressVector::default() };
    let ah = nic.create_ah(pd, to).unwrap();
    let mr = nic.reg_mr(pd, vec![0; 2048], Access::empty()).unwrap();
    let mut post = |length| {
        let piece = Sge { addr: mr.addr, length, lkey: mr.lkey };
        nic.post_send(Instant::ZERO, qpn, SendWr::send(1, &[piece]).to(ah, Lone::PEER, Lone::QKEY))
    };
    post(1024).unwrap();
    let error = post(1025).unwrap_err();
    assert_eq!((error, error.errno()), (PostError::DatagramTooLong { given: 1025, max: 1024 }, EINVAL));
}

// ---- F38 ----

/// Rules R-ADR-1, R-ADR-2, R-QPS-17.
#[test]
fn f38_the_path_mtu_is_that_of_the_interface_at_most() {
    for (interface, mtu) in [(1500, Mtu::B1024), (2200, Mtu::B2048), (4200, Mtu::B4096), (9000, Mtu::B4096)] {
        let table = GidTable::new(&["10.0.0.1".parse().unwrap()], Mac([2; 6]), interface);
        assert_eq!(table.active_mtu(), mtu, "{interface}");
        let (mut nic, qpn, _) = nic(table.gids(), table.active_mtu());
        for path_mtu in Mtu::ALL {
            let result = to_rtr(&mut nic, qpn, |attr| attr.path_mtu = path_mtu);
            assert_eq!(result, if path_mtu <= mtu { Ok(()) } else { Err(EINVAL) }, "{path_mtu} over {mtu}");
        }
    }
}

/// Rules R-RSP-12, R-WIR-19.
#[test]
fn f38_full_packets_of_another_size_are_refused() {
    for len in [256, 512, 1020, 1028, 2048, 4096] {
        for middle in [false, true] {
            let mut lone = Lone::new(Conn::default());
            lone.post_recv(1, 8192);
            let first = Crafted::rc(Operation::SendFirst, lone.qpn, Lone::psn(0)).ack_req();
            let good = first.clone().payload(&[1; 1024]);
            let next = Crafted::rc(Operation::SendMiddle, lone.qpn, Lone::psn(1)).ack_req();
            let bad = if middle { next } else { first }.payload(&vec![1; len]);
            let sent = if middle { lone.answer(&[good, bad]) } else { lone.answer(&[bad]) };
            let last = sent.last().unwrap();
            let invalid = Syndrome::Nak(NakCode::InvalidRequest);
            assert_eq!((last.aeth, invalid.byte()), (Some((invalid, 0)), 0x61), "{len} bytes");
            assert_eq!(last.psn, Lone::psn(u32::from(middle)));
        }
    }
}

// ---- F39 ----

/// Rules R-ADR-15 to R-ADR-17.
#[test]
fn f39_there_is_one_gid_for_each_address_and_the_unused_ones_are_empty() {
    let addresses = ["10.0.0.1", "fe80::1", "fd00::1", "10.0.0.1", "10.0.0.2"].map(|a| a.parse().unwrap());
    let table = GidTable::new(&addresses, Mac([2; 6]), 1500);
    let expected = ["fe80::1", "10.0.0.1", "fd00::1", "10.0.0.2"].map(gid);
    assert_eq!((table.gids(), table.get(4)), (&expected[..], None));
    // An entry whose address went away is empty.
    let (mut nic, qpn, _) = nic(&[expected[0], expected[1], Gid::ZERO, expected[3]], Mtu::B1024);
    for (index, result) in [(1, Ok(())), (3, Ok(())), (2, Err(EINVAL)), (4, Err(EINVAL)), (255, Err(EINVAL))]
    {
        assert_eq!(to_rtr(&mut nic, qpn, |attr| attr.addr.sgid_index = index), result, "index {index}");
    }
    // Addresses of two families, and none at all.
    assert_eq!(to_rtr(&mut nic, qpn, |attr| attr.addr.sgid_index = 0), Err(EINVAL));
    let nobody = |attr: &mut QpAttr| (attr.addr.sgid_index, attr.addr.dgid) = (1, Gid::ZERO);
    assert_eq!(to_rtr(&mut nic, qpn, nobody), Err(EINVAL));
}

// ---- F41 ----

/// Rule R-ADR-3.
#[test]
fn f41_partition_keys_match_by_their_low_bits_and_a_full_member() {
    for (one, other, matches) in
        [(0xFFFF, 0x7FFF, true), (0x7FFF, 0x7FFF, false), (0x8000, 0x8000, false), (0x2A00, 0xAA00, true)]
    {
        let (one, other) = (PKey::new(one), PKey::new(other));
        assert_eq!((one.matches(other), other.matches(one)), (matches, matches), "{one} {other}");
    }
    for (pkey, taken) in [(0xFFFF, true), (0x7FFF, true), (0x8000, false), (0x2A00, false), (0, false)] {
        let mut lone = Lone::new(Conn::default());
        let write =
            Crafted::rc(Operation::WriteOnly, lone.qpn, Lone::psn(0)).ack_req().reth(0, RKey::new(0), 0);
        let sent = lone.answer(&[write.with(|bth| bth.with_pkey(PKey::new(pkey)))]);
        assert_eq!(sent.len(), usize::from(taken), "{pkey:#x}");
        assert_eq!(lone.nic.drops().total(), u64::from(!taken));
    }
}
