//! The memory of a switch, which all its ports share, and when an ingress port asks its sender to pause.
//!
//! Every packet is counted for the port and priority that it came in by until it has left. What is more than the
//! threshold of these is held in headroom of their own, which is there for what the sender had on its way.

/// Bytes, fixed or by what is left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// So many bytes.
    Static(u64),
    /// This times the shared memory that nobody uses now.
    Dynamic(f64),
}

/// Priority flow control of a switch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pfc {
    /// Priorities that are paused rather than dropped, bit i for priority i.
    pub lossless: u8,
    /// An ingress port's bytes of a priority at which it asks for a pause.
    pub xoff: Threshold,
    /// So many bytes below that it ends the pause.
    pub xon_gap: u64,
    /// Bytes for each ingress port and lossless priority to hold what still comes.
    pub headroom: u64,
    /// How long a pause that it asks for is, in times of 512 bits; it asks again before that is over.
    pub quanta: u16,
}

impl Pfc {
    /// Pauses of the priorities `lossless` at `xoff` bytes, as in the paper: a pause ends two packets of 1500 bytes lower.
    #[must_use]
    pub const fn new(lossless: u8, xoff: u64, headroom: u64) -> Self {
        Self { lossless, xoff: Threshold::Static(xoff), xon_gap: 3_000, headroom, quanta: u16::MAX }
    }
}

/// Where an ingress port put a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Taken,
    /// It has no place.
    Full,
}

/// What an ingress port has to tell its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Xoff,
    Xon,
}

#[derive(Debug)]
pub(super) struct Buffer {
    /// Bytes that all share, beside the headroom.
    size: u64,
    used: u64,
    pfc: Option<Pfc>,
    /// Most that one egress queue of a priority that may be dropped holds.
    lossy: Threshold,
    groups: Vec<[Group; 8]>,
}

/// What one ingress port has of one priority.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    shared: u64,
    headroom: u64,
    asked_for_pause: bool,
}

impl Buffer {
    pub(super) const fn new(size: u64, pfc: Option<Pfc>, lossy: Threshold) -> Self {
        Self { size, used: 0, pfc, lossy, groups: Vec::new() }
    }

    pub(super) fn add_port(&mut self) {
        self.groups.push([Group::default(); 8]);
    }

    /// Shared bytes in use.
    #[cfg(test)]
    pub(super) const fn used(&self) -> u64 {
        self.used
    }

    pub(super) const fn pfc(&self) -> Option<&Pfc> {
        self.pfc.as_ref()
    }

