use std::sync::Barrier;

use qp::{Access, QpType, RecvWr, SendWr, WcStatus};

use super::*;
use crate::backend::own::own;
use crate::{CompletionQueue, ConnectOptions, Device, MemoryRegion, QueuePair};

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(60);
const LEN: usize = 200_000;

fn config(end: &str) -> UdpConfig {
    UdpConfig { local: Local::Address(own(end).parse().expect("address")), ..UdpConfig::default() }
}

fn lanes(end: &str, count: u32) -> Vec<Udp> {
    Udp::open_lanes(&config(end), count).expect("lanes")
}

struct End {
    cq: CompletionQueue,
    mr: MemoryRegion,
    qp: QueuePair,
}

/// Connects a queue pair of `near` to one of `far`.
fn connected(near: &Device, far: &Device) -> [End; 2] {
    let mut byte = 0;
    let prepared = [near, far].map(|device| {
        byte += 1;
        let (pd, cq) = (device.alloc_pd(), device.create_cq(64).expect("a queue"));
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let mr = pd.register(vec![byte; 3 * LEN], access).expect("memory");
        let qp = pd.create_qp(QpType::Rc, &cq, &cq).signal_all().build().expect("a queue pair");
        (cq, mr, qp)
    });
    let mut peers = [prepared[1].2.endpoint(1), prepared[0].2.endpoint(1)].into_iter();
    prepared.map(|(cq, mr, qp)| {
        let options = ConnectOptions { timeout: 18, ..ConnectOptions::default() };
        let qp = qp.connect(peers.next().expect("one each"), &options).expect("connects");
        End { cq, mr, qp }
    })
}

/// Every operation of a reliable connection from `a` to `b`, `rounds` times.
fn exchange([a, b]: &[End; 2], rounds: usize) {
    for _ in 0..rounds {
        let part = |end: &End, n: usize| end.mr.slice(n * LEN..(n + 1) * LEN).expect("within");
        b.qp.post_recv(RecvWr::new(1, &[part(b, 0)])).expect("taken");
        let (key, at) = (b.mr.rkey(), [1, 2].map(|n| b.mr.addr_at(n * LEN)));
        let result = a.mr.slice(2 * LEN..2 * LEN + 8).expect("within");
        a.qp.post_send_list([
            SendWr::send(2, &[part(a, 0)]),
            SendWr::write(3, &[part(a, 0)], at[0], key),
            SendWr::read(4, &[part(a, 1)], at[0], key),
            SendWr::fetch_add(5, result, at[1], key, 1),
            SendWr::cmp_swap(6, result, at[1], key, 0, 0),
        ])
        .expect("taken");
        for id in 2..=6 {
            let done = a.cq.wait(1, LIMIT);
            let done = done.first().map(|wc| (wc.wr_id.value(), wc.status));
            assert_eq!(done, Some((id, WcStatus::Success)));
        }
        assert_eq!(b.cq.wait(1, LIMIT).first().map(|wc| wc.status), Some(WcStatus::Success));
        for (end, n) in [(b, 0), (b, 1), (a, 1)] {
            assert!(end.mr.to_vec(n * LEN..(n + 1) * LEN).expect("within") == vec![1; LEN]);
        }
    }
}

fn open(backends: Vec<Udp>) -> Vec<Device> {
    backends.into_iter().map(|backend| Device::builder(backend).seed(1).open().expect("opens")).collect()
}

#[test]
fn two_lanes_carry_all_operations_at_once_each_its_own_queue_pairs() {
    let (near, far) = (open(lanes("12.1", 2)), open(lanes("12.2", 2)));
    // Each lane with itself of the other side, and across.
    let pairs = [(0, 0), (1, 1), (0, 1), (1, 0)];
    let start = Barrier::new(pairs.len());
    std::thread::scope(|scope| {
        for (a, b) in pairs {
            let (near, far, start) = (&near, &far, &start);
            scope.spawn(move || {
                let ends = connected(&near[a], &far[b]);
                assert_eq!(ends.each_ref().map(|end| end.qp.qpn().value() as usize % 2), [a, b]);
                start.wait();
                exchange(&ends, 5);
            });
        }
    });
    for device in near.iter().chain(&far) {
        assert!(device.counters().rcvd_pkts > 0);
        assert_eq!(device.io_counters().rx_handed_over, 0, "the kernel knows which lane is which");
    }
}

