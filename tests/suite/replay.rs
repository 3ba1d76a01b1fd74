//! Recorded connections of the kernel's rdma_rxe, replayed: its requests into our responder, whose answers must be the
//! kernel's; its answers into our requester, whose requests and completions must be the kernel's. Every difference is
//! listed with its reason. Of the unreliable types, its messages into our receiver and out of our sender.

use std::path::PathBuf;

use qp::Access;
use transport::WcStatus;
use wire::{Psn, Syndrome};

use crate::captures;
use crate::harness::{Conn, Sent};

mod recording;
mod requester;
mod responder;
mod unreliable;

use recording::{Conversation, conversations};

/// An answer of ours that is not the kernel's.
struct Difference {
    /// The capture.
    name: &'static str,
    /// Which answer, from 0.
    at: usize,
    /// The kernel's answer, as [`describe`] puts it; empty for none.
    theirs: &'static str,
    /// Ours.
    ours: &'static str,
    /// Why ours is right.
    reason: &'static str,
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "nak_send_too_long",
        at: 1,
        theirs: "Acknowledge psn=0xfffffb nak=remote_operational msn=1",
        ours: "Acknowledge psn=0xfffffb nak=invalid_request msn=1",
        reason: "R-RSP-14: a SEND that its receive cannot hold is an invalid request; rxe 6.1 sends NAK 3",
    },
    Difference {
        name: "first_short",
        at: 0,
        theirs: "Acknowledge psn=0x1000 ack msn=0",
        ours: "Acknowledge psn=0x1000 nak=invalid_request msn=0",
        reason: "R-RSP-12: a FIRST is as long as the path MTU; rxe 6.1 does not check it",
    },
    Difference {
        name: "last_empty",
        at: 0,
        theirs: "Acknowledge psn=0x1001 ack msn=1",
        ours: "Acknowledge psn=0x1000 nak=invalid_request msn=0",
        reason: "R-RSP-13: a message that one packet holds is an ONLY, so this FIRST is wrong; rxe 6.1 takes it",
    },
    Difference {
        name: "read_dmalen_2g",
        at: 0,
        theirs: "Acknowledge psn=0x1000 nak=remote_access msn=0",
        ours: "Acknowledge psn=0x1000 nak=invalid_request msn=0",
        reason: "R-WIR-31: longer than any message can be; rxe 6.1 sees only that the region is shorter",
    },
    Difference {
        name: "write_dmalen_2g",
        at: 0,
        theirs: "Acknowledge psn=0x1000 nak=remote_access msn=0",
        ours: "Acknowledge psn=0x1000 nak=invalid_request msn=0",
        reason: "R-WIR-31, as for the READ",
    },
    Difference {
        name: "read_partial_dup",
        at: 3,
        theirs: "ReadResponseMiddle psn=0x1001",
        ours: "ReadResponseFirst psn=0x1001 ack msn=1",
        reason: "R-RSP-30: the rest of a READ is answered as a READ of its own; rxe goes on with MIDDLE",
    },
];

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
    seen: &mut Vec<usize>,
    new: &mut Vec<String>,
) {
    let name = conversation.name.as_str();
    let ours = responder::Replay::new(conversation, setup).run();
    let theirs: Vec<_> = conversation.answers().map(parse).collect();
    for at in 0..ours.len().max(theirs.len()) {
        let (our, their) = (ours.get(at), theirs.get(at));
        if our.zip(their).is_some_and(|(our, their)| same_answer(our, their)) {
            continue;
        }
        let text = [their, our].map(|answer| answer.map(describe).unwrap_or_default());
        let listed = DIFFERENCES.iter().position(|d| {
            (d.name, d.at, [d.theirs, d.ours]) == (name, at, text.each_ref().map(String::as_str))
        });
        match listed {
            Some(index) => seen.push(index),
            None => new.push(format!("{name}: answer {at}\n  kernel: {}\n  ours:   {}", text[0], text[1])),
        }
    }
}

fn parse(packet: &wire::repr::PacketRepr) -> Sent {
    let mut body = Vec::new();
    packet.emit_body(&mut body);
    Sent::parse(packet.net, &body)
}

