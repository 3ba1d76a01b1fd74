use super::*;

fn error(text: &str) -> ConfigError {
    CcConfig::parse(text).unwrap_err()
}

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(CcConfig::parse(""), Ok(CcConfig::default()));
    assert_eq!(*CcConfig::default().params, Params::CONNECTX);
}

#[test]
fn every_key_can_be_set() {
    let text = r#"
        cc = "rate=200M"
        burst_us = 12.5
        [dcqcn]
        rpg_ai_rate = 7
        rpg_byte_reset = 1_000_000
        dce_tcp_g = 0.01
        clamp_tgt_rate = true
        np_mode = "window"
        cnp_scope = "dest_ip"
        [timely]
        t_low = 10
        t_high = 200
        min_rtt = 5
        ewma_alpha = 0.5
        hai_thresh = 3
        additive_increment = 20
        decrease_factor = 0.5
        min_rate = 1
    "#;
    let config = CcConfig::parse(text).unwrap();
    assert_eq!(config.algorithm, Algorithm::Rate(Rate::from_mbps(200.0)));
    assert_eq!(config.burst, Duration::from_nanos(12_500));
    let want = Params {
        ai_rate: Rate::from_mbps(7.0),
        byte_reset_bytes: 1_000_000,
        alpha_g: 0.01,
        clamp_tgt_rate: true,
        np_mode: crate::params::NpMode::Window,
        cnp_scope: crate::params::CnpScope::DestIp,
        ..Params::CONNECTX
    };
    assert_eq!(*config.params, want);
    let want = TimelyParams {
        ewma_alpha: 0.5,
        t_low: Duration::from_micros(10),
        t_high: Duration::from_micros(200),
        min_rtt: Duration::from_micros(5),
        hai_thresh: 3,
        additive_increment: Rate::from_mbps(20.0),
        decrease_factor: 0.5,
        min_rate: Rate::from_mbps(1.0),
    };
    assert_eq!(*config.timely, want);
}

/// What each key gives is what it takes: a file of all of them reads back as it was.
#[test]
fn a_file_with_all_keys_of_a_profile_is_that_profile() {
    for (name, params) in [("paper", Params::PAPER), ("connectx", Params::CONNECTX)] {
        let mut text = format!("profile = \"{name}\"\n[dcqcn]\n");
        for key in Key::ALL {
            text += &match key.value(&params) {
                crate::keys::Value::Number(number) => format!("{} = {number}\n", key.name),
                crate::keys::Value::Flag(flag) => format!("{} = {flag}\n", key.name),
                crate::keys::Value::Word(word) => format!("{} = \"{word}\"\n", key.name),
            };
        }
        assert_eq!(*CcConfig::parse(&text).unwrap().params, params);
    }
}

#[test]
fn the_profile_comes_first_wherever_it_stands() {
    let config = CcConfig::parse("dcqcn.rpg_threshold = 2\nprofile = \"paper\"\n").unwrap();
    assert_eq!(*config.params, Params { threshold: 2, ..Params::PAPER });
}

#[test]
fn slow_motion_comes_last() {
    let config = CcConfig::parse("dilation = 200\nprofile = \"paper\"\n[dcqcn]\nrpg_ai_rate = 80\n").unwrap();
    assert_eq!(*config.params, Params { ai_rate: Rate::from_mbps(80.0), ..Params::PAPER }.dilated(200.0));
}

#[test]
fn registers_are_taken_where_they_have_a_meaning() {
    let text = "[dcqcn]\ndce_tcp_g = { register = 1019 }\ninitial_alpha_value.register = 512\n\
                rpg_byte_reset = { register = 32767 }\n";
    let params = CcConfig::parse(text).unwrap().params;
    assert_eq!(*params, Params { alpha_init: 0.5, ..Params::CONNECTX });
    // A register value without the word is out of range, not guessed at.
    assert_eq!(error("[dcqcn]\ndce_tcp_g = 1019").key.as_deref(), Some("dce_tcp_g"));
}

