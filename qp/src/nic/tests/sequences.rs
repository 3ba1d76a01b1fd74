//! Any calls in any order: each work request that is taken is told of as the rules say, and never twice.

use proptest::prelude::*;
use transport::Completion;

use super::*;
use crate::state::QpType;

#[derive(Clone, Copy, Debug)]
enum Call {
    Send {
        kind: u8,
        len: u32,
        signaled: bool,
        bad_key: bool,
    },
    Recv,
    Modify(QpState),
    /// Carries all packets that are there, or loses them.
    Carry {
        lost: bool,
    },
    Expire,
    Poll,
    Deregister,
}

fn calls() -> impl Strategy<Value = Vec<(bool, Call)>> {
    let state = prop_oneof![
        8 => Just(QpState::Rts),
        2 => Just(QpState::Sqd),
        1 => Just(QpState::Reset),
        1 => Just(QpState::Err),
    ];
    let send = (0..5_u8, 0..5000_u32, any::<bool>(), prop::bool::weighted(0.02)).prop_map(
        |(kind, len, signaled, bad_key)| {
            let len = if kind < 3 { len } else { 8 };
            Call::Send { kind, len, signaled, bad_key }
        },
    );
    let call = prop_oneof![
        12 => send,
        8 => Just(Call::Recv),
        3 => state.prop_map(Call::Modify),
        12 => prop::bool::weighted(0.2).prop_map(|lost| Call::Carry { lost }),
        3 => Just(Call::Expire),
        3 => Just(Call::Poll),
        1 => prop::bool::weighted(0.05).prop_map(|yes| if yes { Call::Deregister } else { Call::Poll }),
    ];
    prop::collection::vec((any::<bool>(), call), 0..200)
}

/// What a program knows of its work requests: marks, counted up; and of sends whether they are signalled.
#[derive(Default)]
struct Ledger {
    next: u64,
    sends: Vec<(u64, bool)>,
    receives: Vec<u64>,
    /// Whether the send queue and the receive queue have told of a failure: behind it all is flushed.
    failed: [bool; 2],
}

impl Ledger {
    /// Crosses off completions of one queue: in order, and each of something that waits.
    fn settle(&mut self, sends: &[Completion], receives: &[Completion]) {
        for wc in sends {
            let at = self.sends.iter().position(|(id, _)| *id == wc.wr_id.value());
            let at = at.unwrap_or_else(|| panic!("{wc:?} of nothing that waits"));
            let before: Vec<_> = self.sends.drain(..=at).collect();
            let (_, signaled) = before[at];
            assert!(signaled || wc.status != WcStatus::Success, "{wc:?} was not asked for");
            // Those before it have succeeded in silence.
            assert!(before[..at].iter().all(|(_, signaled)| !signaled), "{wc:?} came too early");
            assert!(!self.failed[0] || at == 0, "after a failure all are told of");
            self.follows(0, wc);
        }
        for wc in receives {
            assert_eq!(self.receives.first(), Some(&wc.wr_id.value()), "{wc:?}");
            self.receives.remove(0);
            self.follows(1, wc);
        }
    }

    fn follows(&mut self, queue: usize, wc: &Completion) {
        let failed = &mut self.failed[queue];
        assert!(!*failed || wc.status == WcStatus::WrFlushErr, "{wc:?} behind a failure");
        *failed |= wc.status != WcStatus::Success;
    }
}

struct Side {
    host: Host,
    ledger: Ledger,
    attr: QpAttr,
    far: (wire::VirtAddr, RKey),
}

