//! The eight commands of perftest's kind, as real processes on loopback: what both ends print, and how they end.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

mod net;
mod port;

use net::net;
use port::port;

const FERROCE: &str = env!("CARGO_BIN_EXE_ferroce");
const RULE: &str = "---------------------------------------------------------------------------------------";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// One end: a command with its own address of loopback. A client looks for its server for some seconds, so that they may
/// be started in any order.
fn end(tool: &str, folder: &Path, address: &str, port: &str, options: &[&str]) -> Command {
    let mut command = Command::new(FERROCE);
    // The default of 67 ms is short for a machine that has much else to do.
    command.args([tool, "--bind", address, "-p", port, "-F", "-u", "18"]).args(options).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs both ends: what the client and the server have said.
fn both(tool: &str, client: &[&str], server: &[&str]) -> (Output, Output) {
    let (folder, port, net) = (TempDir::new().unwrap(), port(), net());
    let server = end(tool, folder.path(), &format!("{net}.1"), &port, server).spawn().unwrap();
    let client =
        end(tool, folder.path(), &format!("{net}.2"), &port, client).arg("127.0.0.1").output().unwrap();
    (client, server.wait_with_output().unwrap())
}

/// Runs both ends with the same options, and both must end well: what they have printed.
fn well(tool: &str, options: &[&str]) -> (String, String) {
    let (client, server) = both(tool, options, options);
    let codes = (client.status.code(), server.status.code());
    assert_eq!(
        codes,
        (Some(0), Some(0)),
        "{tool} {options:?}: {}{}",
        text(&client.stderr),
        text(&server.stderr)
    );
    (text(&client.stdout), text(&server.stdout))
}

/// The numbers between the heading and the rule below.
fn rows(out: &str) -> Vec<Vec<f64>> {
    let table = out.lines().skip_while(|line| !line.starts_with(" #bytes")).skip(1);
    let numbers = |line: &str| line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    table.take_while(|line| *line != RULE).map(numbers).collect()
}

/// Sizes and counts of the rows.
fn counts(out: &str) -> Vec<(f64, f64)> {
    rows(out).iter().map(|row| (row[0], row[1])).collect()
}

#[test]
fn bandwidth_of_each_operation_comes_with_perftests_table() {
    for (tool, title, size) in [
        ("send-bw", "Send BW Test", 4096.0),
        ("write-bw", "RDMA_Write BW Test", 4096.0),
        ("read-bw", "RDMA_Read BW Test", 4096.0),
        ("atomic-bw", "Atomic FETCH_AND_ADD BW Test", 8.0),
    ] {
        let options: &[&str] =
            if tool == "atomic-bw" { &["-n", "50"] } else { &["-n", "50", "-s", "4096", "--verify"] };
        let (client, server) = well(tool, options);
        for out in [&client, &server] {
            assert!(out.contains(&format!("{RULE}\n                    {title}\n")), "{out}");
            let heading =
                " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n";
            assert!(out.contains(heading) && out.ends_with(&format!("{RULE}\n")), "{out}");
            assert!(out.contains(" Connection type : RC\t\tUsing SRQ      : OFF\n"), "{out}");
            assert_eq!(counts(out), [(size, 50.0)], "{out}");
            assert!(rows(out)[0][4] > 0.0, "{out}");
        }
        assert!(
            server.starts_with(
                "\n************************************\n* Waiting for client to connect... *\n"
            )
        );
        // The client has measured it, but of SENDs, which each end can.
        assert!(tool == "send-bw" || rows(&client) == rows(&server), "{client}{server}");
    }
}

#[test]
fn latency_of_each_operation_comes_with_perftests_table() {
    for tool in ["send-lat", "write-lat", "read-lat", "atomic-lat"] {
        let (client, server) = well(tool, &["-n", "50"]);
        let heading = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
                       t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n";
        assert!(client.contains(heading), "{client}");
        let row = &rows(&client)[0];
        let size = if tool == "atomic-lat" { 8.0 } else { 2.0 };
        assert_eq!((row.len(), row[0], row[1]), (9, size, 50.0), "{client}");
        let [min, max, typical, average] = [row[2], row[3], row[4], row[5]];
        assert!(
            0.0 < min && min <= typical && typical <= max && min <= average && average <= max,
            "{client}"
        );
        assert!(row[7] <= row[8], "{client}");
        // Whoever only answers has nothing to say.
        let silent = matches!(tool, "read-lat" | "atomic-lat");
        assert_eq!(rows(&server).len(), usize::from(!silent), "{server}");
    }
}

/// Several queue pairs, both ways, other types of queue pairs, other units; contents are checked where they must arrive.
#[test]
fn options_of_perftest_do_what_they_do_there() {
    for (tool, options, row) in [
        ("write-bw", &["-q", "4", "--verify"][..], (65_536.0, 80.0)),
        ("write-bw", &["-b", "-s", "100", "--verify"], (100.0, 20.0)),
        ("send-bw", &["-b", "-q", "4", "-s", "10000", "--verify"], (10_000.0, 80.0)),
        ("read-bw", &["-b", "-q", "2", "-o", "1", "--verify"], (65_536.0, 40.0)),
        ("atomic-bw", &["-b", "-q", "2", "-A", "CMP_AND_SWAP"], (8.0, 40.0)),
        ("write-bw", &["-t", "4", "-Q", "2", "-l", "2", "-m", "256", "-s", "3000"], (3000.0, 20.0)),
        ("write-bw", &["-t", "8", "-Q", "7", "-l", "4", "-s", "64"], (64.0, 20.0)),
        ("write-bw", &["-t", "4", "-l", "16", "-s", "64"], (64.0, 20.0)),
        ("write-bw", &["-I", "64", "-s", "64", "--verify"], (64.0, 20.0)),
        ("send-bw", &["-e", "-r", "4", "--verify"], (65_536.0, 20.0)),
        ("send-bw", &["-c", "UC", "-s", "4096"], (4096.0, 20.0)),
        ("write-bw", &["-c", "UC", "-s", "4096"], (4096.0, 20.0)),
        ("send-bw", &["-c", "UD"], (4096.0, 20.0)),
        ("send-lat", &["-c", "UD", "-e", "-s", "64"], (64.0, 20.0)),
        ("write-lat", &["-c", "UC", "-s", "10000"], (10_000.0, 20.0)),
    ] {
        let options = [options, &["-n", "20"]].concat();
        let (client, server) = well(tool, &options);
        assert_eq!((counts(&client), counts(&server)), (vec![row], vec![row]), "{tool} {options:?}");
        let whole = options.contains(&"-b") || tool == "write-bw" || tool == "read-bw";
        assert!(!whole || rows(&client) == rows(&server), "{tool} {options:?}: {client}{server}");
    }
}

#[test]
fn all_sizes_get_a_row_each() {
    let (client, server) = well("write-bw", &["-a", "-n", "5", "--verify"]);
    let sizes = |from: u32| (from..=23).map(|power| (f64::from(1 << power), 5.0)).collect::<Vec<_>>();
    assert_eq!((counts(&client), counts(&server)), (sizes(1), sizes(23)));
    let (client, server) = well("send-bw", &["-a", "-n", "5", "-b", "--verify"]);
    assert_eq!((counts(&client), counts(&server)), (sizes(1), sizes(1)));
    let (client, server) = well("send-lat", &["-a", "-n", "5", "-c", "UD"]);
    let datagrams: Vec<(f64, f64)> = (1..=12).map(|power| (f64::from(1 << power), 5.0)).collect();
    assert_eq!((counts(&client), counts(&server)), (datagrams.clone(), datagrams));
}

#[test]
fn a_duration_ends_it_with_what_was_measured_in_its_middle() {
    for (tool, columns) in [("write-bw", 5), ("send-bw", 5), ("send-lat", 4)] {
        let (client, server) = well(tool, &["-D", "1", "-s", "1000"]);
        for out in [client, server] {
            let row = &rows(&out)[0];
            assert_eq!((row.len(), row[0]), (columns, 1000.0), "{out}");
            assert!(row[1] > 0.0 && row[columns - 1] > 0.0, "{out}");
        }
    }
}

#[test]
fn the_results_are_there_as_json_too() {
    let folder = TempDir::new().unwrap();
    let (port, net) = (port(), net());
    let options = |file| ["-n", "10", "-s", "512", "--report_gbits", "--out_json", "--out_json_file", file];
    let server =
        end("write-bw", folder.path(), &format!("{net}.1"), &port, &options("server.json")).spawn().unwrap();
    let client = end("write-bw", folder.path(), &format!("{net}.2"), &port, &options("client.json"))
        .arg("127.0.0.1")
        .output()
        .unwrap();
    assert!(client.status.success() && server.wait_with_output().unwrap().status.success());
    let read = |file| -> Value {
        serde_json::from_slice(&std::fs::read(folder.path().join(file)).unwrap()).unwrap()
    };
    let (client, server) = (read("client.json"), read("server.json"));
    assert_eq!(client["test_info"]["test"], "write-bw");
    assert_eq!(client["test_info"]["unit"], "Gb/sec");
    assert_eq!(client["results"]["MsgSize"], 512);
    assert_eq!(client["results"]["n_iterations"], 10);
    assert!(client["results"]["BW_average"].as_f64().unwrap() > 0.0, "{client}");
    assert_eq!(client["results"], server["results"]);
}

/// A client in the middle of sizes that take it a while, and its server.
fn in_the_middle(folder: &Path) -> (Child, BufReader<std::process::ChildStdout>, Child) {
    let (port, net, options) = (port(), net(), ["-a", "-n", "3000"]);
    let server = end("write-bw", folder, &format!("{net}.1"), &port, &options).spawn().unwrap();
    let mut client =
        end("write-bw", folder, &format!("{net}.2"), &port, &options).arg("127.0.0.1").spawn().unwrap();
    let mut out = BufReader::new(client.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with(" 2 ") {
        line.clear();
        assert!(
            out.read_line(&mut line).unwrap() > 0,
            "ended without a row: {:?}",
            client.wait_with_output()
        );
    }
    (client, out, server)
}

/// What a process says at last, and its exit code.
fn last_words(child: Child, out: &mut impl Read) -> (Option<i32>, String, String) {
    let mut said = String::new();
    out.read_to_string(&mut said).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), said, text(&output.stderr))
}

