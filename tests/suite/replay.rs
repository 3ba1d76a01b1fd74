//! Recorded connections of the kernel's rdma_rxe, replayed: its requests into our responder, whose answers must be the
//! kernel's; its answers into our requester, whose requests and completions must be the kernel's. Every difference is
//! listed with its reason. Of the unreliable types, its messages into our receiver and out of our sender.

use std::path::PathBuf;

use qp::{Access, Profile};
use transport::WcStatus;
use wire::{Ext, Instant, Psn, Syndrome, ip};

use crate::captures;
use crate::harness::{Conn, Sent};

mod differences;
mod recording;
mod requester;
mod responder;
mod unreliable;

use differences::{Difference, listed};
use recording::{Conversation, conversations};

/// The captures of the folder `folder` whose names `wanted` picks.
fn files(folder: &str, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let name = |path: &PathBuf| path.file_stem().and_then(|stem| stem.to_str()).is_some_and(&wanted);
    captures::vectors(folder).into_iter().filter(name).collect()
}

/// An answer in a few words.
fn describe(answer: &Sent) -> String {
    let mut text = format!("{:?} psn={:#x}", answer.operation, answer.psn.value());
    if let Some((syndrome, msn)) = answer.aeth {
        let syndrome = if syndrome == Syndrome::ACK { "ack".to_owned() } else { syndrome.to_string() };
        text += &format!(" {syndrome} msn={msn}");
    }
    text
}

/// Replays the requests; notes in `seen` which listed differences there were, in `new` those that are not listed.
fn replay_requests(
    conversation: &Conversation,
    setup: &responder::Setup,
    profile: Profile,
    seen: &mut Vec<usize>,
    new: &mut Vec<String>,
) {
    let name = conversation.name.as_str();
    let ours = responder::Replay::new(conversation, setup, profile).run();
    let theirs: Vec<_> = conversation.answers().map(parse).collect();
    for (their, our) in unlike(&theirs, &ours, profile) {
        let text = [their, our].map(|answer| answer.map(describe).unwrap_or_default());
        let is_listed =
            |d: &Difference| (d.name, d.theirs, d.ours) == (name, text[0].as_str(), text[1].as_str());
        match listed(profile).iter().position(is_listed) {
            Some(index) => seen.push(index),
            None => new.push(format!("{name}\n  kernel: {}\n  ours:   {}", text[0], text[1])),
        }
    }
}

