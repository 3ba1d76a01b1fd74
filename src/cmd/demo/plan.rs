//! What the demo does: the rows of its table, in order.

use qp::QpType;

const SIZES: [usize; 7] = [0, 1, 33, 1024, 4096, 65_536, 1 << 20];
const ATOMICS: [usize; 7] = [1, 2, 16, 128, 512, 1024, 4096];

/// What carries an operation, and what it passes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A reliable connection.
    Rc,
    /// An unreliable connection.
    Uc,
    /// Datagrams.
    Ud,
    /// A reliable connection, through memory windows.
    Window,
    /// A reliable connection with a shared receive queue.
    Srq,
    /// An XRC initiator and target.
    Xrc,
}

impl Way {
    /// Type of the queue pair that sends.
    pub(super) const fn qp_type(self) -> QpType {
        match self {
            Self::Rc | Self::Window | Self::Srq => QpType::Rc,
            Self::Xrc => QpType::XrcIni,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    /// How its transport is called.
    pub(super) const fn transport(self) -> &'static str {
        match self {
            Self::Xrc => "XRC",
            _ => self.qp_type().name(),
        }
    }

    /// What the names of its operations begin with.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Rc | Self::Uc | Self::Ud | Self::Xrc => "",
            Self::Srq => "SRQ_",
            Self::Window => "MW_",
        }
    }

    /// Whether a message may be lost, and then is sent again by the demo itself.
    pub(super) const fn loses(self) -> bool {
        matches!(self, Self::Uc | Self::Ud)
    }
}

/// Operations of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CmpSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
    SendInv,
}

impl Op {
    const MESSAGES: [Self; 5] = [Self::Send, Self::SendImm, Self::Write, Self::WriteImm, Self::Read];
    const ATOMICS: [Self; 2] = [Self::CmpSwap, Self::FetchAdd];

    const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND_WITH_IMM",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE_WITH_IMM",
            Self::Read => "READ",
            Self::CmpSwap => "CMP_SWAP",
            Self::FetchAdd => "FETCH_ADD",
            Self::AtomicWrite => "ATOMIC_WRITE",
            Self::Flush => "FLUSH",
            Self::SendInv => "SEND_WITH_INV",
        }
    }

    /// Whether it works on words of eight bytes, one at a time.
    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, Self::CmpSwap | Self::FetchAdd | Self::AtomicWrite)
    }

    /// Whether the far end gives a receive for it.
    pub(super) const fn receives(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm | Self::SendInv)
    }
}

/// One row to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) way: Way,
    pub(super) op: Op,
    /// Bytes; of atomics, how many.
    pub(super) amount: usize,
}

impl Trial {
    /// Name of its operation, and of what that goes through.
    pub(super) fn name(&self) -> String {
        format!("{}{}", self.way.prefix(), self.op.name())
    }
}

/// All rows.
pub(super) fn trials() -> Vec<Trial> {
    let mut rows = Vec::new();
    let mut add = |way, ops: &[Op], amounts: &[usize]| {
        for &op in ops {
            rows.extend(amounts.iter().map(|&amount| Trial { way, op, amount }));
        }
    };
    add(Way::Rc, &Op::MESSAGES, &SIZES);
    add(Way::Rc, &Op::ATOMICS, &ATOMICS);
    add(Way::Rc, &[Op::AtomicWrite], &[1, 16, 512]);
    add(Way::Rc, &[Op::Flush], &[1, 4096, 65_536]);
    // What nothing holds back has to fit a socket's buffer.
    add(Way::Uc, &Op::MESSAGES[..4], &SIZES[..6]);
    add(Way::Ud, &Op::MESSAGES[..2], &SIZES[..5]);
    add(Way::Xrc, &Op::MESSAGES, &[0, 1, 33, 4096, 65_536]);
    add(Way::Xrc, &Op::ATOMICS, &[1, 16, 128]);
    add(Way::Srq, &[Op::Send, Op::SendImm, Op::WriteImm], &[0, 1, 33, 4096, 65_536]);
    add(Way::Window, &[Op::Write, Op::Read, Op::SendInv], &[1, 4096, 65_536]);
    rows
}
