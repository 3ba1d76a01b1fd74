//! XRC: initiators, targets, and the shared receive queues that requests name.

use transport::wqe::Placement;
use transport::{Access, DropReason};
use wire::opcode::Transport;
use wire::{NakCode, PacketRepr, Srqn};

use super::*;
use crate::cq::CqId;
use crate::error::{CreateError, DestroyError};
use crate::mr::MrInfo;
use crate::pair::QpInit;
use crate::srq::{SrqAttr, SrqInit, SrqMask, SrqXrc, XrcdId};
use crate::state::QpType;

/// What a peer can name: a shared receive queue with a domain, memory and a completion queue of its own.
#[derive(Clone, Copy)]
struct Shared {
    pd: transport::PdId,
    srqn: Srqn,
    cq: CqId,
    mr: MrInfo,
}

impl Shared {
    fn new(host: &mut Host, xrcd: XrcdId, cqe: usize) -> Self {
        let pd = host.nic.alloc_pd();
        let cq = host.nic.create_cq(cqe).unwrap();
        let mr = host.nic.reg_mr(pd, vec![0; 1 << 14], ALL).unwrap();
        let xrc = Some(SrqXrc { xrcd, cq });
        let srqn = host.nic.create_srq(SrqInit { xrc, ..SrqInit::new(pd, 8, 2) }).unwrap();
        Self { pd, srqn, cq, mr }
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.mr.addr.wrapping_add(offset), length, lkey: self.mr.lkey }
    }

    fn post(&self, host: &mut Host, id: u64, length: u32) {
        host.nic.post_srq_recv(self.srqn, RecvWr::new(id, &[self.sge(0, length)])).unwrap();
    }

    fn done(&self, host: &mut Host) -> Vec<transport::Completion> {
        let mut out = Vec::new();
        host.nic.poll_cq(self.cq, 1024, &mut out);
        out
    }
}

/// An initiator and a target in RTS with each other, and the target's domain.
fn xrc() -> (Host, Host, XrcdId) {
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    let xrcd = b.nic.alloc_xrcd();
    a.init = QpInit { cap: a.init.cap, ..QpInit::xrc_initiator(a.pd, a.send_cq) };
    b.init = QpInit::xrc_target(xrcd);
    for host in [&mut a, &mut b] {
        host.nic.destroy_qp(host.qpn).unwrap();
        host.qpn = host.nic.create_qp(host.init).unwrap();
    }
    let (of_a, of_b) = (a.attr(&b), b.attr(&a));
    a.bring(QpState::Rts, &of_a);
    b.bring(QpState::Rts, &of_b);
    (a, b, xrcd)
}

fn one() -> (Host, Host, Shared) {
    let (a, mut b, xrcd) = xrc();
    let shared = Shared::new(&mut b, xrcd, 64);
    (a, b, shared)
}

/// Carries packets both ways until there are none, and gives them.
fn exchange(a: &mut Host, b: &mut Host) -> (Vec<PacketRepr>, Vec<PacketRepr>) {
    let (mut asked, mut answered) = (Vec::new(), Vec::new());
    loop {
        let (from_a, from_b) = (a.transmit(), b.transmit());
        if from_a.is_empty() && from_b.is_empty() {
            return (asked, answered);
        }
        b.take(&from_a);
        a.take(&from_b);
        asked.extend(from_a);
        answered.extend(from_b);
    }
}

fn named(packet: &PacketRepr) -> Option<Srqn> {
    packet.ext.iter().find_map(|ext| match ext {
        wire::Ext::Xrceth(header) => Some(header.srqn()),
        _ => None,
    })
}

fn nak(packets: &[PacketRepr]) -> Option<NakCode> {
    packets.iter().find_map(|packet| {
        packet.ext.iter().find_map(|ext| match ext {
            wire::Ext::Aeth(aeth) => match aeth.syndrome() {
                Syndrome::Nak(code) => Some(code),
                _ => None,
            },
            _ => None,
        })
    })
}

