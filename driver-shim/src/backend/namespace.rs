//! Test support: a network namespace for one test, with a veth pair. Needs no privilege where the kernel
//! gives user namespaces to everybody.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::own::start;
use crate::sys;

/// Set in the process that runs inside.
const MARK: &str = "FERROCE_TEST_NAMESPACE";

/// The two ends of the pair.
pub(super) const ENDS: [&str; 2] = ["veth0", "veth1"];

/// Ethernet addresses of the ends.
pub(super) const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0xAA, 0], [2, 0, 0, 0, 0xAA, 1]];

/// Runs `body` of the test `name`, a path within this crate, in a namespace of its own: in a child process,
/// which runs just that test. Prints why where there is no namespace to be had.
pub(super) fn run(name: &str, body: fn()) {
    run_as(&["--map-root-user", "--net"], name, body);
}

/// The same with all privileges of this process, where it has those that a namespace needs: some are none within a user
/// namespace.
pub(super) fn run_privileged(name: &str, body: fn()) {
    run_as(&["--net"], name, body);
}

fn run_as(options: &[&str], name: &str, body: fn()) {
    if std::env::var_os(MARK).is_some() {
        set_up();
        body();
        return;
    }
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(options);
        command
    };
    let run = |command: &mut Command| {
        start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?.wait_with_output()
    };
    match run(unshare().arg("true")) {
        Ok(output) if output.status.success() => {}
        Ok(output) => return println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => return println!("skipped: no program unshare: {error}"),
    }
    let this = std::env::current_exe().expect("the path of this program");
    let output = run(unshare().arg(this).args([name, "--exact", "--nocapture"]).env(MARK, "1"));
    let output = output.expect("starts as it just did");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "in the namespace:\n{said}\n{errors}");
}

/// Runs `ip` with these words.
pub(super) fn ip(words: &str) {
    let output = Command::new("ip").args(words.split_whitespace()).output().expect("the program ip");
    assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Gives the ends of the pair addresses 10.77.0.1 and 10.77.0.2, and makes what is sent from one to the other go over
/// the wire, although both are of this host.
pub(super) fn cross() {
    for option in ["all/accept_local", "all/arp_ignore", "veth0/accept_local", "veth1/accept_local"] {
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{option}"), "1").expect("a setting of the namespace");
    }
    for option in ["all/rp_filter", "veth0/rp_filter", "veth1/rp_filter"] {
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{option}"), "0").expect("a setting of the namespace");
    }
    for (i, end) in ENDS.iter().enumerate() {
        let (own, other) = (1 + i, 2 - i);
        ip(&format!("address add 10.77.0.{own}/24 dev {end}"));
        ip(&format!("rule add pref {} iif {end} lookup local", 10 + i));
        ip(&format!("route add 10.77.0.{other} dev {end} src 10.77.0.{own} table {}", 100 + i));
        ip(&format!("rule add pref {} to 10.77.0.{other} lookup {}", 20 + i, 100 + i));
    }
    ip("rule add pref 30 lookup local");
    ip("rule del pref 0");
}

/// Keeps the host from sending frames of its own on the pair, where frames are counted: IPv6 asks for routers and tells of
/// groups now and then.
pub(super) fn silence_host() {
    for end in ENDS {
        // Where there is no such setting, there is no IPv6.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{end}/disable_ipv6"), "1");
    }
}

/// Runs `ethtool -K` with these words; says whether the driver took them.
pub(super) fn features(words: &str) -> bool {
    let output = Command::new("ethtool").arg("-K").args(words.split_whitespace()).output();
    output.is_ok_and(|output| output.status.success())
}

fn set_up() {
    let mac = |i: usize| MACS[i].map(|byte| format!("{byte:02x}")).join(":");
    let [a, b] = ENDS;
    ip(&format!("link add {a} address {} mtu 4200 type veth peer {b} address {} mtu 4200", mac(0), mac(1)));
    for end in ["lo", a, b] {
        ip(&format!("link set {end} up"));
    }
    wait_for_links(1 + ENDS.len());
}

/// Waits until `count` links are up, the loopback interface among them.
pub(super) fn wait_for_links(count: usize) {
    // The kernel takes up to some seconds to let packets onto a new link. It sends no event to a socket that
    // a test would have at hand, so it is asked again and again.
    let idle = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    for _ in 0..10_000 {
        let up = pnet::datalink::interfaces().iter().filter(|end| end.is_up() && end.is_running()).count();
        if up == count {
            return;
        }
        let _ = sys::wait_readable(idle.as_fd(), Duration::from_millis(2)).expect("poll");
    }
    panic!("the links do not come up");
}
