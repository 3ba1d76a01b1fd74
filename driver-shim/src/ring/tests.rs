use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

/// The indices of a ring, in ordinary memory.
struct Indices(AtomicU32, AtomicU32);

impl Indices {
    fn at(start: u32) -> Self {
        Self(AtomicU32::new(start), AtomicU32::new(start))
    }

    fn sides(&self, size: u32) -> (Producer<&AtomicU32>, Consumer<&AtomicU32>) {
        (Producer::new(&self.0, &self.1, size), Consumer::new(&self.0, &self.1, size))
    }
}

proptest! {
    /// Whatever the sizes of the batches and wherever the indices start, what goes in comes out, once and in order;
    /// a full ring takes nothing and an empty one gives nothing.
    #[test]
    fn what_goes_in_comes_out_in_order(
        start in prop_oneof![Just(0), (u32::MAX - 40)..=u32::MAX, any::<u32>()],
        power in 0u32..6,
        steps in proptest::collection::vec((any::<bool>(), 0u32..70), 1..200),
    ) {
        let size = 1 << power;
        let indices = Indices::at(start);
        let (mut producer, mut consumer) = indices.sides(size);
        let mut slots = vec![0u64; size as usize];
        let (mut expected, mut next) = (VecDeque::new(), 1u64);
        for (put, want) in steps {
            if put {
                let room = producer.room(want).expect("whole");
                prop_assert_eq!(room, want.min(size - u32::try_from(expected.len()).expect("few")));
                for ahead in 0..room {
                    slots[producer.slot(ahead)] = next;
                    expected.push_back(next);
                    next += 1;
                }
                producer.publish(room);
            } else {
                let ready = consumer.ready(want).expect("whole");
                prop_assert_eq!(ready, want.min(u32::try_from(expected.len()).expect("few")));
                for ahead in 0..ready {
                    prop_assert_eq!(Some(slots[consumer.slot(ahead)]), expected.pop_front());
                }
                consumer.release(ready);
            }
            prop_assert_eq!(producer.queued().expect("whole") as usize, expected.len());
        }
    }

    /// Whatever the other side writes, counts and slot numbers stay within the ring.
    #[test]
    fn a_hostile_side_gains_nothing(start: u32, written: u32, want in 0u32..100, ahead: u32) {
        let indices = Indices::at(start);
        let (mut producer, mut consumer) = indices.sides(16);
        indices.1.store(written, Ordering::Relaxed);
        // What it writes to our own index does not matter at all.
        match producer.queued() {
            Ok(queued) => prop_assert!(queued <= 16 && producer.room(want).expect("as before") <= 16 - queued),
            Err(Torn) => prop_assert!(producer.room(want).is_err()),
        }
        prop_assert!(producer.slot(ahead) < 16);
        indices.0.store(written, Ordering::Relaxed);
        if let Ok(ready) = consumer.ready(want) {
            prop_assert!(ready <= 16.min(want));
        }
        prop_assert!(consumer.slot(ahead) < 16);
    }
}

#[test]
fn full_and_empty_across_the_wrap_of_the_indices() {
    let indices = Indices::at(u32::MAX - 1);
    let (mut producer, mut consumer) = indices.sides(4);
    assert_eq!(consumer.ready(9), Ok(0));
    assert_eq!(producer.room(9), Ok(4));
    assert_eq!([0, 1, 2, 3].map(|ahead| producer.slot(ahead)), [2, 3, 0, 1]);
    producer.publish(4);
    assert_eq!((producer.room(9), producer.queued()), (Ok(0), Ok(4)));
    assert_eq!(indices.0.load(Ordering::Relaxed), 2);
    assert_eq!(consumer.ready(9), Ok(4));
    assert_eq!([0, 1, 2, 3].map(|ahead| consumer.slot(ahead)), [2, 3, 0, 1]);
    consumer.release(4);
    assert_eq!((consumer.ready(9), producer.room(9), producer.queued()), (Ok(0), Ok(4), Ok(0)));
}

#[test]
fn a_side_takes_up_where_the_indices_stand() {
    let indices = Indices::at(7);
    let (mut producer, _) = indices.sides(4);
    assert_eq!(producer.room(3), Ok(3));
    producer.publish(3);
    let (mut producer, mut consumer) = indices.sides(4);
    assert_eq!((producer.room(4), consumer.ready(4)), (Ok(1), Ok(3)));
}

/// Every order in which two threads may run, and every value that a load without ordering may give.
mod every_order {
    use loom::sync::atomic::{AtomicU32 as Modelled, AtomicU64 as Slot};
    use loom::thread;

    use super::*;

    impl Index for Arc<Modelled> {
        fn load(&self, order: Ordering) -> u32 {
            Modelled::load(self, order)
        }

        fn store(&self, value: u32, order: Ordering) {
            Modelled::store(self, value, order);
        }
    }

    /// A slot is read and written without any ordering of its own, so only that of the indices keeps a stale or an
    /// overwritten value from being read.
    fn through(size: u32, items: u64, batch: u32) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let start = u32::MAX;
            let indices = [(); 2].map(|()| Arc::new(Modelled::new(start)));
            let slots: Arc<Vec<Slot>> = Arc::new((0..size).map(|_| Slot::new(0)).collect());
            let mut producer = Producer::new(indices[0].clone(), indices[1].clone(), size);
            let mut consumer = Consumer::new(indices[0].clone(), indices[1].clone(), size);
            let theirs = Arc::clone(&slots);
            let thread = thread::spawn(move || {
                let mut next = 1;
                while next <= items {
                    let room = producer.room(batch).expect("whole");
                    let count = room.min(u32::try_from(items - next + 1).expect("few"));
                    for ahead in 0..count {
                        theirs[producer.slot(ahead)].store(next, Ordering::Relaxed);
                        next += 1;
                    }
                    producer.publish(count);
                    if count == 0 {
                        thread::yield_now();
                    }
                }
            });
            let mut next = 1;
            while next <= items {
                let ready = consumer.ready(batch).expect("whole");
                for ahead in 0..ready {
                    assert_eq!(slots[consumer.slot(ahead)].load(Ordering::Relaxed), next);
                    next += 1;
                }
                consumer.release(ready);
                if ready == 0 {
                    thread::yield_now();
                }
            }
            thread.join().expect("ends");
        });
    }

    #[test]
    fn one_slot_that_is_used_again() {
        through(1, 2, 1);
    }

    #[test]
    fn batches_of_two() {
        through(2, 3, 2);
    }
}
