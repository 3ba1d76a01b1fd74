use qp::QpType;
use tempfile::TempDir;

use super::*;
use crate::backend::Loopback;
use crate::backend::own::nothing_starts;

/// A device, and what tells of it in `directory`.
fn device(directory: &Path, name: &str) -> (Device, Teller) {
    let backend = Loopback::hub().attach([10, 0, 0, 1].into()).expect("free");
    let device = Device::builder(backend).seed(1).open().expect("a device");
    let about = About {
        backend: "loopback",
        gids: device.addresses().gids().to_vec(),
        engine: device.shared_engine(),
    };
    let teller = Teller::start_in(directory, name, about).expect("a socket");
    (device, teller)
}

#[test]
fn a_device_tells_of_its_counters_and_queue_pairs() {
    let directory = TempDir::new().expect("a directory");
    let (device, teller) = device(directory.path(), "one");
    let mode = fs::metadata(&teller.path).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (pd, cq) = (device.alloc_pd(), device.create_cq(16).expect("a queue"));
    let pairs: Vec<_> =
        (0..100).map(|_| pd.create_qp(QpType::Rc, &cq, &cq).build().expect("a queue pair")).collect();
    let told = ask_in(directory.path(), "one").expect("an answer");
    assert_eq!((&told["name"], &told["backend"]), (&json!("one"), &json!("loopback")));
    assert_eq!(told["counters"], Value::Object(counters(&device)));
    for name in
        ["np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rp_cnp_ignored", "io_tx_lost"]
    {
        assert_eq!(told["counters"][name], 0, "{name}");
    }
    let qps = told["qps"].as_array().expect("a list");
    let numbers: Vec<_> = pairs.iter().map(|pair| json!(pair.endpoint(1).qpn.value())).collect();
    assert_eq!(qps.iter().map(|qp| qp["qpn"].clone()).collect::<Vec<_>>(), numbers);
    assert_eq!((&qps[0]["type"], &qps[0]["dest_qpn"]), (&json!("RC"), &Value::Null));
    drop(teller);
    assert!(matches!(ask_in(directory.path(), "one"), Err(StatError::NoSuchDevice { .. })));
    assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 0);
}

#[test]
fn names_that_are_taken_get_a_number_and_those_of_the_dead_are_free() {
    let _held = nothing_starts();
    let directory = TempDir::new().expect("a directory");
    let path = directory.path();
    drop(UnixListener::bind(socket_path(path, "dead")).expect("a socket"));
    drop(UnixListener::bind(socket_path(path, "dead-too")).expect("a socket"));
    fs::write(path.join("another.file"), "").expect("writes");
    let (_one, first) = device(path, "dead");
    let (_two, _second) = device(path, "dead");
    assert_eq!(running_in(path).expect("a list"), ["dead", "dead-2"]);
    assert!(!socket_path(path, "dead-too").exists());
    drop(first);
    let (_three, _again) = device(path, "dead");
    assert_eq!(running_in(path).expect("a list"), ["dead", "dead-2"]);
    let error = ask_in(path, "dead-3").expect_err("nobody").to_string();
    assert_eq!(error, "no running device of this user is called \"dead-3\"; there are: dead, dead-2");
}

#[test]
fn a_number_finds_room_in_the_longest_name() {
    let directory = TempDir::new().expect("a directory");
    let name = "x".repeat(LONGEST_NAME);
    let (_one, _first) = device(directory.path(), &name);
    let (_two, _second) = device(directory.path(), &name);
    let other = format!("{}-2", &name[2..]);
    assert_eq!(running_in(directory.path()).expect("a list"), [other.clone(), name]);
    ask_in(directory.path(), &other).expect("an answer");
}

#[test]
fn who_does_not_read_ends_nothing() {
    let directory = TempDir::new().expect("a directory");
    let (device, teller) = device(directory.path(), "one");
    let deaf: Vec<_> = (0..8).map(|_| UnixStream::connect(&teller.path).expect("connects")).collect();
    ask_in(directory.path(), "one").expect("an answer");
    drop((teller, device));
    drop(deaf);
}

#[test]
fn only_names_that_are_harmless_in_paths_are_names() {
    for good in ["udp-17", "a", "A_b.c"] {
        assert!(is_name(good), "{good}");
    }
    for bad in ["", ".", "..", ".a", "a/b", "a b", "ä", &"x".repeat(49)] {
        assert!(!is_name(bad), "{bad}");
    }
}

/// Neither of the two answers before both have been asked.
#[test]
fn devices_are_asked_at_the_same_time() {
    let directory = TempDir::new().expect("a directory");
    let listeners =
        ["a", "b"].map(|name| UnixListener::bind(socket_path(directory.path(), name)).expect("a socket"));
    let answers = std::thread::spawn(move || {
        let asked = listeners.map(|listener| listener.accept().expect("somebody asks").0);
        for (n, mut stream) in (0..).zip(asked) {
            write!(stream, "{n}").expect("it is read");
        }
    });
    let patience = Duration::from_secs(60);
    let told = ask_all_in(directory.path(), &["a", "b"], patience);
    let told: Vec<_> = told.into_iter().map(|answer| answer.expect("a number")).collect();
    assert_eq!(told, [json!(0), json!(1)]);
    answers.join().expect("no panic");
    // Who looks for the names of others asks them too.
    let told = ask_all_in(directory.path(), &["none"], patience);
    assert!(matches!(told[..], [Err(StatError::NoSuchDevice { .. })]));
}
