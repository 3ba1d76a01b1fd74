//! What is measured while a setup runs: of flows, queues and pauses, in a bounded number of points.
//!
//! Hosts tell it of packets and messages, [`super::run`] of pauses and of time. It changes nothing.

use std::collections::{BTreeMap, VecDeque};

use fabric::switched::PauseChange;
use fabric::{Fabric, Node};
use qp::CcState;
use wire::{Duration, Instant, Psn};

use crate::report::{Flow, FlowSummary, Link, Pause, Queue, Run, Summary, Trace};
use crate::scenario::Setup;

/// Windows of Jain's index begin so many times in each window.
const SLIDES: usize = 10;
/// Points of all flows' series together.
const POINTS: u32 = 100_000;
/// Messages of a flow that are told of.
const MESSAGES: usize = 2_000;
/// Pauses that are nearer to each other than this part of the run are told of as one.
const PAUSE_GAP: u64 = 2_000;

/// An egress queue that is watched.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) name: String,
    pub(crate) node: Node,
    pub(crate) peer: Node,
    /// Bits per second of its cable.
    pub(crate) rate: u64,
    pub(crate) marks: Vec<crate::report::Mark>,
}

/// See the module.
pub(crate) struct Meter {
    clock: Clock,
    warmup: Instant,
    end: Instant,
    step: Duration,
    next_step: Instant,
    slide: Duration,
    next_slide: Instant,
    is_warm: bool,
    priority: u8,
    flows: Vec<FlowMeter>,
    queues: Vec<QueueMeter>,
    pauses: BTreeMap<(Node, Node, u8), PauseMeter>,
    jain: Trace,
    /// When the next point of Jain's index is due: it has no more of them than the other series.
    next_jain: Instant,
    cnps_sent: u64,
    packets: u64,
}

/// From simulated times and rates to those of the undilated network.
#[derive(Clone, Copy, Debug)]
struct Clock {
    dilation: f64,
}

impl Clock {
    fn ms(self, at: Instant) -> f64 {
        at.as_nanos() as f64 / 1e6 / self.dilation
    }

    fn span_ms(self, span: Duration) -> f64 {
        span.as_nanos() as f64 / 1e6 / self.dilation
    }

    /// The rate of `bytes` in `span`, in Gb/s.
    fn gbps(self, bytes: u64, span: Duration) -> f64 {
        if span == Duration::ZERO { 0.0 } else { self.undilated(bytes as f64 * 8.0 / span.as_nanos() as f64) }
    }

    fn undilated(self, gbps: f64) -> f64 {
        gbps * self.dilation
    }
}

#[derive(Debug, Default)]
struct FlowMeter {
    series: Flow,
    /// The rate of its line in Gb/s, which it has while nothing limits it.
    line: f64,
    start: Instant,
    /// Bytes of frames that arrived: in all, at the last step, at the end of the warm-up, and at the last slides.
    arrived: u64,
    at_step: u64,
    at_warmup: u64,
    at_slides: VecDeque<u64>,
    /// Bytes of messages that are complete, and of these before the end of the warm-up.
    delivered: u64,
    delivered_before: u64,
    newest: Option<Psn>,
    again: u64,
    cnps: u64,
    alphas: (f64, u32),
    last_done: Option<Instant>,
    /// Times that its messages took: their sum, the longest and how many.
    took: (f64, f64, u32),
}

#[derive(Debug)]
struct QueueMeter {
    watched: Watched,
    depth: Trace,
    peak: Trace,
    /// Integrals over time of level and square, and bytes sent: now and at the end of the warm-up.
    now: [f64; 3],
    warm: [f64; 3],
    /// The integral of the level at the last step.
    at_step: f64,
    /// Most bytes, before and after.
    most: [f64; 2],
}

#[derive(Debug, Default)]
struct PauseMeter {
    since: Option<Instant>,
    total: Duration,
    pauses: Vec<Pause>,
}

/// What it needs of a flow's sender at a step.
pub(crate) type States<'a> = &'a dyn Fn(usize) -> Option<CcState>;

