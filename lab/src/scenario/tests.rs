use super::*;

const SMALL: &str = "\
duration_ms = 10
senders = 2

[link]
rate_gbps = 10

[[hosts]]
name = \"tx\"
count = \"senders\"

[[hosts]]
name = \"rx\"

[[flows]]
name = \"flow\"
from = \"tx\"
to = \"rx\"
";

fn parse(text: &str, sets: &[&str]) -> Result<Scenario, ScenarioError> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Scenario::parse("small", text, &sets, None)
}

#[test]
fn all_built_in_scenarios_are_read() {
    for builtin in BUILTIN {
        let scenario = Scenario::builtin(builtin.name, &[], Some(7)).unwrap();
        let scenario = scenario.unwrap_or_else(|error| panic!("{}: {error}", builtin.name));
        assert!(scenario.see.len() > 80 && scenario.title != builtin.name, "{}", builtin.name);
        assert!(scenario.setups.is_empty() == scenario.memory.is_some() && scenario.seed == 7);
    }
    assert!(Scenario::builtin("nothing", &[], None).is_none());
}

#[test]
fn changes_reach_what_they_name() {
    let sets = [
        "senders=3",
        "link.rate_gbps=25",
        "link.delay_us=2.5",
        "switch.kmin_kb=10",
        "switch.kmax_kb=400",
        "switch.pmax=0.2",
        "cc.profile=connectx",
        "duration_ms=20",
        "flows.0.mtu=4096",
        "flows.flow.size_kb=100",
        "hosts.rx.rate_gbps=50",
    ];
    let scenario = parse(SMALL, &sets).unwrap();
    let setup = &scenario.setups[0];
    assert_eq!(setup.hosts.len(), 4);
    assert_eq!(setup.hosts[0].cable, Cable { rate: 25_000_000_000, delay: Duration::from_nanos(2_500) });
    assert_eq!(setup.hosts[3].cable.rate, 50_000_000_000);
    let red = setup.switches[0].params.red.unwrap();
    assert_eq!((red.kmin, red.kmax, red.pmax), (10_000, 400_000, 0.2));
    assert_eq!(setup.cc.params.profile, dcqcn::Profile::Connectx);
    assert!(!setup.cc.params.release_at_line, "the lab's default");
    assert_eq!(setup.duration, Duration::from_millis(20));
    assert_eq!((setup.flows[2].mtu, setup.flows[2].messages), (Mtu::B4096, Some((100_000, 1))));
    assert_eq!(scenario.parameters["link"]["rate_gbps"], 25);
}

#[test]
fn what_is_wrong_is_named_with_its_line_key_and_range() {
    for (change, to, wanted) in [
        ("rate_gbps = 10", "rate_gbps = 0", "line 5: link.rate_gbps = 0: it must be 0.000001 to 10000 Gb/s"),
        (
            "rate_gbps = 10",
            "rate_gpbs = 10",
            "line 5: there is no key link.rate_gpbs; the keys here are rate_gbps, delay_us",
        ),
        ("senders = 2", "senders = 2.5", "line 2: senders = 2.5: it must be a whole number, 1 to 4096"),
        (
            "senders = 2",
            "senders = \"two\"",
            "line 2: senders = \"two\": it must be a whole number, 1 to 4096",
        ),
        ("duration_ms = 10", "duration_ms = ", "line 1: "),
        (
            "to = \"rx\"",
            "to = \"nobody\"",
            "line 17: flows.0.to = \"nobody\": it must be hosts, or one of them: rx, tx",
        ),
        ("to = \"rx\"", "", "line 14: flows.0.to is missing: it must be the name of hosts"),
        (
            "to = \"rx\"",
            "to = \"tx\"",
            "line 17: flows.0.to = \"tx\": it must be hosts other than those that send",
        ),
        (
            "[link]",
            "[cc]\nprofile = \"papre\"\n[link]",
            "line 5: [cc] profile = \"papre\": it must be one of paper, connectx",
        ),
        (
            "[link]",
            "[cc]\nalgorithm = \"on\"\n[link]",
            "line 5: [cc] algorithm = \"on\": it must be one of off, dcqcn",
        ),
        (
            "[link]",
            "[cc.dcqcn]\nrpg_gd = 3\n[link]",
            "line 5: [cc] rpg_gd = 3: it must be a whole number, 10 to 20",
        ),
        (
            "[link]",
            "[cc]\n\nspeed = 3\n[link]",
            "line 6: [cc] there is no key speed; the keys here are algorithm, profile",
        ),
        (
            "[link]",
            "[switch]\nkmin_kb = 300\n[link]",
            "line 5: switch.kmin_kb = 300: it must be such that kmin_kb (300) is not above kmax_kb (200)",
        ),
        (
            "[link]",
            "[switch]\nlossless = [9]\n[link]",
            "line 5: switch.lossless = [9]: it must be a list of numbers, each a whole number, 0 to 7",
        ),
        (
            "[link]",
            "[switch]\nwatchdog = \"cat\"\n[link]",
            "line 5: switch.watchdog = \"cat\": it must be one of off, drop, forward, alert",
        ),
        (
            "[link]",
            "[measure]\nwatch = [\"rx->tx1\"]\n[link]",
            "line 5: measure.watch = [\"rx->tx1\"]: it must be a list of queues",
        ),
        (
            "[link]",
            "[measure]\nwatch = [\"switch->switch\"]\n[link]",
            "line 5: measure.watch = [\"switch->switch\"]: it must be a list of queues",
        ),
        (
            "[link]",
            "[[trunks]]\nfrom = \"switch\"\nto = \"switch\"\n[link]",
            "line 6: trunks.0.to = \"switch\": it must be a switch other than the one that it comes from",
        ),
    ] {
        let text = SMALL.replacen(change, to, 1);
        let error = parse(&text, &[]).unwrap_err().to_string();
        assert!(error.starts_with(wanted), "{error}\n{wanted}");
    }
}

