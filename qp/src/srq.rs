//! Shared receive queues: one supply of receives for many queue pairs.

use std::collections::VecDeque;

use bitflags::bitflags;
use transport::ports::Side;
use transport::{PdId, RecvQueue, RecvWqe};
use wire::Srqn;

use crate::cq::CqId;
use crate::wr::{PostError, RecvWr};

/// An XRC domain of a device: what its targets and shared receive queues have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XrcdId(pub(crate) u32);

/// The most shared receive queues of a device.
pub const MAX_SRQS: usize = 1 << 16;

/// The most receives that a shared receive queue can be made for.
pub const MAX_SRQ_WR: u32 = 1 << 20;

/// The most pieces of a receive of a shared receive queue.
pub const MAX_SRQ_SGE: u32 = 32;

/// What a shared receive queue is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Domain of the memory that its receives point to.
    pub pd: PdId,
    /// Receives that may wait.
    pub max_wr: u32,
    /// Pieces of a receive.
    pub max_sge: u32,
    /// What makes it one for XRC targets, whose peers name it by its number; `None` for one that queue pairs are made
    /// with.
    pub xrc: Option<SrqXrc>,
}

impl SrqInit {
    /// One that queue pairs are made with.
    #[must_use]
    pub const fn new(pd: PdId, max_wr: u32, max_sge: u32) -> Self {
        Self { pd, max_wr, max_sge, xrc: None }
    }
}

/// The XRC part of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqXrc {
    /// Domain of the targets that take from it.
    pub xrcd: XrcdId,
    /// Where its receives complete, whichever target took them.
    pub cq: CqId,
}

/// Attributes of a shared receive queue: what a modification sets and a query gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SrqAttr {
    /// Receives that may wait.
    pub max_wr: u32,
    /// Pieces of a receive; fixed when it is made.
    pub max_sge: u32,
    /// Where fewer receives than this wait,
    /// [`SrqLimitReached`](crate::AsyncEvent::SrqLimitReached) is raised, once; 0 where nobody wants to be told.
    pub limit: u32,
}

bitflags! {
    /// Which attributes a modification sets, with the bits of verbs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct SrqMask: u32 {
        /// [`SrqAttr::max_wr`].
        const MAX_WR = 1 << 0;
        /// [`SrqAttr::limit`].
        const LIMIT = 1 << 1;
    }
}

/// Why a shared receive queue was not modified. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifySrqError {
    /// There is no such shared receive queue.
    #[error("there is no such shared receive queue")]
    NoSuchSrq,
    /// A size that is not possible.
    #[error("a shared receive queue holds 1 to {max} receives, not {given}")]
    Size {
        /// What was asked for.
        given: u32,
        /// What is possible.
        max: u32,
    },
    /// More receives wait than would fit.
    #[error("{posted} receives wait, which do not fit a queue of {given}")]
    BelowPosted {
        /// What was asked for.
        given: u32,
        /// Receives that wait.
        posted: usize,
    },
    /// The limit could never be reached from above.
    #[error("the limit {limit} is above the size of the queue, {max_wr}")]
    Limit {
        /// The limit, given or kept.
        limit: u32,
        /// The size, given or kept.
        max_wr: u32,
    },
}

impl ModifySrqError {
    /// The error number verbs would give.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        22
    }
}

/// A shared receive queue of the device.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) pd: PdId,
    pub(crate) xrc: Option<SrqXrc>,
    /// Where its receives complete.
    side: Side,
    attr: SrqAttr,
    queue: VecDeque<RecvWqe>,
    /// Queue pairs that take from it; while there are any, it cannot be destroyed.
    pub(crate) users: u32,
    /// Fewer receives than the limit wait, and nobody has been told.
    limit_reached: bool,
}

impl Srq {
    pub(crate) fn new(srqn: Srqn, init: &SrqInit) -> Self {
        let attr = SrqAttr { max_wr: init.max_wr, max_sge: init.max_sge, limit: 0 };
        let side = if init.xrc.is_some() { Side::Srq(srqn) } else { Side::Recv };
        Self {
            pd: init.pd,
            xrc: init.xrc,
            side,
            attr,
            queue: VecDeque::new(),
            users: 0,
            limit_reached: false,
        }
    }

    pub(crate) const fn attr(&self) -> SrqAttr {
        self.attr
    }

