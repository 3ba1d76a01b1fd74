use super::*;

fn profiles() -> impl Strategy<Value = Params> {
    let base = prop_oneof![
        Just(Params::PAPER),
        Just(Params { alpha_order: AlphaOrder::AlphaFirst, stage_test: StageTest::After, ..Params::PAPER }),
        Just(Params::CONNECTX),
        Just(Params { clamp_tgt_rate: true, cut_shift: 10, min_dec_fac: 0, ..Params::CONNECTX }),
        Just(Params { first_cnp_rate: Rate::from_gbps(3.0), release_at_line: false, ..Params::CONNECTX }),
        Just(Params { alpha_10_bits: true, ..Params::CONNECTX }),
        Just(Params { max_rate: Rate::from_gbps(2.0), ..Params::PAPER }),
    ];
    let bytes = prop_oneof![Just(10_000_000), Just(100_000), Just(1)];
    (base, bytes, 1u32..7).prop_map(|(base, byte_reset_bytes, threshold)| Params {
        byte_reset_bytes,
        threshold,
        ..base
    })
}

/// Inputs and the time in ns before each.
fn runs() -> impl Strategy<Value = Vec<(u64, Input)>> {
    let input = prop_oneof![3 => Just(Cnp), 3 => (0u64..3_000_000).prop_map(Sent), 2 => Just(Look)];
    let wait = prop_oneof![Just(0), 0u64..10_000, 0u64..1_000_000, Just(1_000), Just(55_000)];
    prop::collection::vec((wait, input), 1..80)
}

proptest! {
    /// Whatever happens, the rate is between the lowest and the highest and alpha between 0 and 1.
    #[test]
    fn everything_stays_in_its_bounds(params in profiles(), line in 0.05f64..400.0, run in runs()) {
        let mut rp = rp(params, line);
        let (least, most) = (params.min_rate.bps(), rp.cap);
        prop_assert!(most <= (line * 1e9).max(least));
        let mut now = Instant::ZERO;
        for (wait, input) in run {
            now += Duration::from_nanos(wait);
            give(&mut rp, now, input);
            let state = rp.state(now);
            let Some(rate) = state.rate.map(Rate::bps) else { continue };
            let target = state.target.unwrap().bps();
            prop_assert!(least <= rate && rate <= target && target <= most, "{least} {rate} {target} {most}");
            prop_assert!((0.0..=1.0).contains(&state.alpha.unwrap()), "{state:?}");
            prop_assert_eq!(rp.pacer.rate(), state.rate);
            prop_assert!(rp.poll_timeout().is_none_or(|due| due >= now));
        }
    }

    /// Looking at the timers more often changes nothing at all.
    #[test]
    fn time_in_one_step_or_in_many_is_the_same(
        params in profiles(),
        run in runs(),
        every in prop_oneof![Just(1_000u64), 500u64..400_000],
    ) {
        let (mut once, mut often) = (rp(params, 40.0), rp(params, 40.0));
        let mut now = Instant::ZERO;
        for (wait, input) in run {
            let until = now + Duration::from_nanos(wait);
            while now + Duration::from_nanos(every) < until {
                now += Duration::from_nanos(every);
                often.handle_timeout(now);
                often.earliest_departure(now);
                often.allowance(now);
            }
            now = until;
            give(&mut once, now, input);
            give(&mut often, now, input);
        }
        once.handle_timeout(now);
        often.handle_timeout(now);
        prop_assert_eq!(&once.limit, &often.limit);
        prop_assert_eq!(once.state(now), often.state(now));
        let apart = once.earliest_departure(now).as_nanos().abs_diff(often.earliest_departure(now).as_nanos());
        prop_assert!(apart <= 1, "{apart}");
    }

    /// Waking exactly at the deadlines that it names is the same as not waking at all.
    #[test]
    fn its_deadlines_are_all_that_matters(params in profiles(), run in runs()) {
        let (mut once, mut woken) = (rp(params, 40.0), rp(params, 40.0));
        let mut now = Instant::ZERO;
        for (wait, input) in run {
            now += Duration::from_nanos(wait);
            while let Some(due) = woken.poll_timeout().filter(|due| *due < now) {
                woken.handle_timeout(due);
                prop_assert!(woken.poll_timeout().is_none_or(|next| next > due));
            }
            give(&mut once, now, input);
            give(&mut woken, now, input);
        }
        once.handle_timeout(now);
        woken.handle_timeout(now);
        prop_assert_eq!(once.state(now), woken.state(now));
    }

    /// In silence the rate never falls and alpha never rises; in the end the rate is the highest.
    #[test]
    fn silence_recovers(params in profiles(), run in runs(), waits in prop::collection::vec(1u64..500_000, 50)) {
        let mut rp = rp(params, 10.0);
        let mut now = Instant::ZERO;
        for (wait, input) in run {
            now += Duration::from_nanos(wait);
            give(&mut rp, now, input);
        }
        // What is noted takes effect first.
        now += params.alpha_period + params.cut_period;
        give(&mut rp, now, Look);
        let mut last = rp.state(now);
        for wait in waits {
            now += Duration::from_nanos(wait);
            give(&mut rp, now, Look);
            let state = rp.state(now);
            prop_assert!(state.alpha.is_none() || state.alpha <= last.alpha);
            prop_assert!(state.rate.is_none() || state.rate >= last.rate, "{last:?} {state:?}");
            last = state;
        }
        now += Duration::from_secs(100);
        give(&mut rp, now, Look);
        let rate = rp.state(now).rate;
        prop_assert!(rate.is_none_or(|rate| rate.bps() == rp.cap), "{rate:?}");
        prop_assert_eq!(rp.poll_timeout(), None);
    }

    /// Of two that are alike, one that gets a CNP more has no higher rate just after it.
    #[test]
    fn a_cnp_never_raises_the_rate(params in profiles(), run in runs()) {
        let mut rp = rp(params, 40.0);
        let mut now = Instant::ZERO;
        for (wait, input) in run {
            now += Duration::from_nanos(wait);
            give(&mut rp, now, input);
            let mut other = rp.clone();
            other.handle_timeout(now);
            let before = other.state(now).rate.map_or(other.cap, Rate::bps);
            let mut hit = rp.clone();
            give(&mut hit, now, Cnp);
            prop_assert!(hit.state(now).rate.unwrap().bps() <= before);
        }
    }
}

