use wire::ip::Ecn;

use super::*;

/// A packet that only counts.
#[derive(Debug, PartialEq)]
struct Counted {
    number: u32,
    ecn: Ecn,
}

impl Markable for Counted {
    fn ecn(&self) -> Ecn {
        self.ecn
    }

    fn set_ce(&mut self) {
        self.ecn = Ecn::Ce;
    }
}

const MEGABIT: u64 = 1_000_000;
const LEN: u64 = 1_000;

fn params(limit: u64, red: Option<Red>) -> BottleneckParams {
    BottleneckParams { rate: 200 * MEGABIT, delay: Duration::ZERO, limit, red }
}

fn queue(params: BottleneckParams) -> Bottleneck<Counted> {
    Bottleneck::new(Instant::ZERO, params, 1)
}

fn packet(number: u32) -> Counted {
    Counted { number, ecn: Ecn::Ect0 }
}

fn at(micros: u64) -> Instant {
    Instant::from_micros(micros)
}

#[test]
fn packets_leave_in_order_at_the_rate() {
    let mut queue = queue(BottleneckParams { delay: Duration::from_micros(7), ..params(1 << 20, None) });
    for number in 0..10 {
        queue.push(at(5), LEN, packet(number)).unwrap();
    }
    // The first is on the cable already.
    assert_eq!(queue.bytes(), 9 * LEN);
    // 8,000 bits at 200 Mb/s are 40 us.
    for number in 0..10 {
        let due = at(5 + 40 * (u64::from(number) + 1) + 7);
        assert_eq!(queue.poll_timeout(), Some(due));
        assert_eq!(queue.pop(Instant::from_nanos(due.as_nanos() - 1)), None);
        assert_eq!(queue.pop(due), Some(packet(number)));
    }
    assert_eq!(queue.poll_timeout(), None);
    assert!((queue.utilisation(at(500)) - 400.0 / 500.0).abs() < 1e-9);
}

#[test]
fn one_who_wakes_up_late_finds_what_he_would_have_found() {
    let red = Red { kmin: 2_000, kmax: 20_000, pmax: 0.5, at: MarkAt::Dequeue };
    let mut runs = Vec::new();
    for step in [1, 40, 333, 5_000] {
        let mut queue = queue(params(20_000, Some(red)));
        let (mut left, mut now) = (Vec::new(), 0);
        for number in 0..200 {
            // In bursts of fifty, faster than the cable.
            let comes = u64::from(number / 50) * 5_000 + u64::from(number) * 20;
            while now + step <= comes {
                now += step;
                left.extend(std::iter::from_fn(|| queue.pop(at(now))));
            }
            // Refused where there is no room, which is counted.
            drop(queue.push(at(comes), LEN, packet(number)));
        }
        left.extend(std::iter::from_fn(|| queue.pop(at(100_000))));
        let stats = queue.stats(at(100_000));
        assert_eq!(stats.sent_packets + stats.dropped, 200);
        assert!(stats.dropped > 0 && stats.ce_marked > 0 && left.len() as u64 == stats.sent_packets);
        runs.push((stats, left));
    }
    assert!(runs.iter().all(|run| *run == runs[0]));
}

#[test]
fn what_does_not_come_to_whole_nanoseconds_is_not_lost() {
    let mut queue = queue(BottleneckParams { rate: 3_000_000_000, ..params(1 << 30, None) });
    for number in 0..3_000 {
        queue.push(at(0), 1, packet(number)).unwrap();
    }
    // 3,000 bytes at 3 Gb/s.
    assert_eq!(std::iter::from_fn(|| queue.pop(at(7))).count(), 2_625);
    assert_eq!(std::iter::from_fn(|| queue.pop(at(8))).count(), 375);
}

#[test]
fn beyond_the_limit_the_newest_are_dropped() {
    let mut queue = queue(params(3 * LEN, None));
    let taken: Vec<bool> =
        (0..6).map(|number| queue.push(Instant::ZERO, LEN, packet(number)).is_ok()).collect();
    // One on the cable, three that wait.
    assert_eq!(taken, [true, true, true, true, false, false]);
    assert_eq!(queue.push(at(40), LEN, packet(6)), Ok(()));
    assert_eq!(queue.stats(at(40)).dropped, 2);
    // One that is longer than the limit passes where nothing waits.
    let mut queue = self::queue(params(10, None));
    queue.push(at(0), LEN, packet(0)).unwrap();
    queue.push(at(0), LEN, packet(1)).unwrap();
    assert_eq!(queue.push(at(0), LEN, packet(2)), Err(packet(2)));
}

#[test]
fn marks_tell_of_the_queue_behind_at_departure_or_before_on_arrival() {
    let step = |at| Some(Red { kmin: 2_500, kmax: 2_500, pmax: 1.0, at });
    let mut marked = Vec::new();
    for when in [MarkAt::Dequeue, MarkAt::Enqueue] {
        let mut queue = queue(params(1 << 20, step(when)));
        for number in 0..6 {
            queue.push(Instant::ZERO, LEN, packet(number)).unwrap();
        }
        let ce = std::iter::from_fn(|| queue.pop(at(1_000))).filter(|packet| packet.ecn == Ecn::Ce);
        marked.push(ce.map(|packet| packet.number).collect::<Vec<_>>());
        assert_eq!(queue.stats(at(1_000)).ce_marked, marked.last().unwrap().len() as u64);
    }
    // Behind the second are four, three behind the third, two behind the fourth; the fifth has three before it.
    assert_eq!(marked, [vec![1, 2], vec![4, 5]]);
}

#[test]
fn who_takes_no_part_in_ecn_is_not_marked() {
    let always = Red { kmin: 0, kmax: 0, pmax: 1.0, at: MarkAt::Dequeue };
    let mut queue = queue(params(1 << 20, Some(always)));
    for number in 0..4 {
        queue.push(Instant::ZERO, LEN, Counted { number, ecn: Ecn::NotEct }).unwrap();
    }
    assert!(std::iter::from_fn(|| queue.pop(at(1_000))).all(|packet| packet.ecn == Ecn::NotEct));
    assert_eq!(queue.stats(at(1_000)).ce_marked, 0);
}

#[test]
fn counts_begin_anew_after_warming_up() {
    let mut queue = queue(params(1 << 20, None));
    for number in 0..10 {
        queue.push(at(0), LEN, packet(number)).unwrap();
    }
    queue.restart_stats(at(200));
    let stats = queue.stats(at(400));
    // Four wait at first, of which the last leaves at 360.
    assert_eq!((stats.sent_packets, stats.most), (4, 4 * LEN));
    let (mean, _) = stats.mean_and_deviation(at(400));
    assert!((mean - (4 + 3 + 2 + 1) as f64 * LEN as f64 / 5.0).abs() < 1e-6, "{mean}");
    // One has begun to leave before, and takes its time of this.
    assert!((queue.utilisation(at(400)) - 1.0).abs() < 1e-9);
    assert!((queue.utilisation(at(600)) - 0.5).abs() < 1e-9);
}

#[test]
fn a_cable_is_never_used_for_longer_than_there_was_time() {
    // 8 seconds for a packet.
    let mut queue = queue(BottleneckParams { rate: 1_000, ..params(0, None) });
    queue.push(at(0), LEN, packet(0)).unwrap();
    let second = 1_000_000;
    assert!((queue.utilisation(at(second)) - 1.0).abs() < 1e-9);
    queue.restart_stats(at(second));
    assert!((queue.utilisation(at(2 * second)) - 1.0).abs() < 1e-9);
    assert!((queue.utilisation(at(15 * second)) - 0.5).abs() < 1e-9);
}
