//! `ferroce bridge` and devices on it, as real processes. Nothing here depends on how fast they are.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use trace::{Capture, IcrcCheck, dissect};

mod port;

use port::port;

const FERROCE: &str = env!("CARGO_BIN_EXE_ferroce");

fn run(folder: &Path, args: &[&str]) -> Output {
    Command::new(FERROCE).args(args).current_dir(folder).output().unwrap()
}

/// One line on standard error, and this exit code.
fn says(output: &Output, code: i32, parts: &[&str]) {
    let err = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!((output.status.code(), err.lines().count()), (Some(code), 1), "{err}");
    for part in parts {
        assert!(err.contains(part), "{part:?} is not in {err:?}");
    }
}

/// A bridge, ready for devices; ended when it is dropped.
struct Bridge {
    child: Child,
    path: PathBuf,
}

impl Bridge {
    /// In `folder`, with more `args`.
    fn start(folder: &Path, args: &[&str]) -> Self {
        let path = folder.join("bridge");
        let mut child = Command::new(FERROCE)
            .arg("bridge")
            .arg(&path)
            .args(args)
            .current_dir(folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It says so when devices may come.
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("bridge of"), "{line}");
        Self { child, path }
    }

    fn backend(&self) -> String {
        format!("bridge:{}", self.path.display())
    }

    /// Ends it as a user would; what it says.
    fn interrupt(mut self) -> Value {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
        let mut out = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(0), None));
        assert!(!self.path.exists(), "the socket is gone");
        serde_json::from_str(&out).unwrap()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn sum(report: &Value, list: &str, key: &str) -> u64 {
    report[list].as_array().unwrap().iter().map(|item| item[key].as_u64().unwrap()).sum()
}

#[test]
fn the_demo_runs_over_a_bridge() {
    let folder = TempDir::new().unwrap();
    let bridge = Bridge::start(folder.path(), &["--rate", "10G", "--json", "--pcap", "bridge.pcapng"]);
    let output = run(folder.path(), &["demo", "--json", "--backend", &bridge.backend()]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let demo: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(demo["backend"], "bridge");
    assert!(demo["results"].as_array().unwrap().iter().all(|row| row["verified"] == true));
    let report = bridge.interrupt();
    assert_eq!(report["rate_bps"], 10_000_000_000_u64);
    let queues = report["queues"].as_array().unwrap();
    assert_eq!(
        queues.iter().map(|queue| queue["to"][0].as_str().unwrap()).collect::<Vec<_>>(),
        ["127.0.0.2", "127.0.0.3"]
    );
    // What it has captured is what it has forwarded, and whole.
    let mut capture = Capture::new(File::open(folder.path().join("bridge.pcapng")).unwrap()).unwrap();
    let mut packets = 0;
    while let Some(frame) = capture.next_frame() {
        assert_eq!(dissect(&frame.unwrap()).roce.unwrap().icrc, IcrcCheck::Ok);
        packets += 1;
    }
    assert_eq!(packets, sum(&report, "queues", "packets"));
    assert_eq!(sum(&report, "flows", "bytes"), sum(&report, "queues", "bytes"));
    assert_eq!(report["lost"]["malformed"], 0);
}

#[test]
fn losses_are_made_good_and_told() {
    let folder = TempDir::new().unwrap();
    let bridge = Bridge::start(
        folder.path(),
        &["--rate", "10G", "--json", "--drop", "2%", "--seed", "3", "--limit", "64K"],
    );
    let args = ["demo", "--json", "--seed", "3", "--backend", &bridge.backend()];
    let output = run(folder.path(), &args);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report = bridge.interrupt();
    let by_chance = report["lost"]["by_chance"].as_u64().unwrap();
    assert!(by_chance > 0);
    assert_eq!(sum(&report, "flows", "dropped"), by_chance + sum(&report, "queues", "dropped"));
}

#[test]
fn a_bridge_ends_by_itself_after_its_time() {
    let folder = TempDir::new().unwrap();
    let output = run(folder.path(), &["bridge", "here", "--rate", "1M", "--seconds", "1"]);
    assert_eq!(output.status.code(), Some(0));
    let out = String::from_utf8(output.stdout).unwrap();
    let seconds = out.strip_prefix("Counted for ").and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(seconds.parse::<f64>().unwrap() >= 1.0, "{out}");
    assert!(!folder.path().join("here").exists());
}

#[test]
fn a_capture_that_cannot_be_written_costs_nothing_but_itself() {
    let folder = TempDir::new().unwrap();
    let args = ["bridge", "here", "--rate", "1M", "--seconds", "1", "--pcap", "/dev/full"];
    let output = run(folder.path(), &args);
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), err.lines().count()), (Some(0), 2), "{err}");
    assert!(err.contains("the capture /dev/full is not whole"), "{err}");
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("Counted for "));
}