#[test]
fn a_signal_ends_it_with_what_was_measured_and_the_other_end_says_why() {
    let folder = TempDir::new().unwrap();
    let (client, mut out, server) = in_the_middle(folder.path());
    let pid = client.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let (code, said, err) = last_words(client, &mut out);
    assert_eq!((code, err.lines().count()), (Some(1), 1), "{err}");
    assert!(err.contains("interrupted after"), "{err}");
    let row = said.lines().rev().nth(1).unwrap();
    let row: Vec<f64> = row.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert!(row.len() == 5 && row[1] < 3000.0 && said.ends_with(&format!("{RULE}\n")), "{said}");
    let server = server.wait_with_output().unwrap();
    let err = text(&server.stderr);
    assert_eq!((server.status.code(), err.lines().count()), (Some(1), 1), "{err}");
    assert!(err.contains("other end"), "{err}");
}

#[test]
fn a_peer_that_vanishes_ends_it_with_a_named_error() {
    let folder = TempDir::new().unwrap();
    let (client, mut out, mut server) = in_the_middle(folder.path());
    server.kill().unwrap();
    server.wait().unwrap();
    let (code, said, err) = last_words(client, &mut out);
    assert_eq!((code, err.lines().count()), (Some(1), 1), "{err}");
    assert!(err.contains("the other end has gone") || err.contains("RETRY_EXC_ERR"), "{err}");
    assert!(said.ends_with(&format!("{RULE}\n")), "{said}");

    let (mut client, _, server) = in_the_middle(folder.path());
    client.kill().unwrap();
    client.wait().unwrap();
    let server = server.wait_with_output().unwrap();
    let err = text(&server.stderr);
    assert_eq!((server.status.code(), err.lines().count()), (Some(1), 1), "{err}");
    assert!(err.contains("other end"), "{err}");
}