#[test]
fn a_change_that_is_wrong_is_named_itself() {
    for (set, wanted) in [
        (
            "link.rate_gbps=-1",
            "--set link.rate_gbps=-1: link.rate_gbps = -1: it must be 0.000001 to 10000 Gb/s",
        ),
        (
            "cc.profile=none",
            "--set cc.profile=none: [cc] profile = \"none\": it must be one of paper, connectx",
        ),
        ("speed=1", "--set speed=1: there is no key speed; the keys here are "),
        ("senders", "--set senders: a change is key.path=value"),
        (
            "flows.5.qps=2",
            "--set flows.5.qps=2: there is no flows.5: say the name of one, or its number, 0 to 0",
        ),
        ("senders=[1", "--set senders=[1: "),
    ] {
        let error = parse(SMALL, &[set]).unwrap_err().to_string();
        assert!(error.starts_with(wanted), "{error}\n{wanted}");
    }
}

#[test]
fn flows_are_not_more_than_memory_holds() {
    let error = parse(SMALL, &["senders=4096", "flows.0.qps=17"]).unwrap_err().to_string();
    let range = "it must be such that there are 65536 flows at most";
    assert_eq!(error, format!("--set flows.0.qps=17: flows.0.qps = 17: {range}"));
}

#[test]
fn variants_change_what_they_say_and_nothing_else() {
    let text = format!(
        "{SMALL}\n[[variants]]\nname = \"off\"\n[variants.cc]\nalgorithm = \"off\"\n\n[[variants]]\nname = \"deep\"\n\
         [variants.switch]\nbuffer_kb = 5000\n"
    );
    let scenario = parse(&text, &["switch.buffer_kb=700"]).unwrap();
    let [off, deep] = &scenario.setups[..] else { panic!("two") };
    assert_eq!((off.name.as_str(), deep.name.as_str()), ("off", "deep"));
    assert!(!off.cc.algorithm.uses_ecn() && deep.cc.algorithm.uses_ecn());
    let buffers = [off, deep].map(|setup| setup.switches[0].params.buffer);
    assert_eq!(buffers, [700_000, 5_000_000]);
    let wrong = text.replace("buffer_kb = 5000", "buffer_kb = 0");
    let error = parse(&wrong, &[]).unwrap_err().to_string();
    assert!(error.starts_with("line 27: switch.buffer_kb = 0: it must be 1 to "), "{error}");
}

