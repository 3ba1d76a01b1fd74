//! Why a packet from the network was dropped. Each reason is counted; none is an error of the user.

use core::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident $text:literal),* $(,)?) => {
        /// Why a received packet had no effect.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum DropReason { $($(#[$doc])* $name),* }

        impl DropReason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Short name, as counters show it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

reasons! {
    /// Lengths that cannot be, or more pad than payload (rule F2).
    Malformed "malformed",
    /// No transport has this opcode (rule R-WIR-14).
    UnknownOpcode "unknown_opcode",
    /// Transport header version other than 0.
    BadVersion "bad_tver",
    /// No queue pair has this number.
    NoSuchQp "no_such_qp",
    /// The opcode is of another transport than the queue pair.
    WrongTransport "wrong_transport",
    /// A request to an XRC initiator, or an answer to an XRC target: each has only one half.
    WrongHalf "wrong_half",
    /// The state of the queue pair does not take this packet.
    QpState "qp_state",
    /// Not from the peer's address, or not to the queue pair's own (rule R-ADM-7).
    WrongAddress "wrong_address",
    /// The partition keys do not match (rule R-ADR-3).
    PKeyMismatch "bad_pkey",
    /// The queue key is not the queue pair's (rule R-ADM-15).
    QKeyMismatch "bad_qkey",
    /// The ICRC is wrong.
    BadIcrc "bad_icrc",
    /// A request packet from the future: one before it is missing, and that was NAKed already.
    OutOfSequence "out_of_sequence",
    /// A repeated READ or atomic whose record is gone or does not fit.
    DuplicateUnknown "duplicate_unknown",
    /// A repeated READ whose answer is still waiting to be sent.
    DuplicatePending "duplicate_pending",
    /// An answer to nothing that is outstanding (rule R-CMP-1).
    GhostResponse "ghost_response",
    /// An answer behind one that is missing, while the missing one is being asked for again.
    ResponseOutOfOrder "response_out_of_order",
    /// No receive is posted; unreliable queue pairs say nothing.
    NoReceive "no_receive",
    /// An unreliable request that breaks a rule or may not do what it asks for.
    BadRequest "bad_request",
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
