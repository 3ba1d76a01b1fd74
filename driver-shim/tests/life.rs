//! Completion channels, asynchronous events, multicast groups and connections within one device, by the handles of a
//! program, in memory and over the sockets of the host.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferroce_driver_shim::backend::{Backend, JoinError, Local, Loopback, OpenError, Raw, Udp, UdpConfig};
use ferroce_driver_shim::interfaces::GidTable;
use ferroce_driver_shim::{
    AttachError, CompletionChannel, CompletionQueue, ConnectOptions, Device, MemoryRegion, PreparedQp,
    ProtectionDomain, QueuePair,
};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use qp::{
    Access, AddressVector, AsyncEvent, AttrMask, McastError, PostError, QpAttr, QpState, QpType, RecvWr,
    ResizeCqError, SendWr, WcStatus,
};
use wire::batch::{Caps, RxBurst, TxBatch};
use wire::{Gid, QKey, Qpn, RKey};

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(60);
/// A wait in which nothing is to come.
const MOMENT: Duration = Duration::from_millis(30);
const QKEY: QKey = QKey::new(0x1234_5678);

/// Nothing gets lost here, and nothing is to be repeated only because the machine is busy.
fn patient() -> ConnectOptions {
    ConnectOptions { timeout: 20, ..ConnectOptions::default() }
}

fn open(backend: impl Backend + 'static, seed: u64) -> Device {
    Device::builder(backend).seed(seed).open().unwrap()
}

/// Devices in memory.
fn in_memory<const N: usize>() -> [Device; N] {
    let hub = Loopback::hub();
    std::array::from_fn(|i| {
        let last = u8::try_from(i + 2).unwrap();
        open(hub.attach([127, 0, 0, last].into()).unwrap(), last.into())
    })
}

/// A number that this process has for itself, for addresses: other tests run beside it.
fn own() -> u8 {
    64 + u8::try_from(std::process::id() % 128).unwrap()
}

/// An address of loopback that no other test has, which ends so.
fn local(end: [u8; 2]) -> Local {
    Local::Address([127, own(), end[0], end[1]].into())
}

fn udp(end: [u8; 2]) -> Device {
    let config = UdpConfig { local: local(end), ..UdpConfig::default() };
    open(Udp::open(&config).unwrap(), 1)
}

/// A device over raw sockets, where the process may have them.
fn raw(end: [u8; 2]) -> Option<Device> {
    match Raw::open(&local(end)) {
        Err(error @ OpenError::NoPermission { .. }) => {
            println!("skipped: {error}");
            None
        }
        other => Some(open(other.unwrap(), 1)),
    }
}

/// A queue pair with all that belongs to it.
struct End<Q> {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    mr: MemoryRegion,
    qp: Q,
}

fn end(device: &Device, cq: CompletionQueue, qp_type: QpType) -> End<PreparedQp> {
    let pd = device.alloc_pd();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let mr = pd.register(vec![0; 1 << 16], access).unwrap();
    let qp = pd.create_qp(qp_type, &cq, &cq).signal_all().build().unwrap();
    End { pd, cq, mr, qp }
}

/// Two ends, connected to each other.
fn join(a: End<PreparedQp>, b: End<PreparedQp>) -> [End<QueuePair>; 2] {
    let peers = [b.qp.endpoint(1), a.qp.endpoint(1)];
    let connect = |End { pd, cq, mr, qp }: End<PreparedQp>, peer| {
        let qp = qp.connect(peer, &patient()).unwrap();
        End { pd, cq, mr, qp }
    };
    [connect(a, peers[0]), connect(b, peers[1])]
}

fn connected(devices: [&Device; 2], cqs: [CompletionQueue; 2]) -> [End<QueuePair>; 2] {
    let [a, b] = cqs;
    join(end(devices[0], a, QpType::Rc), end(devices[1], b, QpType::Rc))
}

fn datagrams(device: &Device) -> End<QueuePair> {
    let End { pd, cq, mr, qp } = end(device, device.create_cq(64).unwrap(), QpType::Ud);
    End { pd, cq, mr, qp: qp.activate(QKEY).unwrap() }
}

fn cq(device: &Device) -> CompletionQueue {
    device.create_cq(64).unwrap()
}

