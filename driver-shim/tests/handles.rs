//! The handles of a program, on two devices in memory: their lifetimes, waiting, and what the device's own thread
//! does while the program is away.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{FaultKind, FaultSpec};
use ferroce_driver_shim::backend::{Backend, Faulty, Hub, Loopback};
use ferroce_driver_shim::interfaces::GidTable;
use ferroce_driver_shim::{CompletionQueue, ConnectOptions, Device, MemoryRegion, QueuePair};
use mio::{Registry, Token, Waker};
use qp::{Access, AsyncEvent, AttrMask, CreateError, QpAttr, QpState, QpType, RecvWr, SendWr, WcStatus};
use wire::batch::{Caps, RxBurst, TxBatch};
use wire::{NetHeader, QKey, RKey};

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(60);

/// Bytes of each region.
const ROOM: usize = 1 << 17;

/// One end of a connection, with all that belongs to it.
struct End {
    device: Device,
    cq: CompletionQueue,
    mr: MemoryRegion,
    qp: QueuePair,
}

/// Puts something around the back end of the first device.
type Wrap = fn(Loopback) -> Box<dyn Backend>;

fn plain(backend: Loopback) -> Box<dyn Backend> {
    Box::new(backend)
}

fn device(hub: &Hub, last: u8, wrap: Wrap) -> Device {
    Device::boxed(wrap(hub.attach([127, 0, 0, last].into()).unwrap())).seed(last.into()).open().unwrap()
}

/// Two connected ends; the first has its back end wrapped. Nothing is repeated only because the machine is busy.
fn connected(wrap: Wrap) -> [End; 2] {
    connected_with(wrap, 20)
}