/// Rules R-WIR-27 and R-RSP-45: in every packet of every request, MIDDLE and LAST too, and in no answer.
/// Rule R-REQ-36.
#[test]
fn every_operation_names_its_shared_queue_and_completes_there() {
    let (mut a, mut b, to) = one();
    to.post(&mut b, 10, 4096);
    to.post(&mut b, 11, 4096);
    to.post(&mut b, 12, 0);
    let va = |offset: u64| to.mr.addr.wrapping_add(offset);
    let rkey = to.mr.rkey;
    for wr in [
        SendWr::send(0, &[a.sge(0, 3000)]),
        SendWr::send_imm(1, &[a.sge(0, 7)], [1, 2, 3, 4]),
        SendWr::write(2, &[a.sge(0, 3000)], va(0x2000), rkey),
        SendWr::write_imm(3, &[a.sge(0, 2048)], va(0x3000), rkey, [5, 6, 7, 8]),
        SendWr::read(4, &[a.sge(0x1000, 3000)], va(0x2000), rkey),
        SendWr::fetch_add(5, a.sge(0x4000, 8), va(0x3800), rkey, 5),
        SendWr::cmp_swap(6, a.sge(0x4008, 8), va(0x3800), rkey, 5, 9),
    ] {
        a.send(wr.for_srq(to.srqn).signaled());
    }
    let (asked, answered) = exchange(&mut a, &mut b);
    let success = |ids: core::ops::Range<u64>| ids.map(|id| (id, WcStatus::Success)).collect::<Vec<_>>();
    assert_eq!(statuses(&a.sends_done()), success(0..7));
    let done = to.done(&mut b);
    assert_eq!(statuses(&done), success(10..13));
    let seen: Vec<_> = done.iter().map(|wc| (wc.opcode, wc.byte_len, wc.imm, wc.qp_num, wc.src_qp)).collect();
    let (from, at) = (a.qpn, b.qpn);
    assert_eq!(
        seen,
        [
            (WcOpcode::Recv, 3000, None, at, from),
            (WcOpcode::Recv, 7, Some([1, 2, 3, 4]), at, from),
            (WcOpcode::RecvRdmaWithImm, 2048, Some([5, 6, 7, 8]), at, from),
        ]
    );
    assert_eq!(b.nic.mr_bytes(to.mr.lkey, 0, 3001).unwrap(), [&[1; 3000][..], &[0]].concat());
    assert_eq!(a.nic.mr_bytes(a.mr.lkey, 0x1000, 3000).unwrap(), [1; 3000]);
    assert_eq!(a.nic.mr_bytes(a.mr.lkey, 0x4008, 8).unwrap(), 5_u64.to_ne_bytes());
    assert_eq!(b.nic.mr_bytes(to.mr.lkey, 0x3800, 8).unwrap(), 9_u64.to_ne_bytes());
    for (packets, name) in [(&asked, Some(to.srqn)), (&answered, None)] {
        for packet in packets {
            let info = packet.bth.opcode().info().unwrap();
            assert_eq!((info.transport, named(packet)), (Transport::Xrc, name), "{packet:?}");
        }
    }
    assert_eq!(asked.iter().filter(|packet| operations(&[(*packet).clone()]) == [Op::SendMiddle]).count(), 1);
    assert!(a.dropped().is_empty() && b.dropped().is_empty());
}