impl End<QueuePair> {
    fn write_to(&self, peer: &Self, rkey: RKey) -> SendWr {
        SendWr::write(7, &[self.mr.slice(0..8).unwrap()], peer.mr.addr(), rkey)
    }
}

// ---- channels ----

/// Whether a program that polls the channel's descriptor finds it readable.
fn is_readable(channel: &CompletionChannel) -> bool {
    let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(1));
    let fd = channel.as_fd().as_raw_fd();
    poll.registry().register(&mut SourceFd(&fd), Token(0), Interest::READABLE).unwrap();
    poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
    !events.is_empty()
}

#[test]
fn a_channel_tells_which_of_its_queues_was_notified_once_for_each_arming() {
    let [near, far] = in_memory();
    let channel = near.create_channel().unwrap();
    let (first, second) = (channel.create_cq(8).unwrap(), channel.create_cq(8).unwrap());
    let [a, _a] = connected([&near, &far], [first, cq(&far)]);
    let [b, _b] = connected([&near, &far], [second, cq(&far)]);
    let flush = |end: &End<QueuePair>| end.qp.post_send(SendWr::send(1, &[])).unwrap();
    for end in [&a, &b] {
        let failed = QpAttr { state: QpState::Err, ..QpAttr::default() };
        end.qp.modify(&failed, AttrMask::STATE).unwrap();
    }
    flush(&a);
    assert!(channel.try_event().is_none() && !is_readable(&channel), "not armed");
    for end in [&b, &a, &b] {
        end.cq.req_notify(false);
        flush(end);
        flush(end);
        assert!(is_readable(&channel));
        let event = channel.wait_event(LIMIT).unwrap();
        assert_eq!(event.queue().poll(2).last().unwrap().qp_num, end.qp.qpn());
        event.acknowledge();
        assert!(channel.try_event().is_none() && !is_readable(&channel));
    }
    // A queue that goes takes its notifications along, and leaves the others'.
    for end in [&a, &b] {
        end.cq.req_notify(false);
        flush(end);
    }
    let kept = b.cq.clone();
    drop(a);
    assert!(is_readable(&channel));
    let event = channel.wait_event(LIMIT).unwrap();
    assert_eq!(event.queue().poll(8).last().unwrap().qp_num, b.qp.qpn());
    drop((event, b, kept));
    assert!(channel.wait_event(Duration::ZERO).is_none() && !is_readable(&channel));
}

#[test]
fn whoever_waits_at_a_channel_is_woken_by_a_message() {
    let [near, far] = in_memory();
    let channel = far.create_channel().unwrap();
    let queue = channel.create_cq(8).unwrap();
    let [a, b] = connected([&near, &far], [cq(&near), queue]);
    assert!(channel.wait_event(MOMENT).is_none(), "nothing was sent");
    b.cq.req_notify(false);
    b.qp.post_recv(RecvWr::new(3, &[b.mr.slice(0..8).unwrap()])).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| channel.wait_event(LIMIT).map(|event| event.queue().poll(1)));
        // The other thread blocks by now, or will find it at once: both must do.
        assert_eq!(a.cq.wait(1, MOMENT), []);
        a.qp.post_send(SendWr::send(1, &[a.mr.slice(0..5).unwrap()])).unwrap();
        let received = waiting.join().unwrap().unwrap();
        assert_eq!((received[0].wr_id.value(), received[0].byte_len), (3, 5));
    });
}

/// Rule R-CQE-18.
#[test]
fn a_completion_queue_is_resized() {
    let [near, far] = in_memory();
    let [a, _b] = connected([&near, &far], [near.create_cq(1).unwrap(), cq(&far)]);
    let failed = QpAttr { state: QpState::Err, ..QpAttr::default() };
    a.qp.modify(&failed, AttrMask::STATE).unwrap();
    a.cq.resize(3).unwrap();
    a.qp.post_send_list((0..3).map(|id| SendWr::send(id, &[]))).unwrap();
    assert_eq!(a.cq.resize(2), Err(ResizeCqError::TooSmall { given: 2, waiting: 3 }));
    assert_eq!(a.cq.poll(3).len(), 3);
    a.cq.resize(1).unwrap();
    assert!(near.poll_async_event().is_none());
}