#[test]
fn errors_name_line_key_and_range() {
    for (text, message) in [
        (
            "cc = \"fast\"",
            "line 1: cc = \"fast\": it must be one of off, dcqcn, rate=200M, timely; a rate is 1k to 10000G",
        ),
        (
            "cc = \"rate=0\"",
            "line 1: cc = \"rate=0\": it must be one of off, dcqcn, rate=200M, timely; a rate is 1k to 10000G",
        ),
        ("\n\nburst_us = -1", "line 3: burst_us = -1: it must be 0 to 1000000 us"),
        ("burst_us = nan", "line 1: burst_us = nan: it must be 0 to 1000000 us"),
        ("profile = \"intel\"", "line 1: profile = \"intel\": it must be one of paper, connectx"),
        ("dcqcn = 3", "line 1: dcqcn = 3: it must be a table"),
        ("[dcqcn]\n\nrpg_gd = 9", "line 3: rpg_gd = 9: it must be a whole number, 10 to 20"),
        ("[dcqcn]\nrpg_gd = 10.5", "line 2: rpg_gd = 10.5: it must be a whole number, 10 to 20"),
        (
            "[dcqcn]\nrpg_time_reset = \"long\"",
            "line 2: rpg_time_reset = \"long\": it must be 0.001 to 3600000000 us",
        ),
        ("[dcqcn]\nclamp_tgt_rate = 1", "line 2: clamp_tgt_rate = 1: it must be true or false"),
        (
            "[dcqcn]\ncnp_scope = \"vlan\"",
            "line 2: cnp_scope = \"vlan\": it must be one of qp, ip_pair, dest_ip, port",
        ),
        ("[timely]\nhai_thresh = 2.5", "line 2: hai_thresh = 2.5: it must be a whole number, 1 to 1000"),
        ("[timely]\nt_low = 600", "line 2: t_low = 600: it must be at most t_high, 500 us"),
        ("[timely]\nt_low = 500\nt_high = 1", "line 2: t_low = 500: it must be at most t_high, 1 us"),
        ("\n[timely]\nt_high = 1", "line 3: t_high = 1: it must be at least t_low, 50 us"),
        (
            "[dcqcn]\nrpg_min_rate = 7\nrpg_max_rate = 5",
            "line 3: rpg_max_rate must be 0 or at least rpg_min_rate, 7 Mb/s: it is 5",
        ),
        ("[dcqcn]\nrpg_ai_rate = [1,\n2,\n3]", "line 2: rpg_ai_rate = [1, …: it must be 0 to 10000000 Mb/s"),
        ("burst_us = \"\"\"\n3\"\"\"", "line 1: burst_us = \"\"\" …: it must be 0 to 1000000 us"),
    ] {
        assert_eq!(error(text).to_string(), message);
    }
}

#[test]
fn unknown_keys_are_refused_with_those_that_there_are() {
    for (text, line, key, known) in [
        ("burst = 1", 1, "burst", "burst_us"),
        ("[dcqcn]\nrpg_ai = 5", 2, "rpg_ai", "rpg_ai_rate"),
        ("cc = \"off\"\n[timely]\nbeta = 0.8", 3, "beta", "decrease_factor"),
        ("[dctcp]", 1, "dctcp", "timely"),
    ] {
        let error = error(text);
        assert_eq!((error.line, error.key.as_deref()), (line, Some(key)));
        assert!(error.what.contains(known), "{error}");
    }
}

#[test]
fn registers_that_mean_nothing_are_refused() {
    for text in [
        "dce_tcp_g = { register = 1025 }",
        "dce_tcp_g = { register = 0.5 }",
        "dce_tcp_g = { register = 1019, unit = 1 }",
        "dce_tcp_g = { raw = 1019 }",
        "rpg_time_reset = { register = 300 }",
        "rpg_byte_reset = { register = 0 }",
    ] {
        let error = error(&format!("[dcqcn]\n{text}"));
        assert_eq!(error.line, 2);
        assert!(error.what.contains("{ register = n } only for"), "{error}");
    }
}

#[test]
fn what_does_not_go_together_is_refused_at_its_line() {
    let error_of = |text| {
        let error = error(text);
        (error.line, error.key.unwrap())
    };
    assert_eq!(
        error_of("profile = \"paper\"\n[dcqcn]\nrate_reduce_monitor_period = 4"),
        (3, "rate_reduce_monitor_period".into())
    );
    assert_eq!(error_of("[dcqcn]\nrpg_max_rate = 5\nrpg_min_rate = 10"), (2, "rpg_max_rate".into()));
}

#[test]
fn all_algorithms_are_in_slow_motion() {
    let config = CcConfig::parse("dilation = 100\nburst_us = 7\n[timely]\nt_low = 30").unwrap();
    let (fast, slow) = (TimelyParams::PAPER, *config.timely);
    assert_eq!((slow.t_low, slow.t_high), (Duration::from_micros(3_000), Duration::from_millis(50)));
    assert_eq!(slow.min_rtt, Duration::from_millis(2));
    assert_eq!((slow.additive_increment.mbps(), slow.min_rate.mbps()), (0.1, 0.1));
    assert_eq!((slow.ewma_alpha, slow.decrease_factor), (fast.ewma_alpha, fast.decrease_factor));
    assert_eq!(
        (config.params.time_reset, config.burst),
        (Duration::from_millis(30), Duration::from_micros(7))
    );
}

#[test]
fn what_is_no_toml_is_refused_at_its_line() {
    assert_eq!(error("cc = \"off\"\nburst_us = = 3").line, 2);
    assert_eq!(error("cc = \"off\"\ncc = \"dcqcn\"").line, 2);
}

#[test]
fn texts_without_end_are_refused_at_once() {
    let deep = error(&format!("cc = \"off\"\n{} = 1", vec!["a"; 100_000].join(".")));
    assert_eq!((deep.line, deep.key), (2, None));
    assert!(deep.what.contains("more dots in this line than 128"), "{}", deep.what);
    let long = error(&"# nothing\n".repeat(200_000));
    assert_eq!(long.to_string(), "line 1: this is 2000000 bytes long: a file has at most 1048576");
    assert!(CcConfig::parse(&format!("# {}\ncc = \"off\"", ".".repeat(128))).is_ok());
}
