use proptest::prelude::*;
use wire::ext::{Deth, Ext};
use wire::opcode::{ExtHeader, PayloadRule};
use wire::{Bth, Opcode, Operation, PacketRepr, Psn, QKey};

use super::*;

fn micros(us: u64) -> Instant {
    Instant::from_micros(us)
}

fn gid(last: u8) -> Gid {
    Gid::from(std::net::Ipv4Addr::new(10, 0, 0, last))
}

fn mark(local: u32, from: u8, to: u8) -> Marked {
    Marked { from: gid(from), to: gid(to), local: Qpn::new(local), sender: None }
}

/// How many of marks `every` µs apart, 10 of them, are answered.
fn answered(np: &mut Np, every: u64, mark: Marked) -> usize {
    (0..10).filter(|n| np.on_marked(micros(n * every), mark).is_some()).count()
}

fn with(scope: CnpScope, interval_us: u64) -> Np {
    Np::new(&Params { cnp_scope: scope, cnp_interval: Duration::from_micros(interval_us), ..Params::PAPER })
}

/// Rule R-CNP-3.
#[test]
fn marks_are_answered_once_per_interval() {
    assert_eq!(answered(&mut with(CnpScope::Qp, 50), 10, mark(1, 1, 2)), 2);
    assert_eq!(answered(&mut with(CnpScope::Qp, 0), 10, mark(1, 1, 2)), 10);
    let mut np = with(CnpScope::Qp, 50);
    assert!(np.on_marked(micros(0), mark(1, 1, 2)).is_some());
    assert!(np.on_marked(Instant::from_nanos(49_999), mark(1, 1, 2)).is_none());
    assert!(np.on_marked(micros(50), mark(1, 1, 2)).is_some());
    assert_eq!(np.counts(), NpCounts { cnp_sent: 2, ..NpCounts::default() });
    assert_eq!(np.poll_timeout(), None);
}

/// Rule R-CNP-3.
#[test]
fn the_interval_is_kept_for_what_the_scope_says() {
    let marks = [mark(1, 1, 9), mark(2, 1, 9), mark(3, 1, 8), mark(4, 2, 9)];
    for (scope, sent) in
        [(CnpScope::Qp, 4), (CnpScope::IpPair, 3), (CnpScope::DestIp, 2), (CnpScope::Port, 1)]
    {
        let mut np = with(scope, 50);
        let all = |np: &mut Np, at| marks.iter().filter(|mark| np.on_marked(at, **mark).is_some()).count();
        assert_eq!(all(&mut np, micros(7)), sent, "{scope:?}");
        assert_eq!(all(&mut np, micros(56)), 0, "{scope:?}");
        assert_eq!(all(&mut np, micros(57)), sent, "{scope:?}");
    }
}

#[test]
fn windows_answer_once_at_their_end() {
    let mut np = Np::new(&Params { np_mode: NpMode::Window, ..Params::PAPER });
    for us in [10, 20, 49] {
        assert_eq!(np.on_marked(micros(us), mark(1, 1, 2)), None);
    }
    assert_eq!(np.on_marked(micros(30), mark(2, 1, 2)), None);
    assert_eq!(np.poll_timeout(), Some(micros(50)));
    assert_eq!(np.poll_cnp(Instant::from_nanos(49_999)), None);
    let sent = [(); 2].map(|()| np.poll_cnp(micros(50)).unwrap().local);
    assert_eq!(sent, [Qpn::new(1), Qpn::new(2)], "in the order of their marks");
    assert_eq!((np.poll_cnp(micros(90)), np.poll_timeout()), (None, None));
    // A mark at the end of a window is the next one's.
    np.on_marked(micros(150), mark(1, 1, 2));
    assert_eq!(np.poll_timeout(), Some(micros(200)));
    assert_eq!(np.counts().cnp_sent, 2);
}

#[test]
fn too_many_at_once_forget_the_oldest_and_say_so() {
    let mut np = Np::new(&Params { cnp_flows: 4, ..Params::PAPER });
    for n in 0..4u32 {
        assert!(np.on_marked(micros(u64::from(n)), mark(n, 1, 2)).is_some());
    }
    assert!(np.on_marked(micros(10), mark(4, 1, 2)).is_some());
    assert_eq!(np.counts().forgotten_early, 1);
    assert!(np.on_marked(micros(11), mark(1, 1, 2)).is_none(), "only the oldest is forgotten");
    assert!(np.on_marked(micros(11), mark(0, 1, 2)).is_some());
    // Those whose interval is over are no loss.
    assert!(np.on_marked(micros(1_000), mark(9, 1, 2)).is_some());
    assert_eq!(np.counts().forgotten_early, 2);
}