/// Field case F24.
#[test]
fn lists_are_posted_up_to_the_first_that_is_not_taken() {
    let [near, far] = in_memory();
    let (a, b) = (end(&near, cq(&near), QpType::Rc), end(&far, cq(&far), QpType::Rc));
    let qp = a.pd.create_qp(QpType::Rc, &a.cq, &a.cq).max_send_wr(3).max_recv_wr(2).build().unwrap();
    let [a, b] = join(End { qp, ..a }, b);
    let refused = b.qp.post_recv_list((0..129).map(|id| RecvWr::new(id, &[]))).unwrap_err();
    assert_eq!((refused.index, refused.error, refused.errno()), (128, PostError::QueueFull(128), 12));
    let refused = a.qp.post_send_list((0..5).map(|id| SendWr::send(id, &[]).signaled())).unwrap_err();
    assert_eq!((refused.index, refused.errno()), (3, 12));
    assert_eq!(refused.to_string(), "work request 3 of the list: the queue is full: 3 work requests wait");
    let mut done = Vec::new();
    while done.len() < 3 {
        let more = a.cq.wait(3, LIMIT);
        assert!(!more.is_empty());
        done.extend(more.iter().map(|wc| wc.wr_id.value()));
    }
    assert_eq!(done, [0, 1, 2]);
    assert_eq!(a.cq.wait(1, MOMENT), []);
}

// ---- asynchronous events ----

#[test]
fn whoever_waits_for_an_asynchronous_event_is_woken() {
    let [near, far] = in_memory();
    let [a, b] = connected([&near, &far], [cq(&near), cq(&far)]);
    assert_eq!(far.wait_async_event(MOMENT), None);
    let bad = RKey::new(b.mr.rkey().value() ^ 1);
    let event = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| far.wait_async_event(LIMIT));
        a.qp.post_send(a.write_to(&b, bad)).unwrap();
        waiting.join().unwrap()
    });
    assert_eq!(event, Some(AsyncEvent::QpAccessErr(b.qp.qpn())));
    // What nobody has fetched when the queue pair goes, nobody will.
    let [a, b] = connected([&near, &far], [cq(&near), cq(&far)]);
    a.qp.post_send(a.write_to(&b, bad)).unwrap();
    assert_eq!(a.cq.wait(1, LIMIT)[0].status, WcStatus::RemAccessErr);
    drop(b);
    assert_eq!(far.poll_async_event(), None);
}

/// A back end whose link comes and goes, and whose interface may go for good.
#[derive(Debug)]
struct Flaky {
    backend: Loopback,
    down: Arc<AtomicBool>,
    gone: Arc<AtomicBool>,
}

impl Backend for Flaky {
    fn name(&self) -> &'static str {
        "flaky"
    }

    fn caps(&self) -> Caps {
        self.backend.caps()
    }

    fn addresses(&self) -> &GidTable {
        self.backend.addresses()
    }

    fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.backend.recv_burst(rx)
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        self.backend.send_batch(tx, from)
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.backend.register(registry, token)
    }

    fn set_waker(&mut self, waker: Arc<Waker>) {
        self.backend.set_waker(waker);
    }

    fn link_is_up(&self) -> bool {
        !self.down.load(Ordering::Relaxed)
    }
}

#[test]
fn a_link_that_goes_and_a_path_that_breaks_are_events() {
    let backend = Loopback::hub().attach([127, 0, 0, 2].into()).unwrap();
    let (down, gone) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let device = open(Flaky { backend, down: Arc::clone(&down), gone: Arc::clone(&gone) }, 1);
    assert_eq!(device.wait_async_event(MOMENT), None);
    down.store(true, Ordering::Relaxed);
    assert_eq!(device.wait_async_event(LIMIT), Some(AsyncEvent::PortErr));
    down.store(false, Ordering::Relaxed);
    assert_eq!(device.wait_async_event(LIMIT), Some(AsyncEvent::PortActive));
    // This back end says nothing of groups.
    let end = datagrams(&device);
    let refused = end.qp.attach_mcast(Gid::from(Ipv4Addr::new(239, 7, 1, 1))).unwrap_err();
    let text = "the flaky back end carries no multicast; udp, raw, packet, xdp and loopback do";
    assert_eq!((refused.to_string().as_str(), refused.errno()), (text, 95));
    gone.store(true, Ordering::Relaxed);
    assert_eq!(device.wait_async_event(LIMIT), Some(AsyncEvent::DeviceFatal));
    assert!(device.path_error().is_some());
    assert_eq!(device.wait_async_event(MOMENT), None, "said once");
}