#[test]
fn ends_that_do_not_go_together_say_what_to_look_at() {
    let (client, server) = both("write-bw", &["-s", "100000", "-n", "10"], &["-s", "64", "-n", "10"]);
    let err = text(&client.stderr);
    assert_eq!((client.status.code(), err.lines().count()), (Some(1), 1), "{err}");
    assert!(err.contains("REM_ACCESS_ERR") && err.contains("same -s"), "{err}");
    assert_eq!(server.status.code(), Some(1), "{}", text(&server.stderr));
}

/// Of two ends with different numbers of messages one is done first, and neither waits for the other for ever.
#[test]
fn ends_that_do_not_count_the_same_both_end() {
    let (few, many) = (["-n", "10"], ["-n", "2000"]);
    let ends =
        [("send-bw", &many, &few, "has had no receives"), ("send-lat", &many, &few, "has had no receives")];
    let (one, two) = (["-n10", "-N"], ["-n10", "-b"]);
    let ends = ends.into_iter().chain([
        ("send-bw", &two, &one, "is -b given there"),
        ("send-bw", &few, &many, "waits for more"),
        ("send-lat", &few, &many, "waits for more"),
    ]);
    std::thread::scope(|scope| {
        for (tool, client, server, named) in ends {
            scope.spawn(move || {
                let (client, server) = both(tool, client, server);
                let err = text(&client.stderr) + &text(&server.stderr);
                assert_eq!((client.status.code(), server.status.code()), (Some(1), Some(1)), "{tool}: {err}");
                assert_eq!(err.lines().count(), 2, "{err}");
                assert!(err.contains(named), "{tool}: {err}");
            });
        }
    });
}

