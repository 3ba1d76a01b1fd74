//! `ferroce lab` as a user meets it: what it prints and writes, and how it says what is wrong.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::fs::File;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use trace::{Capture, dissect};

/// Exit code, standard output and standard error.
fn lab(args: &[&str]) -> (u8, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = ferroce::cmd::run(["ferroce", "lab"].iter().chain(args), &mut out, &mut err);
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

/// A short incast.
const SHORT: [&str; 7] =
    ["incast", "--set", "senders=3", "--set", "duration_ms=2", "--set", "measure.window_ms=1"];

fn short(more: &[&str]) -> (u8, String, String) {
    lab(&[&SHORT, more].concat())
}

/// What is wrong is on one line and ends with exit code 2, before anything else is printed.
fn refused(args: &[&str], texts: &[&str]) {
    let (code, out, err) = lab(args);
    assert_eq!((code, out.as_str(), err.lines().count()), (2, "", 1), "{err}");
    for text in texts {
        assert!(err.contains(text), "{text:?} is not in {err:?}");
    }
}

#[test]
fn every_scenario_is_listed_and_shown() {
    let (code, list, err) = lab(&["--list"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() >= 6 && names.contains(&"incast"), "{list}");
    for name in names {
        let (code, text, err) = lab(&["--show", name]);
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(text.starts_with("# ") && text.contains("see = "), "{name}");
    }
}

#[test]
fn what_is_shown_can_be_changed_and_run() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("mine.toml");
    let text = lab(&["--show", "incast"]).1.replace("duration_ms = 250", "duration_ms = 1");
    std::fs::write(&path, text).unwrap();
    let (code, out, err) = lab(&[path.to_str().unwrap(), "--set", "senders=2"]);
    assert_eq!((code, err.as_str()), (0, ""));
    for text in ["flow1", "flow2", "utilisation", "Jain's index", "million/s", "theory_queue_kb"] {
        assert!(out.contains(text), "{text:?} is not in {out}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_does_not() {
    let json = |seed: &str| {
        let (code, out, err) = short(&["--seed", seed, "--json"]);
        assert_eq!((code, err.as_str()), (0, ""));
        out
    };
    let first = json("5");
    assert!(first == json("5"), "not the same bytes");
    assert!(first != json("6"));
    let report: Value = serde_json::from_str(&first).unwrap();
    assert_eq!((&report["scenario"], &report["seed"]), (&"incast".into(), &5.into()));
    assert_eq!(report["parameters"]["senders"], 3);
    let summary = &report["summary"];
    for key in ["queue_mean_kb", "queue_sd_kb", "utilisation", "jain", "pause_ms"] {
        assert!(summary[key].is_f64(), "{key}");
    }
    for key in ["cnp_sent", "ce_marked", "pause_frames", "drops", "retransmissions"] {
        assert!(summary[key].is_u64(), "{key}");
    }
    let flow = &summary["flows"][2];
    assert!(flow["rate_mean_gbps"].as_f64().unwrap() > 0.1 && flow["fct_ms"].is_null(), "{flow}");
    let rates = report["runs"][0]["flows"][2]["rate_gbps"]["value"].as_array().unwrap();
    assert!(rates.len() > 100);
}

#[test]
fn pages_and_captures_are_written() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (html, pcap) = (at("page.html"), at("run.pcap"));
    let (code, _, err) = short(&["--html", &html, "--pcap", &pcap]);
    assert_eq!((code, err.as_str()), (0, ""));
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg"));
    let mut capture = Capture::new(File::open(pcap).unwrap()).unwrap();
    let (mut writes, mut cnps, mut marked) = (0, 0, 0);
    while let Some(frame) = capture.next_frame() {
        let frame = frame.unwrap();
        let packet = dissect(&frame).roce.unwrap().to_string();
        writes += usize::from(packet.contains("WRITE"));
        cnps += usize::from(packet.contains("CNP"));
        marked += usize::from(frame.data[1] & 3 == 3);
    }
    assert!(writes > 5_000 && cnps > 3 && marked > cnps, "{writes} {cnps} {marked}");
    // A wrong name is told before anything runs.
    for option in ["--html", "--pcap"] {
        for path in [folder.path().to_str().unwrap(), &at("missing/file")] {
            refused(&["incast", "--set", "duration_ms=100000", option, path], &["cannot write ", path]);
        }
        // What a full disk does not take is printed all the same.
        let (code, out, err) = short(&[option, "/dev/full"]);
        assert!(code == 1 && out.contains("utilisation"), "{out}");
        assert!(err.starts_with("ferroce: cannot write /dev/full: No space left"), "{err}");
    }
}

#[test]
fn what_is_wrong_with_a_file_is_told_in_one_line() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("wrong.toml");
    let name = path.to_str().unwrap();
    for (text, texts) in [
        (
            "seed = 1\n\n[link]\nrate_gbps = -4\n",
            ["wrong.toml: line 4: ", "link.rate_gbps = -4", "0.000001 to 10000 Gb/s"],
        ),
        ("\nsenders = 0\n", ["wrong.toml: line 2: ", "senders = 0", "1 to 4096"]),
        ("[cc]\nprofile = 'papre'\n", ["line 2: ", "profile", "paper, connectx"]),
        ("seed = \n", ["line 1: ", "", ""]),
    ] {
        std::fs::write(&path, text).unwrap();
        refused(&[name], &texts);
    }
    refused(&["incast", "--set", "switch.pmax=2"], &["--set switch.pmax=2", "0 to 1"]);
    refused(&["incast", "--set", "senders=many"], &["senders = \"many\"", "1 to 4096"]);
    refused(&["incast", "--set", "measure.watch=['rx->switch', 'switch->tx9999']"], &["measure.watch"]);
    refused(&["outcast"], &["there is no scenario \"outcast\"", "incast", "two_flows"]);
    refused(&["--show", "outcast"], &["there is no scenario"]);
    refused(&["missing.toml"], &["missing.toml does not exist"]);
    refused(&[Path::new(env!("CARGO_MANIFEST_DIR")).to_str().unwrap()], &["is a directory"]);
    refused(&[], &["NAME|FILE.toml"]);
}