impl Meter {
    /// `lines` has the rate of each flow's line, in bits per second.
    pub(crate) fn new(setup: &Setup, queues: Vec<Watched>, lines: &[u64], starts: &[Instant]) -> Self {
        let clock = Clock { dilation: setup.dilation };
        let flows = u32::try_from(setup.flows.len()).unwrap_or(u32::MAX);
        let steps = setup.measure.steps.min((POINTS / flows.max(1)).max(50));
        let step = Duration::from_nanos((setup.duration.as_nanos() / u64::from(steps)).max(1));
        let slide = Duration::from_nanos((setup.measure.window.as_nanos() / SLIDES as u64).max(1));
        let warmup = Instant::ZERO + setup.warmup;
        let flows = setup.flows.iter().zip(lines).zip(starts).map(|((flow, line), start)| FlowMeter {
            series: Flow { name: flow.name.clone(), ..Flow::default() },
            line: clock.undilated(*line as f64 / 1e9),
            start: *start,
            ..FlowMeter::default()
        });
        let queues = queues.into_iter().map(|watched| QueueMeter {
            watched,
            depth: Trace::default(),
            peak: Trace::default(),
            now: [0.0; 3],
            warm: [0.0; 3],
            at_step: 0.0,
            most: [0.0; 2],
        });
        // Windows are such that one begins where the warm-up ends.
        let first = setup.warmup.as_nanos() % slide.as_nanos();
        Self {
            clock,
            warmup,
            end: Instant::ZERO + setup.duration,
            step,
            next_step: Instant::ZERO + step,
            slide,
            next_slide: Instant::from_nanos(first),
            is_warm: setup.warmup == Duration::ZERO,
            priority: setup.measure.priority,
            flows: flows.collect(),
            queues: queues.collect(),
            pauses: BTreeMap::new(),
            jain: Trace::default(),
            next_jain: Instant::ZERO,
            cnps_sent: 0,
            packets: 0,
        }
    }

    /// A request of a flow left its sender.
    pub(crate) fn sent(&mut self, flow: usize, psn: Psn) {
        self.packets += 1;
        let flow = &mut self.flows[flow];
        if flow.newest.is_some_and(|newest| psn.diff(newest) <= 0) {
            flow.again += 1;
        } else {
            flow.newest = Some(psn);
        }
    }

    /// A CNP left a host.
    pub(crate) const fn sent_cnp(&mut self) {
        self.cnps_sent += 1;
    }

    /// A request of a flow came to its receiver.
    pub(crate) fn arrived(&mut self, flow: usize, bytes: usize) {
        self.flows[flow].arrived += bytes as u64;
    }

    /// A CNP came to the sender of a flow.
    pub(crate) fn cnp(&mut self, at: Instant, flow: usize) {
        let (ms, apart) = (self.clock.ms(at), self.clock.span_ms(self.step) / 4.0);
        let flow = &mut self.flows[flow];
        flow.cnps += 1;
        let cnps = &mut flow.series.cnps_ms;
        if cnps.last().is_none_or(|last| ms - last >= apart) {
            cnps.push(ms);
        }
    }

    /// A work request of a flow is complete.
    pub(crate) fn delivered(&mut self, flow: usize, bytes: u64) {
        let flow = &mut self.flows[flow];
        flow.delivered += bytes;
        if !self.is_warm {
            flow.delivered_before += bytes;
        }
    }

    /// A message of a flow is complete.
    pub(crate) fn message(&mut self, flow: usize, begun: Instant, now: Instant) {
        let (from, to) = (self.clock.ms(begun), self.clock.ms(now));
        let flow = &mut self.flows[flow];
        flow.last_done = Some(now);
        flow.took = (flow.took.0 + to - from, flow.took.1.max(to - from), flow.took.2 + 1);
        if flow.series.messages_ms.len() < MESSAGES {
            flow.series.messages_ms.push((from, to));
        }
    }

    /// A pause began or ended.
    pub(crate) fn pause(&mut self, change: PauseChange) {
        let PauseChange { at, node, peer, priority, paused } = change;
        let it = self.pauses.entry((node, peer, priority)).or_default();
        if paused {
            it.since.get_or_insert(at);
        } else if let Some(since) = it.since.take() {
            let gap = self.clock.ms(self.end) / PAUSE_GAP as f64;
            it.end(priority, [since, at], self.clock, gap);
        }
    }

    /// When [`Meter::handle_timeout`] is to be called.
    pub(crate) fn poll_timeout(&self) -> Instant {
        let next = self.next_step.min(self.next_slide);
        if self.is_warm { next } else { next.min(self.warmup) }
    }