#[test]
fn dilation_slows_times_and_rates_and_leaves_bytes() {
    let fast = parse(SMALL, &[]).unwrap();
    let slow = parse(SMALL, &["dilation=100"]).unwrap();
    let (fast, slow) = (&fast.setups[0], &slow.setups[0]);
    assert_eq!(slow.duration.as_nanos(), 100 * fast.duration.as_nanos());
    assert_eq!(slow.hosts[0].cable.rate * 100, fast.hosts[0].cable.rate);
    assert_eq!(slow.hosts[0].cable.delay.as_nanos(), 100 * fast.hosts[0].cable.delay.as_nanos());
    assert_eq!(slow.cc.params.time_reset.as_nanos(), 100 * fast.cc.params.time_reset.as_nanos());
    assert_eq!(slow.cc.timely.t_low.as_nanos(), 100 * fast.cc.timely.t_low.as_nanos());
    let late = parse(SMALL, &["dilation=100", "cc.burst_us=3"]).unwrap();
    assert_eq!(late.setups[0].cc.burst, Duration::from_micros(300));
    let fixed = parse(SMALL, &["dilation=100", "cc.algorithm=rate=2G"]).unwrap();
    assert_eq!(fixed.setups[0].cc.algorithm.to_string(), "rate=20M");
    assert_eq!(slow.switches[0].params.red, fast.switches[0].params.red);
}

#[test]
fn rings_and_pairs_join_hosts() {
    let ring = SMALL
        .replace("senders = 2", "senders = 4")
        .replace("from = \"tx\"\nto = \"rx\"", "from = \"tx\"\npairs = \"ring\"\nsize_kb = 400");
    let flows = &parse(&ring, &[]).unwrap().setups[0].flows;
    let ends: Vec<_> = flows.iter().map(|flow| (flow.from, flow.to, flow.follows)).collect();
    assert_eq!(ends, [(0, 1, Some(3)), (1, 2, Some(0)), (2, 3, Some(1)), (3, 0, Some(2))]);
    assert_eq!(flows[0].messages, Some((100_000, 6)));
    let all = parse(SMALL, &["flows.0.pairs=all", "flows.0.qps=2"]).unwrap();
    let names: Vec<_> = all.setups[0].flows.iter().map(|flow| flow.name.as_str()).collect();
    assert_eq!(names, ["flow1", "flow2", "flow3", "flow4"]);
}

#[test]
fn a_scenario_of_memory_has_its_own_keys() {
    const MEMORY: &str = "[memory]\nhosts = 4\nprocesses = [1, 8]\nrc_bytes = 1000\n";
    let memory = parse(MEMORY, &["memory.receives=16"]).unwrap().memory.unwrap();
    assert_eq!(
        (memory.hosts, memory.processes, memory.rc_bytes, memory.receives),
        (4, vec![1, 8], 1000.0, 16)
    );
    for (set, key) in [
        ("memory.processes=[8, 1]", "memory.processes"),
        ("memory.hosts=1", "memory.hosts"),
        ("memory.rc=1", "memory.rc"),
        ("duration_ms=5", "duration_ms"),
    ] {
        let error = parse(MEMORY, &[set]).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}

#[test]
fn a_switch_has_an_mtu() {
    let scenario = parse(SMALL, &["switch.mtu=1500"]).unwrap();
    assert_eq!(scenario.setups[0].switches[0].params.mtu, 1500);
    let error = parse(SMALL, &["switch.mtu=100"]).unwrap_err();
    assert!(error.to_string().contains("256"), "{error}");
}

#[test]
fn pairs_are_counted_before_they_are_made() {
    let text = "[[hosts]]\nname = \"a\"\ncount = 4096\n[[hosts]]\nname = \"b\"\ncount = 4096\n[[flows]]\nfrom = \"a\"\n\
                to = \"b\"\npairs = \"all\"\n";
    for (set, wrong) in [("flows.0.qps=1", "from"), ("flows.0.qps=1024", "qps")] {
        let error = parse(text, &[set]).unwrap_err();
        assert_eq!(error.key, Some(format!("flows.0.{wrong}")));
        assert!(error.what.ends_with("such that there are 65536 flows at most"), "{error}");
    }
    let ring = text.replace("to = \"b\"\npairs = \"all\"", "pairs = \"ring\"\nsize_kb = 1");
    assert_eq!(parse(&ring, &[]).unwrap().setups[0].flows[0].messages, Some((1, 8190)));
    let error = parse(&ring, &["flows.0.messages=1000000"]).unwrap_err().to_string();
    assert!(error.ends_with("it must be 524416 at most, with 8190 steps each"), "{error}");
}

#[test]
fn every_name_is_one_things_only() {
    for (more, wanted) in [
        ("[[hosts]]\nname = \"tx1\"", "hosts.2.name = \"tx1\": it must be a name that no other hosts"),
        ("[[hosts]]\nname = \"r\"\n[[hosts]]\nname = \"switch\"", "hosts.3.name = \"switch\": "),
        ("[[switches]]\nname = \"\"", "switches.0.name = \"\": it must be a name that no other switch has"),
        ("[[switches]]\nname = \"s\"\n[[switches]]\nname = \"s\"", "switches.1.name = \"s\": "),
        ("[[switches]]\nname = \"tx2\"", "hosts.0.name = \"tx\": it must be a name whose hosts (tx2) "),
        ("[[variants]]\nname = \"v\"\n[[variants]]\nname = \"v\"", "variants.1.name = \"v\": "),
        ("[[hosts]]\nname = \"x\\u001b[2J\"", "it must be text without control characters"),
    ] {
        let error = parse(&format!("{SMALL}\n{more}\n"), &[]).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}\n{wanted}");
    }
}

