//! The cases between two soft NICs in memory: what they expect is not only what one peer does.

use driver_shim::backend::{Backend, Faulty, Hub};
use fabric::{FaultKind, FaultSpec};
use ferroce::Device;

use crate::bulk;
use crate::card::Card;
use crate::cases;
use crate::pair::{Pair, Setup};
use crate::side::{Kind, Op, Side};

/// Two cards on a wire that loses each packet with probability `loss`.
fn two_cards(loss: &str) -> [Card; 2] {
    let hub = Hub::default();
    let lose = FaultSpec::parse(FaultKind::Drop, loss).unwrap();
    [2, 3].map(|n| {
        let mut backend: Box<dyn Backend> = Box::new(hub.attach([127, 0, 0, n].into()).unwrap());
        if loss != "0" {
            backend = Box::new(Faulty::new(backend, &[lose], n.into()));
        }
        let device = Device::boxed(backend).seed(n.into()).open().unwrap();
        Card::new(&device, 4).unwrap()
    })
}

#[test]
fn every_message_arrives_at_every_size_and_mtu() {
    let [mut client, mut server] = two_cards("0");
    for mtu in [256, 1024, 4096] {
        let mut pair = Pair::connect(&mut client, &mut server, &Setup::new(mtu)).unwrap();
        for op in Op::MESSAGES {
            for (size, seed) in [0, 1, 33, 255, 256, 257, 1024, 4096, 65536].into_iter().zip(1..) {
                let outcome = cases::message(&mut pair, op, size, seed);
                assert!(outcome.is_ok(), "{} of {size} bytes, path MTU {mtu}: {outcome:?}", op.name());
            }
        }
        for op in Op::ATOMICS {
            let outcome = cases::atomic(&mut pair, op);
            assert!(outcome.is_ok(), "{}: {outcome:?}", op.name());
        }
    }
}

#[test]
fn every_unreliable_message_arrives_on_a_clean_wire() {
    let [mut client, mut server] = two_cards("0");
    for (name, kind, op) in cases::UNRELIABLE {
        let mut pair = Pair::connect(&mut client, &mut server, &Setup { kind, ..Setup::new(1024) }).unwrap();
        for (size, seed) in [0, 1, 33, 1024, 1025, 4096, 65536].into_iter().zip(1..) {
            if kind == Kind::Ud && size > 1024 {
                continue;
            }
            let outcome = cases::message(&mut pair, op, size, seed);
            assert!(outcome.is_ok(), "{name} of {size} bytes: {outcome:?}");
        }
    }
}

#[test]
fn every_case_passes() {
    let [mut client, mut server] = two_cards("0");
    for case in &cases::CASES {
        let outcome = Pair::connect(&mut client, &mut server, &(case.setup)(1024))
            .and_then(|mut pair| (case.run)(&mut pair));
        assert!(outcome.is_ok(), "{}: {outcome:?}", case.name);
    }
}

#[test]
fn bulk_survives_loss() {
    let [mut client, mut server] = two_cards("0.01");
    let mut pair = Pair::connect(&mut client, &mut server, &Setup::new(1024)).unwrap();
    for op in Op::MESSAGES {
        let outcome = bulk::messages(&mut pair, op, 200);
        assert!(outcome.is_ok(), "{}: {outcome:?}", op.name());
    }
    for op in Op::ATOMICS {
        let outcome = bulk::atomics(&mut pair, op, 200);
        assert!(outcome.is_ok(), "{}: {outcome:?}", op.name());
    }
}

/// A check that cannot fail checks nothing.
#[test]
fn a_wrong_byte_is_found() {
    let [mut client, _] = two_cards("0");
    client.fill(0, 1000, 7, 0).unwrap();
    assert_eq!(client.difference(0, 1000, 7, 0).unwrap(), None);
    assert_eq!(client.difference(10, 100, 7, 10).unwrap(), None);
    client.put(600, &[0; 2]).unwrap();
    assert!(matches!(client.difference(0, 1000, 7, 0).unwrap(), Some(600 | 601)));
}