    /// Takes the points that are due at `now`; true where a step ends.
    pub(crate) fn handle_timeout(&mut self, now: Instant, fabric: &mut Fabric, states: States<'_>) -> bool {
        if !self.is_warm && now >= self.warmup {
            self.look_at_queues(now, fabric);
            self.is_warm = true;
            for queue in &mut self.queues {
                queue.warm = queue.now;
            }
            for flow in &mut self.flows {
                flow.at_warmup = flow.arrived;
            }
        }
        if now >= self.next_slide {
            self.end_slide(now);
            self.next_slide += self.slide;
        }
        if now < self.next_step {
            return false;
        }
        self.end_step(now, fabric, states);
        self.next_step += self.step;
        true
    }

    fn look_at_queues(&mut self, now: Instant, fabric: &mut Fabric) {
        for queue in &mut self.queues {
            let Watched { node, peer, .. } = queue.watched;
            let Some(stats) = fabric.queue_stats(node, peer, self.priority) else { continue };
            let (mean, deviation) = stats.mean_and_deviation(now);
            let time = now.as_nanos() as f64;
            queue.now = [mean * time, (mean * mean + deviation * deviation) * time, stats.sent_bytes as f64];
            let peak = fabric.take_peak(node, peer, self.priority).unwrap_or_default() as f64;
            let most = &mut queue.most[usize::from(self.is_warm)];
            *most = most.max(peak);
        }
    }

    fn end_slide(&mut self, now: Instant) {
        let (mut sum, mut squares, mut whole) = (0.0, 0.0, true);
        for flow in &mut self.flows {
            flow.at_slides.push_back(flow.arrived);
            if flow.at_slides.len() <= SLIDES {
                whole = false;
                continue;
            }
            let before = flow.at_slides.pop_front().unwrap_or_default();
            let bytes = (flow.arrived - before) as f64;
            sum += bytes;
            squares += bytes * bytes;
        }
        if whole && squares > 0.0 && now >= self.next_jain {
            self.next_jain = now + self.step;
            self.jain.t_ms.push(self.clock.ms(now));
            self.jain.value.push(sum * sum / (squares * self.flows.len() as f64));
        }
    }

    fn end_step(&mut self, now: Instant, fabric: &mut Fabric, states: States<'_>) {
        let ms = self.clock.ms(now);
        for (index, flow) in self.flows.iter_mut().enumerate() {
            let bytes = flow.arrived - std::mem::replace(&mut flow.at_step, flow.arrived);
            push(&mut flow.series.rate_gbps, ms, self.clock.gbps(bytes, self.step));
            let Some(CcState { rate, .. }) = states(index) else { continue };
            let of =
                |rate: Option<dcqcn::Rate>| rate.map_or(flow.line, |rate| self.clock.undilated(rate.gbps()));
            push(&mut flow.series.allowed_gbps, ms, of(rate.rate));
            if rate.target.is_some() || !flow.series.target_gbps.t_ms.is_empty() {
                push(&mut flow.series.target_gbps, ms, of(rate.target));
            }
            if let Some(alpha) = rate.alpha {
                push(&mut flow.series.alpha, ms, alpha);
                if self.is_warm {
                    flow.alphas = (flow.alphas.0 + alpha, flow.alphas.1 + 1);
                }
            }
        }
        let most: Vec<[f64; 2]> =
            self.queues.iter_mut().map(|queue| std::mem::replace(&mut queue.most, [0.0; 2])).collect();
        self.look_at_queues(now, fabric);
        for (queue, most) in self.queues.iter_mut().zip(most) {
            let time = self.step.as_nanos() as f64;
            let before = std::mem::replace(&mut queue.at_step, queue.now[0]);
            push(&mut queue.depth, ms, ((queue.now[0] - before) / time).max(0.0) / 1e3);
            push(&mut queue.peak, ms, queue.most[0].max(queue.most[1]) / 1e3);
            queue.most = [most[0].max(queue.most[0]), most[1].max(queue.most[1])];
        }
    }

    /// Everything that was measured, at the end.
    pub(crate) fn finish(mut self, name: &str, fabric: &mut Fabric, names: &dyn Fn(Node) -> String) -> Run {
        let (now, clock) = (self.end, self.clock);
        self.look_at_queues(now, fabric);
        let measured = now.since(self.warmup);
        let gap = clock.ms(now) / PAUSE_GAP as f64;
        let mut links: BTreeMap<(Node, Node), Link> = BTreeMap::new();
        let mut paused = Duration::ZERO;
        for ((node, peer, priority), mut it) in std::mem::take(&mut self.pauses) {
            if let Some(since) = it.since.take() {
                it.end(priority, [since, now], clock, gap);
            }
            paused = paused + it.total;
            let link = links.entry((node, peer)).or_insert_with(|| Link {
                name: format!("{}→{}", names(node), names(peer)),
                ..Link::default()
            });
            link.pauses.extend(it.pauses);
        }
        let mut summary = self.summary(measured);
        summary.pause_ms = clock.span_ms(paused);
        let queue = |queue: QueueMeter| Queue {
            name: queue.watched.name,
            depth_kb: queue.depth,
            peak_kb: queue.peak,
            marks: queue.watched.marks,
        };
        Run {
            name: name.to_owned(),
            warmup_ms: clock.ms(self.warmup),
            end_ms: clock.ms(now),
            summary,
            flows: self.flows.into_iter().map(|flow| flow.series).collect(),
            queues: self.queues.into_iter().map(queue).collect(),
            links: links.into_values().collect(),
            jain: self.jain,
        }
    }

