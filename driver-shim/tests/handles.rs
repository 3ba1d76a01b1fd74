//! The handles of a program, on two devices in memory: their lifetimes, waiting, and what the device's own thread
//! does while the program is away.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::any::Any;
use std::time::Duration;

use fabric::{FaultKind, FaultSpec};
use ferroce_driver_shim::backend::{Backend, Faulty, Hub, Loopback};
use ferroce_driver_shim::{CompletionQueue, ConnectOptions, Device, MemoryRegion, QueuePair};
use qp::{Access, AsyncEvent, QpState, QpType, RecvWr, SendWr, WcStatus};
use wire::RKey;

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(10);

/// One end of a connection, with all that belongs to it.
struct End {
    device: Device,
    cq: CompletionQueue,
    mr: MemoryRegion,
    qp: QueuePair,
}

fn device(hub: &Hub, last: u8, faults: &[FaultSpec]) -> Device {
    let mut backend: Box<dyn Backend> = Box::new(hub.attach([127, 0, 0, last].into()).unwrap());
    if !faults.is_empty() {
        backend = Box::new(Faulty::new(backend, faults, 1));
    }
    Device::boxed(backend).seed(last.into()).open().unwrap()
}

/// Two connected ends; the first has these faults.
fn connected(faults: &[FaultSpec]) -> [End; 2] {
    let hub = Loopback::hub();
    let [a, b] = [(2, faults), (3, &[])].map(|(last, faults)| {
        let device = device(&hub, last, faults);
        let (pd, cq) = (device.alloc_pd(), device.create_cq(16).unwrap());
        let mr = pd.register(vec![last; 4096], Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let qp = pd.create_qp(QpType::Rc, &cq, &cq).signal_all().build().unwrap();
        (device, cq, mr, qp)
    });
    let ends = [a.3.endpoint(1), b.3.endpoint(1)];
    let join = |(device, cq, mr, qp): (Device, _, _, ferroce_driver_shim::PreparedQp), peer| {
        let qp = qp.connect(peer, &ConnectOptions::default()).unwrap();
        End { device, cq, mr, qp }
    };
    [join(a, ends[1]), join(b, ends[0])]
}

/// Debug assertions in the handles fail where one goes while another still needs it.
#[test]
fn handles_may_be_dropped_in_any_order() {
    for first in 0..5 {
        for backwards in [false, true] {
            let hub = Loopback::hub();
            let device = device(&hub, 2, &[]);
            let (pd, cq) = (device.alloc_pd(), device.create_cq(1).unwrap());
            let mr = pd.register(vec![0; 16], Access::LOCAL_WRITE).unwrap();
            let qp = pd.create_qp(QpType::Rc, &cq, &cq).build().unwrap();
            let mut handles: Vec<Box<dyn Any>> =
                vec![Box::new(device), Box::new(pd), Box::new(cq), Box::new(mr), Box::new(qp)];
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

#[test]
fn a_message_wakes_who_waits_for_it() {
    let [near, far] = connected(&[]);
    assert_eq!(far.cq.wait(1, Duration::from_millis(1)), [], "nothing was sent");
    far.qp.post_recv(RecvWr::new(1, &[far.mr.slice(0..16).unwrap()])).unwrap();
    let received = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| far.cq.wait(1, LIMIT));
        near.qp.post_send(SendWr::send(2, &[near.mr.slice(0..5).unwrap()])).unwrap();
        waiting.join().unwrap()
    });
    assert_eq!((received.len(), received[0].status, received[0].byte_len), (1, WcStatus::Success, 5));
    assert_eq!(far.mr.to_vec(0..6).unwrap(), [2, 2, 2, 2, 2, 3]);
    assert_eq!(near.cq.wait(1, LIMIT).len(), 1);
}

#[test]
fn a_lost_packet_is_sent_again_while_the_program_is_away() {
    let lose_the_first = FaultSpec::parse(FaultKind::Drop, "tx:psn=+0,pass=1").unwrap();
    let [near, far] = connected(&[lose_the_first]);
    far.qp.post_recv(RecvWr::new(1, &[far.mr.slice(0..16).unwrap()])).unwrap();
    // Long enough for the threads of both devices to find nothing to do, and to sleep without a timer.
    assert_eq!(far.cq.wait(1, Duration::from_millis(30)), []);
    near.qp.post_send(SendWr::send(2, &[near.mr.slice(0..5).unwrap()])).unwrap();
    // From here on nobody but its own thread looks after the near device.
    assert_eq!(far.cq.wait(1, LIMIT).len(), 1);
    assert_eq!(near.device.counters().local_ack_timeout_err, 1);
}

#[test]
fn a_refused_request_is_an_event_of_the_device_that_refused_it() {
    let [near, far] = connected(&[]);
    let wrong = RKey::new(far.mr.rkey().value() ^ 1);
    near.qp.post_send(SendWr::write(1, &[near.mr.slice(0..5).unwrap()], far.mr.addr(), wrong)).unwrap();
    let done = near.cq.wait(1, LIMIT);
    assert_eq!(done.iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::RemAccessErr]);
    assert_eq!([near.qp.state(), far.qp.state()], [QpState::Err; 2]);
    assert_eq!(far.device.poll_async_event(), Some(AsyncEvent::QpAccessErr(far.qp.qpn())));
    assert_eq!((far.device.poll_async_event(), far.device.path_error()), (None, None));
}

#[test]
fn ranges_outside_of_a_region_are_refused() {
    let [near, _far] = connected(&[]);
    let (start, end) = (5, 4);
    assert!(near.mr.slice(4096..4096).is_ok());
    for range in [4096..4097, start..end, usize::MAX..usize::MAX] {
        assert!(near.mr.slice(range.clone()).is_err(), "{range:?}");
        assert!(near.mr.to_vec(range.clone()).is_err(), "{range:?}");
    }
    assert!(near.mr.write_at(4095, &[1, 2]).is_err());
    assert!(near.mr.read_at(usize::MAX, &mut [0]).is_err());
    assert_eq!(near.mr.to_vec(4095..4096).unwrap(), [2], "nothing was written");
}
