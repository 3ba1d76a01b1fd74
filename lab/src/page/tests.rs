use super::*;
use crate::report::{Flow, FlowSummary, Line, Link, Mark, Pause, Plot, Queue, Run, Summary, Trace, more};

/// A value between 0 and 1 that looks random.
fn noise(seed: u32) -> f64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995;
    x ^= x >> 15;
    x = x.wrapping_mul(0x85eb_ca6b);
    f64::from((x ^ (x >> 13)) % 10_000) / 10_000.0
}

/// `steps` values over `end` ms.
fn trace(end: f64, steps: u32, value: impl Fn(f64, u32) -> f64) -> Trace {
    let t_ms: Vec<f64> = (1..=steps).map(|i| end * f64::from(i) / f64::from(steps)).collect();
    let value = t_ms.iter().zip(0..).map(|(&t, i)| value(t, i)).collect();
    Trace { t_ms, value }
}

fn flow(name: &str, seed: u32, share: f64, end: f64, cc: bool) -> Flow {
    let rate = move |t: f64, i| {
        let start = if t < 1.0 { 30.0 * (1.0 - t) } else { 0.0 };
        share * (0.9 + 0.2 * noise(seed * 7919 + i)) + start * noise(seed + i)
    };
    let none = Trace::default;
    Flow {
        name: name.into(),
        rate_gbps: trace(end, 500, rate),
        allowed_gbps: if cc { trace(end, 500, rate) } else { none() },
        target_gbps: if cc { trace(end, 500, move |t, i| rate(t, i) * 1.05) } else { none() },
        alpha: if cc {
            trace(end, 500, |t, i| 0.1 + 0.9 * (-t / 10.0).exp() + 0.02 * noise(seed + i))
        } else {
            none()
        },
        cnps_ms: if cc { (0..200).map(|i| end * noise(seed * 31 + i)).collect() } else { Vec::new() },
        messages_ms: (0..8).map(|i| (f64::from(i), f64::from(i) + 6.4 + 3.0 * noise(seed + i))).collect(),
    }
}

/// A run of so many flows.
fn run(name: &str, flows: u32, cc: bool) -> Run {
    let end = 200.0;
    let share = 40.0 / f64::from(flows);
    let flows: Vec<_> = (0..flows).map(|i| flow(&format!("s{i}"), i + 1, share, end, cc)).collect();
    let level = if cc { 22.0 } else { 900.0 };
    let depth = move |t: f64, i| level * (0.6 + 0.8 * noise(i)) + if t < 1.0 { 1500.0 } else { 0.0 };
    let pauses = (0..40).map(|i| {
        let from_ms = f64::from(i) * 5.0 + noise(i);
        Pause { priority: 3, from_ms, to_ms: from_ms + if cc && i > 0 { 0.0 } else { 2.0 } }
    });
    Run {
        name: name.into(),
        warmup_ms: 50.0,
        end_ms: end,
        summary: Summary {
            queue_mean_kb: level,
            queue_sd_kb: 20.0,
            queue_max_kb: 2400.0,
            utilisation: 0.998,
            jain: 0.9991,
            flows: flows
                .iter()
                .map(|flow| FlowSummary {
                    name: flow.name.clone(),
                    rate_mean_gbps: share,
                    goodput_mean_gbps: share,
                    alpha_mean: cc.then_some(0.107),
                    fct_ms: Some(6.4),
                })
                .collect(),
            cnp_sent: 824,
            ce_marked: 3321,
            pause_frames: 40,
            pause_ms: 3.75,
            drops: 0,
            retransmissions: 0,
            more: [
                (more::ALPHA_FIXED_POINT.to_owned(), 0.10136),
                (more::FAIR_GBPS.to_owned(), share),
                (more::IDEAL_MS.to_owned(), 6.4),
                ("queue_theory_kb".to_owned(), 20.15),
            ]
            .into(),
        },
        queues: vec![Queue {
            name: "sw0 → r0".into(),
            depth_kb: trace(end, 500, depth),
            peak_kb: trace(end, 500, move |t, i| depth(t, i) * 1.3),
            marks: [("Kmin", 5.0), ("q* (theory)", 20.15), ("Kmax", 200.0), ("XOFF", 9000.0)]
                .map(|(name, value)| Mark { name: name.into(), value })
                .into(),
        }],
        links: vec![
            Link { name: "s0 → sw0".into(), pauses: pauses.clone().collect() },
            Link { name: "s1 → sw0".into(), pauses: pauses.collect() },
        ],
        jain: trace(end, 200, |t, i| 1.0 - 0.1 * (-t / 40.0).exp() * noise(i)),
        flows,
    }
}

fn report(runs: Vec<Run>) -> Report {
    Report {
        scenario: "incast".into(),
        title: "Incast: several senders, one receiver".into(),
        see: "The senders start at line rate, so the queue first grows far beyond Kmax; then DCQCN brings them to \
              their fair share, and the queue to where theory says."
            .into(),
        seed: 1,
        parameters: serde_json::json!({"senders": 2, "link": {"rate_gbps": 40, "delay_us": 1}, "name": "<b>&"}),
        summary: runs[0].summary.clone(),
        runs,
        plots: Vec::new(),
    }
}

