//! Shared receive queues and XRC through the handles of a program, on devices in memory.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::any::Any;
use std::time::Duration;

use ferroce_driver_shim::backend::{Hub, Loopback};
use ferroce_driver_shim::{
    CompletionQueue, ConnectOptions, Device, MemoryRegion, ProtectionDomain, QueuePair, SharedReceiveQueue,
};
use qp::{
    Access, AsyncEvent, AttrMask, CreateError, PostError, QpAttr, QpState, QpType, RecvWr, SendWr, WcStatus,
};

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(60);

/// Nothing gets lost here, and nothing is to be repeated only because the machine is busy.
fn patient() -> ConnectOptions {
    ConnectOptions { timeout: 20, ..ConnectOptions::default() }
}

fn device(hub: &Hub, last: u8) -> Device {
    Device::builder(hub.attach([127, 0, 0, last].into()).unwrap()).seed(last.into()).open().unwrap()
}

/// What every end has.
struct End {
    device: Device,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    mr: MemoryRegion,
}

impl End {
    fn new(hub: &Hub, last: u8) -> Self {
        let device = device(hub, last);
        let (pd, cq) = (device.alloc_pd(), device.create_cq(64).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(vec![last; 4096], access).unwrap();
        Self { device, pd, cq, mr }
    }

    fn recv(&self, id: u64) -> RecvWr {
        RecvWr::new(id, &[self.mr.slice(0..64).unwrap()])
    }

    fn send(&self, id: u64) -> SendWr {
        SendWr::send(id, &[self.mr.slice(0..5).unwrap()]).signaled()
    }
}

/// Two queue pairs of `near`, each connected to one of `far` on `srq`.
fn two_connections(near: &End, far: &End, srq: &SharedReceiveQueue) -> [[QueuePair; 2]; 2] {
    [(); 2].map(|()| {
        let a = near.pd.create_qp(QpType::Rc, &near.cq, &near.cq).build().unwrap();
        let b = far.pd.create_qp(QpType::Rc, &far.cq, &far.cq).srq(srq).build().unwrap();
        let (at_a, at_b) = (a.endpoint(1), b.endpoint(1));
        let options = patient();
        [a.connect(at_b, &options).unwrap(), b.connect(at_a, &options).unwrap()]
    })
}

/// The next event.
fn event(device: &Device) -> AsyncEvent {
    device.wait_async_event(LIMIT).unwrap()
}

/// Debug assertions in the handles fail where one goes while another still needs it.
#[test]
fn handles_may_be_dropped_in_any_order() {
    for first in 0..9 {
        for backwards in [false, true] {
            let hub = Loopback::hub();
            let End { device, pd, cq, .. } = End::new(&hub, 2);
            let xrcd = device.alloc_xrcd();
            let (srq, named) = (pd.create_srq(4, 1).unwrap(), pd.create_xrc_srq(&xrcd, &cq, 4, 1).unwrap());
            let qp = pd.create_qp(QpType::Rc, &cq, &cq).srq(&srq).build().unwrap();
            let initiator = pd.create_qp(QpType::XrcIni, &cq, &cq).build().unwrap();
            let target = xrcd.create_target().unwrap();
            let mut handles: Vec<Box<dyn Any>> = vec![
                Box::new(device),
                Box::new(pd),
                Box::new(cq),
                Box::new(xrcd),
                Box::new(srq),
                Box::new(named),
                Box::new(qp),
                Box::new(initiator),
                Box::new(target),
            ];
            handles.rotate_left(first);
            if backwards {
                handles.reverse();
            }
            for handle in handles {
                drop(handle);
            }
            // The last one took the device with it.
            drop(hub.attach([127, 0, 0, 2].into()).unwrap());
        }
    }
}

/// Rules R-RSP-46, R-CQE-12.
#[test]
fn two_queue_pairs_share_receives_and_their_program_is_told() {
    let hub = Loopback::hub();
    let (near, far) = (End::new(&hub, 2), End::new(&hub, 3));
    let srq = far.pd.create_srq(4, 1).unwrap();
    let [[a, b], [c, d]] = two_connections(&near, &far, &srq);
    srq.post_recv_list((1..=4).map(|id| far.recv(id))).unwrap();
    assert_eq!(srq.post_recv(far.recv(5)), Err(PostError::QueueFull(4)));
    assert_eq!(b.post_recv(far.recv(6)), Err(PostError::SharedReceives));
    srq.set_limit(3).unwrap();
    for (id, (sender, receiver)) in [(&a, &b), (&c, &d)].into_iter().enumerate() {
        sender.post_send(near.send(0)).unwrap();
        let done = far.cq.wait(1, LIMIT);
        let done: Vec<_> = done.iter().map(|wc| (wc.wr_id.value(), wc.qp_num, wc.status)).collect();
        assert_eq!(done, [(id as u64 + 1, receiver.qpn(), WcStatus::Success)]);
    }
    assert_eq!(event(&far.device), AsyncEvent::SrqLimitReached(srq.number()));
    assert_eq!((srq.waiting(), srq.query().limit), (2, 0));
    srq.resize(2).unwrap();
    assert!(srq.resize(1).is_err());
    b.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    assert_eq!(event(&far.device), AsyncEvent::LastWqeReached(b.qpn()));
    assert_eq!((srq.waiting(), far.cq.poll(4)), (2, vec![]));
}

/// Rule R-RSP-45.
#[test]
fn an_initiator_sends_to_the_shared_queues_of_a_target() {
    let hub = Loopback::hub();
    let (near, far) = (End::new(&hub, 2), End::new(&hub, 3));
    let xrcd = far.device.alloc_xrcd();
    let srqs = [(); 2].map(|()| {
        let cq = far.device.create_cq(8).unwrap();
        (far.pd.create_xrc_srq(&xrcd, &cq, 4, 1).unwrap(), cq)
    });
    let initiator = near.pd.create_qp(QpType::XrcIni, &near.cq, &near.cq).build().unwrap();
    let target = xrcd.create_target().unwrap();
    let ends = [initiator.endpoint(1), target.endpoint(1)];
    let target = target.connect(ends[0], &patient()).unwrap();
    let initiator = initiator.connect(ends[1], &patient()).unwrap();
    assert!(target.pd().is_none() && target.send_cq().is_none() && target.recv_cq().is_none());
    for (id, (srq, cq)) in srqs.iter().enumerate() {
        let id = id as u64;
        srq.post_recv(far.recv(10 + id)).unwrap();
        initiator.post_send(near.send(id).for_srq(srq.number())).unwrap();
        let done = cq.wait(1, LIMIT);
        assert_eq!((done[0].wr_id.value(), done[0].qp_num), (10 + id, target.qpn()));
        assert_eq!(near.cq.wait(1, LIMIT)[0].status, WcStatus::Success);
    }
    let (va, rkey) = (far.mr.addr(), far.mr.rkey());
    let read = SendWr::read(5, &[near.mr.slice(100..108).unwrap()], va, rkey).signaled();
    initiator.post_send(read.for_srq(srqs[0].0.number())).unwrap();
    assert_eq!(near.cq.wait(1, LIMIT)[0].status, WcStatus::Success);
    // The five bytes sent, then what was there.
    assert_eq!(near.mr.to_vec(100..108).unwrap(), [2, 2, 2, 2, 2, 3, 3, 3]);
}

#[test]
fn what_is_of_another_device_is_refused() {
    let hub = Loopback::hub();
    let (one, other) = (End::new(&hub, 2), End::new(&hub, 3));
    let (srq, xrcd) = (other.pd.create_srq(4, 1).unwrap(), other.device.alloc_xrcd());
    let qp = one.pd.create_qp(QpType::Rc, &one.cq, &one.cq).srq(&srq).build();
    assert_eq!(qp.unwrap_err(), CreateError::NoSrq);
    assert_eq!(one.pd.create_xrc_srq(&xrcd, &one.cq, 4, 1).unwrap_err(), CreateError::NoXrcd);
    let xrcd = one.device.alloc_xrcd();
    assert_eq!(one.pd.create_xrc_srq(&xrcd, &other.cq, 4, 1).unwrap_err(), CreateError::NoCq);
    assert_eq!(one.pd.create_qp(QpType::XrcTgt, &one.cq, &one.cq).build().unwrap_err(), CreateError::NoXrcd);
}
