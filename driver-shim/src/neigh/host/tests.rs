use super::*;

const MINE: Mac = Mac([2, 0, 0, 0, 0, 1]);
const YOURS: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

fn host(mac: Mac, addresses: &[&str]) -> Host {
    let addresses: Vec<_> =
        addresses.iter().map(|text| (ip(text), if text.contains(':') { 64 } else { 24 })).collect();
    Host::new(mac, &addresses)
}

/// Lets `a` ask for `target` of `b`, and returns what each learns.
fn ask(a: &mut Host, b: &mut Host, target: &str) -> [Option<(IpAddr, Mac)>; 2] {
    assert_eq!(a.ask(ip(target), 0), Answer::Wait(INTERVAL));
    let question = a.take_outbox().pop().expect("a question");
    let learnt_by_b = b.on_frame(&question);
    let answer = b.take_outbox().pop();
    [answer.and_then(|answer| a.on_frame(&answer)), learnt_by_b]
}

#[test]
fn arp_finds_a_neighbour_and_both_learn() {
    let (mut a, mut b) = (host(MINE, &["10.0.0.1"]), host(YOURS, &["10.0.0.2"]));
    let expected = [Some((ip("10.0.0.2"), YOURS)), Some((ip("10.0.0.1"), MINE))];
    assert_eq!(ask(&mut a, &mut b, "10.0.0.2"), expected);
    assert_eq!(ask(&mut a, &mut b, "10.0.0.3")[0], None, "not its address");
    assert_eq!(b.ask(ip("10.0.0.1"), 0), Answer::Mac(MINE), "told already");
    assert_eq!(b.ask(ip("10.0.0.1"), 0), Answer::Wait(INTERVAL), "once");
}

#[test]
fn neighbour_discovery_finds_a_neighbour_and_both_learn() {
    let (mut a, mut b) = (host(MINE, &["fd00::1"]), host(YOURS, &["fd00::2"]));
    let expected = [Some((ip("fd00::2"), YOURS)), Some((ip("fd00::1"), MINE))];
    assert_eq!(ask(&mut a, &mut b, "fd00::2"), expected);
    let yours = YOURS.link_local_gid().ip().to_string();
    assert_eq!(ask(&mut a, &mut b, &yours)[0], Some((YOURS.link_local_gid().ip(), YOURS)));
    assert_eq!(ask(&mut a, &mut b, "fd00::3")[0], None, "not its address");
}

#[test]
fn an_announcement_updates_what_neighbours_remember() {
    let (mut a, mut b) = (host(MINE, &["10.0.0.1", "fd00::1"]), host(YOURS, &["10.0.0.2", "fd00::2"]));
    b.announce();
    let learnt: Vec<_> = b.take_outbox().iter().map(|frame| a.on_frame(frame)).collect();
    let link_local = YOURS.link_local_gid().ip();
    assert_eq!(learnt, [link_local, ip("10.0.0.2"), ip("fd00::2")].map(|address| Some((address, YOURS))));
}

#[test]
fn a_test_for_a_free_address_is_answered_to_all() {
    let mut a = host(MINE, &["fd00::1"]);
    let mut tester = host(YOURS, &["fd00::9"]);
    let (target, any) = ("fd00::1".parse().expect("address"), Ipv6Addr::UNSPECIFIED);
    tester.send_solicitation(any, target);
    assert_eq!(a.on_frame(&tester.take_outbox()[0]), None);
    let answer = a.take_outbox().pop().expect("an answer");
    assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
}

#[test]
fn routes_are_the_own_networks_only() {
    let mut a = host(MINE, &["10.0.0.1"]);
    assert_eq!(a.route(ip("10.0.0.77")), Ok(Hop::Ask(ip("10.0.0.77"))));
    assert_eq!(a.route(ip("10.0.1.77")), Err(Unreachable::NoRoute));
    assert_eq!(a.route(ip("fd00::1")), Err(Unreachable::NoRoute));
    assert_eq!(a.route(YOURS.link_local_gid().ip()), Ok(Hop::Mac(YOURS)));
    assert_eq!(a.route(ip("fe80::1")), Ok(Hop::Ask(ip("fe80::1"))));
}

#[test]
fn a_silent_neighbour_is_given_up() {
    let mut a = host(MINE, &["10.0.0.1"]);
    assert_eq!(a.ask(ip("10.0.0.2"), ATTEMPTS), Answer::GiveUp);
    assert!(a.take_outbox().is_empty());
}

#[test]
fn lies_and_broken_frames_are_ignored() {
    let (mut a, mut b) = (host(MINE, &["10.0.0.1", "fd00::1"]), host(YOURS, &["10.0.0.2", "fd00::2"]));
    for target in ["10.0.0.2", "fd00::2"] {
        a.ask(ip(target), 0);
        let frame = a.take_outbox().pop().expect("a question");
        for len in 0..frame.len() {
            assert_eq!(b.on_frame(&frame[..len]), None, "cut at {len}");
        }
        for at in 0..frame.len() {
            for bit in 0..8 {
                let mut broken = frame.clone();
                broken[at] ^= 1 << bit;
                // Whatever comes of it, it is no claim to an address of its own.
                assert_ne!(b.on_frame(&broken).map(|(address, _)| address), Some(ip(target)));
            }
        }
    }
    let mut thief = host(Mac([2, 0, 0, 0, 0, 3]), &["10.0.0.1"]);
    thief.announce();
    let learnt: Vec<_> = thief.take_outbox().iter().filter_map(|frame| a.on_frame(frame)).collect();
    assert!(!learnt.iter().any(|(address, _)| *address == ip("10.0.0.1")), "{learnt:?}");
}

/// Rule R-ADR-18: a link-local address is looked for on the link itself, never behind a router; others are not
/// taken for it.
#[test]
fn f39_a_link_local_address_is_on_its_own_link_only() {
    let (mut a, mut b) = (host(MINE, &["10.0.0.1", "fd00::1"]), host(YOURS, &["10.0.0.2", "fd00::2"]));
    assert_eq!(a.route(ip("fe80::77")), Ok(Hop::Ask(ip("fe80::77"))));
    assert_eq!(a.route(YOURS.link_local_gid().ip()), Ok(Hop::Mac(YOURS)));
    assert_eq!(a.route(ip("fd01::1")), Err(Unreachable::NoRoute));
    // Who is not on this link does not answer, and the address is given up.
    assert_eq!(ask(&mut a, &mut b, "fe80::77"), [None, Some((MINE.link_local_gid().ip(), MINE))]);
    assert_eq!(a.ask(ip("fe80::77"), ATTEMPTS), Answer::GiveUp);
}
