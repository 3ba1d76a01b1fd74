use super::*;

/// A row of a table: time, input, and what holds after it and after everything else that is due at that time.
type Row = (f64, Input, [f64; 3], [u32; 2]);

/// Runs the rows in two ways: with nothing in between, and with a look at the timers every so often, as in wall time
/// where wake-ups come at no particular time.
fn check(params: Params, line_gbps: f64, rows: &[Row]) {
    for every in [None, Some(0.317), Some(7.9)] {
        let mut rp = rp(params, line_gbps);
        let mut looked = 0.0;
        for &(time, input, [alpha, current, target], stages) in rows {
            while let Some(every) = every
                && looked + every < time
            {
                looked += every;
                rp.handle_timeout(at(looked));
            }
            give(&mut rp, at(time), input);
            let now = match input {
                // Bytes of an instant come before its timer, and rows show each.
                Sent(_) => rp.state(at(time)),
                _ => {
                    rp.handle_timeout(at(time));
                    rp.state(at(time))
                }
            };
            let got = [now.alpha.unwrap(), now.rate.unwrap().gbps(), now.target.unwrap().gbps()];
            let fits = got.iter().zip([alpha, current, target]).all(|(got, want)| (got - want).abs() < 1e-6);
            assert!(fits, "at {time} µs: {got:?} instead of {:?}", [alpha, current, target]);
            assert_eq!([now.time_stage, now.byte_stage], stages, "at {time} µs");
        }
    }
}

#[test]
fn p1_three_cnps_and_then_silence() {
    check(
        Params::PAPER,
        40.0,
        &[
            (0.0, Cnp, [1.0, 20.0, 40.0], [0, 0]),
            (50.0, Cnp, [1.0, 10.0, 20.0], [0, 0]),
            (100.0, Cnp, [1.0, 5.0, 10.0], [0, 0]),
            (155.0, Look, [0.996094, 7.5, 10.0], [1, 0]),
            (210.0, Look, [0.992203, 8.75, 10.0], [2, 0]),
            (265.0, Look, [0.988327, 9.375, 10.0], [3, 0]),
            (320.0, Look, [0.984466, 9.6875, 10.0], [4, 0]),
            (375.0, Look, [0.980621, 9.84375, 10.0], [5, 0]),
            (430.0, Look, [0.976790, 9.941875, 10.04], [6, 0]),
            (485.0, Look, [0.972975, 10.0109375, 10.08], [7, 0]),
            (540.0, Look, [0.969174, 10.06546875, 10.12], [8, 0]),
            (595.0, Look, [0.965388, 10.112734, 10.16], [9, 0]),
        ],
    );
}

#[test]
fn p2_the_byte_counter_and_hyper_increase() {
    let params = Params { byte_reset_bytes: 1_000_000, threshold: 2, ..Params::PAPER };
    check(
        params,
        40.0,
        &[
            (0.0, Cnp, [1.0, 20.0, 40.0], [0, 0]),
            (50.0, Cnp, [1.0, 10.0, 20.0], [0, 0]),
            (60.0, Sent(500_000), [1.0, 10.0, 20.0], [0, 0]),
            (80.0, Sent(500_000), [1.0, 15.0, 20.0], [0, 1]),
            (100.0, Sent(500_000), [1.0, 15.0, 20.0], [0, 1]),
            (105.0, Look, [0.996094, 17.5, 20.0], [1, 1]),
            (120.0, Sent(500_000), [0.996094, 18.75, 20.0], [1, 2]),
            (140.0, Sent(500_000), [0.996094, 18.75, 20.0], [1, 2]),
            (160.0, Sent(500_000), [0.992203, 19.395, 20.04], [1, 3]),
            (160.0, Look, [0.992203, 19.7375, 20.08], [2, 3]),
            (180.0, Sent(500_000), [0.992203, 19.7375, 20.08], [2, 3]),
            (200.0, Sent(500_000), [0.992203, 19.92875, 20.12], [2, 4]),
            (215.0, Look, [0.988327, 20.044375, 20.16], [3, 4]),
            (220.0, Sent(500_000), [0.988327, 20.044375, 20.16], [3, 4]),
            (240.0, Sent(500_000), [0.988327, 20.2021875, 20.36], [3, 5]),
            (270.0, Look, [0.984466, 20.381094, 20.56], [4, 5]),
            (310.0, Cnp, [0.984527, 10.348844, 20.381094], [0, 0]),
        ],
    );
}

