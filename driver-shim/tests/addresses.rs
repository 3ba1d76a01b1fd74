//! Addresses that a device cannot reach: a queue pair does not go to RTR, and its owner is told why.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use ferroce_driver_shim::backend::{Backend, Loopback, Reachability, Unreachable};
use ferroce_driver_shim::interfaces::GidTable;
use ferroce_driver_shim::{ConnectError, ConnectOptions, Device, Endpoint};
use mio::{Registry, Token, Waker};
use qp::QpType;
use wire::Instant;
use wire::batch::{Caps, RxBurst, TxBatch};

/// A back end that looks for an address in vain.
#[derive(Debug)]
struct Lost {
    backend: Loopback,
    /// Answers to come, last first; the one at the front stays.
    answers: Vec<Reachability>,
}

impl Backend for Lost {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn caps(&self) -> Caps {
        self.backend.caps()
    }

    fn addresses(&self) -> &GidTable {
        self.backend.addresses()
    }

    fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
        self.backend.recv_burst(rx)
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        self.backend.send_batch(tx, from)
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.backend.register(registry, token)
    }

    fn set_waker(&mut self, waker: Arc<Waker>) {
        self.backend.set_waker(waker);
    }

    fn prepare(&mut self, _: Instant, _: IpAddr) -> Reachability {
        let last = self.answers.len() - 1;
        if last == 0 { self.answers[0] } else { self.answers.remove(last) }
    }
}

/// What comes of connecting while the back end gives these answers, the last of them first.
fn connect(answers: Vec<Reachability>) -> Result<(), ConnectError> {
    let hub = Loopback::hub();
    let backend = hub.attach([127, 0, 0, 2].into()).unwrap();
    let device = Device::builder(Lost { backend, answers }).seed(1).open().unwrap();
    let (pd, cq) = (device.alloc_pd(), device.create_cq(16).unwrap());
    let prepared = pd.create_qp(QpType::Rc, &cq, &cq).build().unwrap();
    let peer = Endpoint { gid: IpAddr::from([127, 0, 0, 9]).into(), ..prepared.endpoint(1) };
    prepared.connect(peer, &ConnectOptions::default()).map(|_| ())
}

/// Rule R-ADR-18.
#[test]
fn f39_an_address_that_cannot_be_resolved_is_a_clear_error() {
    let gid = IpAddr::from([127, 0, 0, 9]).into();
    for (reason, errno, text) in [
        (Unreachable::NoAnswer, 110, "no answer to address resolution"),
        (Unreachable::NoRoute, 101, "no route to it"),
        (Unreachable::NoSource, 99, "no address of its family"),
    ] {
        // Not at once: it is asked for a while.
        let answers = vec![Reachability::Unreachable(reason), Reachability::Pending, Reachability::Pending];
        let error = connect(answers).unwrap_err();
        assert_eq!((error, error.errno()), (ConnectError::Unreachable { gid, reason }, errno));
        assert!(error.to_string().starts_with("127.0.0.9 cannot be reached: "), "{error}");
        assert!(error.to_string().ends_with(text), "{error}");
    }
    assert_eq!(connect(vec![Reachability::Ready, Reachability::Pending]), Ok(()));
}