// ---- multicast ----

/// Rules R-ADM-12, R-ADM-16: the first device sends to a group that all are members of.
fn one_to_many(devices: &[Device], group: IpAddr) {
    let group = Gid::from(group);
    let ends: Vec<_> = devices.iter().map(datagrams).collect();
    // Another member on the last device.
    let second = datagrams(devices.last().unwrap());
    for end in ends.iter().chain([&second]) {
        end.qp.attach_mcast(group).unwrap();
        end.qp.post_recv_list((0..8).map(|id| RecvWr::new(id, &[end.mr.slice(64..128).unwrap()]))).unwrap();
    }
    let (sender, receivers) = ends.split_first().unwrap();
    let ah = sender.pd.create_ah(AddressVector { dgid: group, sgid_index: 1, ..AddressVector::default() });
    let ah = ah.unwrap();
    let send = |byte: u8| {
        sender.mr.write_at(0, &[byte; 16]).unwrap();
        let wr = SendWr::send(99, &[sender.mr.slice(0..16).unwrap()]);
        sender.qp.post_send(ah.address(wr, Qpn::MULTICAST, QKEY)).unwrap();
        assert_eq!(sender.cq.wait(1, LIMIT)[0].status, WcStatus::Success);
    };
    for (round, byte) in (0..).zip([5, 6]) {
        send(byte);
        for end in receivers.iter().chain([&second]) {
            let wc = end.cq.wait(1, LIMIT)[0];
            let of = (wc.wr_id.value(), wc.byte_len, wc.src_qp, wc.grh);
            assert_eq!(of, (round, 56, sender.qp.qpn(), true));
            assert_eq!(end.mr.to_vec(104..120).unwrap(), [byte; 16]);
            // The network header names the group.
            let header = end.mr.to_vec(64..104).unwrap();
            match group.ip() {
                IpAddr::V4(v4) => assert_eq!(header[36..], v4.octets()),
                IpAddr::V6(v6) => assert_eq!(header[24..], v6.octets()),
            }
        }
    }
    // A member less: the others still get theirs, once.
    receivers[0].qp.detach_mcast(group).unwrap();
    assert_eq!(receivers[0].qp.detach_mcast(group), Err(McastError::NotAttached(group)));
    send(7);
    for end in receivers[1..].iter().chain([&second]) {
        assert_eq!(end.cq.wait(1, LIMIT).len(), 1);
    }
    for end in ends.iter().chain([&second]) {
        assert_eq!(end.cq.wait(1, Duration::from_millis(2)), [], "no copy too many, none to the sender");
    }
    // And again a member.
    receivers[0].qp.attach_mcast(group).unwrap();
    send(8);
    assert_eq!(receivers[0].cq.wait(1, LIMIT).len(), 1);
}

#[test]
fn groups_in_memory() {
    let devices: [_; 3] = in_memory();
    one_to_many(&devices, Ipv4Addr::new(239, 7, 0, 1).into());
}

#[test]
fn groups_over_udp_on_loopback_as_an_ordinary_user() {
    let devices = [[20, 2], [20, 3], [20, 4]].map(udp);
    one_to_many(&devices, Ipv4Addr::new(239, own(), 0, 2).into());
}

#[test]
fn groups_over_raw_sockets() {
    let Some(first) = raw([21, 2]) else { return };
    let others = [[21, 3], [21, 4]].map(|end| raw(end).unwrap());
    let devices: Vec<_> = [first].into_iter().chain(others).collect();
    one_to_many(&devices, Ipv4Addr::new(239, own(), 0, 3).into());
}

