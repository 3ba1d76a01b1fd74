//! The `ferroce` command as a user meets it: what it prints where, and its exit codes.
//!
//! Most cases run in this process, through the same entry as `main`; the last ones start the command.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

mod net;

/// What a run of the command left.
struct Outcome {
    code: u8,
    out: String,
    err: String,
}

fn ferroce<const N: usize>(args: [&dyn AsRef<std::ffi::OsStr>; N]) -> Outcome {
    let args = std::iter::once("ferroce".into()).chain(args.iter().map(|arg| OsString::from(arg.as_ref())));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = ferroce::cmd::run(args, &mut out, &mut err);
    Outcome { code, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

impl Outcome {
    /// Exit code 2, nothing on standard output, and one line on standard error that holds `texts`.
    fn is_usage(&self, texts: &[&str]) {
        assert_eq!((self.code, self.out.as_str()), (2, ""), "{}", self.err);
        self.says(texts);
    }

    /// One line on standard error that holds `texts`.
    fn says(&self, texts: &[&str]) {
        assert!(self.err.starts_with("ferroce: ") && self.err.ends_with('\n'), "{:?}", self.err);
        assert_eq!(self.err.lines().count(), 1, "{:?}", self.err);
        for text in texts {
            assert!(self.err.contains(text), "{text:?} is not in {:?}", self.err);
        }
    }

    /// Exit code 0 and nothing on standard error.
    fn succeeded(&self) {
        assert_eq!((self.code, self.err.as_str()), (0, ""));
    }
}

fn vector(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(name)
}

/// A file `name` with these bytes, in a folder that lives as long as the test.
fn file(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    (folder, path)
}

#[test]
fn a_wrong_command_line_gets_one_line_with_the_usage() {
    ferroce([]).is_usage(&["subcommand", "trace", "usage: ferroce"]);
    ferroce([&"trase"]).is_usage(&["'trase'", "'trace'", "usage: ferroce"]);
    ferroce([&"trace"]).is_usage(&["<FILE>", "usage: ferroce trace"]);
    ferroce([&"trace", &"--jsn", &"x.pcap"]).is_usage(&["'--jsn'", "'--json'", "usage: ferroce trace"]);
}

#[test]
fn help_and_version_are_no_failures() {
    for arg in ["--help", "--version"] {
        let outcome = ferroce([&arg]);
        outcome.succeeded();
        assert!(outcome.out.contains("ferroce"));
    }
    assert!(ferroce([&"trace", &"--help"]).out.contains("--json"));
}

#[test]
fn options_of_a_command_itself_come_under_no_heading_of_the_device() {
    for command in ["demo", "devinfo"] {
        let help = ferroce([&command, &"--help"]).out;
        let at = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text} in {help}"));
        assert!(at("--json") < at("Device:"), "{help}");
    }
}

#[test]
fn a_bridge_wants_a_socket_or_two_interfaces() {
    ferroce([&"bridge", &"--rate", &"1M"]).is_usage(&["PATH", "--between", "usage: ferroce bridge"]);
    ferroce([&"bridge", &"x", &"--between", &"lo", &"lo", &"--rate", &"1M"]).is_usage(&["--between", "PATH"]);
    ferroce([&"bridge", &"x", &"--rate", &"1M", &"--share", &"10.0.0"]).is_usage(&["'10.0.0'", "10.0.0.7"]);
}

#[test]
fn a_named_file_that_is_missing_or_no_capture_gets_one_line() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("missing.pcap");
    ferroce([&"trace", &missing]).is_usage(&["missing.pcap", "does not exist"]);
    ferroce([&"trace", &folder.path()]).is_usage(&["is a directory"]);
    for (bytes, text) in [
        (&b"Name,Value\n"[..], "neither as pcap nor as pcapng"),
        (b"", "is empty"),
        (&[0x1F, 0x8B, 8, 0, 0], "gzip"),
        (&[0xD4, 0xC3, 0xB2, 0xA1, 2, 0], "header"),
    ] {
        let (_folder, path) = file("wrong.bin", bytes);
        ferroce([&"trace", &path]).is_usage(&["wrong.bin", text]);
        // What was named after a good file is looked at before that is printed.
        ferroce([&"trace", &vector("rxe/rc_cas.pcap"), &path]).is_usage(&["wrong.bin", text]);
        ferroce([&"trace", &"--json", &path]).is_usage(&["wrong.bin", text]);
    }
}