    pub(super) fn is_lossless(&self, priority: u8) -> bool {
        self.pfc.is_some_and(|pfc| pfc.lossless & 1 << priority != 0)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "floats saturate; whole bytes"
    )]
    fn bytes(&self, threshold: Threshold) -> u64 {
        match threshold {
            Threshold::Static(bytes) => bytes,
            Threshold::Dynamic(factor) => ((self.size - self.used) as f64 * factor) as u64,
        }
    }

    /// Takes `len` bytes that came by `port` for an egress queue with `queued` bytes.
    pub(super) fn admit(&mut self, port: usize, priority: u8, len: u64, queued: u64) -> Admission {
        let fits = self.used + len <= self.size;
        let Some(pfc) = self.pfc.filter(|_| self.is_lossless(priority)) else {
            if !fits || queued + len > self.bytes(self.lossy) {
                return Admission::Full;
            }
            self.used += len;
            self.groups[port][usize::from(priority)].shared += len;
            return Admission::Taken;
        };
        let xoff = self.bytes(pfc.xoff);
        let group = &mut self.groups[port][usize::from(priority)];
        if fits && group.headroom == 0 && group.shared + len <= xoff {
            group.shared += len;
            self.used += len;
        } else if group.headroom + len <= pfc.headroom {
            group.headroom += len;
        } else {
            return Admission::Full;
        }
        Admission::Taken
    }

    /// Gives back `len` bytes that came by `port`.
    pub(super) fn release(&mut self, port: usize, priority: u8, len: u64) {
        let group = &mut self.groups[port][usize::from(priority)];
        let from_headroom = group.headroom.min(len);
        group.headroom -= from_headroom;
        group.shared -= len - from_headroom;
        self.used -= len - from_headroom;
    }

    /// What `port` has to tell its sender now.
    pub(super) fn signal(&mut self, port: usize, priority: u8) -> Option<Signal> {
        let pfc = self.pfc.filter(|_| self.is_lossless(priority))?;
        let xoff = self.bytes(pfc.xoff);
        let group = &mut self.groups[port][usize::from(priority)];
        // Where memory is full the threshold is 0. Who holds nothing gives nothing back: it would never end the pause.
        let holds_too_much = group.headroom > 0 || group.shared >= xoff.max(1);
        if !group.asked_for_pause && holds_too_much {
            group.asked_for_pause = true;
            return Some(Signal::Xoff);
        }
        // A threshold below the gap would never be reached: an empty group ends its pause in any case.
        let xon = xoff.saturating_sub(pfc.xon_gap);
        if group.asked_for_pause && group.headroom == 0 && group.shared <= xon {
            group.asked_for_pause = false;
            return Some(Signal::Xon);
        }
        None
    }

    /// Whether `port` still wants its sender to pause.
    pub(super) fn wants_pause(&self, port: usize, priority: u8) -> bool {
        self.groups[port][usize::from(priority)].asked_for_pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(size: u64, pfc: Option<Pfc>, lossy: Threshold) -> Buffer {
        let mut buffer = Buffer::new(size, pfc, lossy);
        buffer.add_port();
        buffer.add_port();
        buffer
    }

    #[test]
    fn pause_is_asked_for_once_and_ended_once() {
        let mut buffer = buffer(1_000_000, Some(Pfc::new(1 << 3, 10_000, 5_000)), Threshold::Dynamic(1.0));
        let mut signals = Vec::new();
        for _ in 0..14 {
            assert_eq!(buffer.admit(0, 3, 1_000, 0), Admission::Taken);
            signals.extend(buffer.signal(0, 3));
        }
        assert_eq!(signals, [Signal::Xoff]);
        assert_eq!(buffer.used(), 10_000, "the rest is in the headroom");
        assert_eq!(buffer.admit(0, 3, 1_000, 0), Admission::Taken);
        assert_eq!(buffer.admit(0, 3, 1_000, 0), Admission::Full);
        assert!(buffer.wants_pause(0, 3) && !buffer.wants_pause(1, 3));
        for left in (0..15).rev() {
            buffer.release(0, 3, 1_000);
            assert_eq!(buffer.signal(0, 3), (left == 7).then_some(Signal::Xon), "{left}");
        }
        assert_eq!(buffer.used(), 0);
    }

    #[test]
    fn what_may_be_dropped_asks_for_no_pause() {
        let mut buffer = buffer(20_000, Some(Pfc::new(1 << 3, 1_000, 5_000)), Threshold::Static(10_000));
        for queued in 0..10 {
            assert_eq!(buffer.admit(0, 0, 1_000, queued * 1_000), Admission::Taken);
            assert_eq!(buffer.signal(0, 0), None);
        }
        assert_eq!(buffer.admit(0, 0, 1_000, 10_000), Admission::Full);
    }

    #[test]
    fn dynamic_thresholds_fall_as_memory_fills() {
        let mut buffer = buffer(100_000, None, Threshold::Dynamic(1.0));
        // With a factor of 1 a single queue ends at half of the memory.
        let taken = (0..100).take_while(|n| buffer.admit(0, 0, 1_000, n * 1_000) == Admission::Taken).count();
        assert_eq!(taken, 50);
        let taken = (0..100).take_while(|n| buffer.admit(1, 1, 1_000, n * 1_000) == Admission::Taken).count();
        assert_eq!(taken, 25);
    }

    #[test]
    fn who_holds_nothing_of_a_full_memory_asks_for_no_pause() {
        let pfc = Pfc { xoff: Threshold::Dynamic(1.0), ..Pfc::new(1 << 3, 0, 0) };
        let mut buffer = buffer(5_000, Some(pfc), Threshold::Static(50_000));
        assert_eq!(buffer.admit(0, 0, 5_000, 0), Admission::Taken);
        assert_eq!(buffer.admit(1, 3, 1_000, 0), Admission::Full);
        assert_eq!((buffer.signal(1, 3), buffer.wants_pause(1, 3)), (None, false));
    }

    #[test]
    fn full_memory_leaves_the_headroom_to_lossless_priorities() {
        let mut buffer = buffer(5_000, Some(Pfc::new(1 << 3, 50_000, 2_000)), Threshold::Static(50_000));
        assert_eq!(buffer.admit(0, 0, 5_000, 0), Admission::Taken);
        assert_eq!(buffer.admit(0, 0, 1, 5_000), Admission::Full);
        assert_eq!(buffer.admit(1, 3, 2_000, 0), Admission::Taken);
        assert_eq!(buffer.signal(1, 3), Some(Signal::Xoff));
        assert_eq!(buffer.admit(1, 3, 1, 0), Admission::Full);
    }
}