#[test]
fn queues_are_watched_once() {
    let error = parse(SMALL, &["measure.watch=['switch->rx', 'switch -> rx']"]).unwrap_err().to_string();
    assert!(error.ends_with("it must be 64 queues at most, each once"), "{error}");
}

#[test]
fn a_change_within_a_list_is_named_itself() {
    let error = parse(SMALL, &["hosts.rx=1"]).unwrap_err().to_string();
    assert_eq!(error, "--set hosts.rx=1: hosts.1 = 1: it must be a table, as under [[hosts]]");
}

#[test]
fn who_is_stuck_only_after_the_end_is_no_mistake() {
    let stuck = format!("{SMALL}\n[[stuck]]\nhost = \"rx\"\nfrom_ms = 3\n");
    let setup = parse(&stuck, &["duration_ms=0.2"]).unwrap().setups.remove(0);
    assert_eq!(setup.stuck[0].2, setup.stuck[0].3);
    let error = parse(&stuck, &["stuck.0.to_ms=2"]).unwrap_err().to_string();
    assert!(error.ends_with("it must be 3 ms (from_ms) or later"), "{error}");
}

#[test]
fn hosts_without_a_way_to_each_other_are_named() {
    let split = SMALL.replace("[[hosts]]\nname = \"rx\"", "[[switches]]\nname = \"left\"\n\n[[switches]]\nname = \"right\"\n\n[[hosts]]\nname = \"rx\"\nswitch = \"right\"");
    let error = parse(&split, &[]).unwrap_err();
    assert_eq!(error.key.as_deref(), Some("flows.0.to"));
    let what = "flows.0.to = \"rx\": it must be hosts that have a way to each other: flow goes from tx1 at left to rx at \
                right, and no [[trunks]] join these two switches";
    assert_eq!(error.what, what);
    assert!(parse(&format!("{split}\n[[trunks]]\nfrom = \"left\"\nto = \"right\"\n"), &[]).is_ok());
    // Over others is a way too, in whatever order the trunks stand.
    let middle = "\n[[switches]]\nname = \"middle\"\n\n[[trunks]]\nfrom = \"right\"\nto = \"middle\"\n";
    let half = format!("{split}{middle}");
    assert!(parse(&half, &[]).is_err());
    assert!(parse(&format!("{half}\n[[trunks]]\nfrom = \"left\"\nto = \"middle\"\n"), &[]).is_ok());
}

/// Neither takes a stack of its own depth, or the square of its length in time.
#[test]
fn texts_without_end_are_refused_at_once() {
    let key = vec!["a"; 100_000].join(".");
    let error = parse(&format!("seed = 1\n{key} = 1\n"), &[]).unwrap_err();
    assert_eq!(error.place, Place::Line(2));
    assert!(error.what.contains("more dots in this line than 128"), "{error}");
    let set = format!("{key}=1");
    assert_eq!(parse(SMALL, &[&set]).unwrap_err().place, Place::Set(set));
    let error = parse(&"# nothing\n".repeat(200_000), &[]).unwrap_err();
    assert_eq!(error.to_string(), "line 1: this is 2000000 bytes long: a file has at most 1048576");
}