fn memory() -> Report {
    let points = |factor: f64| [2.0, 8.0, 32.0, 128.0].map(|n: f64| (n, factor * n)).into();
    Report {
        plots: vec![Plot {
            title: "Memory of queue pairs".into(),
            note: "Both axes are logarithmic.".into(),
            x: "hosts".into(),
            y: "memory, KB".into(),
            logarithmic: true,
            lines: vec![
                Line { name: "RC".into(), points: points(40.0) },
                Line { name: "XRC".into(), points: points(3.0) },
            ],
        }],
        ..report(vec![Run { summary: run("", 0, true).summary, ..Run::default() }])
    }
}

/// How often `what` is in `page`.
fn count(page: &str, what: &str) -> usize {
    page.matches(what).count()
}

/// The part of `page` under the heading `id`.
fn part<'a>(page: &'a str, id: &str) -> &'a str {
    let from = page.find(&format!("<section aria-labelledby=\"{id}\"")).expect("a part of that name");
    page[from..].split("</section>").next().expect("an end")
}

/// Elements are closed in the order in which they were opened.
fn assert_well_formed(page: &str) {
    const VOID: [&str; 2] = ["meta", "link"];
    let mut open = Vec::new();
    for tag in page.split('<').skip(1) {
        let (inside, _) = tag.split_once('>').expect("a tag ends");
        let name = inside.split_whitespace().next().unwrap_or_default();
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !inside.ends_with('/') && !name.starts_with('!') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn a_run_has_all_its_charts() {
    let page = render(&report(vec![run("", 2, true)]));
    for id in ["rate", "allowed", "queue", "alpha", "cnp", "pauses", "completion", "jain"] {
        let part = part(&page, id);
        assert_eq!(count(part, "<svg class=\"chart\""), 1, "{id}");
        assert!(part.contains("<poly"), "{id}");
        assert!(part.contains("role=\"img\" aria-label=\""), "{id}");
    }
    assert!(page.contains(">\nfair share 20\n<"));
    assert!(page.contains(">\nfixed point 0.101\n<"));
    assert!(part(&page, "completion").contains("least possible for all: 6.4 ms"));
    assert!(part(&page, "figures").contains("<th scope=\"row\">CNPs sent</th><td>824</td>"));
    assert!(page.contains("then DCQCN brings them"));
    assert_well_formed(&page);
}

#[test]
fn a_queues_lines_are_named_and_what_is_far_above_is_told_beneath() {
    let page = render(&report(vec![run("", 2, true)]));
    let queue = part(&page, "queue");
    for name in ["Kmin 5", "Kmax 200", "q* (theory) 20.15"] {
        assert!(queue.contains(&format!(">\n{name}\n<")), "{name}");
    }
    assert!(queue.contains("Above the chart: XOFF is at 9\u{202f}000 KB; the start reaches "));
}

#[test]
fn runs_stand_side_by_side_on_the_same_axes() {
    let page = render(&report(vec![run("DCQCN", 5, true), run("PFC alone", 5, false)]));
    let rate = part(&page, "rate");
    assert_eq!(count(rate, "<svg class=\"chart\""), 2);
    assert_eq!(count(rate, "<figcaption>"), 2);
    // The one without congestion control has a chart that says so.
    assert!(part(&page, "allowed").contains("without congestion control nothing is held back"));
    // A queue that the other's presses down is drawn once more.
    assert_eq!(count(part(&page, "queue"), "<svg class=\"chart\""), 3);
    // Both together.
    assert_eq!(count(part(&page, "jain"), "<svg class=\"chart\""), 1);
    assert!(part(&page, "figures").contains("<th scope=\"col\">PFC alone</th>"));
    assert_well_formed(&page);
}

#[test]
fn many_flows_are_a_band_and_the_page_stays_small() {
    let page = render(&report(vec![run("a", 256, true), run("b", 256, false)]));
    let rate = part(&page, "rate");
    assert!(rate.contains("all flows: least to most, and the median"));
    // Level, median, slowest, fastest, and at most two dozen of axes and ticks, in each.
    assert!(count(rate, "<polyline") < 60, "{}", count(rate, "<polyline"));
    assert!(part(&page, "cnp").contains("more flows are in the sum alone"));
    assert_eq!(count(part(&page, "flows"), "<tr><th scope=\"row\">"), 256);
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
    assert_well_formed(&page);
}

#[test]
fn many_flows_of_several_kinds_are_a_band_of_each_kind() {
    let mut mixed = run("", 12, true);
    for (i, flow) in mixed.flows.iter_mut().enumerate() {
        flow.name = format!("{}-{i}", if i < 8 { "kv" } else { "ring" });
    }
    let page = render(&report(vec![mixed]));
    let rate = part(&page, "rate");
    assert!(rate.contains("kv: least to most, and the median"));
    assert!(rate.contains("ring: least to most, and the median"));
}

#[test]
fn two_flows_alone_are_drawn_against_each_other() {
    let endless = |flows| {
        let mut run = run("", flows, true);
        run.flows.iter_mut().for_each(|flow| flow.messages_ms.clear());
        run
    };
    let page = render(&report(vec![endless(2)]));
    let phase = part(&page, "phase");
    assert!(phase.contains(">\ns0, Gb/s\n<") && phase.contains(">\ns1, Gb/s\n<"));
    let three = render(&report(vec![endless(3)]));
    let of_messages = render(&report(vec![run("", 2, true)]));
    assert!(!of_messages.contains("<section aria-labelledby=\"phase\""));
    assert!(!three.contains("<section aria-labelledby=\"phase\""));
}

#[test]
fn what_the_report_says_is_text_and_nothing_else() {
    let evil = "<script>alert(1)</script> & \"quoted\" 'so' \u{1}";
    let mut run = run(evil, 2, true);
    run.flows[0].name = evil.into();
    run.summary.flows[0].name = evil.into();
    run.queues[0].name = evil.into();
    run.queues[0].marks[0].name = evil.into();
    run.links[0].name = evil.into();
    run.summary.more.insert(evil.into(), 1.0);
    let mut report =
        Report { see: evil.into(), title: evil.into(), scenario: evil.into(), ..report(vec![run]) };
    report.runs.push(report.runs[0].clone());
    report.plots = memory().plots;
    report.plots[0].title = evil.into();
    report.plots[0].lines[0].name = evil.into();
    let page = render(&report);
    assert!(!page.contains("<script") && !page.contains('\u{1}'));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;quoted&quot; &#39;so&#39;"));
    assert_well_formed(&page);
}

#[test]
fn a_page_fetches_nothing_and_runs_nothing() {
    let page = render(&report(vec![run("", 2, true)]));
    for what in ["http:", "https:", "src=", "<script", "url(", "@import", "javascript:"] {
        assert!(!page.contains(what), "{what}");
    }
}

#[test]
fn parameters_are_folded_and_written_as_set_takes_them() {
    let page = render(&report(vec![run("", 2, true)]));
    let parameters = part(&page, "parameters");
    assert!(parameters.contains("<details><summary>4 keys"));
    assert!(parameters.contains("link.rate_gbps = 40\n"));
    assert!(parameters.contains("name = &quot;&lt;b&gt;&amp;&quot;"));
}

#[test]
fn a_scenario_without_traffic_has_its_own_chart_alone() {
    let page = render(&memory());
    assert_eq!(count(&page, "<section aria-labelledby=\"rate\""), 0);
    let own = part(&page, "plot-1");
    assert_eq!(count(own, "<circle"), 8);
    for power in ["1", "10", "100", "1\u{202f}000"] {
        assert!(own.contains(&format!(">\n{power}\n<")), "{power}");
    }
}

#[test]
fn every_colour_of_a_chart_has_one_in_light_and_in_the_dark() {
    let page = render(&report(vec![run("", 6, true), run("two", 6, false)]));
    let (_, body) = page.split_once("</style>").expect("a style");
    for attribute in ["fill", "stroke"] {
        for literal in body.split(&format!(" {attribute}=\"#")).skip(1).map(|rest| &rest[..6]) {
            assert!(STYLE.contains(&format!("[{attribute}=\"#{literal}\"]")), "{attribute} {literal}");
        }
    }
    let (light, dark) = STYLE.split_once("prefers-color-scheme: dark").expect("both");
    for name in ["--s0", "--s5", "--pale", "--mark", "--shade"] {
        assert!(light.contains(name) && dark.contains(&format!("{name}:")), "{name}");
    }
}

#[test]
fn an_empty_report_is_a_page_too() {
    assert_well_formed(&render(&Report::default()));
    let bare = Report { runs: vec![Run::default(), Run::default()], ..Report::default() };
    let page = render(&bare);
    assert_eq!(count(&page, "<svg class=\"chart\""), 0);
    assert_well_formed(&page);
}

#[test]
fn equal_reports_are_equal_bytes() {
    let make = || render(&report(vec![run("a", 20, true), run("b", 20, false)]));
    assert_eq!(make(), make());
}

#[test]
fn numbers_are_written_for_people() {
    for (value, written) in [
        (0.0, "0"),
        (1_234_567.0, "1\u{202f}234\u{202f}567"),
        (-1234.0, "−1\u{202f}234"),
        (144.04, "144"),
        (20.154, "20.15"),
        (0.00174, "0.00174"),
        (0.000_012, "1.20e-5"),
        (f64::NAN, "–"),
    ] {
        assert_eq!(text::figure(value), written);
    }
    assert_eq!(text::words("bytes_per_qp_kb"), "Bytes per QP, KB");
    assert_eq!(text::tick(-0.0), "0");
    assert_eq!(text::tick(2500.0), "2\u{202f}500");
}