impl Side {
    fn call(&mut self, call: Call, now: Instant) {
        let Self { host, ledger, far, .. } = self;
        match call {
            Call::Send { kind, len, signaled, bad_key } => {
                let key = if bad_key { RKey::new(1) } else { far.1 };
                let near = host.sge(0, len);
                let wr = match kind {
                    0 => SendWr::send(ledger.next, &[near]),
                    1 => SendWr::write(ledger.next, &[near], far.0, key),
                    2 => SendWr::read(ledger.next, &[near], far.0, key),
                    3 => SendWr::fetch_add(ledger.next, near, far.0, key, 1),
                    _ => SendWr::write_imm(ledger.next, &[near], far.0, key, [0; 4]),
                };
                let wr = if signaled { wr.signaled() } else { wr };
                if host.nic.post_send(now, host.qpn, wr).is_ok() {
                    ledger.sends.push((ledger.next, signaled));
                }
                ledger.next += 1;
            }
            Call::Recv => {
                let wr = RecvWr::new(ledger.next, &[host.sge(8192, 6000)]);
                if host.nic.post_recv(now, host.qpn, wr).is_ok() {
                    ledger.receives.push(ledger.next);
                }
                ledger.next += 1;
            }
            Call::Modify(to) => self.modify(to, now),
            Call::Expire => {
                if let Some(due) = host.nic.poll_timeout() {
                    host.nic.handle_timeout(due);
                }
            }
            Call::Poll => self.poll(),
            Call::Deregister => {
                // Whatever still needs it fails as it should.
                let _ = host.nic.dereg_mr(host.mr.lkey);
            }
            Call::Carry { .. } => unreachable!("is for both"),
        }
    }

    fn poll(&mut self) {
        let (sends, receives) = (self.host.sends_done(), self.host.receives_done());
        self.ledger.settle(&sends, &receives);
    }

    fn modify(&mut self, to: QpState, now: Instant) {
        let steps = match (self.host.state(), to) {
            (QpState::Reset, QpState::Rts) => [QpState::Init, QpState::Rtr, QpState::Rts]
                .map(|state| (state, AttrMask::to_enter(QpType::Rc, state)))
                .to_vec(),
            _ => vec![(to, AttrMask::STATE)],
        };
        for (state, mask) in steps {
            let attr = QpAttr { state, ..self.attr };
            if self.host.nic.modify_qp(now, self.host.qpn, &attr, mask).is_ok() && state == QpState::Reset {
                // R-QPS-13, R-CQE-15: what was not polled is gone with the rest.
                let next = self.ledger.next;
                self.ledger = Ledger { next, ..Ledger::default() };
            }
        }
    }

    /// At the end everything that waits is flushed.
    fn end(&mut self) {
        self.modify(QpState::Err, NOW);
        self.poll();
        let signaled = self.ledger.sends.iter().filter(|(_, signaled)| *signaled).count();
        assert_eq!((signaled, self.ledger.receives.len()), (0, 0), "R-CQE-2, R-CQE-6");
        while let Some(due) = self.host.nic.poll_timeout() {
            self.host.nic.handle_timeout(due);
        }
        let requests = self.host.transmit();
        let requests = requests.iter().filter(|p| p.bth.opcode().info().unwrap().kind.is_request());
        assert_eq!(requests.count(), 0, "nothing is begun in ERR");
        assert!(!self.host.nic.wants_transmit());
        self.poll();
    }
}

proptest! {
    #[test]
    fn every_work_request_is_told_of_once(calls in calls()) {
        let (a, b) = (Host::new(1), Host::new(2));
        let tune = |attr: QpAttr| QpAttr { retry_cnt: 2, rnr_retry: 3, ..attr };
        let (of_a, of_b) = (tune(a.attr(&b)), tune(b.attr(&a)));
        let (at_a, at_b) = ((a.va(16_384), a.mr.rkey), (b.va(16_384), b.mr.rkey));
        let side = |host, attr, far| Side { host, ledger: Ledger::default(), attr, far };
        let mut sides = [side(a, of_a, at_b), side(b, of_b, at_a)];
        for side in &mut sides {
            side.modify(QpState::Rts, NOW);
        }
        for (second, call) in calls {
            let i = usize::from(second);
            if let Call::Carry { lost } = call {
                let packets = sides[i].host.transmit();
                if !lost {
                    sides[1 - i].host.take(&packets);
                }
            } else {
                sides[i].call(call, NOW);
            }
        }
        for side in &mut sides {
            side.end();
        }
    }
}