#[test]
fn p3_alpha_decays_over_silence() {
    let params = Params { time_reset: Duration::from_millis(100), ..Params::PAPER };
    check(
        params,
        40.0,
        &[
            (0.0, Cnp, [1.0, 20.0, 40.0], [0, 0]),
            (55.0, Look, [0.996094, 20.0, 40.0], [0, 0]),
            (110.0, Look, [0.992203, 20.0, 40.0], [0, 0]),
            (1100.0, Cnp, [0.925001, 10.752927, 20.0], [0, 0]),
            (1150.0, Cnp, [0.925294, 5.779690, 10.752927], [0, 0]),
        ],
    );
}

#[test]
fn p4_the_lowest_rate() {
    let rates = [10.0, 5.0, 2.5, 1.25, 0.625, 0.3125, 0.15625, 0.1, 0.1];
    let rows: Vec<Row> =
        (0..8).map(|n| (50.0 * n as f64, Cnp, [1.0, rates[n + 1], rates[n]], [0, 0])).collect();
    check(Params::PAPER, 10.0, &rows);
}

#[test]
fn p5_the_order_of_cut_and_alpha() {
    let params = Params { alpha_init: 0.5, ..Params::PAPER };
    let alphas = [0.501953, 0.496094, 0.498062, 0.500023];
    let rates = [
        (AlphaOrder::CutFirst, [30.0, 38.75, 29.138182, 21.881869]),
        (AlphaOrder::AlphaFirst, [29.960938, 38.745117, 29.096378, 21.821951]),
    ];
    for (alpha_order, [first, recovered, second, third]) in rates {
        check(
            Params { alpha_order, ..params },
            40.0,
            &[
                (0.0, Cnp, [alphas[0], first, 40.0], [0, 0]),
                (165.0, Look, [alphas[1], recovered, 40.0], [3, 0]),
                (200.0, Cnp, [alphas[2], second, recovered], [0, 0]),
                (250.0, Cnp, [alphas[3], third, second], [0, 0]),
            ],
        );
    }
}

#[test]
fn n1_the_nics_defaults() {
    check(
        Params::CONNECTX,
        100.0,
        &[
            (0.0, Cnp, [0.999023, 100.0, 100.0], [0, 0]),
            (2.5, Look, [0.989291, 100.0, 100.0], [0, 0]),
            (4.0, Look, [0.979654, 51.017315, 100.0], [0, 0]),
            (6.0, Cnp, [0.970110, 51.017315, 100.0], [0, 0]),
            (8.0, Look, [0.965519, 26.388234, 100.0], [0, 0]),
            (9.0, Cnp, [0.960804, 26.388234, 100.0], [0, 0]),
            (12.0, Look, [0.951634, 13.832269, 100.0], [0, 0]),
            (312.0, Look, [0.219148, 56.916134, 100.0], [1, 0]),
            (612.0, Look, [0.050467, 78.458067, 100.0], [2, 0]),
            (912.0, Look, [0.011622, 89.229034, 100.0], [3, 0]),
        ],
    );
}

#[test]
fn n2_a_rate_to_set_on_the_first_cnp() {
    let params = Params { first_cnp_rate: Rate::from_gbps(85.0), ..Params::CONNECTX };
    check(
        params,
        100.0,
        &[
            (0.0, Cnp, [0.999023, 85.0, 85.0], [0, 0]),
            (4.0, Look, [0.979654, 85.0, 85.0], [0, 0]),
            (5.0, Cnp, [0.974870, 85.0, 85.0], [0, 0]),
            (8.0, Look, [0.965495, 43.966472, 85.0], [0, 0]),
            (308.0, Look, [0.222340, 64.483236, 85.0], [1, 0]),
        ],
    );
}

