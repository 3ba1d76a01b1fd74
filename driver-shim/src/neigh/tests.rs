use super::*;

const MAC: Mac = Mac([2, 0, 0, 0, 0, 9]);
const OTHER: Mac = Mac([2, 0, 0, 0, 0, 10]);

/// Answers as told, and notes what it was asked.
#[derive(Debug)]
struct Script {
    route: Result<Hop, Unreachable>,
    answer: Answer,
    asked: Vec<(IpAddr, u32)>,
}

impl Resolver for Script {
    fn route(&mut self, _dst: IpAddr) -> Result<Hop, Unreachable> {
        self.route
    }

    fn ask(&mut self, hop: IpAddr, attempt: u32) -> Answer {
        self.asked.push((hop, attempt));
        self.answer
    }
}

fn table(route: Result<Hop, Unreachable>, answer: Answer) -> Table<Script> {
    Table::new(Script { route, answer, asked: Vec::new() })
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("address")
}

const WAIT: Duration = Duration::from_millis(100);

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

/// Rule R-ADR-18.
#[test]
fn packets_wait_for_the_answer_of_the_gateway_and_leave_in_order() {
    let (gateway, dst) = (ip("10.0.0.254"), ip("192.0.2.1"));
    let mut table = table(Ok(Hop::Ask(gateway)), Answer::Wait(WAIT));
    assert_eq!(table.lookup(at(0), dst), Lookup::Pending);
    for n in 0..=HELD {
        table.hold(dst, vec![u8::try_from(n).expect("few")]);
    }
    assert_eq!(table.lost(), 1, "beyond the limit");
    assert_eq!(table.poll_timeout(), Some(at(100)));
    table.poll(at(99));
    table.poll(at(100));
    assert_eq!(table.resolver().asked, [(gateway, 0), (gateway, 1)]);
    assert_eq!(table.poll_timeout(), Some(at(200)));
    table.learn(at(150), gateway, MAC);
    let released = table.released();
    assert_eq!((released.len(), &released[3]), (HELD, &(MAC, vec![3])));
    assert_eq!(table.lookup(at(150), dst), Lookup::Mac(MAC));
    assert_eq!(table.poll_timeout(), None);
}

#[test]
fn without_an_answer_packets_are_lost_until_a_new_try() {
    let dst = ip("10.0.0.2");
    let mut table = table(Ok(Hop::Ask(dst)), Answer::Wait(WAIT));
    table.lookup(at(0), dst);
    table.hold(dst, vec![1]);
    table.resolver().answer = Answer::GiveUp;
    table.poll(at(100));
    assert_eq!(table.lookup(at(1099), dst), Lookup::Unreachable(Unreachable::NoAnswer));
    assert_eq!((table.lost(), table.released().len()), (1, 0));
    table.resolver().answer = Answer::Mac(MAC);
    assert_eq!(table.lookup(at(1100), dst), Lookup::Mac(MAC));
}

#[test]
fn a_known_address_stays_in_use_while_it_is_asked_for_again() {
    let dst = ip("10.0.0.2");
    let mut table = table(Ok(Hop::Ask(dst)), Answer::Mac(MAC));
    assert_eq!(table.lookup(at(0), dst), Lookup::Mac(MAC));
    table.resolver().answer = Answer::Wait(WAIT);
    assert_eq!(table.lookup(at(9_999), dst), Lookup::Mac(MAC));
    assert_eq!(table.resolver().asked.len(), 1);
    assert_eq!(table.lookup(at(10_000), dst), Lookup::Mac(MAC));
    assert_eq!(table.lookup(at(10_100), dst), Lookup::Mac(MAC));
    assert_eq!(table.resolver().asked, [(dst, 0), (dst, 0), (dst, 1)]);
    table.learn(at(10_150), dst, OTHER);
    assert_eq!(table.lookup(at(10_200), dst), Lookup::Mac(OTHER));
    table.resolver().answer = Answer::GiveUp;
    assert_eq!(table.lookup(at(30_000), dst), Lookup::Unreachable(Unreachable::NoAnswer));
}

#[test]
fn an_address_that_needs_no_asking_never_changes() {
    let dst = ip("fe80::ff:fe00:9");
    let mut known = table(Ok(Hop::Mac(MAC)), Answer::GiveUp);
    assert_eq!(known.lookup(at(0), dst), Lookup::Mac(MAC));
    known.learn(at(1), dst, OTHER);
    assert_eq!(known.lookup(at(100_000), dst), Lookup::Mac(MAC));
    let mut nowhere = table(Err(Unreachable::NoRoute), Answer::GiveUp);
    assert_eq!(nowhere.lookup(at(0), dst), Lookup::Unreachable(Unreachable::NoRoute));
}

/// Rule R-ADR-18.
#[test]
fn some_addresses_show_their_ethernet_address() {
    assert_eq!(mac_of_link_local(MAC.link_local_gid().ip()), Some(MAC));
    assert_eq!(mac_of_link_local(ip("fe80::1")), None);
    assert_eq!(mac_of_link_local(ip("fd00::ff:fe00:9")), None);
    assert_eq!(mac_of_multicast(ip("239.129.2.3")), Some(Mac([1, 0, 0x5E, 1, 2, 3])));
    assert_eq!(mac_of_multicast(ip("ff02::1:ff00:203")), Some(Mac([0x33, 0x33, 0xFF, 0, 2, 3])));
    assert_eq!(mac_of_multicast(ip("10.0.0.1")), None);
}
