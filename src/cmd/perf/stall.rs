//! How long nothing has moved, and why it may be that nothing more will.

use driver_shim::Device;

use super::args::Connection;
use super::session::Session;
use super::trouble;
use crate::cmd::Failure;

/// Looks in vain after which what an unreliable connection has not brought will not come: nothing is repeated.
const LOST: u32 = 10;
/// Looks in vain after which it is a mistake that nothing moves.
const STUCK: u32 = 50;

/// Looks in vain, of which there are ten a second while the process runs: time that it was stopped does not count.
#[derive(Debug, Default)]
pub(super) struct Stall {
    moved: u64,
    looks: u32,
    /// RNR NAKs that had come when it began.
    refused: u64,
}

impl Stall {
    /// A look at a measurement in which `moved`, a number that grows, tells progress.
    pub(super) fn look(&mut self, device: &Device, moved: u64) {
        if self.moved == moved && self.looks > 0 {
            self.looks = self.looks.saturating_add(1);
        } else {
            *self = Self { moved, looks: 1, refused: device.counters().rnr_nak_retry_err };
        }
    }

    /// Whether nothing has moved since the look before.
    pub(super) fn is_still(&self) -> bool {
        self.looks > 1
    }

    /// Whether it is a mistake that nothing moves.
    pub(super) fn is_stuck(&self) -> bool {
        self.looks > STUCK
    }

    /// Whether an unreliable connection that was still for so long has lost what is missing.
    pub(super) fn is_lost(&self) -> bool {
        self.looks > LOST
    }

    /// The named error where this end would wait for ever after `messages`. `incoming` where it waits for messages of
    /// the other end, and for nothing else.
    pub(super) fn check(&self, session: &Session<'_>, messages: u64, incoming: bool) -> Result<(), Failure> {
        if !self.is_stuck() {
            return Ok(());
        }
        let reliable = session.args.connection == Connection::Rc;
        if reliable && incoming && session.exchange.is_waited_for() {
            return Err(trouble::fewer(&session.device, messages));
        }
        if session.device.counters().rnr_nak_retry_err > self.refused {
            return Err(trouble::refused(&session.device, messages));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use driver_shim::backend::Hub;

    use super::*;

    #[test]
    fn only_looks_without_progress_count() {
        let device = Device::builder(Hub::default().attach([127, 0, 0, 2].into()).expect("free")).open();
        let device = device.expect("a device");
        let mut stall = Stall::default();
        for moved in [0, 1, 2] {
            (0..LOST).for_each(|_| stall.look(&device, moved));
            assert!(!stall.is_lost());
        }
        stall.look(&device, 2);
        assert!(stall.is_lost());
        stall.look(&device, 3);
        assert!(!stall.is_lost());
    }
}