#[test]
fn n3_the_floor_of_one_cut() {
    let params = Params { cut_shift: 10, min_dec_fac: 50, ..Params::CONNECTX };
    check(
        params,
        100.0,
        &[
            (0.0, Cnp, [0.999023, 100.0, 100.0], [0, 0]),
            (4.0, Look, [0.979654, 50.0, 100.0], [0, 0]),
            (5.0, Cnp, [0.974870, 50.0, 100.0], [0, 0]),
            (8.0, Look, [0.965495, 25.0, 100.0], [0, 0]),
        ],
    );
}

#[test]
fn n4_whether_every_cut_lowers_the_target() {
    for (clamp_tgt_rate, targets, last) in
        [(true, [100.0, 51.017315, 26.388839], 20.110866), (false, [100.0; 3], 56.916446)]
    {
        let mut rp = rp(Params { clamp_tgt_rate, ..Params::CONNECTX }, 100.0);
        let rates = [51.017315, 26.388839, 13.832893];
        for (cnp, ((cut, rate), target)) in
            [0.0, 5.0, 9.0].into_iter().zip([4.0, 8.0, 12.0].into_iter().zip(rates).zip(targets))
        {
            give(&mut rp, at(cnp), Cnp);
            give(&mut rp, at(cut), Look);
            let now = rp.state(at(cut));
            assert!((now.rate.unwrap().gbps() - rate).abs() < 1e-6, "{now:?}");
            assert!((now.target.unwrap().gbps() - target).abs() < 1e-6, "{now:?}");
        }
        give(&mut rp, at(312.0), Look);
        let now = rp.state(at(312.0));
        assert!((now.rate.unwrap().gbps() - last).abs() < 1e-6, "{now:?}");
    }
}

#[test]
fn n5_whether_a_cut_after_a_timed_increase_lowers_the_target() {
    for (clamp_tgt_rate_after_time_inc, target) in [(true, 75.508657), (false, 100.0)] {
        let mut rp = rp(Params { clamp_tgt_rate_after_time_inc, ..Params::CONNECTX }, 100.0);
        give(&mut rp, at(0.0), Cnp);
        for (time, rate) in [(4.0, 51.017315), (304.0, 75.508657)] {
            give(&mut rp, at(time), Look);
            assert!((rp.state(at(time)).rate.unwrap().gbps() - rate).abs() < 1e-6);
        }
        give(&mut rp, at(310.0), Cnp);
        give(&mut rp, at(312.0), Look);
        let now = rp.state(at(312.0));
        let got = [now.alpha.unwrap(), now.rate.unwrap().gbps(), now.target.unwrap().gbps()];
        let want = [0.221796, 67.134881, target];
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{got:?}, {want:?}");
    }
}

/// The same states in slow motion: every time 200 times as late, every rate a 200th.
#[test]
fn p1_in_slow_motion() {
    let mut fast = rp(Params::PAPER, 40.0);
    let mut slow = rp(Params::PAPER.dilated(200.0), 0.2);
    for step in 0..2_000u32 {
        let time = f64::from(step) * 5.0;
        let input = if step % 180 < 30 && step % 10 == 0 { Cnp } else { Look };
        give(&mut fast, at(time), input);
        give(&mut slow, at(time * 200.0), input);
        let (fast, slow) = (fast.state(at(time)), slow.state(at(time * 200.0)));
        assert!((fast.rate.unwrap().bps() / 200.0 - slow.rate.unwrap().bps()).abs() < 1e-3);
        assert_eq!((fast.alpha, fast.time_stage), (slow.alpha, slow.time_stage));
    }
}
