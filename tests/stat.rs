//! `ferroce stat` and the devices that it asks, as real processes.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

mod port;

use port::port;

const FERROCE: &str = env!("CARGO_BIN_EXE_ferroce");

/// The command, with a directory for running devices of its own.
fn ferroce(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(FERROCE);
    command.args(args).env("XDG_RUNTIME_DIR", folder).current_dir(folder);
    command
}

/// A folder that is this user's alone, as the system's for running programs is.
fn private() -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    folder
}

fn run(folder: &Path, args: &[&str]) -> Output {
    ferroce(folder, args).output().unwrap()
}

/// A server that waits for its client; killed when it is dropped.
struct Server(Child);

impl Server {
    fn start(folder: &Path, args: &[&str]) -> Self {
        let port = port();
        let fixed = ["send-bw", "--backend", "shm", "-p", &port];
        let child = ferroce(folder, &[&fixed[..], args].concat()).stdout(Stdio::null()).spawn().unwrap();
        Self(child)
    }

    fn signal(mut self, signal: &str) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

/// Asks until there is an answer: a device takes a moment to open.
fn ask(folder: &Path, args: &[&str]) -> Value {
    for _ in 0..10_000 {
        let output = run(folder, &[&["stat", "--json"], args].concat());
        if output.status.success() {
            return serde_json::from_slice(&output.stdout).unwrap();
        }
    }
    panic!("no device answers");
}

/// Sockets in the directory of devices.
fn sockets(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("ferroce")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "stat")).collect()
}

#[test]
fn running_devices_are_found_and_asked_and_leave_nothing() {
    let folder = private();
    let folder = folder.path();
    let none = run(folder, &["stat"]);
    assert_eq!(none.status.code(), Some(1));
    assert_eq!(String::from_utf8(none.stderr).unwrap(), "ferroce: no device of this user is running\n");

    let first = Server::start(folder, &["--name", "first"]);
    let told = ask(folder, &[]);
    assert_eq!(
        (&told["name"], &told["backend"], &told["pid"]),
        (&"first".into(), &"shm".into(), &first.0.id().into())
    );
    for name in
        ["np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rp_cnp_ignored", "drop_bad_icrc"]
    {
        assert_eq!(told["counters"][name], 0, "{name}");
    }
    let shown = String::from_utf8(run(folder, &["stat", "first"]).stdout).unwrap();
    assert!(shown.starts_with("device first: shm, process ") && shown.contains("rp_cnp_handled"), "{shown}");

    let second = Server::start(folder, &[]);
    let name = format!("shm-{}", second.0.id());
    ask(folder, &[&name]);
    let both = ask(folder, &[]);
    let names: Vec<_> = both.as_array().unwrap().iter().map(|device| device["name"].clone()).collect();
    assert_eq!(names, ["first", &name]);
    let list = String::from_utf8(run(folder, &["stat"]).stdout).unwrap();
    assert_eq!(list.lines().count(), 3, "{list}");

    // One that ends by a signal takes its socket along; what one that is killed has left is removed.
    second.signal("-INT");
    assert_eq!(sockets(folder).len(), 1);
    first.signal("-KILL");
    assert_eq!(sockets(folder).len(), 1);
    assert_eq!(run(folder, &["stat"]).status.code(), Some(1));
    assert_eq!(sockets(folder).len(), 0);
}

#[test]
fn watching_shows_a_device_until_it_ends() {
    let folder = private();
    let server = Server::start(folder.path(), &["--name", "one"]);
    ask(folder.path(), &["one"]);
    let mut watch =
        ferroce(folder.path(), &["stat", "one", "--watch", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let told: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(told["name"], "one");
    }
    server.signal("-TERM");
    assert!(lines.all(|line| line.is_ok()));
    assert_eq!(watch.wait().unwrap().code(), Some(0));
}

#[test]
fn a_device_works_where_it_cannot_be_asked() {
    let folder = private();
    fs::write(folder.path().join("ferroce"), "in the way").unwrap();
    let output = run(folder.path(), &["devinfo", "--backend", "udp"]);
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    let output = ferroce(folder.path(), &["devinfo"]).env("FERROCE_LOG", "warn").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let warnings = String::from_utf8(output.stderr).unwrap();
    assert_eq!(warnings.matches("will not find this device").count(), 1, "{warnings}");
    let output = run(folder.path(), &["stat"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("mode 0700"));
}

#[test]
fn wrong_names_get_one_line() {
    let folder = private();
    let output = run(folder.path(), &["devinfo", "--name", "../up"]);
    assert_eq!(output.status.code(), Some(2));
    let output = run(folder.path(), &["stat", "nobody"]);
    assert_eq!(output.status.code(), Some(1));
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(err, "ferroce: no running device of this user is called \"nobody\"; none is running\n");
}
