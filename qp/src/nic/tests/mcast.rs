//! Multicast groups: who gets a copy, and who cannot be a member.

use std::net::Ipv4Addr;

use transport::DropReason;
use wire::{Gid, QKey, Qpn};

use super::unreliable::{QKEY, carry, ud};
use super::*;
use crate::error::{DestroyError, McastError, ModifyQpError};
use crate::state::{AddressVector, QpType};

fn group() -> Gid {
    Gid::from(Ipv4Addr::new(239, 1, 2, 3))
}

/// One more queue pair of datagrams on `host`, in RTS.
fn another(host: &mut Host, qkey: QKey) -> Qpn {
    let first = host.qpn;
    host.qpn = host.nic.create_qp(host.init).unwrap();
    let attr = QpAttr { qkey, ..QpAttr::default() };
    host.bring(QpState::Rts, &attr);
    core::mem::replace(&mut host.qpn, first)
}

/// A datagram of eight bytes from `a` to the group.
fn to_group(a: &mut Host) -> SendWr {
    let addr = AddressVector { dgid: group(), ..AddressVector::default() };
    let ah = a.nic.create_ah(a.pd, addr).unwrap();
    SendWr::send(1, &[a.sge(0, 8)]).to(ah, Qpn::MULTICAST, QKEY)
}

/// Rule R-ADM-12.
#[test]
fn each_member_with_the_queue_key_gets_a_copy() {
    let (mut a, mut b, _) = ud(QpType::Ud);
    let (second, stranger, outsider) =
        (another(&mut b, QKEY), another(&mut b, QKey::new(5)), another(&mut b, QKEY));
    for qpn in [b.qpn, second, stranger] {
        b.nic.attach_mcast(qpn, group()).unwrap();
        // Once more changes nothing.
        b.nic.attach_mcast(qpn, group()).unwrap();
    }
    for (at, qpn) in [b.qpn, second, stranger, outsider].into_iter().enumerate() {
        let wr = RecvWr::new(at as u64, &[b.sge(1000 * at as u64, 64)]);
        b.nic.post_recv(NOW, qpn, wr).unwrap();
    }
    let wr = to_group(&mut a);
    a.send(wr);
    let packets = carry(&mut a, &mut b);
    assert_eq!((packets.len(), packets[0].bth.dest_qp()), (1, Qpn::MULTICAST));
    let received = b.receives_done();
    let who: Vec<_> =
        received.iter().map(|wc| (wc.wr_id.value(), wc.qp_num, wc.src_qp, wc.byte_len)).collect();
    assert_eq!(who, [(0, b.qpn, a.qpn, 48), (1, second, a.qpn, 48)]);
    for at in [40, 1040] {
        assert_eq!(b.nic.mr_bytes(b.mr.lkey, at, 9).unwrap(), [[1; 8].as_slice(), &[2]].concat());
    }
    // Those without a receive lose it; the packet has been taken, or counts as dropped once.
    assert_eq!(b.dropped(), []);
    let wr = to_group(&mut a);
    a.send(wr);
    carry(&mut a, &mut b);
    assert_eq!(b.dropped(), [(DropReason::NoReceive, 1)]);
    for qpn in [b.qpn, second] {
        b.nic.detach_mcast(qpn, group()).unwrap();
    }
    let wr = to_group(&mut a);
    a.send(wr);
    carry(&mut a, &mut b);
    assert_eq!(b.nic.drops().get(DropReason::QKeyMismatch), 1, "the last member has another key");
    b.nic.detach_mcast(stranger, group()).unwrap();
    assert!(!b.nic.has_group(group()));
    let wr = to_group(&mut a);
    a.send(wr);
    carry(&mut a, &mut b);
    assert_eq!(b.nic.drops().get(DropReason::NoSuchQp), 1);
    assert_eq!(b.nic.counters().rcvd_pkts, 4);
}