/// ATOMIC WRITE, FLUSH and SEND with invalidate are like the others: key and domain are the named queue's.
#[test]
fn extensions_work_on_the_memory_of_the_queue_that_is_named() {
    let (mut a, mut b, xrcd) = xrc();
    let to = Shared::new(&mut b, xrcd, 64);
    let rights = ALL | Access::FLUSH_GLOBAL;
    b.nic
        .modify_qp(NOW, b.qpn, &QpAttr { access: rights, ..QpAttr::default() }, AttrMask::ACCESS_FLAGS)
        .unwrap();
    let pd = b.nic.alloc_pd();
    let [own, other] = [to.pd, pd].map(|pd| b.nic.reg_mr(pd, vec![0; 64], rights).unwrap());
    let fast = b.nic.alloc_mr(to.pd, 64).unwrap();
    // A target can register nothing; an initiator of its domain can, without a peer that listens.
    let ini = b.nic.create_qp(QpInit::xrc_initiator(to.pd, b.send_cq)).unwrap();
    let attr = b.attr(&a);
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let mask = AttrMask::to_enter(QpType::XrcIni, state);
        b.nic.modify_qp(NOW, ini, &QpAttr { state, ..attr }, mask).unwrap();
    }
    b.nic.post_send(NOW, ini, SendWr::reg_mr(0, fast.lkey, 7, fast.addr, 64, ALL)).unwrap();
    assert_eq!(b.transmit(), []);
    let fast = RKey::new(fast.rkey.value() & !0xFF | 7);
    to.post(&mut b, 9, 64);
    let write = |a: &Host, key: &MrInfo| SendWr::atomic_write(0, a.sge(0, 8), key.addr, key.rkey);
    a.send(write(&a, &own).for_srq(to.srqn).signaled());
    a.send(SendWr::flush(1, own.addr, own.rkey, 8, Placement::GLOBAL).for_srq(to.srqn).signaled());
    a.send(SendWr::send_inv(2, &[a.sge(0, 8)], fast).for_srq(to.srqn).signaled());
    let (asked, answered) = exchange(&mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [0, 1, 2].map(|id| (id, WcStatus::Success)));
    assert!(asked.iter().all(|packet| named(packet) == Some(to.srqn)));
    assert!(answered.iter().all(|packet| named(packet).is_none()));
    assert_eq!(b.nic.mr_bytes(own.lkey, 0, 9).unwrap(), [&[1; 8][..], &[0]].concat());
    let done = to.done(&mut b);
    assert_eq!((statuses(&done), done[0].invalidated), (vec![(9, WcStatus::Success)], Some(fast)));
    a.send(write(&a, &other).for_srq(to.srqn));
    let (_, answered) = exchange(&mut a, &mut b);
    assert_eq!(nak(&answered), Some(NakCode::RemoteAccessError));
}

/// Rule R-RSP-45.
#[test]
fn what_is_not_of_the_domain_is_refused_and_told() {
    let (_, mut b, _) = one();
    let other = b.nic.alloc_xrcd();
    let foreign = Shared::new(&mut b, other, 64);
    let plain = b.nic.create_srq(SrqInit::new(b.pd, 4, 1)).unwrap();
    for srqn in [Srqn::new(0), Srqn::new(0xFF_FFFF), foreign.srqn, plain] {
        for op in [0, 1, 2] {
            let (mut a, mut b, to) = one();
            let other = b.nic.alloc_xrcd();
            assert_eq!(Shared::new(&mut b, other, 64).srqn, foreign.srqn);
            assert_eq!(b.nic.create_srq(SrqInit::new(b.pd, 4, 1)), Ok(plain));
            to.post(&mut b, 1, 64);
            let wr = match op {
                0 => SendWr::send(0, &[a.sge(0, 8)]),
                1 => SendWr::write(0, &[], to.mr.addr, to.mr.rkey),
                _ => SendWr::read(0, &[a.sge(0, 8)], to.mr.addr, to.mr.rkey),
            };
            a.send(wr.for_srq(srqn));
            let (_, answered) = exchange(&mut a, &mut b);
            assert_eq!(nak(&answered), Some(NakCode::InvalidRequest));
            assert_eq!(statuses(&a.sends_done()), [(0, WcStatus::RemInvReqErr)]);
            assert_eq!((b.state(), b.nic.srq_len(to.srqn)), (QpState::Err, 1));
            assert_eq!(b.events(), [Event::Async(AsyncEvent::QpAccessErr(b.qpn))]);
        }
    }
}