#[test]
fn several_cnps_in_one_period_are_one_cut() {
    let mut once = rp(Params::CONNECTX, 100.0);
    give(&mut once, at(0.0), Cnp);
    give(&mut once, at(5.2), Cnp);
    let mut often = once.clone();
    for time in [5.3, 5.9] {
        give(&mut often, at(time), Cnp);
    }
    for rp in [&mut once, &mut often] {
        give(rp, at(8.0), Look);
    }
    assert_eq!(once.limit, often.limit);
    assert!((once.state(at(8.0)).rate.unwrap().gbps() - 26.388839).abs() < 1e-6);
}

#[test]
fn a_queue_pair_without_a_cnp_costs_nothing_and_is_not_limited() {
    let mut rp = rp(Params::CONNECTX, 100.0);
    give(&mut rp, at(1.0), Sent(1 << 40));
    assert_eq!(rp.state(at(2.0)), RateState::default());
    assert_eq!(rp.poll_timeout(), None);
    assert_eq!(rp.allowance(at(2.0)), Some(u64::MAX));
    assert_eq!(rp.earliest_departure(at(2.0)), at(2.0));
}

#[test]
fn the_nics_profile_forgets_a_queue_pair_that_is_back_at_the_highest_rate() {
    let mut released = rp(Params::CONNECTX, 1.0);
    let mut kept = rp(Params { release_at_line: false, ..Params::CONNECTX }, 1.0);
    for rp in [&mut released, &mut kept] {
        give(rp, at(0.0), Cnp);
        give(rp, at(1e6), Look);
    }
    assert_eq!(released.limit, None);
    assert_eq!(kept.state(at(1e6)).rate, Some(Rate::from_gbps(1.0)));
    // The next CNP is the first again for one of them: alpha starts high.
    for rp in [&mut released, &mut kept] {
        give(rp, at(1e6), Cnp);
    }
    assert_eq!(released.state(at(1e6)).alpha, Some(Params::CONNECTX.alpha_init));
    assert!(kept.state(at(1e6)).alpha < Some(1e-6));
}

