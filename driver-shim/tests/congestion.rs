//! Congestion control of a device: over real sockets, and with every driver. Nothing here fails for slowness.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce_driver_shim::backend::{Backend, Local, Loopback, Udp, UdpConfig};
use ferroce_driver_shim::{CompletionQueue, ConnectOptions, Device, Driver, MemoryRegion, QueuePair};
use qp::{Access, Algorithm, CcConfig, QpType, Rate, SendWr, WcStatus};

/// Limit of any wait of a test; reached only by a failure.
const LIMIT: Duration = Duration::from_secs(60);
const LEN: usize = 300_000;

/// Nothing gets lost here, and nothing is to be repeated only because the machine is busy.
fn patient() -> ConnectOptions {
    ConnectOptions { timeout: 20, ..ConnectOptions::default() }
}

struct End {
    device: Device,
    cq: CompletionQueue,
    mr: MemoryRegion,
    qp: QueuePair,
}

/// Two connected ends, of which both have congestion control.
fn connected(
    backends: [Box<dyn Backend>; 2],
    cc: &CcConfig,
    driver: Driver,
    options: &ConnectOptions,
) -> [End; 2] {
    let prepared = backends.map(|backend| {
        let builder = Device::boxed(backend).seed(1).cc(cc.clone()).line_rate(Rate::from_gbps(10.0));
        let device = builder.driver(driver).open().unwrap();
        let (pd, cq) = (device.alloc_pd(), device.create_cq(64).unwrap());
        let mr = pd.register(vec![7; LEN], Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let qp = pd.create_qp(QpType::Rc, &cq, &cq).signal_all().max_send_wr(64).build().unwrap();
        (device, cq, mr, qp)
    });
    let mut peers = [prepared[1].3.endpoint(1), prepared[0].3.endpoint(1)].into_iter();
    prepared.map(|(device, cq, mr, qp)| {
        let qp = qp.connect(peers.next().unwrap(), options).unwrap();
        End { device, cq, mr, qp }
    })
}

fn write(near: &End, far: &End, len: usize) {
    let wr = SendWr::write(1, &[near.mr.slice(0..len).unwrap()], far.mr.addr(), far.mr.rkey());
    near.qp.post_send(wr).unwrap();
    let done = near.cq.wait(1, LIMIT);
    assert_eq!(done.iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::Success]);
}

/// The program sleeps while its packets keep their time, whoever runs the device.
#[test]
#[expect(clippy::disallowed_methods, reason = "it sees that time passes")]
fn a_rate_is_kept_with_every_driver() {
    let rate = Rate::from_mbps(50.0);
    let cc = CcConfig { algorithm: Algorithm::Rate(rate), ..CcConfig::default() };
    for driver in Driver::ALL {
        let hub = Loopback::hub();
        let backends = [2, 3]
            .map(|last| -> Box<dyn Backend> { Box::new(hub.attach([127, 0, 0, last].into()).unwrap()) });
        let [near, far] = connected(backends, &cc, driver, &patient());
        let begin = Instant::now();
        write(&near, &far, LEN);
        let least = LEN as f64 * 8.0 / rate.bps() - 0.002;
        let took = begin.elapsed().as_secs_f64();
        assert!(took >= least, "{driver}: {LEN} bytes took {took} s");
        assert_eq!(near.qp.rate(), Some(rate));
        assert_eq!(near.device.counters().local_ack_timeout_err, 0);
    }
}