/// One end waits for the other's turn then, and has nothing outstanding that could fail.
#[test]
fn both_ends_of_a_game_name_the_bridge_that_died() {
    let folder = TempDir::new().unwrap();
    let mut bridge = Bridge::start(folder.path(), &["--rate", "10G"]);
    let port = port();
    let start = |args: &[&str]| {
        Command::new(FERROCE)
            .args(["pingpong", "-p", &port, "-n", "100000000", "--backend", &bridge.backend()])
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut server = start(&["--bind", "127.0.0.2"]);
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("local address")));
    let client = start(&["--bind", "127.0.0.3", "127.0.0.1"]);
    assert!(lines.any(|line| line.contains("remote address")));
    bridge.child.kill().unwrap();
    for end in [server, client] {
        let output = end.wait_with_output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(err.contains("network device is gone") && err.contains("bridge has ended"), "{err}");
    }
}

#[test]
fn wrong_bridges_and_devices_get_one_line() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let bridge = |args: &[&str]| run(path, &[&["bridge"], args].concat());
    says(&bridge(&["here"]), 2, &["--rate"]);
    says(&bridge(&["here", "--rate", "0"]), 2, &["is no rate", "200M"]);
    says(&bridge(&["here", "--rate", "9", "--json"]), 2, &["1k to 1000G"]);
    says(&bridge(&["here", "--rate", "1M", "--kmin", "3K", "--kmax", "2K"]), 2, &["--kmin", "--kmax"]);
    says(&bridge(&["here", "--rate", "1M", "--pmax", "2"]), 2, &["0% to 100%"]);
    says(&bridge(&["here", "--rate", "1M", "--limit", "many"]), 2, &["4Ki"]);
    says(&bridge(&["here", "--rate", "1M", "--delay", "1h"]), 2, &["2ms"]);
    says(&bridge(&[&"long".repeat(50), "--rate", "1M"]), 2, &["longlong"]);
    says(&bridge(&["no/such/folder", "--rate", "1M"]), 2, &["no/such/folder"]);
    std::fs::write(path.join("file"), "mine").unwrap();
    says(&bridge(&["file", "--rate", "1M"]), 2, &["no socket"]);
    let listener = UnixListener::bind(path.join("other")).unwrap();
    says(&bridge(&["other", "--rate", "1M"]), 2, &["socket of another program"]);
    drop(listener);
    let datagrams = UnixDatagram::bind(path.join("datagrams")).unwrap();
    says(&bridge(&["datagrams", "--rate", "1M"]), 2, &["socket of another program"]);
    drop(datagrams);

    let device = |args: &[&str]| run(path, &[&["devinfo"], args].concat());
    says(&device(&["--backend", "bridge:nobody"]), 1, &["no bridge at nobody", "ferroce bridge nobody"]);
    says(&device(&["--backend", "bridge"]), 2, &["bridge:PATH"]);
    says(&device(&["--backend", "bridge:"]), 2, &["bridge:PATH"]);
    says(&device(&["--backend", "bridge:nobody", "--dev", "lo"]), 2, &["--bind"]);

    let running = Bridge::start(path, &["--rate", "1M", "--json"]);
    let holder = "127.0.0.2";
    let output = device(&["--backend", &running.backend(), "--json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["device"]["backend"], "bridge");
    assert!(shown["device"]["gids"].to_string().contains(holder), "{shown}");
    says(&bridge(&["bridge", "--rate", "1M"]), 1, &["in use by another bridge"]);
    running.interrupt();
}