/// What is computed at once after a long sleep is what single steps would come to.
#[test]
fn a_long_sleep_is_caught_up_with_at_once() {
    // Additive increases are so small that 100 000 of them do not reach the line.
    let slow = Params { ai_rate: Rate::from_mbps(0.01), hai_rate: Rate::from_mbps(0.02), ..Params::PAPER };
    for (params, seconds) in [(slow, 4), (slow, 200), (Params { threshold: 31, ..slow }, 9)] {
        let (mut asleep, mut awake) = (rp(params, 10.0), rp(params, 10.0));
        for rp in [&mut asleep, &mut awake] {
            for n in 0..5 {
                give(rp, at(50.0 * f64::from(n)), Cnp);
            }
            // The byte counter has been on for a while, so that some of the increases are hyper.
            give(rp, at(300.0), Sent(10_000_000 * 70));
        }
        let end = at(f64::from(seconds) * 1e6);
        let mut now = at(300.0);
        while now < end {
            now = (now + Duration::from_millis(1)).min(end);
            awake.handle_timeout(now);
        }
        asleep.handle_timeout(end);
        let (asleep, awake) = (asleep.state(end), awake.state(end));
        let (a, b) = (asleep.rate.unwrap().bps(), awake.rate.unwrap().bps());
        assert!((a - b).abs() <= b * 1e-9, "{a} {b}");
        assert_eq!(asleep.time_stage, awake.time_stage);
        assert_eq!(asleep.alpha, awake.alpha);
    }
}

#[test]
fn a_rate_that_rises_shortens_the_wait_of_a_slow_queue_pair() {
    let params = Params { min_rate: Rate::from_mbps(1.0), ..Params::PAPER };
    let mut rp = rp(params, 40.0);
    for n in 0..40 {
        give(&mut rp, at(50.0 * f64::from(n)), Cnp);
    }
    let start = at(1_950.0);
    assert_eq!(rp.state(start).rate, Some(Rate::from_mbps(1.0)));
    rp.on_sent(start, 1_000);
    assert_eq!(rp.earliest_departure(start), start + Duration::from_millis(8));
    // Meanwhile the rate goes up by 40 Mb/s every 55 µs, so it is over far sooner.
    let mut now = start;
    while rp.earliest_departure(now) > now {
        now = rp.earliest_departure(now).min(rp.poll_timeout().unwrap_or(now));
        rp.handle_timeout(now);
    }
    assert!(now - start < Duration::from_micros(700), "{:?}", now - start);
}

#[test]
fn extremes_of_time_and_size_neither_panic_nor_hang() {
    for params in [Params::PAPER, Params::CONNECTX, Params { alpha_10_bits: true, ..Params::CONNECTX }] {
        let last = Instant::from_nanos(u64::MAX);
        let mut rp = rp(Params { release_at_line: false, ..params }, 1e4);
        give(&mut rp, Instant::ZERO, Cnp);
        give(&mut rp, Instant::ZERO, Sent(u64::MAX));
        give(&mut rp, last, Look);
        give(&mut rp, last, Sent(u64::MAX));
        give(&mut rp, last, Cnp);
        // Time that goes back is time that stands still.
        give(&mut rp, Instant::ZERO, Cnp);
        give(&mut rp, last, Look);
        assert!(rp.earliest_departure(last) >= last);
        let rate = rp.state(last).rate.unwrap();
        assert!(rate >= params.min_rate && rate.gbps() <= 1e4);
    }
}

#[test]
fn a_simulation_may_start_at_unequal_rates() {
    let mut rp = rp(Params::PAPER, 40.0);
    rp.start_at(at(3.0), Rate::from_gbps(5.0), Rate::from_gbps(40.0));
    assert_eq!(rp.state(at(3.0)).rate, Some(Rate::from_gbps(5.0)));
    give(&mut rp, at(58.0), Look);
    assert_eq!(rp.state(at(58.0)).rate, Some(Rate::from_gbps(22.5)));
}