/// The kernel's answers and ours that are not the same, in order, side by side where both have one in that place.
fn unlike<'a>(
    theirs: &'a [Sent],
    ours: &'a [Sent],
    profile: Profile,
) -> Vec<(Option<&'a Sent>, Option<&'a Sent>)> {
    let (mut i, mut j, mut out) = (0, 0, Vec::new());
    // How many answers are the same, in order, from these two places on.
    let mut common = vec![vec![0_u32; ours.len() + 1]; theirs.len() + 1];
    for i in (0..theirs.len()).rev() {
        for j in (0..ours.len()).rev() {
            common[i][j] = if same_answer(&ours[j], &theirs[i], profile) {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    while i < theirs.len() || j < ours.len() {
        let (their, our) = (theirs.get(i), ours.get(j));
        let (both, best) = (their.is_some() && our.is_some(), common[i][j]);
        if both && same_answer(&ours[j], &theirs[i], profile) {
            (i, j) = (i + 1, j + 1);
        } else if both && common[i + 1][j + 1] == best {
            out.push((their, our));
            (i, j) = (i + 1, j + 1);
        } else if their.is_some() && common[i + 1][j] == best {
            out.push((their, None));
            i += 1;
        } else {
            out.push((None, our));
            j += 1;
        }
    }
    out
}

fn parse(packet: &wire::repr::PacketRepr) -> Sent {
    let mut body = Vec::new();
    packet.emit_body(&mut body);
    Sent::parse(packet.net, &body)
}

/// The same syndrome, PSN, MSN and data; the queue pair is another, of course, and MigReq is the profile's.
fn same_answer(our: &Sent, their: &Sent, profile: Profile) -> bool {
    assert!(!their.migreq, "rule R-WIR-34: rxe sends no MigReq");
    our == &Sent { to: our.to, migreq: profile.behaviour().migreq, ..their.clone() }
}

const ALL: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// What the program at the responder of a recorded case did before the first request.
fn rcase_setup(conversation: &Conversation) -> responder::Setup {
    let name = conversation.name.as_str();
    let access = match name {
        "nak_write_no_access" => ALL.difference(Access::REMOTE_WRITE),
        "nak_read_no_access" => ALL.difference(Access::REMOTE_READ),
        "nak_atomic_no_access" => ALL.difference(Access::REMOTE_ATOMIC),
        _ => ALL,
    };
    let (receives, receive_len) = match name {
        "nak_send_too_long" => (1, 100),
        "rnr_exceeded" => (0, 0),
        "rnr" => (1, 4096),
        _ if name.starts_with("nak_") => (0, 0),
        _ => (64, 4096),
    };
    // In rnr the receive was posted after the last RNR NAK.
    let rnr_naks = conversation.packets.iter().filter(|recorded| {
        let aeth = if recorded.is_request { None } else { parse(&recorded.packet).aeth };
        matches!(aeth, Some((Syndrome::RnrNak(_), _)))
    });
    let posted_at = rnr_naks.map(|recorded| recorded.at).next_back().unwrap_or(Instant::ZERO);
    let min_rnr_timer = if name == "rnr" { 20 } else { 14 };
    let first_psn = conversation.requests().next().map_or(Psn::new(0), |packet| packet.bth.psn());
    responder::Setup { first_psn, receives, receive_len, posted_at, min_rnr_timer, access }
}

/// Field cases F10, F12, F13, F14, F19, F20 and the rules R-RSP, on what the kernel's requester sent: all our answers
/// are the kernel's but those that are listed.
fn answers_as_the_kernel(profile: Profile) {
    let (mut seen, mut new) = (Vec::new(), Vec::new());
    let wanted = |name: &str| {
        let lost_requests = name.starts_with("loss_") && name.contains("_req") && !name.ends_with("_sent");
        let of_rcase = ["rc_", "nak_", "rnr"].iter().any(|start| name.starts_with(start));
        of_rcase || lost_requests
    };
    let mut replayed = 0;
    for file in files("rxe", wanted) {
        for conversation in conversations(&file) {
            replay_requests(&conversation, &rcase_setup(&conversation), profile, &mut seen, &mut new);
            replayed += 1;
        }
    }
    assert!(replayed >= 41, "only {replayed} conversations");
    for file in files("rxe_inject", |_| true) {
        for conversation in conversations(&file) {
            let setup = responder::Setup {
                first_psn: Psn::new(0x1000),
                receives: 4,
                receive_len: 4096,
                posted_at: Instant::ZERO,
                min_rnr_timer: 14,
                access: ALL,
            };
            replay_requests(&conversation, &setup, profile, &mut seen, &mut new);
        }
    }
    assert!(new.is_empty(), "{profile}: differences that are not listed:\n{}", new.join("\n"));
    let unseen = listed(profile).iter().enumerate().find(|(index, _)| !seen.contains(index));
    if let Some((_, Difference { name, theirs, rule, reason, .. })) = unseen {
        panic!("{profile}: {name}: {theirs:?} no longer differs from the kernel's ({rule}: {reason})");
    }
}

#[test]
fn under_rxe_our_responder_answers_as_the_kernel_does() {
    answers_as_the_kernel(Profile::Rxe);
}

#[test]
fn under_strict_each_answer_that_is_not_the_kernels_has_its_rule() {
    answers_as_the_kernel(Profile::Strict);
}

#[test]
fn under_connectx_our_responder_answers_as_under_strict() {
    answers_as_the_kernel(Profile::ConnectX);
}

/// What the program at the requester of a recorded case had set, as far as it differs from the others.
fn rcase_conn(name: &str) -> Conn {
    let conn = Conn { timeout: 17, retry_cnt: 7, rnr_retry: 7, ..Conn::default() };
    match name {
        "rnr_exceeded" => Conn { rnr_retry: 2, ..conn },
        "retry_exceeded" => Conn { timeout: 14, retry_cnt: 3, ..conn },
        _ if name.starts_with("loss_") => Conn { timeout: 14, ..conn },
        _ => conn,
    }
}

/// How the work requests of a recorded case end; those not named succeed.
fn rcase_statuses(name: &str, count: usize) -> Vec<WcStatus> {
    let error = match name {
        "rnr_exceeded" => return vec![WcStatus::RnrRetryExcErr],
        "retry_exceeded" => return vec![WcStatus::RetryExcErr],
        "nak_send_too_long" => WcStatus::RemOpErr,
        _ if name.starts_with("nak_") && name.ends_with("_no_access") => WcStatus::RemInvReqErr,
        "rc_mw_inv" => {
            assert_eq!(count, 3, "a WRITE, a SEND with invalidate, a WRITE that is refused");
            return vec![WcStatus::Success, WcStatus::Success, WcStatus::RemAccessErr];
        }
        _ if name.starts_with("nak_") => WcStatus::RemAccessErr,
        _ => return vec![WcStatus::Success; count],
    };
    let all = [WcStatus::Success, error, WcStatus::WrFlushErr];
    assert!((2..=3).contains(&count), "{name}: {count} work requests");
    all[..count].to_vec()
}

/// Field cases F10, F11, F13, F14, F16, F17 and the rules R-REQ and R-CMP, on what the kernel's responder answered.
fn understands_the_kernel(profile: Profile) {
    let wanted = |name: &str| {
        let seen_at_requester = !name.contains("_req") || name.ends_with("_sent");
        let of_rcase = ["rc_", "nak_", "rnr", "retry_exceeded"].iter().any(|start| name.starts_with(start));
        of_rcase || name.starts_with("loss_") && seen_at_requester
    };
    let mut replayed = 0;
    for file in files("rxe", wanted) {
        for conversation in conversations(&file) {
            let name = conversation.name.as_str();
            let outcome = requester::Replay::new(&conversation, rcase_conn(name), profile).run();
            let expected = rcase_statuses(name, outcome.statuses.len());
            assert_eq!(outcome.statuses, expected, "{profile}: {name}");
            let ours = requester::split_repeats(name, &outcome.sent, conversation.mtu);
            let theirs: Vec<_> =
                requester::first_sent(&conversation).into_iter().map(|(_, sent)| sent).collect();
            // The kernel may still send something between a NAK's arrival and its effect.
            let ended = expected.iter().any(|status| *status != WcStatus::Success);
            assert!(ours.len() == theirs.len() || ended && ours.len() < theirs.len(), "{profile}: {name}");
            for (our, their) in ours.iter().zip(&theirs) {
                same_request(our, their, profile, name);
            }
            // A timer of its own sends as often as it likes.
            if name.ends_with("_exceeded") && profile != Profile::ConnectX {
                let sends = conversation.requests().count();
                assert_eq!(
                    outcome.sent.len(),
                    sends,
                    "{profile}: {name}: the kernel gave up after {sends} sends"
                );
            }
            replayed += 1;
        }
    }
    assert!(replayed >= 45, "only {replayed} conversations");
}

/// The same but for MigReq and AckReq, which are the profile's.
fn same_request(our: &Sent, their: &Sent, profile: Profile, name: &str) {
    let behaviour = profile.behaviour();
    let expected = Sent { ack_req: our.ack_req, migreq: behaviour.migreq, ..their.clone() };
    assert_eq!(our, &expected, "{profile}: {name}");
    match profile {
        Profile::Rxe => assert_eq!(our.ack_req, their.ack_req, "{name}: AckReq of {our:?}"),
        // Within a message each asks as it likes.
        Profile::Strict => assert!(our.ack_req || !their.ack_req, "{name}: no AckReq on {our:?}"),
        // Where another message follows, it may ask for both.
        _ => assert!(our.ack_req || !their.ack_req || behaviour.ack_req_when_idle, "{name}: {our:?}"),
    }
}

#[test]
fn our_requester_understands_the_kernels_answers_under_each_profile() {
    Profile::ALL.into_iter().for_each(understands_the_kernel);
}

/// Rule R-ADR-6: the ports of the kernel, of its connections and of its datagrams.
#[test]
fn f6_the_kernels_source_ports_are_those_of_profile_rxe() {
    let (mut connections, mut datagrams) = (0, 0);
    for file in files("rxe", |name| name.starts_with("rc_") || name.starts_with("ud_")) {
        for conversation in conversations(&file) {
            let flow_label = if conversation.name == "rc_mix_v6_flow" { 0x1_2345 } else { 0 };
            let answered = conversation.answers().next().map(|packet| packet.bth.dest_qp());
            for packet in conversation.packets.iter().map(|recorded| &recorded.packet) {
                let deth = packet.ext.iter().find_map(|ext| match ext {
                    Ext::Deth(deth) => Some(deth.src_qp()),
                    _ => None,
                });
                let expected = match (deth, answered) {
                    (Some(qpn), _) => {
                        datagrams += 1;
                        ip::source_port_of_qpn(qpn.value())
                    }
                    (None, Some(qpn)) => {
                        connections += 1;
                        ip::source_port(flow_label, qpn.value(), conversation.responder_qpn.value())
                    }
                    (None, None) => panic!("{}: nobody answers", conversation.name),
                };
                let port = packet.net.udp().map(|udp| udp.src_port);
                assert_eq!(port, Some(expected), "{}", conversation.name);
            }
        }
    }
    assert!(connections > 200 && datagrams > 10, "{connections}, {datagrams}");
}

/// What the unreliable recordings hold, each with the IP headers of its frames.
fn unreliable_recordings(prefix: &str) -> Vec<(Conversation, Vec<Vec<u8>>)> {
    let recording = |file: PathBuf| {
        let mut found = conversations(&file);
        assert_eq!(found.len(), 1, "{}", file.display());
        let conversation = found.remove(0);
        assert_eq!(conversation.answers().count(), 0, "{}", conversation.name);
        let header_len = if conversation.requester.is_v4() { 20 } else { 40 };
        let mut headers = Vec::new();
        captures::each_frame(&file, |frame| headers.push(frame.data[14..14 + header_len].to_vec()));
        (conversation, headers)
    };
    files("rxe", |name| name.starts_with(prefix)).into_iter().map(recording).collect()
}

/// Field case F36 and the rules R-RSP-40 to R-RSP-43, on what the kernel sent.
#[test]
fn our_receiver_takes_the_kernels_unreliable_messages() {
    let mut replayed = 0;
    for (conversation, headers) in unreliable_recordings("uc_").iter().chain(&unreliable_recordings("ud_")) {
        for profile in Profile::ALL {
            unreliable::receive(conversation, headers, profile);
        }
        replayed += 1;
    }
    assert!(replayed >= 9, "only {replayed} conversations");
}

/// Rules R-REQ-32 to R-REQ-34: the same work requests make the kernel's packets.
#[test]
fn our_sender_makes_the_kernels_unreliable_packets() {
    let mut replayed = 0;
    for (conversation, _) in unreliable_recordings("uc_").iter().chain(&unreliable_recordings("ud_")) {
        for profile in Profile::ALL {
            unreliable::send(conversation, profile);
        }
        replayed += 1;
    }
    assert!(replayed >= 9, "only {replayed} conversations");
}