#[test]
fn a_mark_that_is_forgotten_waits_no_longer() {
    let mut np = Np::new(&Params { cnp_flows: 4, np_mode: NpMode::Window, ..Params::PAPER });
    for n in 0..5u32 {
        assert_eq!(np.on_marked(micros(u64::from(n)), mark(n, 1, 2)), None);
    }
    assert_eq!(np.counts().forgotten_early, 1);
    let sent: Vec<u32> =
        std::iter::from_fn(|| np.poll_cnp(micros(50))).map(|cnp| cnp.local.value()).collect();
    assert_eq!(sent, [1, 2, 3, 4]);
    assert_eq!(np.poll_timeout(), None);
}

#[test]
fn many_flows_find_their_places() {
    let mut np = Np::new(&Params { cnp_scope: CnpScope::IpPair, ..Params::PAPER });
    let marks: Vec<Marked> = (0..200).map(|n| mark(1, n, 7)).collect();
    assert!(marks.iter().all(|mark| np.on_marked(micros(0), *mark).is_some()));
    assert!(marks.iter().all(|mark| np.on_marked(micros(20), *mark).is_none()));
    assert_eq!(np.counts().forgotten_early, 0);
}

/// A packet of the given operation that arrives with this TOS byte.
fn packet(opcode: Opcode, tos: u8) -> Vec<u8> {
    let address = |last| std::net::IpAddr::from([10, 0, 0, last]);
    let net = NetHeader::v2(address(1), address(2), 50_000, tos, 64).unwrap();
    let mut bytes = Vec::new();
    let ext: Vec<Ext> = opcode.info().unwrap().headers.iter().map(|header| header_of(*header)).collect();
    let payload: &[u8] = if opcode.info().unwrap().payload == PayloadRule::None { &[] } else { &[7; 4] };
    let bth = Bth::new(opcode, Qpn::new(0x11), Psn::new(5));
    PacketRepr::new(net, bth, ext, payload).unwrap().emit(&mut bytes);
    bytes
}

fn header_of(header: ExtHeader) -> Ext {
    match header {
        ExtHeader::Deth => Deth::new(QKey::new(1), Qpn::new(0x77)).into(),
        other => Ext::read(other, &[0; 28]).unwrap(),
    }
}

/// DSCP 26, marked.
const CE: u8 = 0x6B;

/// Rules R-CNP-2 and R-CNP-4.
#[test]
fn data_and_read_responses_are_answered_and_nothing_else() {
    let rc = [
        (Operation::SendOnly, true),
        (Operation::WriteMiddle, true),
        (Operation::ReadRequest, true),
        (Operation::ReadResponseMiddle, true),
        (Operation::Acknowledge, false),
        (Operation::AtomicAcknowledge, false),
    ];
    let others = [
        (Opcode::new(Transport::Uc, Operation::SendOnly).unwrap(), true),
        (Opcode::new(Transport::Ud, Operation::SendOnly).unwrap(), false),
        (Opcode::new(Transport::Cnp, Operation::Cnp).unwrap(), false),
    ];
    for (opcode, wanted) in
        rc.into_iter().map(|(operation, wanted)| (Opcode::rc(operation), wanted)).chain(others)
    {
        let mut np = Np::new(&Params::PAPER);
        for (tos, wanted) in [(CE, wanted), (0x6A, false), (0x69, false), (0x68, false)] {
            let bytes = packet(opcode, tos);
            let packet = Packet::parse_ip(&bytes).unwrap();
            let got = np.on_packet(micros(1), &packet);
            let want = Marked { from: gid(1), to: gid(2), local: Qpn::new(0x11), sender: None };
            assert_eq!(got, wanted.then_some(want), "{opcode:?} {tos:#x}");
        }
        assert_eq!(np.counts().ecn_marked, 1);
        assert_eq!(np.counts().cnp_sent, u64::from(wanted));
    }
}