/// The same syndrome, PSN, MSN and data; the queue pair is another, of course.
fn same_answer(our: &Sent, their: &Sent) -> bool {
    our == &Sent { to: our.to, ..their.clone() }
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
        _ if name.starts_with("nak_") => (0, 0),
        _ => (64, 4096),
    };
    let first_psn = conversation.requests().next().map_or(Psn::new(0), |packet| packet.bth.psn());
    responder::Setup { first_psn, receives, receive_len, access }
}

/// Field cases F10, F12, F13, F19, F20 and the rules R-RSP, on what the kernel's requester sent.
#[test]
fn our_responder_answers_as_the_kernel_does() {
    let (mut seen, mut new) = (Vec::new(), Vec::new());
    let wanted = |name: &str| {
        let lost_requests = name.starts_with("loss_") && name.contains("_req") && !name.ends_with("_sent");
        name.starts_with("rc_") || name.starts_with("nak_") || lost_requests
    };
    let mut replayed = 0;
    for file in files("rxe", wanted) {
        for conversation in conversations(&file) {
            replay_requests(&conversation, &rcase_setup(&conversation), &mut seen, &mut new);
            replayed += 1;
        }
    }
    assert!(replayed >= 39, "only {replayed} conversations");
    for file in files("rxe_inject", |_| true) {
        for conversation in conversations(&file) {
            let setup =
                responder::Setup { first_psn: Psn::new(0x1000), receives: 4, receive_len: 4096, access: ALL };
            replay_requests(&conversation, &setup, &mut seen, &mut new);
        }
    }
    assert!(new.is_empty(), "differences that are not listed:\n{}", new.join("\n"));
    let unseen = DIFFERENCES.iter().enumerate().find(|(index, _)| !seen.contains(index));
    if let Some((_, Difference { name, at, reason, .. })) = unseen {
        panic!("{name}: answer {at} no longer differs from the kernel's ({reason})");
    }
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
#[test]
fn our_requester_understands_the_kernels_answers() {
    let wanted = |name: &str| {
        let seen_at_requester = !name.contains("_req") || name.ends_with("_sent");
        let of_rcase = ["rc_", "nak_", "rnr", "retry_exceeded"].iter().any(|start| name.starts_with(start));
        of_rcase || name.starts_with("loss_") && seen_at_requester
    };
    let mut replayed = 0;
    for file in files("rxe", wanted) {
        for conversation in conversations(&file) {
            let name = conversation.name.as_str();
            let outcome = requester::Replay::new(&conversation, rcase_conn(name)).run();
            let expected = rcase_statuses(name, outcome.statuses.len());
            assert_eq!(outcome.statuses, expected, "{name}");
            let ours = requester::split_repeats(name, &outcome.sent, conversation.mtu);
            let theirs: Vec<_> =
                requester::first_sent(&conversation).into_iter().map(|(_, sent)| sent).collect();
            // The kernel may still send something between a NAK's arrival and its effect.
            let ended = expected.iter().any(|status| *status != WcStatus::Success);
            assert!(ours.len() == theirs.len() || ended && ours.len() < theirs.len(), "{name}");
            for (our, their) in ours.iter().zip(&theirs) {
                // Within a message each asks for acknowledgements as it likes.
                assert_eq!(our, &Sent { ack_req: our.ack_req, ..their.clone() }, "{name}");
                assert!(our.ack_req || !their.ack_req, "{name}: no AckReq on {our:?}");
            }
            if name.ends_with("_exceeded") {
                let sends = conversation.requests().count();
                assert_eq!(outcome.sent.len(), sends, "{name}: the kernel gave up after {sends} sends");
            }
            replayed += 1;
        }
    }
    assert!(replayed >= 45, "only {replayed} conversations");
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
        unreliable::receive(conversation, headers);
        replayed += 1;
    }
    assert!(replayed >= 9, "only {replayed} conversations");
}

/// Rules R-REQ-32 to R-REQ-34: the same work requests make the kernel's packets.
#[test]
fn our_sender_makes_the_kernels_unreliable_packets() {
    let mut replayed = 0;
    for (conversation, _) in unreliable_recordings("uc_").iter().chain(&unreliable_recordings("ud_")) {
        unreliable::send(conversation);
        replayed += 1;
    }
    assert!(replayed >= 9, "only {replayed} conversations");
}