/// The lanes share nothing while they work: one does all it can while whatever the other could hold is held.
#[test]
fn a_lane_works_while_every_lock_of_another_is_held() {
    let backends = lanes("12.3", 2);
    let shared = backends[0].lanes.clone().expect("lanes");
    let near = open(backends);
    let far = open(lanes("12.4", 2));
    let ends = connected(&near[1], &far[1]);
    let held = [&near[0], &far[0]].map(Device::engine);
    held[0].with_all_locked(|| {
        held[1].with_all_locked(|| shared.with_all_locked(|| exchange(&ends, 3)));
    });
}

/// Packets to these queue pairs, all in one datagram, as a path that joins datagrams makes them.
fn run_to(from: &Udp, to: IpAddr, qpns: &[u32]) -> TxBatch {
    let net = NetHeader::v2(from.sockets.all()[0].address, to, ROCE_V2_PORT, 0, 64).expect("one family");
    let mut tx = TxBatch::new();
    tx.begin(net, &from.caps(), 0);
    for (byte, qpn) in (0..).zip(qpns) {
        let body = tx.push(64);
        body[..60].fill(byte);
        body[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
    }
    tx.seal();
    tx
}

#[test]
fn what_arrives_in_the_wrong_lane_is_handed_over_unchanged_and_counted() {
    let mut lanes = lanes("12.5", 2);
    let mut sender = Udp::open(&config("12.6")).expect("opens");
    let tx = run_to(&sender, lanes[0].sockets.all()[0].address, &[18, 19, 20, 21, 1]);
    assert_eq!(sender.send_batch(&tx, 0).expect("sends"), 5);
    sender.kick().expect("kicks");
    let mut poll = mio::Poll::new().expect("poll");
    lanes[1].set_waker(Arc::new(Waker::new(poll.registry(), Token(0)).expect("waker")));
    let mut own = RxBurst::new();
    while own.is_empty() {
        assert!(sys::wait_readable(lanes[0].sockets.all()[0].fd(), LIMIT).expect("poll"), "nothing arrives");
        lanes[0].recv_burst(&mut own).expect("receives");
    }
    let mut events = mio::Events::with_capacity(1);
    poll.poll(&mut events, Some(LIMIT)).expect("poll");
    assert!(!events.is_empty(), "the other lane is woken");
    let mut other = RxBurst::new();
    assert_eq!(lanes[1].recv_burst(&mut other).expect("receives"), 2);
    let sent: Vec<_> = tx.iter().collect();
    for (burst, which) in [(&own, [0, 2, 4].as_slice()), (&other, &[1, 3])] {
        assert_eq!(burst.len(), which.len());
        for ((packet, body), i) in burst.iter().zip(which) {
            assert_eq!((packet.net, body), sent[*i]);
            assert!(icrc::verify(&packet.net, body));
        }
    }
    assert_eq!(lanes[0].counters(), IoCounters { rx_handed_over: 2, ..IoCounters::default() });
}

#[test]
fn a_lane_that_does_not_fetch_its_mail_loses_what_is_too_much() {
    let mut lanes = lanes("12.7", 2);
    let mut sender = Udp::open(&config("12.8")).expect("opens");
    let tx = run_to(&sender, lanes[0].sockets.all()[0].address, &[[18_u32].as_slice(), &[19; 63]].concat());
    let mut rx = RxBurst::new();
    while lanes[0].counters.rx_lost == 0 {
        assert_eq!(sender.send_batch(&tx, 0).expect("sends"), 64);
        sender.kick().expect("kicks");
        assert!(sys::wait_readable(lanes[0].sockets.all()[0].fd(), LIMIT).expect("poll"), "nothing arrives");
        rx.clear();
        lanes[0].recv_burst(&mut rx).expect("receives");
    }
    let mut other = RxBurst::new();
    let fetched = lanes[1].recv_burst(&mut other).expect("receives");
    assert_eq!((fetched as u64, other.len()), (lanes[0].counters.rx_handed_over, fetched));
}

#[test]
fn lanes_are_1_2_4_or_8_and_nobody_else_joins_them() {
    for count in [0, 3, 16] {
        let refused = Udp::open_lanes(&config("12.9"), count);
        assert!(matches!(refused, Err(OpenError::NoSuchLanes { count: asked }) if asked == count));
    }
    let all = lanes("12.9", 8);
    assert_eq!(all.iter().map(|udp| udp.lane().index()).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(matches!(Udp::open(&config("12.9")), Err(OpenError::PortInUse { .. })));
    assert!(matches!(Udp::open_lanes(&config("12.9"), 2), Err(OpenError::PortInUse { .. })));
}