/// A sender may mark its own packets; what comes of it is the same. The mark crosses real sockets, as does the CNP.
#[test]
fn marks_and_cnps_cross_udp_sockets() {
    // What a CNP has cut does not grow again while a busy machine lets the test wait.
    let params = qp::CcParams {
        cnp_interval: wire::Duration::ZERO,
        time_reset: wire::Duration::from_secs(3600),
        ..qp::CcParams::PAPER
    };
    let cc = CcConfig { algorithm: Algorithm::Dcqcn, params: Arc::new(params), ..CcConfig::default() };
    let backends = [1, 2].map(|_| -> Box<dyn Backend> {
        let config = UdpConfig { local: Local::FreeLoopback, ..UdpConfig::default() };
        Box::new(Udp::open(&config).unwrap())
    });
    let options = ConnectOptions { traffic_class: 3, ..patient() };
    let [near, far] = connected(backends, &cc, Driver::Inline, &options);
    assert_eq!((near.qp.rate(), near.device.line_rate()), (None, Rate::from_gbps(10.0)));
    write(&near, &far, 10_000);
    let marked = far.device.counters().np_ecn_marked_roce_packets;
    assert!(marked > 0);
    assert_eq!(far.device.counters().np_cnp_sent, marked, "one for each, at once");
    // They left before the acknowledgement that the completion came of.
    assert_eq!(near.device.counters().rp_cnp_handled, marked);
    let states = near.device.cc_states();
    let state = states.iter().find(|pair| pair.qpn == near.qp.qpn()).unwrap().cc.unwrap();
    assert_eq!(state.cnps_handled, marked);
    assert!(state.rate.rate.unwrap() < Rate::from_gbps(10.0) && state.rate.alpha.is_some());
    let others = far.device.cc_states();
    assert_eq!(others[0].cc.unwrap().rate.rate, None, "no CNP came the other way");
}

/// Rates in real time, over sockets. However busy the machine is, no more leaves than the rate and its burst allow. How
/// near to the rate it is depends on what else runs, so it is looked at only with `FERROCE_LONG=1`, on a machine that has
/// nothing else to do: from 1 Mb/s up, 200 packets of 4 KiB and more are within 5 % then.
/// `FERROCE_LONG=1 cargo test --release -p ferroce-driver-shim --test congestion -- --nocapture` prints each.
#[test]
#[expect(clippy::disallowed_methods, reason = "it measures time")]
fn rates_are_kept_in_real_time() {
    const PACKET: usize = 4096;
    const DEPTH: usize = 48;
    let is_long = std::env::var_os("FERROCE_LONG").is_some();
    let (rates, seconds): (&[u32], f64) =
        if is_long { (&[1, 10, 100, 1_000, 3_000, 5_000], 1.0) } else { (&[100, 1_000], 0.05) };
    for driver in [Driver::Inline, Driver::Background] {
        for rate in rates.iter().map(|mbps| Rate::from_mbps(f64::from(*mbps))) {
            let cc = CcConfig { algorithm: Algorithm::Rate(rate), ..CcConfig::default() };
            let backends =
                [1, 2].map(|_| -> Box<dyn Backend> { Box::new(Udp::open(&UdpConfig::default()).unwrap()) });
            let options =
                ConnectOptions { path_mtu: wire::Mtu::B4096, timeout: 18, ..ConnectOptions::default() };
            let [near, far] = connected(backends, &cc, driver, &options);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "some 100,000 at most"
            )]
            let count = ((rate.bps() * seconds / 8.0) as usize / PACKET).max(200);
            let post = |count: usize| {
                let wr = SendWr::write(1, &[near.mr.slice(0..PACKET).unwrap()], far.mr.addr(), far.mr.rkey());
                (0..count).try_for_each(|_| near.qp.post_send(wr.clone())).unwrap();
            };
            let start = Instant::now();
            post(DEPTH);
            let first = near.cq.wait(1, LIMIT).len();
            let (begin, mut done) = (Instant::now(), 0);
            post(first);
            while done < count {
                let came = near.cq.wait(DEPTH, LIMIT).len();
                assert!(came > 0);
                done += came;
                post(came);
            }
            let (took, in_all) = (begin.elapsed().as_secs_f64(), start.elapsed().as_secs_f64());
            let overhead = wire::eth::ETHERNET_OVERHEAD + 20 + 8 + 12 + 16 + 4;
            let bits = (PACKET + overhead) as f64 * 8.0;
            let most = rate.bps() * (in_all + cc.burst.as_nanos() as f64 / 1e9) + bits;
            assert!((first + done) as f64 * bits <= most, "{driver} {rate}: {done} packets in {in_all} s");
            let off = done as f64 * bits / took / rate.bps() - 1.0;
            println!("{driver} {rate}: {:+.2} %", off * 100.0);
            assert!(!is_long || off.abs() < 0.05, "{driver} {rate}: off by {off}");
        }
    }
}