#[test]
fn datagrams_are_answered_where_that_is_asked_for() {
    let mut np = Np::new(&Params { cnp_for_ud: true, ..Params::PAPER });
    let bytes = packet(Opcode::new(Transport::Ud, Operation::SendOnly).unwrap(), CE);
    let marked = np.on_packet(micros(1), &Packet::parse_ip(&bytes).unwrap()).unwrap();
    assert_eq!(marked.sender, Some(Qpn::new(0x77)));
}

/// Rule R-CNP-4.
#[test]
fn roce_v1_is_not_answered() {
    let bytes = packet(Opcode::rc(Operation::SendOnly), CE);
    let packet = Packet::parse_ip(&bytes).unwrap();
    let mut grh = [0; 40];
    grh[0] = 0x66;
    grh[1] = 0xB0;
    let length = u16::try_from(packet.body().len()).unwrap();
    grh[4..6].copy_from_slice(&length.to_be_bytes());
    grh[6] = 27;
    let mut v1 = grh.to_vec();
    v1.extend_from_slice(packet.body());
    let (net, body) = NetHeader::parse_grh(&v1).unwrap();
    let mut np = Np::new(&Params::PAPER);
    assert_eq!(np.on_packet(micros(1), &Packet::parse_body(net, body).unwrap()), None);
    assert_eq!(np.counts(), NpCounts { ecn_marked: 1, ..NpCounts::default() });
}

#[test]
fn priorities_that_take_no_part_are_counted_only() {
    let mut np = Np::new(&Params { cc_prio_mask: !(1 << 3), ..Params::PAPER });
    for (tos, answered) in [(CE, false), (0x8B, true)] {
        let bytes = packet(Opcode::rc(Operation::SendOnly), tos);
        assert_eq!(np.on_packet(micros(1), &Packet::parse_ip(&bytes).unwrap()).is_some(), answered);
    }
    assert_eq!(np.counts(), NpCounts { ecn_marked: 2, cnp_sent: 1, forgotten_early: 0 });
}

#[test]
fn a_gap_is_answered_where_that_is_asked_for() {
    let bytes = packet(Opcode::rc(Operation::SendOnly), 0x6A);
    let packet = Packet::parse_ip(&bytes).unwrap();
    assert_eq!(Np::new(&Params::PAPER).on_out_of_sequence(micros(1), &packet), None);
    let mut np = Np::new(&Params { nack_triggers_cnp: true, ..Params::PAPER });
    assert!(np.on_out_of_sequence(micros(1), &packet).is_some());
    assert!(np.on_out_of_sequence(micros(2), &packet).is_none(), "the interval is for these too");
}

proptest! {
    /// As long as all scopes have their places, no two CNPs of one come within the interval, in whatever order time and
    /// marks come; and a mark after it is always answered.
    #[test]
    fn the_interval_always_holds(
        marks in prop::collection::vec((0u64..30_000, 0u32..4), 1..300),
        window in any::<bool>(),
    ) {
        let np_mode = if window { NpMode::Window } else { NpMode::Immediate };
        let mut np = Np::new(&Params { np_mode, ..Params::PAPER });
        let interval = Params::PAPER.cnp_interval;
        let mut last = [None; 4];
        let mut now = Instant::ZERO;
        for (wait, flow) in marks {
            now += Duration::from_nanos(wait);
            while let Some(due) = np.poll_timeout().filter(|due| *due <= now) {
                let cnp = np.poll_cnp(due).unwrap();
                let previous = last[cnp.local.value() as usize].replace(due);
                prop_assert!(previous.is_none_or(|previous| due.since(previous) >= interval));
            }
            let cnp = np.on_marked(now, mark(flow, 1, 2));
            if window {
                prop_assert_eq!(cnp, None);
                prop_assert!(np.poll_timeout().is_some());
            } else {
                let free = last[flow as usize].is_none_or(|last| now.since(last) >= interval);
                prop_assert_eq!(cnp.is_some(), free);
                if free {
                    last[flow as usize] = Some(now);
                }
            }
        }
    }
}

#[test]
fn extremes_of_time_do_not_panic() {
    let last = Instant::from_nanos(u64::MAX);
    for np_mode in [NpMode::Immediate, NpMode::Window] {
        let mut np = Np::new(&Params { np_mode, ..Params::PAPER });
        np.on_marked(last, mark(1, 1, 2));
        np.on_marked(Instant::ZERO, mark(1, 1, 2));
        np.poll_cnp(last);
        assert!(np.counts().cnp_sent <= 1);
    }
}