#[test]
fn lines_show_number_time_and_packet() {
    let outcome = ferroce([&"trace", &vector("rxe_inject/bad_icrc.pcap")]);
    outcome.succeeded();
    let expected = "     1    0.000000000 10.77.0.100 > 10.77.0.1 RC WRITE_ONLY qp=0x20 psn=4096 va=0x7218000 \
                    rkey=0x0000118b dmalen=64 len=64 ack icrc=bad\n";
    assert!(outcome.out.starts_with(expected), "{}", outcome.out);
    assert_eq!(outcome.out.lines().count(), 3);
    assert!(outcome.out.ends_with(" RC ACK qp=0x77 psn=4096 ack msn=1\n"), "{}", outcome.out);
}

/// Field case F9.
#[test]
fn f9_the_port_that_a_mirror_has_rewritten_can_be_named() {
    let mut bytes = std::fs::read(vector("rxe/rc_cas.pcap")).unwrap();
    let mut at = 24;
    while at < bytes.len() {
        let len = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
        // Ethernet, IPv4, and the destination port of UDP.
        bytes[at + 16 + 36..at + 16 + 38].copy_from_slice(&9741_u16.to_be_bytes());
        at += 16 + len;
    }
    let (_folder, path) = file("mirror.pcap", &bytes);
    assert_eq!(ferroce([&"trace", &path]).out, "");
    let outcome = ferroce([&"trace", &"--port", &"9741", &path]);
    outcome.succeeded();
    assert_eq!(outcome.out.lines().count(), 4);
    assert!(
        outcome.out.lines().all(|line| line.ends_with(" icrc=bad (right for port 4791)")),
        "{}",
        outcome.out
    );
    let outcome = ferroce([&"trace", &"--port=9741", &"--json", &path]);
    let object: Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!((&object["icrc"]["bad"], &object["icrc_right_for_4791"]), (&4.into(), &4.into()));
}

#[test]
fn several_files_are_titled() {
    let (one, two) = (vector("rxe/rc_cas.pcap"), vector("rxe/rc_faa.pcap"));
    let outcome = ferroce([&"trace", &one, &two]);
    outcome.succeeded();
    assert!(outcome.out.starts_with(&format!("{}:\n", one.display())));
    assert!(outcome.out.contains(&format!("\n{}:\n", two.display())));
    assert_eq!(outcome.out.lines().count(), 4 + 6 + 2);
}

#[test]
fn json_is_an_object_for_one_file_and_an_array_for_several() {
    let (one, two) = (vector("rxe/rc_cas.pcap"), vector("rxe/rc_faa.pcap"));
    let outcome = ferroce([&"trace", &"--json", &one]);
    outcome.succeeded();
    let object: Value = serde_json::from_str(&outcome.out).unwrap();
    let keys: Vec<_> = object.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = ["cm", "flows", "frames", "icrc", "kinds", "linktypes", "migreq", "opcodes", "pad", "tos"];
    assert_eq!(keys, expected);
    assert_eq!(object["icrc"], serde_json::json!({ "ok": 4 }));

    let outcome = ferroce([&"trace", &"--json", &one, &two]);
    outcome.succeeded();
    let array: Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(array[0], object);
    assert_eq!((array[1]["frames"].as_u64(), array.as_array().unwrap().len()), (Some(6), 2));
}

#[test]
fn a_cut_capture_prints_what_came_before_the_cut() {
    let whole = std::fs::read(vector("rxe/rc_faa.pcap")).unwrap();
    let (_folder, cut) = file("cut.pcap", &whole[..whole.len() - 1]);
    let lines = ferroce([&"trace", &vector("rxe/rc_faa.pcap")]).out;
    let before: String = lines.lines().take(5).map(|line| format!("{line}\n")).collect();

    let outcome = ferroce([&"trace", &cut]);
    assert_eq!((outcome.code, outcome.out), (1, before));
    ferroce([&"trace", &cut]).says(&["cut.pcap is cut short", "after frame 5"]);

    let outcome = ferroce([&"trace", &"--json", &cut]);
    assert_eq!(outcome.code, 1);
    outcome.says(&["cut.pcap is cut short", "after frame 5"]);
    let object: Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(object["frames"], 5);

    // The files after it are read all the same, and each cut one has its line.
    let outcome = ferroce([&"trace", &"--json", &cut, &vector("rxe/rc_cas.pcap"), &cut]);
    assert_eq!((outcome.code, outcome.err.lines().count()), (1, 2));
    let array: Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(array[1]["frames"], 4);
}