    /// Receives that wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// The pieces are of the queue's own domain, whatever that of a queue pair is (rule R-RSP-56).
    pub(crate) fn post(&mut self, wr: RecvWr) -> Result<(), PostError> {
        let wqe = wr.check(self.attr.max_sge, self.pd, self.side)?;
        if self.queue.len() >= self.attr.max_wr as usize {
            return Err(PostError::QueueFull(self.attr.max_wr));
        }
        self.queue.push_back(wqe);
        Ok(())
    }

    pub(crate) fn modify(&mut self, new: &SrqAttr, mask: SrqMask) -> Result<(), ModifySrqError> {
        let pick = |bit, new: u32, old: u32| if mask.contains(bit) { new } else { old };
        let max_wr = pick(SrqMask::MAX_WR, new.max_wr, self.attr.max_wr);
        let limit = pick(SrqMask::LIMIT, new.limit, self.attr.limit);
        if !(1..=MAX_SRQ_WR).contains(&max_wr) {
            return Err(ModifySrqError::Size { given: max_wr, max: MAX_SRQ_WR });
        }
        if self.queue.len() > max_wr as usize {
            return Err(ModifySrqError::BelowPosted { given: max_wr, posted: self.queue.len() });
        }
        if limit > max_wr {
            return Err(ModifySrqError::Limit { limit, max_wr });
        }
        self.attr = SrqAttr { max_wr, limit, ..self.attr };
        Ok(())
    }

    /// Whether the limit has been reached since it was asked last.
    pub(crate) fn take_limit_reached(&mut self) -> bool {
        core::mem::take(&mut self.limit_reached)
    }
}

impl RecvQueue for Srq {
    fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Rule R-RSP-46: whoever takes the receive with which fewer than the limit are left raises the event, once;
    /// so does one that finds none.
    fn take(&mut self) -> Option<RecvWqe> {
        let wqe = self.queue.pop_front();
        if self.queue.len() < self.attr.limit as usize {
            self.attr.limit = 0;
            self.limit_reached = true;
        }
        wqe
    }

    fn is_shared(&self) -> bool {
        true
    }
}

/// Shared receive queues of a device. A number that becomes free is used again as late as possible, so that packets
/// which name its former owner find nobody. None is 0.
#[derive(Debug, Default)]
pub(crate) struct SrqTable {
    slots: Vec<Option<Box<Srq>>>,
    free: VecDeque<usize>,
}

impl SrqTable {
    /// Makes one under a number of its own; `None` where the table is full.
    pub(crate) fn insert(&mut self, init: &SrqInit) -> Option<Srqn> {
        // While there are unused numbers, none is used twice.
        let index = if self.slots.len() < MAX_SRQS {
            self.slots.push(None);
            self.slots.len() - 1
        } else {
            self.free.pop_front()?
        };
        let srqn = Srqn::new(u32::try_from(index).ok()? + 1);
        self.slots[index] = Some(Box::new(Srq::new(srqn, init)));
        Some(srqn)
    }

    pub(crate) fn remove(&mut self, srqn: Srqn) -> Option<Box<Srq>> {
        let index = index(srqn)?;
        let srq = self.slots.get_mut(index)?.take()?;
        self.free.push_back(index);
        Some(srq)
    }

    pub(crate) fn get(&self, srqn: Srqn) -> Option<&Srq> {
        self.slots.get(index(srqn)?)?.as_deref()
    }

    /// The one that peers of targets of `xrcd` call `srqn`.
    pub(crate) fn of_domain(&mut self, srqn: Srqn, xrcd: XrcdId) -> Option<&mut Srq> {
        self.get_mut(srqn).filter(|srq| srq.xrc.is_some_and(|xrc| xrc.xrcd == xrcd))
    }

    pub(crate) fn get_mut(&mut self, srqn: Srqn) -> Option<&mut Srq> {
        self.slots.get_mut(index(srqn)?)?.as_deref_mut()
    }
}

/// What an XRC target takes from where a request names no shared receive queue of its domain (rule R-RSP-45).
pub(crate) struct Missing;

impl RecvQueue for Missing {
    fn is_empty(&self) -> bool {
        true
    }

    fn take(&mut self) -> Option<RecvWqe> {
        None
    }

    fn is_missing(&self) -> bool {
        true
    }
}

fn index(srqn: Srqn) -> Option<usize> {
    Some(srqn.value().checked_sub(1)? as usize)
}

#[cfg(test)]
mod tests;
