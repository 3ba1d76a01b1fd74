//! The commands that open a device, as real processes: what they print, how they end, and what they leave.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::UdpSocket;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use trace::{Capture, IcrcCheck, dissect};

mod net;
mod port;

use net::net;
use port::port;

const FERROCE: &str = env!("CARGO_BIN_EXE_ferroce");

/// Runs the command in `folder`.
fn run(folder: &Path, args: &[&str]) -> Output {
    Command::new(FERROCE).args(args).current_dir(folder).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// One line on standard error, and this exit code.
fn says(output: &Output, code: i32, parts: &[&str]) {
    let err = text(&output.stderr);
    assert_eq!((output.status.code(), err.lines().count()), (Some(code), 1), "{err}");
    for part in parts {
        assert!(err.contains(part), "{part:?} is not in {err:?}");
    }
}

/// Packets of a capture; every ICRC must be right.
fn packets(path: &Path) -> usize {
    let mut capture = Capture::new(File::open(path).unwrap()).unwrap();
    let mut n = 0;
    while let Some(frame) = capture.next_frame() {
        let packet = dissect(&frame.unwrap()).roce.unwrap();
        assert_eq!(packet.icrc, IcrcCheck::Ok, "packet {n}");
        n += 1;
    }
    n
}

/// Rows of the demo's table.
const ROWS: usize = 144;

#[test]
fn the_demo_verifies_every_row_and_leaves_a_clean_capture() {
    for backend in ["udp", "loopback", "shm"] {
        let folder = TempDir::new().unwrap();
        let output = run(folder.path(), &["demo", "--json", "--backend", backend]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["backend"], backend);
        assert_eq!(report["pcap"], "ferroce-demo.pcapng");
        let rows = report["results"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["verified"] == true), "{report}");
        let count = |qp_type| rows.iter().filter(|row| row["qp_type"] == qp_type).count();
        assert_eq!(["RC", "UC", "UD", "XRC"].map(count), [79, 24, 10, 31]);
        assert_eq!(rows.len(), ROWS);
        let bytes = |qp_type, op| -> Vec<u64> {
            let rows = rows.iter().filter(|row| row["qp_type"] == qp_type && row["op"] == op);
            rows.map(|row| row["bytes"].as_u64().unwrap()).collect()
        };
        assert_eq!(bytes("RC", "READ"), [0, 1, 33, 1024, 4096, 65_536, 1 << 20]);
        assert_eq!(bytes("RC", "FETCH_ADD"), [8, 16, 128, 1024, 4096, 8192, 32_768]);
        for op in ["ATOMIC_WRITE", "FLUSH", "MW_WRITE", "MW_READ", "MW_SEND_WITH_INV"] {
            assert_eq!(bytes("RC", op).len(), 3, "{op}");
        }
        for op in ["SRQ_SEND", "SRQ_SEND_WITH_IMM", "SRQ_WRITE_WITH_IMM"] {
            assert_eq!(bytes("RC", op), [0, 1, 33, 4096, 65_536]);
        }
        assert_eq!(bytes("XRC", "READ"), [0, 1, 33, 4096, 65_536]);
        assert_eq!(bytes("UC", "WRITE"), [0, 1, 33, 1024, 4096, 65_536]);
        assert_eq!(bytes("UD", "SEND"), [0, 1, 33, 1024, 4096]);
        // 5 operations of 1 MiB alone are 1280 packets; nothing may be counted as dropped.
        assert!(packets(&folder.path().join("ferroce-demo.pcapng")) > 1280);
        for (device, counters) in report["counters"].as_object().unwrap() {
            assert_eq!(counters["drop_bad_icrc"], 0, "{device}");
            assert_eq!(counters["drop_malformed"], 0, "{device}");
        }
    }
}