/// Rule R-RSP-45: memory is of the shared receive queue's domain, whatever else the target has served.
#[test]
fn a_target_reaches_the_memory_of_the_queue_that_is_named() {
    let (mut a, mut b, xrcd) = xrc();
    let [x, y] = [(); 2].map(|()| Shared::new(&mut b, xrcd, 64));
    for (shared, byte) in [(x, 7), (y, 9)] {
        b.nic.mr_bytes_mut(shared.mr.lkey, 0, 2000).unwrap().fill(byte);
    }
    // Both READs wait to be answered at the same time.
    a.send(SendWr::read(0, &[a.sge(0, 2000)], x.mr.addr, x.mr.rkey).for_srq(x.srqn).signaled());
    a.send(SendWr::read(1, &[a.sge(2000, 2000)], y.mr.addr, y.mr.rkey).for_srq(y.srqn).signaled());
    let packets = a.transmit();
    b.take(&packets);
    let answers = b.transmit();
    assert_eq!(answers.len(), 4);
    a.take(&answers);
    assert_eq!(statuses(&a.sends_done()), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    let read = a.nic.mr_bytes(a.mr.lkey, 0, 4000).unwrap();
    assert_eq!(read, [[7; 2000], [9; 2000]].concat());
    // The first one again, as if its answer had been lost, in the light of its own domain.
    b.take(&packets[..1]);
    assert_eq!(b.transmit().len(), 2);
    // A key of the other queue's domain is no key.
    a.send(SendWr::write(2, &[a.sge(0, 8)], x.mr.addr, x.mr.rkey).for_srq(y.srqn));
    let (_, answered) = exchange(&mut a, &mut b);
    assert_eq!(nak(&answered), Some(NakCode::RemoteAccessError));
    assert_eq!(statuses(&a.sends_done()), [(2, WcStatus::RemAccessErr)]);
    assert_eq!(b.events(), [Event::Async(AsyncEvent::QpAccessErr(b.qpn))]);
}

#[test]
fn each_queue_completes_on_its_own_and_tells_of_its_limit() {
    let (mut a, mut b, xrcd) = xrc();
    let [x, y] = [(); 2].map(|()| Shared::new(&mut b, xrcd, 64));
    for (shared, id) in [(x, 1), (y, 2), (x, 3)] {
        shared.post(&mut b, id, 64);
    }
    b.nic.modify_srq(x.srqn, &SrqAttr { limit: 1, ..SrqAttr::default() }, SrqMask::LIMIT).unwrap();
    for (id, shared) in [(0, x), (1, y), (2, x)] {
        a.send(SendWr::send(id, &[a.sge(0, 8)]).for_srq(shared.srqn));
        assert_eq!(b.events(), []);
        drive(&mut a, &mut b);
    }
    assert_eq!(b.events(), [Event::Async(AsyncEvent::SrqLimitReached(x.srqn))]);
    assert_eq!(statuses(&x.done(&mut b)), [(1, WcStatus::Success), (3, WcStatus::Success)]);
    assert_eq!(statuses(&y.done(&mut b)), [(2, WcStatus::Success)]);
}

/// Rule R-RSP-18.
#[test]
fn an_empty_queue_answers_not_ready() {
    let (mut a, mut b, to) = one();
    a.send(SendWr::send(0, &[a.sge(0, 10)]).for_srq(to.srqn).signaled());
    drive(&mut a, &mut b);
    assert_eq!((b.nic.counters().out_of_buffer, a.nic.counters().rnr_nak_retry_err), (1, 1));
    to.post(&mut b, 4, 10);
    let due = a.nic.poll_timeout().unwrap();
    a.nic.handle_timeout(due);
    drive_at(due, &mut a, &mut b);
    assert_eq!(statuses(&a.sends_done()), [(0, WcStatus::Success)]);
    assert_eq!(statuses(&to.done(&mut b)), [(4, WcStatus::Success)]);
}

/// Rule R-RSP-62.
#[test]
fn a_message_is_for_one_queue_from_its_first_packet_to_its_last() {
    for write in [false, true] {
        let (mut a, mut b, xrcd) = xrc();
        let [x, y] = [(); 2].map(|()| Shared::new(&mut b, xrcd, 64));
        x.post(&mut b, 1, 4096);
        y.post(&mut b, 2, 4096);
        let wr = match write {
            true => SendWr::write(0, &[a.sge(0, 3000)], x.mr.addr, x.mr.rkey),
            false => SendWr::send(0, &[a.sge(0, 3000)]),
        };
        a.send(wr.for_srq(x.srqn));
        let mut packets = a.transmit();
        for ext in &mut packets[1].ext {
            *ext = wire::ext::Xrceth::new(y.srqn).into();
        }
        packets[1].refill_icrc();
        b.take(&packets);
        assert_eq!(nak(&b.transmit()), Some(NakCode::InvalidRequest));
        let (done, events) = match write {
            true => (vec![], vec![Event::Async(AsyncEvent::QpReqErr(b.qpn))]),
            false => (vec![(1, WcStatus::RemInvReqErr)], vec![]),
        };
        assert_eq!((statuses(&x.done(&mut b)), b.events()), (done, events));
        assert!(y.done(&mut b).is_empty());
    }
}

#[test]
fn a_queue_that_goes_while_it_is_named_takes_its_requests_along() {
    let (mut a, mut b, to) = one();
    to.post(&mut b, 1, 4096);
    a.send(SendWr::read(0, &[a.sge(0, 8)], to.mr.addr, to.mr.rkey).for_srq(to.srqn).signaled());
    a.send(SendWr::send(1, &[a.sge(0, 3000)]).for_srq(to.srqn));
    let packets = a.transmit();
    b.take(&packets[..2]);
    assert_eq!(b.transmit().len(), 1);
    b.nic.destroy_srq(to.srqn).unwrap();
    b.take(&packets[..1]);
    assert_eq!(b.dropped(), [(DropReason::DuplicateUnknown, 1)], "its domain has gone with it");
    b.take(&packets[2..]);
    assert_eq!(nak(&b.transmit()), Some(NakCode::InvalidRequest));
    assert_eq!(b.events(), [Event::Async(AsyncEvent::QpAccessErr(b.qpn))]);
    assert!(to.done(&mut b).is_empty());
    b.nic.destroy_cq(to.cq).unwrap();
    // What comes after it has another number.
    let xrcd = b.init.xrcd.unwrap();
    assert_ne!(Shared::new(&mut b, xrcd, 64).srqn, to.srqn);
}

/// Rules R-CQE-2, R-CQE-12.
#[test]
fn err_flushes_the_receive_in_use_to_the_queue_it_came_from() {
    let (mut a, mut b, to) = one();
    to.post(&mut b, 1, 4096);
    to.post(&mut b, 2, 4096);
    a.send(SendWr::send(0, &[a.sge(0, 3000)]).for_srq(to.srqn));
    let packets = a.transmit();
    b.take(&packets[..1]);
    b.go(QpState::Err);
    assert_eq!(statuses(&to.done(&mut b)), flushed([1]));
    assert_eq!((b.events(), b.nic.srq_len(to.srqn)), (vec![], 1), "a target is not attached to any");
}

/// Rule R-CQE-9.
#[test]
fn a_queue_whose_completions_overrun_ends_the_target() {
    let (mut a, mut b, xrcd) = xrc();
    let to = Shared::new(&mut b, xrcd, 1);
    for id in 0..2 {
        to.post(&mut b, id, 64);
        a.send(SendWr::send(id, &[a.sge(0, 8)]).for_srq(to.srqn));
    }
    drive(&mut a, &mut b);
    let events = [AsyncEvent::CqErr(to.cq), AsyncEvent::QpFatal(b.qpn)].map(Event::Async);
    assert_eq!((b.state(), b.events()), (QpState::Err, events.to_vec()));
}

#[test]
fn a_new_retry_count_holds_for_what_an_initiator_has_begun() {
    let (mut a, _, shared) = one();
    a.send(SendWr::send(1, &[a.sge(0, 8)]).for_srq(shared.srqn).signaled());
    a.transmit();
    a.go(QpState::Sqd);
    a.modify(QpState::Sqd, &QpAttr { retry_cnt: 0, ..QpAttr::default() }, AttrMask::RETRY_CNT);
    let now = a.nic.poll_timeout().unwrap();
    a.nic.handle_timeout(now);
    assert_eq!(statuses(&a.sends_done()), [(1, WcStatus::RetryExcErr)]);
}

/// Rule R-RSP-63.
#[test]
fn each_has_one_half_only() {
    let (mut a, mut b, to) = one();
    to.post(&mut b, 1, 64);
    a.send(SendWr::send(0, &[a.sge(0, 8)]).for_srq(to.srqn).signaled());
    let mut request = a.transmit();
    b.take(&request);
    let mut answer = b.transmit();
    for (packet, host) in [(&mut request[0], &mut a), (&mut answer[0], &mut b)] {
        packet.bth = packet.bth.with_dest_qp(host.qpn);
        // The other way round.
        packet.net = wire::NetHeader::v2(packet.net.dst(), packet.net.src(), 50_000, 0, 64)
            .unwrap()
            .with_transport_len(packet.body_len());
        packet.refill_icrc();
        host.take(core::slice::from_ref(packet));
        assert_eq!(host.dropped(), [(DropReason::WrongHalf, 1)]);
        assert_eq!(host.state(), QpState::Rts);
    }
}

/// Rule R-CQE-11.
#[test]
fn what_xrc_cannot_do_is_refused() {
    let (mut a, mut b, to) = one();
    let error = a.nic.post_send(NOW, a.qpn, SendWr::send(0, &[])).unwrap_err();
    assert_eq!((error, error.errno()), (PostError::NoRemoteSrq, 22));
    let error = b.nic.post_send(NOW, b.qpn, SendWr::send(0, &[]).for_srq(to.srqn)).unwrap_err();
    assert_eq!((error, error.errno()), (PostError::WrongType(QpType::XrcTgt), 22));
    for (host, qp_type) in [(&mut a, QpType::XrcIni), (&mut b, QpType::XrcTgt)] {
        let error = host.nic.post_recv(NOW, host.qpn, RecvWr::new(0, &[])).unwrap_err();
        assert_eq!((error, error.errno()), (PostError::WrongType(qp_type), 22));
    }
    let xrcd = b.init.xrcd.unwrap();
    let gone = b.nic.alloc_xrcd();
    b.nic.close_xrcd(gone).unwrap();
    assert_eq!(b.nic.close_xrcd(gone), Err(DestroyError::NoSuchObject));
    let plain = b.nic.create_srq(SrqInit::new(b.pd, 4, 1)).unwrap();
    let ini = QpInit::xrc_initiator(b.pd, b.send_cq);
    for (init, error) in [
        (QpInit::xrc_target(gone), CreateError::NoXrcd),
        (QpInit { xrcd: None, ..QpInit::xrc_target(xrcd) }, CreateError::NoXrcd),
        (QpInit { srq: Some(plain), ..QpInit::xrc_target(xrcd) }, CreateError::XrcReceives),
        (QpInit { srq: Some(plain), ..ini }, CreateError::XrcReceives),
        (QpInit { pd: transport::PdId(77), ..ini }, CreateError::NoPd),
        (QpInit { send_cq: CqId(77), ..ini }, CreateError::NoCq),
        (
            QpInit { srq: Some(to.srqn), ..QpInit::new(QpType::Rc, b.pd, b.send_cq, b.recv_cq) },
            CreateError::XrcSrq,
        ),
    ] {
        assert_eq!(b.nic.create_qp(init), Err(error));
        assert_eq!(error.errno(), 22);
    }
    for (xrc, error) in [
        (SrqXrc { xrcd: gone, cq: to.cq }, CreateError::NoXrcd),
        (SrqXrc { xrcd, cq: CqId(77) }, CreateError::NoCq),
    ] {
        let init = SrqInit { xrc: Some(xrc), ..SrqInit::new(b.pd, 4, 1) };
        assert_eq!(b.nic.create_srq(init), Err(error));
    }
}

#[test]
fn nothing_goes_before_what_needs_it() {
    let (_, mut b, to) = one();
    let xrcd = b.init.xrcd.unwrap();
    assert_eq!(b.nic.close_xrcd(xrcd), Err(DestroyError::Busy));
    assert_eq!(b.nic.destroy_cq(to.cq), Err(DestroyError::Busy));
    // A target does not hold the queues that its peer names.
    b.nic.destroy_srq(to.srqn).unwrap();
    b.nic.destroy_cq(to.cq).unwrap();
    assert_eq!(b.nic.close_xrcd(xrcd), Err(DestroyError::Busy));
    b.nic.destroy_qp(b.qpn).unwrap();
    b.nic.close_xrcd(xrcd).unwrap();
}
