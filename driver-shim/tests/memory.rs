//! Memory through the handles, on two devices in memory: windows, fast registration, registering anew, and the
//! work requests on them.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::time::Duration;

use ferroce_driver_shim::backend::{Hub, Loopback};
use ferroce_driver_shim::{
    CompletionQueue, ConnectOptions, Device, MemoryRegion, PreparedQp, ProtectionDomain, QueuePair,
};
use qp::{
    Access, MrError, MwRange, MwType, Placement, PostError, QpType, RecvWr, SendFlags, SendWr, WcOpcode,
    WcStatus,
};
use wire::{LKey, RKey, VirtAddr};

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(60);
const ROOM: usize = 4096;

struct End {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    mr: MemoryRegion,
    qp: QueuePair,
}

fn device(hub: &Hub, last: u8) -> Device {
    Device::builder(hub.attach([127, 0, 0, last].into()).unwrap()).seed(last.into()).open().unwrap()
}

/// Two connected ends, each with a region filled with its number that peers can do nothing with.
fn connected() -> [End; 2] {
    let hub = Loopback::hub();
    let [a, b] = [2, 3].map(|last| {
        let device = device(&hub, last);
        let (pd, cq) = (device.alloc_pd(), device.create_cq(16).unwrap());
        let mr = pd.register(vec![last; ROOM], Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
        let qp = pd.create_qp(QpType::Rc, &cq, &cq).signal_all().build().unwrap();
        (pd, cq, mr, qp)
    });
    let ends = [a.3.endpoint(1), b.3.endpoint(1)];
    let join = |(pd, cq, mr, qp): (_, _, _, PreparedQp), peer| {
        // Nothing gets lost here, and nothing is to be repeated only because the machine is busy.
        let patient = ConnectOptions { timeout: 20, ..ConnectOptions::default() };
        let access = patient.access | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT;
        let qp = qp.connect(peer, &ConnectOptions { access, ..patient }).unwrap();
        End { pd, cq, mr, qp }
    };
    [join(a, ends[1]), join(b, ends[0])]
}

impl End {
    /// Posts `wr` and waits for its completion.
    fn does(&self, wr: SendWr) -> (WcStatus, WcOpcode) {
        self.qp.post_send(wr).unwrap();
        self.done()
    }

    fn done(&self) -> (WcStatus, WcOpcode) {
        let wc = self.cq.wait(1, LIMIT)[0];
        (wc.status, wc.opcode)
    }

    /// A WRITE of four bytes to `va` of the peer.
    fn writes(&self, va: VirtAddr, rkey: RKey) -> WcStatus {
        self.does(SendWr::write(9, &[self.mr.slice(0..4).unwrap()], va, rkey)).0
    }

    fn range(&self, offset: usize, length: u64, access: Access) -> MwRange {
        MwRange { mr: self.mr.lkey(), va: self.mr.addr_at(offset), length, access }
    }
}

const BOUND: (WcStatus, WcOpcode) = (WcStatus::Success, WcOpcode::BindMw);

#[test]
fn a_type_2_window_is_bound_used_and_invalidated() {
    let [near, far] = connected();
    let window = far.pd.alloc_mw(MwType::Type2).unwrap();
    let range = far.range(64, 16, Access::REMOTE_WRITE);
    assert_eq!(far.does(window.bind(1, 0x42, &range)), BOUND);
    let key = window.rkey(0x42);
    assert_eq!(near.writes(far.mr.addr_at(64), key), WcStatus::Success);
    assert_eq!(far.mr.to_vec(63..69).unwrap(), [3, 2, 2, 2, 2, 3]);
    // The peer gives it back.
    far.qp.post_recv(RecvWr::new(5, &[])).unwrap();
    assert_eq!(near.does(SendWr::send_inv(2, &[], key)), (WcStatus::Success, WcOpcode::Send));
    let wc = far.cq.wait(1, LIMIT)[0];
    assert_eq!((wc.wr_id.value(), wc.status, wc.invalidated), (5, WcStatus::Success, Some(key)));
    assert_eq!(far.does(window.bind(6, 0x43, &range)), BOUND, "it is free again");
    assert_eq!(far.does(SendWr::local_inv(7, window.rkey(0x43))), (WcStatus::Success, WcOpcode::LocalInv));
    assert_eq!(near.writes(far.mr.addr_at(64), window.rkey(0x43)), WcStatus::RemAccessErr);
}

#[test]
fn a_type_1_window_is_bound_by_a_verb() {
    let [near, far] = connected();
    let window = far.pd.alloc_mw(MwType::Type1).unwrap();
    let bind = |range: &MwRange| far.qp.bind_mw(1, SendFlags::SIGNALED, &window, range);
    let first = bind(&far.range(0, 8, Access::REMOTE_WRITE)).unwrap();
    let second = bind(&far.range(8, 8, Access::REMOTE_WRITE)).unwrap();
    assert_ne!(first, second);
    assert_eq!([far.done(), far.done()], [BOUND; 2]);
    assert_eq!(near.writes(far.mr.addr_at(8), second), WcStatus::Success);
    assert_eq!(near.writes(far.mr.addr_at(0), first), WcStatus::RemAccessErr);

    let work_request = far.qp.post_send(window.bind(2, 1, &far.range(0, 8, Access::REMOTE_WRITE)));
    assert_eq!(work_request, Err(PostError::WindowType));
    let of_type_2 = far.pd.alloc_mw(MwType::Type2).unwrap();
    let range = far.range(0, 8, Access::REMOTE_READ);
    assert_eq!(
        far.qp.bind_mw(3, SendFlags::empty(), &of_type_2, &range).map_err(|error| error.errno()),
        Err(22)
    );
    let foreign = near.pd.alloc_mw(MwType::Type1).unwrap();
    let elsewhere = far.qp.bind_mw(3, SendFlags::empty(), &foreign, &range);
    assert_eq!(elsewhere, Err(PostError::NoSuchWindow));
}

#[test]
fn a_binding_that_may_not_be_fails_as_its_own_status() {
    let [_near, far] = connected();
    let window = far.pd.alloc_mw(MwType::Type2).unwrap();
    let status = far.does(window.bind(1, 1, &far.range(0, 0, Access::REMOTE_READ)));
    assert_eq!(status, (WcStatus::MwBindErr, WcOpcode::BindMw));
}

/// Debug assertions in the handles fail where one goes while another still needs it.
#[test]
fn regions_and_windows_go_in_any_order() {
    let [near, far] = connected();
    let windows: Vec<_> = (0..3).map(|_| far.pd.alloc_mw(MwType::Type2).unwrap()).collect();
    for window in &windows {
        assert_eq!(far.does(window.bind(1, 9, &far.range(0, 8, Access::REMOTE_WRITE))), BOUND);
    }
    let End { pd, mr, qp, .. } = far;
    let at = mr.addr();
    drop(mr);
    assert_eq!(near.writes(at, windows[0].rkey(9)), WcStatus::RemAccessErr, "it opens nowhere");
    drop(qp);
    drop(pd);
    drop(windows);
}

#[test]
fn a_fast_region_is_registered_and_given_back() {
    let [near, far] = connected();
    let region = far.pd.alloc_mr(1024).unwrap();
    assert_eq!(region.capacity(), 1024);
    let iova = VirtAddr::new(0x7000);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    for variant in [7, 8] {
        let registered = far.does(region.register(1, variant, iova, 100, access));
        assert_eq!(registered, (WcStatus::Success, WcOpcode::RegMr));
        region.write_at(0, &[0; 8]).unwrap();
        assert_eq!(near.writes(iova, region.rkey(variant)), WcStatus::Success);
        assert_eq!(region.to_vec(0..5).unwrap(), [2, 2, 2, 2, 0]);
        // It serves as local memory as well, and its key goes with the message that it receives.
        let piece = qp::Sge { addr: iova, length: 8, lkey: region.lkey(variant) };
        far.qp.post_recv(RecvWr::new(2, &[piece])).unwrap();
        let inline = SendWr::inline(3, qp::SendOp::SendInv { rkey: region.rkey(variant) }, vec![variant; 8]);
        assert_eq!(near.does(inline), (WcStatus::Success, WcOpcode::Send));
        assert_eq!(far.cq.wait(1, LIMIT)[0].invalidated, Some(region.rkey(variant)));
        assert_eq!(region.to_vec(0..8).unwrap(), [variant; 8]);
    }
    assert_eq!(near.writes(iova, region.rkey(8)), WcStatus::RemAccessErr);
}

#[test]
fn atomic_writes_and_flushes() {
    let [near, far] = connected();
    let access = Access::LOCAL_WRITE
        | Access::REMOTE_WRITE
        | Access::FLUSH_GLOBAL
        | Access::FLUSH_PERSISTENT
        | Access::ON_DEMAND;
    let target = far.pd.register(vec![0; 64], access).unwrap();
    let word = near.mr.slice(0..8).unwrap();
    let wrote = near.does(SendWr::atomic_write(1, word, target.addr_at(8), target.rkey()));
    assert_eq!(wrote, (WcStatus::Success, WcOpcode::AtomicWrite));
    assert_eq!(target.to_vec(7..17).unwrap(), [0, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
    let flushed = (WcStatus::Success, WcOpcode::Flush);
    let both = Placement::GLOBAL | Placement::PERSISTENT;
    assert_eq!(near.does(SendWr::flush(2, target.addr(), target.rkey(), 64, Placement::GLOBAL)), flushed);
    assert_eq!(near.does(SendWr::flush_region(3, target.rkey(), both)), flushed);
    let plain = far.pd.register(vec![0; 8], Access::REMOTE_READ).unwrap();
    let refused = near.does(SendWr::flush_region(4, plain.rkey(), Placement::GLOBAL));
    assert_eq!(refused, (WcStatus::RemAccessErr, WcOpcode::Flush));
}

#[test]
fn work_requests_that_cannot_be_are_not_taken() {
    let [near, _far] = connected();
    let (va, key, sge) = (VirtAddr::new(0), RKey::new(0x100), near.mr.slice(0..8).unwrap());
    let inline = |op| SendWr::inline(1, op, vec![0; 8]);
    let seven = near.mr.slice(0..7).unwrap();
    let flush = SendWr::flush_region(1, key, Placement::GLOBAL);
    for (wr, error) in [
        (SendWr::atomic_write(1, seven, va, key), PostError::AtomicLength(7)),
        (SendWr::flush_region(1, key, Placement::empty()), PostError::NoPlacement),
        (SendWr::new(1, flush.op, &[sge]), PostError::NoData),
        (SendWr::new(1, SendWr::local_inv(1, key).op, &[sge]), PostError::NoData),
        (inline(flush.op), PostError::NotInline),
        (inline(SendWr::local_inv(1, key).op), PostError::NotInline),
        (SendWr::flush(1, va, key, (1 << 31) + 1, Placement::GLOBAL), PostError::TooLong((1 << 31) + 1)),
    ] {
        assert_eq!((near.qp.post_send(wr), error.errno()), (Err(error), 22));
    }
}

#[test]
fn a_region_is_registered_anew_for_all_its_clones() {
    let [near, far] = connected();
    let clone = far.mr.clone();
    let before = clone.rkey();
    let access = Some(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    assert_eq!(far.mr.reregister(None, access, None), Ok(None));
    assert_ne!(clone.rkey(), before);
    assert_eq!(near.writes(clone.addr(), clone.rkey()), WcStatus::Success);
    let iova = VirtAddr::new(0x1_0000);
    let old = far.mr.reregister(None, None, Some((vec![7; 16], Some(iova)))).unwrap().unwrap();
    assert_eq!((old.len(), &old[..5]), (ROOM, &[2, 2, 2, 2, 3][..]));
    assert_eq!((clone.addr(), clone.len(), clone.to_vec(0..2)), (iova, 16, Ok(vec![7, 7])));
    assert_eq!(far.mr.reregister(Some(&near.pd), None, None), Err(MrError::NoPd), "of another device");
    let elsewhere = far.pd.device().alloc_pd();
    far.mr.reregister(Some(&elsewhere), None, None).unwrap();
    assert_eq!(near.writes(iova, clone.rkey()), WcStatus::RemAccessErr, "R-MEM-3");
    drop(elsewhere);

    let high = VirtAddr::new(u64::MAX - 7);
    let region = near.pd.register_at(vec![0; 8], high, Access::empty()).unwrap();
    assert_eq!((region.addr(), region.lkey()), (high, LKey::new(region.rkey().value())));
    let error = near.pd.register_at(vec![0; 9], high, Access::empty()).unwrap_err();
    assert_eq!(error.errno(), 22);
}