#[test]
fn the_demo_survives_faults_and_shows_them_in_its_counters() {
    let folder = TempDir::new().unwrap();
    let args =
        ["demo", "--json", "--backend", "loopback", "--seed", "7", "--drop", "1%", "--corrupt", "rx:1%"];
    let output = run(folder.path(), &args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let sum = |name: &str| -> u64 {
        report["counters"].as_object().unwrap().values().map(|device| device[name].as_u64().unwrap()).sum()
    };
    assert!(sum("drop_bad_icrc") > 0, "{report}");
    assert!(
        sum("local_ack_timeout_err") + sum("packet_seq_err") + sum("implied_nak_seq_err") > 0,
        "{report}"
    );
}

#[test]
fn a_row_that_fails_does_not_spoil_the_next() {
    let folder = TempDir::new().unwrap();
    // The first packet to the first queue pair of the far end never comes through, however often it is repeated.
    let lost: Vec<String> = (1..=10).map(|pass| format!("--drop=qp=17,psn=+0,pass={pass}")).collect();
    let mut args = vec!["demo", "--json", "--backend", "loopback"];
    args.extend(lost.iter().map(String::as_str));
    let output = run(folder.path(), &args);
    says(&output, 1, &[&format!("1 of {ROWS} rows did not verify")]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["results"].as_array().unwrap();
    assert_eq!(rows[0]["fault"], "completed with RETRY_EXC_ERR");
    assert_eq!(rows.iter().filter(|row| row["verified"] == true).count(), ROWS - 1, "{report}");
}

#[test]
fn a_capture_that_cannot_be_written_is_a_failure_but_does_not_stop_the_demo() {
    let folder = TempDir::new().unwrap();
    let output = run(folder.path(), &["demo", "--backend", "loopback", "--pcap", "/dev/full"]);
    says(&output, 1, &["the capture could not be written", "no storage space"]);
    assert!(text(&output.stdout).contains(&format!("{ROWS} of {ROWS} rows verified")));
}

/// Field case F39: the type of a GID can be read.
#[test]
fn f39_devinfo_shows_the_gids_of_loopback_twice_and_their_type() {
    let (folder, address) = (TempDir::new().unwrap(), format!("{}.1", net()));
    let output = run(folder.path(), &["devinfo", "--json", "--bind", &address]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let gid = format!("::ffff:{address}");
    assert_eq!(report["device"]["gids"], serde_json::json!([gid, gid]));
    assert_eq!(report["device"]["active_mtu"], 4096);
    assert_eq!(report["device"]["qp_types"], serde_json::json!(["RC", "UC", "UD", "XRC", "GSI"]));
    let output = run(folder.path(), &["devinfo", "--bind", &address]);
    for index in 0..2 {
        let line = format!("GID[{index:3}]:   {gid}, RoCE v2\n");
        assert!(text(&output.stdout).contains(&line), "{}", text(&output.stdout));
    }
    let output = run(folder.path(), &["devinfo", "--backend", "shm", "--bind", &address]);
    assert!(text(&output.stdout).contains("not RoCE on the wire"), "{}", text(&output.stdout));
}

#[test]
fn wrong_command_lines_get_one_line_and_exit_code_2() {
    let (folder, address) = (TempDir::new().unwrap(), format!("{}.1", net()));
    for (args, parts) in [
        (&["demo", "--backend", "packet"][..], &["loopback interface"][..]),
        (&["demo", "--backend", "tcp"], &["'tcp'", "udp", "ferroce demo --help"]),
        (&["demo", "--mac", "02:00:00:00:00:01"], &["--mac"]),
        (&["demo", "--bind", "::1"], &["127.0.0.2", "--backend loopback"]),
        (&["demo", "--drop", "150%"], &["150%", "0 to 1"]),
        (&["devinfo", "--bind", "198.51.100.1"], &["198.51.100.1", "no address of this host"]),
        (&["devinfo", "--bind", "198.51.100"], &["'198.51.100'", "such as 10.0.0.7 or fd00::7"]),
        (&["devinfo", "--dev", "nosuchif0"], &["nosuchif0", "there are:"]),
        (&["devinfo", "--ip", "10.0.0.7"], &["ADDR/LEN"]),
        (&["devinfo", "--ip", "10.0.0.7/24"], &["--dev"]),
        (&["devinfo", "--mac", "02:00"], &["six bytes"]),
        (&["devinfo", "--bind", &address, "--dev", "lo"], &["one of them"]),
        (&["devinfo", "--backend", "loopback"], &["same process", "udp"]),
        (&["devinfo", "--bind", &address, "--pcap", "no/such/folder/x.pcapng"], &["no/such/folder"]),
        (&["pingpong", "-m", "1000"], &["256, 512, 1024, 2048 or 4096"]),
        (&["pingpong", "-n", "0"], &["'0'"]),
        (&["pingpong", "-t", "dc"], &["'dc'", "rc, uc, ud, srq"]),
        (&["pingpong", "--bind", &address, "-t", "ud", "-s", "4097"], &["4097 bytes", "4096"]),
        (&["pingpong", "--bind", &address, "-t", "srq", "-r", "15"], &["15 receives", "16 queue pairs"]),
        (&["pingpong", "-t", "srq", "-q", "256"], &["256", "1..=255"]),
        (&["pingpong", "-p", "0"], &["'0'"]),
        (&["pingpong", "--bind", &address, "-g", "9"], &["GID index 9", "0 to 1"]),
    ] {
        let output = run(folder.path(), args);
        assert_eq!(text(&output.stdout), "", "{args:?}");
        says(&output, 2, parts);
    }
}

#[test]
fn a_port_in_use_is_an_honest_failure() {
    let (folder, address) = (TempDir::new().unwrap(), format!("{}.1", net()));
    let devinfo = || run(folder.path(), &["devinfo", "--bind", &address]);
    let taken = UdpSocket::bind(format!("{address}:4791")).unwrap();
    says(&devinfo(), 1, &["4791", &address, "in use by"]);
    drop(taken);
    assert_eq!(devinfo().status.code(), Some(0));
}

#[test]
fn without_the_capability_raw_says_which_it_needs() {
    const NOBODY: u32 = 65_534;
    let address = format!("{}.1", net());
    let mut command = Command::new(FERROCE);
    command.args(["devinfo", "--backend", "raw", "--bind", &address]).current_dir("/");
    if std::fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t") {
        command.uid(NOBODY);
    }
    match command.output() {
        Ok(output) => says(&output, 1, &["CAP_NET_RAW", "udp"]),
        // The build folder may be closed to other users.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    }
}

/// A ping-pong server, waited for until it listens.
struct Server {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Server {
    fn start(folder: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(FERROCE)
            .arg("pingpong")
            .args(args)
            .current_dir(folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        assert!(line(&mut out).starts_with("  local address:  LID 0x0000, QPN 0x0000"));
        Self { child, out }
    }

    fn finish(mut self) -> (i32, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (self.child.wait().unwrap().code().unwrap(), out, err)
    }
}

fn line(out: &mut impl BufRead) -> String {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    line
}

#[test]
fn two_processes_play_pingpong_and_print_what_the_stock_tool_prints() {
    let folder = TempDir::new().unwrap();
    for extra in [
        &["-c"][..],
        &["-c", "-e", "-s", "1", "-m", "256"],
        &["-c", "-t", "uc", "-s", "10000"],
        &["-c", "-e", "-t", "ud", "-s", "4096"],
        &["-c", "-t", "srq", "-q", "5", "-s", "3000"],
        &["-e", "-t", "srq", "-q", "1"],
        &["-c", "--backend", "shm", "-s", "100000"],
        &["-c", "-e", "--backend", "shm", "-s", "1"],
    ] {
        let (port, net) = (port(), net());
        let [a, b] = [1, 2].map(|host| format!("{net}.{host}"));
        let args = |address: &str| {
            let fixed = ["-p", &port, "-n", "50", "-r", "8", "--bind", address].map(str::to_owned);
            fixed.into_iter().chain(extra.iter().map(|arg| (*arg).to_owned())).collect::<Vec<_>>()
        };
        let (server_args, mut client_args) = (args(&a), args(&b));
        let server =
            Server::start(folder.path(), &server_args.iter().map(String::as_str).collect::<Vec<_>>());
        client_args.insert(0, "pingpong".into());
        client_args.push("127.0.0.1".into());
        let client = run(folder.path(), &client_args.iter().map(String::as_str).collect::<Vec<_>>());
        let (code, out, err) = server.finish();
        assert_eq!((code, client.status.code()), (0, Some(0)), "{err}{}", text(&client.stderr));
        assert!(out.contains("remote address: LID 0x0000, QPN 0x000011, PSN 0x"), "{out}");
        assert!(out.contains(&format!("GID ::ffff:{b}")), "{out}");
        assert!(out.contains("50 iters in ") && out.contains(" usec/iter"), "{out}");
    }
}

/// Sends SIGINT to a child, so many times at once.
fn interrupt(child: &Child, times: usize) {
    let pid = child.id().to_string();
    let pids = std::iter::repeat_n(&pid, times);
    assert!(Command::new("kill").arg("-INT").args(pids).status().unwrap().success());
}

#[test]
fn a_signal_ends_the_wait_for_the_other_end_at_once() {
    const SIGINT: i32 = 2;
    let folder = TempDir::new().unwrap();
    let mut server = Server::start(folder.path(), &["-p", &port(), "--bind", &format!("{}.1", net())]);
    interrupt(&server.child, 1);
    assert_eq!(server.child.wait().unwrap().signal(), Some(SIGINT));
}

#[test]
fn a_signal_ends_it_with_what_was_measured_and_a_whole_capture() {
    let folder = TempDir::new().unwrap();
    let (port, net) = (port(), net());
    let common = ["-p", &port, "-n", "1000000000", "-s", "512"];
    let [a, b] = [1, 2].map(|host| format!("{net}.{host}"));
    let server_args = [&common[..], &["--bind", &a, "--pcap", "cut.pcapng"]].concat();
    let mut server = Server::start(folder.path(), &server_args);
    let mut client = Command::new(FERROCE)
        .arg("pingpong")
        .args(common)
        .args(["--bind", &b, "127.0.0.1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // From this line on the game is being played.
    assert!(line(&mut server.out).starts_with("  remote address:"));
    // As `timeout` does it: the process, then its whole group.
    interrupt(&server.child, 2);
    let (code, out, err) = server.finish();
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(code, 1, "{err}");
    assert!(out.contains(" Mbit/sec\n") && out.contains(" usec/iter\n"), "{out}");
    assert!(err.contains("interrupted") && err.lines().count() == 1, "{err}");
    packets(&folder.path().join("cut.pcapng"));
}