/// Rule R-ADM-16.
#[test]
fn what_a_device_sends_to_a_group_does_not_come_back_to_it() {
    let (mut a, _, _) = ud(QpType::Ud);
    a.nic.attach_mcast(a.qpn, group()).unwrap();
    a.recv(RecvWr::new(1, &[a.sge(0, 64)]));
    let wr = to_group(&mut a);
    a.send(wr);
    let packets = a.transmit();
    a.take(&packets);
    assert_eq!((a.receives_done(), a.dropped()), (vec![], vec![(DropReason::WrongAddress, 1)]));
}

/// Rules R-ADR-8, R-ADR-22: an address of a group and a number of a queue pair do not go together, either way.
#[test]
fn a_group_is_reached_by_its_number_and_address_only() {
    let (mut a, mut b, ah) = ud(QpType::Ud);
    b.nic.attach_mcast(b.qpn, group()).unwrap();
    for wr in [to_group(&mut a).to_qpn(b.qpn), SendWr::send(1, &[]).to(ah, Qpn::MULTICAST, QKEY)] {
        b.recv(RecvWr::new(1, &[b.sge(0, 64)]));
        a.send(wr);
    }
    carry(&mut a, &mut b);
    assert_eq!(b.dropped(), [(DropReason::NoSuchQp, 1), (DropReason::WrongAddress, 1)]);
}

trait ToQpn {
    fn to_qpn(self, qpn: Qpn) -> Self;
}

impl ToQpn for SendWr {
    fn to_qpn(mut self, qpn: Qpn) -> Self {
        if let Some(to) = &mut self.to {
            to.qpn = qpn;
        }
        self
    }
}

#[test]
fn what_cannot_be_a_member_is_refused() {
    let (mut a, _, _) = ud(QpType::Ud);
    let host = a.gid;
    let v6 = Gid::from(std::net::Ipv6Addr::new(0xFF0E, 0, 0, 0, 0, 0, 0, 1));
    for (qpn, gid, error) in [
        (Qpn::new(5), group(), McastError::NoSuchQp),
        (a.qpn, host, McastError::NotAGroup(host)),
        (a.qpn, v6, McastError::Family(v6)),
    ] {
        let refused = a.nic.attach_mcast(qpn, gid).unwrap_err();
        assert_eq!((refused, refused.errno()), (error, 22));
    }
    assert_eq!(a.nic.detach_mcast(a.qpn, group()), Err(McastError::NotAttached(group())));
    assert_eq!(a.nic.detach_mcast(Qpn::new(5), group()), Err(McastError::NoSuchQp));
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Gsi] {
        let mut other = Host::with(3, |init| init.qp_type = qp_type);
        assert_eq!(other.nic.attach_mcast(other.qpn, group()), Err(McastError::QpType(qp_type)));
    }
    // Rule R-QPS-28: a member cannot be destroyed.
    a.nic.attach_mcast(a.qpn, group()).unwrap();
    assert_eq!(a.nic.groups_of(a.qpn), [group()]);
    let busy = a.nic.destroy_qp(a.qpn).unwrap_err();
    assert_eq!((busy, busy.errno()), (DestroyError::Busy, 16));
    a.nic.detach_mcast(a.qpn, group()).unwrap();
    a.nic.destroy_qp(a.qpn).unwrap();
}

#[test]
fn a_connection_cannot_be_to_a_group() {
    let (mut a, b) = (Host::new(1), Host::new(2));
    let mut attr = a.attr(&b);
    a.bring(QpState::Init, &attr);
    attr.addr.dgid = group();
    attr.state = QpState::Rtr;
    let error = a.nic.modify_qp(NOW, a.qpn, &attr, AttrMask::to_enter(QpType::Rc, QpState::Rtr)).unwrap_err();
    assert_eq!((error, error.errno()), (ModifyQpError::Multicast(group()), 22));
    assert_eq!(a.state(), QpState::Init);
}
