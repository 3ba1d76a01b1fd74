//! Several reaction points against one crowded port, in virtual time, beside what theory says.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::net::IpAddr;
use std::sync::Arc;

use fabric::switched::{Cable, MarkAt, Red};
use fabric::{Fabric, Frame, Node, SwitchParams};
use ferroce_dcqcn::{Marked, Np, Params, Rate, RateController, Rp};
use wire::{Duration, Gid, Instant, NetHeader, Qpn};

const LINE: f64 = 40.0;
const PACKET: u64 = 1_000;
/// The priorities of data and of CNPs.
const DATA: u8 = 0x6A;
const CNP: u8 = 0xC2;

struct Incast {
    fabric: Fabric,
    switch: Node,
    receiver: Node,
    senders: Vec<(Node, Rp, Option<Instant>)>,
    np: Np,
    now: Instant,
    received: Vec<u64>,
}

fn ip(n: usize) -> IpAddr {
    [10, 0, 0, u8::try_from(n).unwrap()].into()
}

fn header(from: usize, to: usize, class: u8) -> NetHeader {
    NetHeader::v2(ip(from), ip(to), 50_000, class, 64).unwrap()
}

impl Incast {
    fn new(senders: usize, seed: u64, params: Params) -> Self {
        Self::with_marks(senders, seed, params, MarkAt::Dequeue)
    }

    fn with_marks(senders: usize, seed: u64, params: Params, at: MarkAt) -> Self {
        let mut fabric = Fabric::new(seed);
        let red = Red { kmin: 5_000, kmax: 200_000, pmax: 0.01, at };
        let buffer = SwitchParams { buffer: 1 << 30, red: Some(red), ..SwitchParams::default() };
        let switch = fabric.add_switch(buffer);
        let cable = Cable { rate: 40_000_000_000, delay: Duration::from_micros(1) };
        let mut host = |n| {
            let host = fabric.add_host([ip(n).into()]);
            fabric.connect(host, switch, cable).unwrap();
            host
        };
        let receiver = host(0);
        let hosts: Vec<Node> = (1..=senders).map(host).collect();
        fabric.find_routes();
        let params = Arc::new(params);
        let rp = || Rp::new(Arc::clone(&params), Rate::from_gbps(LINE), Duration::ZERO);
        let senders: Vec<_> = hosts.into_iter().map(|host| (host, rp(), Some(Instant::ZERO))).collect();
        let received = vec![0; senders.len()];
        Self { fabric, switch, receiver, senders, np: Np::new(&params), now: Instant::ZERO, received }
    }

    /// Sends what `sender` may send now, and sees when it may send next.
    fn drive(&mut self, sender: usize) {
        let (host, rp, wake) = &mut self.senders[sender];
        rp.handle_timeout(self.now);
        *wake = None;
        if !self.fabric.may_send(*host, DATA >> 5) {
            // The fabric tells when its port is free.
            return;
        }
        if rp.allowance(self.now).is_some() {
            let net = header(sender + 1, 0, DATA);
            let body = usize::try_from(PACKET).unwrap() - fabric::ETHERNET_OVERHEAD - net.len();
            self.fabric.send(self.now, *host, Frame::new(net, vec![0; body]));
            rp.on_sent(self.now, PACKET);
            return;
        }
        let departure = rp.earliest_departure(self.now);
        *wake = Some(rp.poll_timeout().map_or(departure, |timer| timer.min(departure)));
    }

    fn run(&mut self, until: Instant) {
        loop {
            let wake = self.senders.iter().filter_map(|(.., wake)| *wake).min();
            let next = wake.into_iter().chain(self.fabric.poll_timeout()).min().unwrap();
            if next > until {
                return;
            }
            self.now = next;
            self.fabric.handle_timeout(next);
            while let Some(host) = self.fabric.poll_host() {
                match self.senders.iter().position(|(sender, ..)| *sender == host) {
                    Some(sender) => {
                        while self.fabric.receive(host).is_some() {
                            self.senders[sender].1.on_cnp(next);
                        }
                        self.drive(sender);
                    }
                    None => self.receive(),
                }
            }
            for sender in 0..self.senders.len() {
                if self.senders[sender].2.is_some_and(|wake| wake <= next) {
                    self.drive(sender);
                }
            }
        }
    }