    fn summary(&self, measured: Duration) -> Summary {
        let time = measured.as_nanos() as f64;
        // A packet counts when it begins to leave; the last may not have left.
        let busy = |queue: &QueueMeter| {
            ((queue.now[2] - queue.warm[2]) * 8.0 / (time / 1e9) / queue.watched.rate as f64).min(1.0)
        };
        let clock = self.clock;
        let flow = |flow: &FlowMeter| FlowSummary {
            name: flow.series.name.clone(),
            rate_mean_gbps: clock.gbps(flow.arrived - flow.at_warmup, measured),
            goodput_mean_gbps: clock.gbps(flow.delivered - flow.delivered_before, measured),
            alpha_mean: (flow.alphas.1 > 0).then(|| flow.alphas.0 / f64::from(flow.alphas.1)),
            fct_ms: flow.last_done.map(|done| clock.span_ms(done.since(flow.start))),
        };
        let mut summary = Summary {
            flows: self.flows.iter().map(flow).collect(),
            cnp_sent: self.cnps_sent,
            retransmissions: self.flows.iter().map(|flow| flow.again).sum(),
            ..Summary::default()
        };
        let (mut sum, mut squares) = (0.0, 0.0);
        for flow in &summary.flows {
            sum += flow.rate_mean_gbps;
            squares += flow.rate_mean_gbps * flow.rate_mean_gbps;
        }
        summary.jain = if squares > 0.0 { sum * sum / (squares * summary.flows.len() as f64) } else { 0.0 };
        let mut more = |key: &str, value: f64| {
            summary.more.insert(key.to_owned(), value);
        };
        if let Some(queue) = self.queues.first() {
            let mean = (queue.now[0] - queue.warm[0]) / time;
            let square = (queue.now[1] - queue.warm[1]) / time;
            summary.queue_mean_kb = mean.max(0.0) / 1e3;
            summary.queue_sd_kb = (square - mean * mean).max(0.0).sqrt() / 1e3;
            summary.queue_max_kb = queue.most[1] / 1e3;
            summary.utilisation = busy(queue);
            more("queue_peak_kb", queue.most[0].max(queue.most[1]) / 1e3);
        }
        if self.queues.len() > 1 {
            let all = self.queues.iter().map(busy).sum::<f64>() / self.queues.len() as f64;
            more("utilisation_all", all);
        }
        let alphas = self.flows.iter().map(|flow| flow.alphas);
        let alphas = alphas.fold((0.0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        if alphas.1 > 0 {
            more("alpha_mean", alphas.0 / f64::from(alphas.1));
        }
        let took = self.flows.iter().map(|flow| flow.took);
        let took = took.fold((0.0, 0.0_f64, 0), |a, b| (a.0 + b.0, a.1.max(b.1), a.2 + b.2));
        if took.2 > 0 {
            more("message_mean_ms", took.0 / f64::from(took.2));
            more("message_max_ms", took.1);
        }
        more("cnp_received", self.flows.iter().map(|flow| flow.cnps).sum::<u64>() as f64);
        more("packets", self.packets as f64);
        summary
    }
}

impl PauseMeter {
    fn end(&mut self, priority: u8, [from, to]: [Instant; 2], clock: Clock, gap: f64) {
        self.total = self.total + to.since(from);
        let pause = Pause { priority, from_ms: clock.ms(from), to_ms: clock.ms(to) };
        match self.pauses.last_mut() {
            Some(last) if pause.from_ms - last.to_ms < gap => last.to_ms = pause.to_ms,
            _ => self.pauses.push(pause),
        }
    }
}

fn push(trace: &mut Trace, ms: f64, value: f64) {
    trace.t_ms.push(ms);
    trace.value.push(value);
}