#[test]
fn a_group_of_a_family_that_the_device_lacks_is_refused() {
    let device = udp([22, 2]);
    let end = datagrams(&device);
    let v6 = Gid::from(std::net::Ipv6Addr::new(0xFF0E, 0, 0, 0, 0, 0, 0, 7));
    let refused = end.qp.attach_mcast(v6).unwrap_err();
    assert!(matches!(refused, AttachError::Mcast(McastError::Family(_))), "{refused}");
    assert_eq!(JoinError::NoAddress { group: v6.ip() }.errno(), 99);
}

// ---- within one device ----

/// Two queue pairs of one device connected to each other, and one that is connected to itself.
fn within(device: &Device) {
    let [a, b] = connected([device, device], [cq(device), cq(device)]);
    let alone = end(device, device.create_cq(64).unwrap(), QpType::Rc);
    let oneself = alone.qp.endpoint(1);
    let End { pd, cq, mr, qp } = alone;
    let alone = End { pd, cq, mr, qp: qp.connect(oneself, &patient()).unwrap() };
    for (from, to) in [(&a, &b), (&b, &a), (&alone, &alone)] {
        from.mr.write_at(0, &[9; 5000]).unwrap();
        to.qp.post_recv(RecvWr::new(1, &[to.mr.slice(8192..16_384).unwrap()])).unwrap();
        from.qp.post_send(SendWr::send(2, &[from.mr.slice(0..5000).unwrap()])).unwrap();
        let read =
            SendWr::read(3, &[from.mr.slice(20_000..25_000).unwrap()], to.mr.addr_at(8192), to.mr.rkey());
        from.qp.post_send(read).unwrap();
        let mut done = Vec::new();
        while done.len() < 3 {
            let ends: &[_] = if std::ptr::eq(from, to) { &[from] } else { &[from, to] };
            let more: Vec<_> =
                ends.iter().flat_map(|end| end.cq.wait(2, Duration::from_millis(20))).collect();
            done.extend(more.iter().map(|wc| (wc.wr_id.value(), wc.status, wc.byte_len)));
        }
        done.sort_by_key(|(id, ..)| *id);
        assert_eq!(done, [1, 2, 3].map(|id| (id, WcStatus::Success, 5000)));
        assert_eq!(from.mr.to_vec(20_000..25_000).unwrap(), [9; 5000]);
    }
    let drops: Vec<_> = device.drops().iter().filter(|(_, count)| *count > 0).collect();
    assert!(drops.is_empty(), "{drops:?}");
}

#[test]
fn connections_within_a_device_in_memory() {
    let [device] = in_memory();
    within(&device);
}

#[test]
fn connections_within_a_device_over_udp() {
    within(&udp([23, 2]));
}

#[test]
fn connections_within_a_device_over_raw_sockets() {
    if let Some(device) = raw([24, 2]) {
        within(&device);
    }
}

/// Destroyed with traffic in flight: the peer gives up, nobody panics.
#[test]
fn a_queue_pair_that_goes_in_the_middle_of_it() {
    for near_goes in [true, false] {
        let [near, far] = in_memory();
        let (a, b) = (end(&near, cq(&near), QpType::Rc), end(&far, cq(&far), QpType::Rc));
        let peers = [b.qp.endpoint(1), a.qp.endpoint(1)];
        let options = ConnectOptions { timeout: 8, retry_cnt: 2, ..ConnectOptions::default() };
        let a_qp = a.qp.connect(peers[0], &options).unwrap();
        let b_qp = b.qp.connect(peers[1], &options).unwrap();
        let whole = SendWr::write(1, &[a.mr.slice(0..1 << 16).unwrap()], b.mr.addr(), b.mr.rkey());
        for _ in 0..64 {
            a_qp.post_send_later(whole.clone()).unwrap();
        }
        far.drive();
        near.drive();
        if near_goes {
            drop(a_qp);
            assert_eq!(b.cq.wait(1, MOMENT), []);
            assert_eq!(b_qp.state(), QpState::Rts);
        } else {
            drop(b_qp);
            let mut failed = Vec::new();
            while failed.is_empty() {
                let done = a.cq.wait(64, LIMIT);
                assert!(!done.is_empty());
                failed.extend(done.into_iter().filter(|wc| wc.status != WcStatus::Success));
            }
            assert_eq!(failed[0].status, WcStatus::RetryExcErr);
            assert_eq!(a_qp.state(), QpState::Err);
        }
    }
}
