use proptest::prelude::*;
use transport::wqe::Sge;
use wire::{LKey, VirtAddr};

use super::*;

const PD: PdId = PdId(5);

fn srq(max_wr: u32) -> Srq {
    Srq::new(Srqn::new(1), &SrqInit::new(PD, max_wr, 2))
}

fn taken(srq: &mut Srq) -> Option<u64> {
    srq.take().map(|wqe| wqe.wr_id.value())
}

/// Rules R-CQE-11, R-CQE-14.
#[test]
fn posts_beyond_its_sizes_are_refused_and_take_nothing_away() {
    let mut srq = srq(2);
    let sge = Sge { addr: VirtAddr::new(0), length: 1, lkey: LKey::new(1) };
    let error = srq.post(RecvWr::new(0, &[sge; 3])).unwrap_err();
    assert_eq!((error, error.errno()), (PostError::TooManySges { given: 3, max: 2 }, 22));
    srq.post(RecvWr::new(1, &[sge; 2])).unwrap();
    srq.post(RecvWr::new(2, &[])).unwrap();
    let error = srq.post(RecvWr::new(3, &[])).unwrap_err();
    assert_eq!((error, error.errno()), (PostError::QueueFull(2), 12));
    assert_eq!(srq.take().unwrap().pd, PD);
    assert_eq!((taken(&mut srq), taken(&mut srq)), (Some(2), None));
}

/// Rule R-RSP-46.
#[test]
fn the_limit_is_told_once_and_is_then_zero() {
    let mut srq = srq(8);
    for n in 0..4 {
        srq.post(RecvWr::new(n, &[])).unwrap();
    }
    let limit = |limit| SrqAttr { limit, ..SrqAttr::default() };
    srq.modify(&limit(3), SrqMask::LIMIT).unwrap();
    assert_eq!((taken(&mut srq), srq.take_limit_reached()), (Some(0), false), "three are left");
    assert_eq!((taken(&mut srq), srq.take_limit_reached()), (Some(1), true), "two are left");
    assert_eq!((srq.attr().limit, srq.take_limit_reached()), (0, false));
    assert_eq!((taken(&mut srq), srq.take_limit_reached()), (Some(2), false), "nobody waits any more");
    // Armed again: the last one goes, and later there is none at all.
    srq.modify(&limit(1), SrqMask::LIMIT).unwrap();
    assert_eq!((taken(&mut srq), srq.take_limit_reached()), (Some(3), true));
    srq.modify(&limit(1), SrqMask::LIMIT).unwrap();
    assert_eq!((taken(&mut srq), srq.take_limit_reached()), (None, true));
}

#[test]
fn a_modification_that_is_not_possible_changes_nothing() {
    let mut srq = srq(4);
    for n in 0..3 {
        srq.post(RecvWr::new(n, &[])).unwrap();
    }
    srq.modify(&SrqAttr { limit: 2, ..SrqAttr::default() }, SrqMask::LIMIT).unwrap();
    let before = srq.attr();
    for (max_wr, limit, mask, error) in [
        (0, 0, SrqMask::MAX_WR, ModifySrqError::Size { given: 0, max: MAX_SRQ_WR }),
        (MAX_SRQ_WR + 1, 0, SrqMask::MAX_WR, ModifySrqError::Size { given: MAX_SRQ_WR + 1, max: MAX_SRQ_WR }),
        (2, 0, SrqMask::MAX_WR, ModifySrqError::BelowPosted { given: 2, posted: 3 }),
        (0, 5, SrqMask::LIMIT, ModifySrqError::Limit { limit: 5, max_wr: 4 }),
        (3, 4, SrqMask::all(), ModifySrqError::Limit { limit: 4, max_wr: 3 }),
    ] {
        let attr = SrqAttr { max_wr, limit, ..SrqAttr::default() };
        assert_eq!(srq.modify(&attr, mask), Err(error));
        assert_eq!((srq.attr(), error.errno()), (before, 22));
    }
    srq.modify(&SrqAttr { max_wr: 3, limit: 3, ..SrqAttr::default() }, SrqMask::all()).unwrap();
    assert_eq!(srq.attr(), SrqAttr { max_wr: 3, max_sge: 2, limit: 3 });
    assert_eq!(srq.post(RecvWr::new(9, &[])), Err(PostError::QueueFull(3)));
}

#[test]
fn a_number_is_used_again_as_late_as_possible() {
    let mut table = SrqTable::default();
    let init = SrqInit::new(PD, 1, 1);
    let kept = table.insert(&init).unwrap();
    assert_eq!(kept, Srqn::new(1));
    for n in 2..=MAX_SRQS {
        let srqn = table.insert(&init).unwrap();
        assert_eq!(srqn.value() as usize, n, "a new one each time");
        assert!(table.remove(srqn).is_some() && table.get(srqn).is_none() && table.remove(srqn).is_none());
    }
    assert_eq!(table.insert(&init), Some(Srqn::new(2)), "the one that has been free for longest");
    for srqn in [0, 3, 0xFF_FFFF] {
        assert!(table.get_mut(Srqn::new(srqn)).is_none());
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Post,
    Take,
    Resize(u32),
    Limit(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Post),
        3 => Just(Step::Take),
        1 => (0..8_u32).prop_map(Step::Resize),
        1 => (0..8_u32).prop_map(Step::Limit),
    ]
}

proptest! {
    /// What was posted is taken in that order, never more of it waits than the size, and the limit is told exactly
    /// when fewer are left.
    #[test]
    fn order_and_counts_are_those_of_a_plain_list(steps in prop::collection::vec(step(), 1..200)) {
        let mut srq = srq(4);
        let (mut list, mut size, mut limit) = (VecDeque::new(), 4_usize, 0_usize);
        for (n, step) in (0_u64..).zip(steps) {
            match step {
                Step::Post => {
                    let posted = srq.post(RecvWr::new(n, &[]));
                    prop_assert_eq!(posted.is_ok(), list.len() < size);
                    if posted.is_ok() {
                        list.push_back(n);
                    }
                }
                Step::Take => {
                    prop_assert_eq!(srq.is_empty(), list.is_empty());
                    prop_assert_eq!(taken(&mut srq), list.pop_front());
                    let reached = list.len() < limit;
                    prop_assert_eq!(srq.take_limit_reached(), reached);
                    if reached {
                        limit = 0;
                    }
                }
                Step::Resize(max_wr) => {
                    let attr = SrqAttr { max_wr, ..SrqAttr::default() };
                    let wanted = max_wr as usize;
                    let possible = wanted >= list.len().max(limit).max(1);
                    prop_assert_eq!(srq.modify(&attr, SrqMask::MAX_WR).is_ok(), possible);
                    if possible {
                        size = wanted;
                    }
                }
                Step::Limit(new) => {
                    let attr = SrqAttr { limit: new, ..SrqAttr::default() };
                    let possible = new as usize <= size;
                    prop_assert_eq!(srq.modify(&attr, SrqMask::LIMIT).is_ok(), possible);
                    if possible {
                        limit = new as usize;
                    }
                }
            }
            prop_assert_eq!(srq.len(), list.len());
        }
    }
}
