use proptest::prelude::*;

use super::*;

const fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn paced(gbps: f64, burst: Duration) -> Pacer {
    let mut pacer = Pacer::unlimited(burst);
    pacer.set_rate(Instant::ZERO, Rate::from_gbps(gbps));
    pacer
}

#[test]
fn without_a_rate_everything_may_leave() {
    let mut pacer = Pacer::unlimited(Duration::from_micros(50));
    pacer.on_sent(at(5), 1 << 40);
    assert_eq!(pacer.earliest_departure(at(5)), at(5));
    assert_eq!(pacer.allowance(at(5)), Some(u64::MAX));
}

#[test]
fn single_packets_keep_the_rate_to_the_nanosecond() {
    // 1000 bytes at 3 Gb/s take 2666.67 ns: no fraction may get lost over many of them.
    let mut pacer = paced(3.0, Duration::ZERO);
    let mut now = Instant::ZERO;
    for _ in 0..3_000_000 {
        assert_eq!(pacer.allowance(now), Some(0));
        pacer.on_sent(now, 1_000);
        assert_eq!(pacer.allowance(now), None);
        now = pacer.earliest_departure(now);
    }
    // Each wake-up is at the next whole nanosecond, and without a burst time a third or two of it is not made up for.
    assert!((8_000_000_000..=8_003_000_000).contains(&now.as_nanos()), "{now:?}");
}

#[test]
fn with_some_burst_time_not_even_the_rounding_of_wake_ups_is_lost() {
    let mut pacer = paced(3.0, Duration::from_nanos(100));
    let mut now = Instant::ZERO;
    for _ in 0..3_000_000 {
        pacer.on_sent(now, 1_000);
        now = pacer.earliest_departure(now);
    }
    assert!((8_000_000_000..=8_000_000_100).contains(&now.as_nanos()), "{now:?}");
}

#[test]
fn whoever_wakes_late_sends_a_batch_and_keeps_the_rate() {
    // 10 Gb/s, woken 60 µs late each time, as by an operating system.
    let mut pacer = paced(10.0, Duration::from_micros(200));
    let (mut now, mut sent, mut most) = (pacer.earliest_departure(Instant::ZERO), 0, 0);
    while now < at(1_000_000_000) {
        let mut left = pacer.allowance(now).unwrap() as i64;
        let mut batch = 0;
        while left >= 0 {
            batch += 1_000;
            left -= 1_000;
        }
        pacer.on_sent(now, batch);
        sent += batch;
        most = most.max(batch);
        now = pacer.earliest_departure(now) + Duration::from_micros(60);
    }
    let rate = sent as f64 * 8.0 / now.as_nanos() as f64;
    assert!((rate - 10.0).abs() < 0.01, "{rate}");
    assert!(most <= 10_000_000_000 / 8 / 5_000 + 1_000, "{most}");
}

#[test]
fn an_idle_time_is_not_saved_up() {
    let mut pacer = paced(8.0, Duration::from_micros(10));
    pacer.on_sent(Instant::ZERO, 1_000);
    assert_eq!(pacer.allowance(Instant::from_micros(1_000_000)), Some(10_000));
}

#[test]
fn a_wait_shrinks_and_grows_with_the_rate() {
    let mut pacer = paced(0.001, Duration::ZERO);
    pacer.on_sent(Instant::ZERO, 1_000);
    assert_eq!(pacer.earliest_departure(Instant::ZERO), at(8_000_000));
    // After half of it a thousand times the rate: 500 bytes are left to wait for.
    pacer.set_rate(at(4_000_000), Rate::from_gbps(1.0));
    assert_eq!(pacer.earliest_departure(at(4_000_000)), at(4_004_000));
    pacer.set_rate(at(4_002_000), Rate::from_gbps(0.5));
    assert_eq!(pacer.earliest_departure(at(4_002_000)), at(4_006_000));
}

#[test]
fn a_new_rate_begins_without_anything_saved_up() {
    let mut pacer = Pacer::unlimited(Duration::from_micros(100));
    pacer.set_rate(Instant::from_micros(500), Rate::from_gbps(1.0));
    assert_eq!(pacer.allowance(Instant::from_micros(500)), None);
    assert_eq!(pacer.earliest_departure(Instant::from_micros(500)), Instant::from_micros(550));
    pacer.release();
    assert_eq!(pacer.allowance(Instant::from_micros(500)), Some(u64::MAX));
}

#[test]
fn extremes_neither_panic_nor_turn_around() {
    let mut pacer = paced(0.0, Duration::from_nanos(u64::MAX));
    pacer.on_sent(at(u64::MAX), u64::MAX);
    assert_eq!(pacer.earliest_departure(at(0)), at(u64::MAX));
    pacer.set_rate(at(1), Rate::from_bps(f64::INFINITY));
    pacer.on_sent(at(u64::MAX), u64::MAX);
    assert!(pacer.earliest_departure(at(7)) >= at(7));
}

proptest! {
    /// However it is driven, no time sees more than its rate, the burst and one packet.
    #[test]
    fn bursts_are_bounded(
        mbps in 1u32..400_000,
        burst_us in 0u64..200,
        steps in prop::collection::vec((0u64..300_000, 64u64..9_000), 1..200),
    ) {
        let mut pacer = paced(f64::from(mbps) / 1e3, Duration::from_micros(burst_us));
        let mut now = Instant::ZERO;
        let mut log: Vec<(u64, u64)> = Vec::new();
        for (wait, size) in steps {
            now += Duration::from_nanos(wait);
            let Some(allowed) = pacer.allowance(now) else { continue };
            let mut batch = 0;
            while batch <= allowed && batch < 1 << 20 {
                batch += size;
            }
            pacer.on_sent(now, batch);
            log.push((now.as_nanos(), batch));
        }
        for (first, &(start, _)) in log.iter().enumerate() {
            let mut bytes = 0;
            for &(end, batch) in &log[first..] {
                bytes += batch;
                let span = (end - start) as f64 + burst_us as f64 * 1e3;
                let most = span * f64::from(mbps) / 8e3 + 9_001.0;
                prop_assert!(bytes as f64 <= most, "{bytes} bytes in {span} ns of {mbps} Mb/s");
            }
        }
    }

    /// A batch costs what its packets cost.
    #[test]
    fn batches_cost_what_their_packets_cost(mbps in 1u32..400_000, packets in 1u64..64) {
        let mut single = paced(f64::from(mbps) / 1e3, Duration::ZERO);
        let mut batch = single.clone();
        batch.on_sent(Instant::ZERO, packets * 1_058);
        for _ in 0..packets {
            single.on_sent(Instant::ZERO, 1_058);
        }
        let apart = single.next.abs_diff(batch.next);
        prop_assert!(apart <= u128::from(packets), "{apart}");
    }
}