/// Output into which nothing can be written, for the reason given.
struct Broken(io::ErrorKind);

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure_but_a_full_disk_is() {
    for option in ["--json", "--"] {
        let args =
            || ["ferroce".into(), "trace".into(), option.into(), vector("rxe/rc_cas.pcap").into_os_string()];
        let mut err = Vec::new();
        assert_eq!(ferroce::cmd::run(args(), &mut Broken(io::ErrorKind::BrokenPipe), &mut err), 0);
        assert!(err.is_empty());
        assert_eq!(ferroce::cmd::run(args(), &mut Broken(io::ErrorKind::StorageFull), &mut err), 1);
        let err = String::from_utf8(err).unwrap();
        assert!(err.starts_with("ferroce: cannot write the output"), "{err}");
        assert_eq!(err.lines().count(), 1);
    }
}

#[test]
fn the_process_exits_with_the_code() {
    let run = |args: &[&str]| Command::new(env!("CARGO_BIN_EXE_ferroce")).args(args).output().unwrap();
    let output = run(&["trace", vector("rxe/rc_cas.pcap").to_str().unwrap()]);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 4);
    let output = run(&["trace", "no-such-file.pcap"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(output.stderr.starts_with(b"ferroce: no-such-file.pcap does not exist"));
}

#[test]
fn the_process_ends_quietly_when_its_reader_has_enough() {
    // More than a pipe holds, so that it must still be writing when the other end closes.
    let long = vector("rxe/nvme_rdma.pcap");
    let mut child = Command::new(env!("CARGO_BIN_EXE_ferroce"))
        .arg("trace")
        .args(std::iter::repeat_n(&long, 20))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 100];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[test]
fn congestion_control_that_is_not_understood_says_what_would_be() {
    ferroce([&"devinfo", &"--cc", &"dcqn"]).is_usage(&["\"dcqn\"", "off or dcqcn or rate=200M or timely"]);
    ferroce([&"devinfo", &"--cc", &"rate=fast"]).is_usage(&["rate=fast", "rate=200M"]);
    ferroce([&"devinfo", &"--line-rate", &"1e308"]).is_usage(&["--line-rate", "1k to 10000G"]);
    ferroce([&"devinfo", &"--line-rate", &"0"]).is_usage(&["--line-rate", "200M or 2.5G"]);
    ferroce([&"devinfo", &"--cc-config", &"no-such-file"]).is_usage(&["cannot read no-such-file"]);
    for (text, says) in [
        (
            "cc = \"dcqcn\"\n\n[dcqcn]\nrpg_gd = 99\n",
            "line 4: rpg_gd = 99: it must be a whole number, 10 to 20",
        ),
        ("profile = \"quick\"\n", "line 1: profile = \"quick\": it must be one of paper, connectx"),
        ("burst = 3\n", "line 1: there is no key burst; the keys here are"),
        ("\"a\\u001b[2J\\n\" = 3\n", "line 1: there is no key a\\u{1b}[2J\\n; the keys here are"),
    ] {
        let (_folder, path) = file("cc.toml", text.as_bytes());
        ferroce([&"devinfo", &"--cc-config", &path]).is_usage(&["cc.toml: ", says]);
    }
    let (_folder, path) = file("cc.toml", b"cc = \"\xFF\"\n");
    ferroce([&"devinfo", &"--cc-config", &path]).is_usage(&["cc.toml is no text"]);
    let (_folder, path) = file("cc.toml", b"cc = \"dcqcn\"\nprofile = \"paper\"\ndilation = 200\n");
    let address = format!("{}.1", net::net());
    ferroce([&"devinfo", &"--bind", &address, &"--cc-config", &path, &"--cc", &"rate=2G"]).succeeded();
}