/// The same with this ACK timer.
fn connected_with(wrap: Wrap, timeout: u8) -> [End; 2] {
    let hub = Loopback::hub();
    let [a, b] = [(2, wrap), (3, plain)].map(|(last, wrap)| {
        let device = device(&hub, last, wrap);
        let (pd, cq) = (device.alloc_pd(), device.create_cq(16).unwrap());
        let mr = pd.register(vec![last; ROOM], Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let qp = pd.create_qp(QpType::Rc, &cq, &cq).signal_all().build().unwrap();
        (device, cq, mr, qp)
    });
    let ends = [a.3.endpoint(1), b.3.endpoint(1)];
    let join = |(device, cq, mr, qp): (Device, _, _, ferroce_driver_shim::PreparedQp), peer| {
        let qp = qp.connect(peer, &ConnectOptions { timeout, ..ConnectOptions::default() }).unwrap();
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
            let device = device(&hub, 2, plain);
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
    let [near, far] = connected(plain);
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
    let lossy: Wrap = |backend| {
        let lose_the_first = FaultSpec::parse(FaultKind::Drop, "tx:psn=+0,pass=1").unwrap();
        Box::new(Faulty::new(Box::new(backend), &[lose_the_first], 1))
    };
    let [near, far] = connected_with(lossy, 14);
    far.qp.post_recv(RecvWr::new(1, &[far.mr.slice(0..16).unwrap()])).unwrap();
    // Long enough for the threads of both devices to find nothing to do, and to sleep without a timer.
    assert_eq!(far.cq.wait(1, Duration::from_millis(30)), []);
    near.qp.post_send(SendWr::send(2, &[near.mr.slice(0..5).unwrap()])).unwrap();
    // From here on nobody but its own thread looks after the near device.
    assert_eq!(far.cq.wait(1, LIMIT).len(), 1);
    assert!(near.device.counters().local_ack_timeout_err > 0);
}

/// Takes `end`'s queue pair to ERR.
fn fail(end: &End) {
    let failed = QpAttr { state: QpState::Err, ..QpAttr::default() };
    end.qp.modify(&failed, AttrMask::STATE).unwrap();
}

#[test]
fn a_receive_that_is_flushed_at_once_is_notified_at_once() {
    let [near, _far] = connected(plain);
    fail(&near);
    near.cq.req_notify(false);
    near.qp.post_recv(RecvWr::new(1, &[near.mr.slice(0..16).unwrap()])).unwrap();
    assert_eq!(near.cq.notifications(), 1);
    assert_eq!(near.cq.poll(2).iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::WrFlushErr]);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the wait is in real time")]
fn a_wait_goes_on_where_another_has_what_it_was_notified_of() {
    let [near, _far] = connected(plain);
    fail(&near);
    near.cq.req_notify(false);
    near.qp.post_send_later(SendWr::send(1, &[near.mr.slice(0..16).unwrap()])).unwrap();
    assert_eq!(near.cq.poll(1).len(), 1);
    let (start, timeout) = (Instant::now(), Duration::from_millis(20));
    assert_eq!(near.cq.wait(1, timeout), []);
    assert!(start.elapsed() >= timeout, "{:?}", start.elapsed());
}

#[test]
fn a_completion_queue_of_another_device_is_refused() {
    let [near, far] = connected(plain);
    let pd = near.device.alloc_pd();
    for (send, recv) in [(&near.cq, &far.cq), (&far.cq, &near.cq)] {
        assert_eq!(pd.create_qp(QpType::Rc, send, recv).build().unwrap_err(), CreateError::NoCq);
    }
}

#[test]
fn queue_pairs_of_another_type_are_neither_connected_nor_activated() {
    let [near, _far] = connected(plain);
    let pd = near.device.alloc_pd();
    let of = |qp_type| pd.create_qp(qp_type, &near.cq, &near.cq).build().unwrap();
    let peer = of(QpType::Rc).endpoint(1);
    for refused in [
        of(QpType::Ud).connect(peer, &ConnectOptions::default()),
        of(QpType::Rc).activate(QKey::new(7)),
        of(QpType::Uc).activate(QKey::new(7)),
    ] {
        assert_eq!(refused.unwrap_err().errno(), libc::EINVAL);
    }
}

/// A back end whose interface has gone away.
#[derive(Debug)]
struct Gone(Loopback);

impl Backend for Gone {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn caps(&self) -> Caps {
        self.0.caps()
    }

    fn addresses(&self) -> &GidTable {
        self.0.addresses()
    }

    fn recv_burst(&mut self, _: &mut RxBurst) -> io::Result<usize> {
        Ok(0)
    }

    fn send_batch(&mut self, _: &TxBatch, _: usize) -> io::Result<usize> {
        Err(io::ErrorKind::NetworkDown.into())
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.0.register(registry, token)
    }
}

#[test]
fn where_the_path_is_gone_sends_complete_with_an_error() {
    let [near, _far] = connected_with(|backend| Box::new(Gone(backend)), 14);
    near.qp.post_send(SendWr::send(1, &[near.mr.slice(0..16).unwrap()])).unwrap();
    let done = near.cq.wait(1, LIMIT);
    assert_eq!(done.iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::RetryExcErr]);
    assert!(near.device.path_error().is_some());
}

/// A back end that has room for one packet at every second call.
#[derive(Debug)]
struct Narrow {
    backend: Loopback,
    single: TxBatch,
    calls: u32,
}

impl Backend for Narrow {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn caps(&self) -> Caps {
        self.backend.caps()
    }

    fn addresses(&self) -> &GidTable {
        self.backend.addresses()
    }

    fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
        self.backend.recv_burst(rx)
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        self.calls += 1;
        let next = tx.iter_from(from).next().filter(|_| self.calls.is_multiple_of(2));
        let Some((net, body)) = next else { return Ok(0) };
        let NetHeader::V4(ip, _) = net else { panic!("IPv4") };
        self.single.begin(net, &self.backend.caps(), ip.id);
        self.single.push(body.len()).copy_from_slice(body);
        self.backend.send_batch(&self.single, 0)
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.backend.register(registry, token)
    }

    fn set_waker(&mut self, waker: Arc<Waker>) {
        self.backend.set_waker(waker);
    }
}

/// Rule R-REQ-30, field case F18.
#[test]
fn what_finds_no_room_is_sent_later_once_and_in_order() {
    let [near, far] = connected(|backend| Box::new(Narrow { backend, single: TxBatch::new(), calls: 0 }));
    let write = SendWr::write(1, &[near.mr.slice(0..ROOM).unwrap()], far.mr.addr(), far.mr.rkey());
    near.qp.post_send(write).unwrap();
    assert_eq!(near.cq.wait(1, LIMIT).iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::Success]);
    assert_eq!(far.mr.to_vec(0..ROOM).unwrap(), [2; ROOM]);
    let counters = far.device.counters();
    assert_eq!((counters.out_of_sequence, counters.rx_icrc_encapsulated), (0, 0));
}

#[test]
fn a_refused_request_is_an_event_of_the_device_that_refused_it() {
    let [near, far] = connected(plain);
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
    let [near, _far] = connected(plain);
    let (start, end) = (5, 4);
    assert!(near.mr.slice(ROOM..ROOM).is_ok());
    for range in [ROOM..ROOM + 1, start..end, usize::MAX..usize::MAX] {
        assert!(near.mr.slice(range.clone()).is_err(), "{range:?}");
        assert!(near.mr.to_vec(range.clone()).is_err(), "{range:?}");
    }
    assert!(near.mr.write_at(ROOM - 1, &[1, 2]).is_err());
    assert!(near.mr.read_at(usize::MAX, &mut [0]).is_err());
    assert_eq!(near.mr.to_vec(ROOM - 1..ROOM).unwrap(), [2], "nothing was written");
}