/// Whoever else comes to the port is told apart, and nobody waits for ever.
#[test]
fn what_is_no_perftest_ends_it_with_one_line() {
    let folder = TempDir::new().unwrap();
    for (says, named) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "GET / HTTP"),
        (b"4.99\0\0\0\0\0\0\0\0\0\0\0\0", "4.99"),
        (b"6.06", "closed"),
    ] {
        let (port, address) = (port(), format!("{}.1", net()));
        let mut server = end("read-lat", folder.path(), &address, &port, &[]).spawn().unwrap();
        // It says that it waits just before it does.
        let mut out = BufReader::new(server.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("* Waiting") {
            line.clear();
            assert!(out.read_line(&mut line).unwrap() > 0, "ended early");
        }
        let address = SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()));
        let mut stream = loop {
            match TcpStream::connect(address) {
                Ok(stream) => break stream,
                Err(_) => std::thread::yield_now(),
            }
        };
        stream.write_all(says).unwrap();
        drop(stream);
        let (code, _, err) = last_words(server, &mut out);
        assert_eq!((code, err.lines().count()), (Some(1), 1), "{err}");
        assert!(err.contains(named), "{named}: {err}");
    }
}

/// A client that names a cache line longer than the page, in which messages then have one place.
#[test]
fn an_odd_cache_line_of_the_other_end_is_borne() {
    let folder = TempDir::new().unwrap();
    let (port, address) = (port(), format!("{}.1", net()));
    let mut server = end("send-bw", folder.path(), &address, &port, &["-s", "64"]).spawn().unwrap();
    let mut out = BufReader::new(server.stdout.take().unwrap());
    let address = SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()));
    let mut stream = loop {
        match TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(_) => std::thread::yield_now(),
        }
    };
    let mut swap = |mine: &[u8]| {
        stream.write_all(mine).unwrap();
        stream.read_exact(&mut vec![0; mine.len()]).unwrap();
    };
    let key =
        b"0000:0001:000025:dcab79:000013d7:00007f22d735e000:00:00:00:00:00:00:00:00:00:00:ff:ff:7f:00:00:01:\
        00000000:\0";
    for message in
        [&b"6.06\0\0\0\0\0\0\0\0\0\0\0\0"[..], &4096_u32.to_be_bytes(), &(1_u32 << 16).to_be_bytes(), b"5\0"]
    {
        swap(message);
    }
    // That of the queue pair, two of the beginning, and the one that says that receives are posted.
    for _ in 0..4 {
        swap(key);
    }
    drop(stream);
    let (code, _, err) = last_words(server, &mut out);
    assert_eq!((code, err.lines().count()), (Some(1), 1), "{err}");
    assert!(err.contains("gone"), "{err}");
}

#[test]
fn wrong_command_lines_get_one_line_and_exit_code_2() {
    let (folder, address) = (TempDir::new().unwrap(), format!("{}.1", net()));
    for (args, parts) in [
        (&["write-bw", "-n", "4"][..], &["'4'", "--iters"][..]),
        (&["write-bw", "-s", "0"], &["'0'"]),
        (&["write-bw", "-a", "-s", "64"], &["--all", "--size"]),
        (&["write-bw", "-m", "1000"], &["256, 512, 1024, 2048 or 4096"]),
        (&["write-bw", "-c", "DC"], &["'DC'", "RC, UC, UD"]),
        (&["write-bw", "-D", "0"], &["'0'"]),
        (&["write-bw", "-D", "4", "-f", "2"], &["-f"]),
        (&["write-bw", "-D", "4", "-f", "2147483648"], &["'2147483648'"]),
        (&["write-bw", "-D", "1", "-n", "10"], &["--iters"]),
        (&["write-bw", "-c", "UD"], &["write-bw", "-c RC"]),
        (&["read-bw", "-c", "UC"], &["read-bw", "-c RC"]),
        (&["atomic-lat", "-c", "UC"], &["atomic-lat", "-c RC"]),
        (&["atomic-bw", "-s", "16"], &["8 bytes", "-s"]),
        (&["send-lat", "-q", "2"], &["send-lat", "-q"]),
        (&["write-lat", "-b"], &["write-lat", "-b"]),
        (&["write-lat", "-e"], &["write-lat", "-e"]),
        (&["read-bw", "-o", "129"], &["129"]),
        (&["send-bw", "--bind", &address, "-x", "9"], &["GID index 9", "0 to 1"]),
        (&["send-bw", "--backend", "loopback"], &["same process"]),
    ] {
        let output = Command::new(FERROCE).args(args).current_dir(folder.path()).output().unwrap();
        let err = text(&output.stderr);
        assert_eq!((output.status.code(), err.lines().count()), (Some(2), 1), "{args:?}: {err}");
        assert_eq!(text(&output.stdout), "", "{args:?}");
        for part in parts {
            assert!(err.contains(part), "{args:?}: {part:?} is not in {err:?}");
        }
    }
}