    fn receive(&mut self) {
        while let Some((at, frame)) = self.fabric.receive(self.receiver) {
            let from = (1..=self.senders.len()).find(|n| Gid::from(ip(*n)) == frame.net.src_gid()).unwrap();
            self.received[from - 1] += PACKET;
            if frame.net.traffic_class() & 3 != 3 {
                continue;
            }
            let local = Qpn::new(u32::try_from(from).unwrap());
            let mark = Marked { from: ip(from).into(), to: ip(0).into(), local, sender: None };
            if self.np.on_marked(at, mark).is_some() {
                self.fabric.send(at, self.receiver, Frame::new(header(0, from, CNP), vec![0; 32]));
            }
        }
    }

    /// Jain's index of what came since the last call.
    fn jain(&mut self) -> f64 {
        let shares: Vec<f64> = self.received.iter_mut().map(|bytes| std::mem::take(bytes) as f64).collect();
        let sum: f64 = shares.iter().sum();
        sum * sum / (shares.len() as f64 * shares.iter().map(|share| share * share).sum::<f64>())
    }

    /// What holds over the next `span`.
    fn measure(&mut self, span: Duration) -> Measured {
        self.fabric.restart_stats();
        self.jain();
        let (begin, steps) = (self.now, 200);
        let mut alpha = 0.0;
        for step in 1..=steps {
            let at = begin + Duration::from_nanos(span.as_nanos() * step / steps);
            self.run(at);
            let alphas = self.senders.iter().map(|(_, rp, _)| rp.state(at).alpha.unwrap());
            alpha += alphas.sum::<f64>() / (self.senders.len() as f64 * steps as f64);
        }
        let stats = self.fabric.queue_stats(self.switch, self.receiver, DATA >> 5).unwrap();
        let (mean, deviation) = stats.mean_and_deviation(begin + span);
        let jain = self.jain();
        let utilisation = stats.sent_bytes as f64 * 8.0 / span.as_nanos() as f64 / LINE;
        Measured { queue_kb: mean / 1e3, deviation_kb: deviation / 1e3, alpha, jain, utilisation }
    }
}

#[derive(Debug)]
struct Measured {
    queue_kb: f64,
    deviation_kb: f64,
    alpha: f64,
    jain: f64,
    utilisation: f64,
}

#[test]
fn queues_and_alpha_are_where_the_fluid_model_has_its_fixed_point() {
    for (senders, least, most, alpha) in [(2, 15.0, 30.0, 0.10136), (10, 100.0, 190.0, 0.15328)] {
        let mut incast = Incast::new(senders, 1, Params::PAPER);
        incast.run(Instant::from_micros(50_000));
        let measured = incast.measure(Duration::from_millis(100));
        assert!((least..most).contains(&measured.queue_kb), "{senders}: {measured:?}");
        assert!((measured.alpha / alpha - 1.0).abs() < 0.15, "{senders}: {measured:?}");
        assert!(measured.jain > 0.98 && measured.utilisation > 0.99, "{senders}: {measured:?}");
        assert!(measured.deviation_kb < measured.queue_kb, "{senders}: {measured:?}");
    }
}

/// The slow case is to become equal from unequal rates; the increase timer must dominate for it to happen.
#[test]
fn two_flows_that_start_far_apart_become_equal() {
    let mut incast = Incast::new(2, 3, Params::PAPER);
    for ((_, rp, _), gbps) in incast.senders.iter_mut().zip([40.0, 5.0]) {
        rp.start_at(Instant::ZERO, Rate::from_gbps(gbps), Rate::from_gbps(gbps));
    }
    let first = incast.measure(Duration::from_millis(5));
    assert!(first.jain < 0.9, "{first:?}");
    incast.run(Instant::from_micros(75_000));
    let later = incast.measure(Duration::from_millis(75));
    assert!(later.jain > 0.995, "{later:?}");
}

/// A mark that waits in the queue is old news: the queue is shorter on average, runs empty, and the port idles.
#[test]
fn marks_at_enqueue_make_the_queue_swing() {
    let mut incast = Incast::with_marks(10, 1, Params::PAPER, MarkAt::Enqueue);
    incast.run(Instant::from_micros(50_000));
    let measured = incast.measure(Duration::from_millis(50));
    assert!(measured.deviation_kb > measured.queue_kb * 0.8, "{measured:?}");
    assert!((0.9..0.995).contains(&measured.utilisation), "{measured:?}");
}
