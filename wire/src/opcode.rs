//! The opcode table: one row per opcode, from which lengths, sequencing, printing and fuzzing all read.

use core::fmt;

/// Transport service: bits 7:5 of the opcode (rule R-WIR-17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification (RoCE v2 only).
    Cnp,
    /// Extended reliable connection.
    Xrc,
}

impl Transport {
    /// Bits 7:5 of its opcodes.
    #[must_use]
    pub const fn base(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Cnp => 0x80,
            Self::Xrc => 0xA0,
        }
    }

    const ALL: [Self; 5] = [Self::Rc, Self::Uc, Self::Ud, Self::Cnp, Self::Xrc];
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Cnp => "CNP",
            Self::Xrc => "XRC",
        })
    }
}

/// What a packet does: bits 4:0 of the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(
    missing_docs,
    reason = "the variants are the specification's own names; the table rows explain them"
)]
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImm = 0x03,
    SendOnly = 0x04,
    SendOnlyImm = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImm = 0x09,
    WriteOnly = 0x0A,
    WriteOnlyImm = 0x0B,
    ReadRequest = 0x0C,
    ReadResponseFirst = 0x0D,
    ReadResponseMiddle = 0x0E,
    ReadResponseLast = 0x0F,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CmpSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInv = 0x16,
    SendOnlyInv = 0x17,
    Flush = 0x1C,
    AtomicWrite = 0x1D,
    /// Congestion notification: its five bits are 1, but it is of no other transport.
    Cnp = 0x1F,
}

/// A header that may follow the BTH, in wire order where several do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtHeader {
    /// XRC: the target's shared receive queue.
    Xrceth,
    /// UD: Q_Key and source queue pair.
    Deth,
    /// FLUSH: what to flush.
    Feth,
    /// Remote address, key and length.
    Reth,
    /// Remote address, key and operands of an atomic.
    AtomicEth,
    /// Syndrome and MSN.
    Aeth,
    /// The value an atomic found.
    AtomicAckEth,
    /// Immediate data.
    ImmDt,
    /// The key to invalidate.
    Ieth,
    /// The 16 reserved bytes of a CNP.
    CnpReserved,
}

impl ExtHeader {
    /// Size on the wire in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Reth | Self::CnpReserved => 16,
            Self::AtomicEth => 28,
            Self::Deth | Self::AtomicAckEth => 8,
            Self::Xrceth | Self::Feth | Self::Aeth | Self::ImmDt | Self::Ieth => 4,
        }
    }
}

/// What payload an opcode may carry (rules R-WIR-19, R-WIR-20).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadRule {
    /// None at all.
    None,
    /// Exactly the path MTU.
    Full,
    /// 1 byte to the path MTU.
    Some,
    /// 0 bytes to the path MTU.
    Any,
    /// Exactly eight bytes.
    Eight,
}

/// A packet's place in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// First of several.
    First,
    /// Neither first nor last.
    Middle,
    /// Last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether the message begins with this packet.
    #[must_use]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether the message ends with this packet.
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// What kind of message a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// SEND request.
    Send,
    /// RDMA WRITE request.
    Write,
    /// RDMA READ request.
    Read,
    /// CMP_SWAP or FETCH_ADD request.
    Atomic,
    /// FLUSH request.
    Flush,
    /// ATOMIC WRITE request.
    AtomicWrite,
    /// Response to a READ (also answers FLUSH and ATOMIC WRITE).
    ReadResponse,
    /// Acknowledge.
    Acknowledge,
    /// Response to an atomic.
    AtomicAcknowledge,
    /// Congestion notification.
    Cnp,
}

impl Kind {
    /// Whether it goes from requester to responder.
    #[must_use]
    pub const fn is_request(self) -> bool {
        matches!(self, Self::Send | Self::Write | Self::Read | Self::Atomic | Self::Flush | Self::AtomicWrite)
    }

    /// Whether it goes from responder to requester.
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse | Self::Acknowledge | Self::AtomicAcknowledge)
    }
}

/// A row of the opcode table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Name as Wireshark and the kernel build it, such as `RC_SEND_ONLY_IMM`.
    pub name: &'static str,
    /// Transport service.
    pub transport: Transport,
    /// Operation.
    pub operation: Operation,
    /// Kind of message.
    pub kind: Kind,
    /// Place in the message.
    pub position: Position,
    /// Headers after the BTH, in wire order.
    pub headers: &'static [ExtHeader],
    /// Payload rule.
    pub payload: PayloadRule,
    /// Bytes of all headers after the BTH.
    pub headers_len: usize,
}

impl Info {
    /// Byte offset of `header` from the start of the BTH, if this opcode carries it.
    #[must_use]
    pub const fn offset_of(&self, header: ExtHeader) -> Option<usize> {
        let mut at = crate::bth::Bth::SIZE;
        let mut i = 0;
        while i < self.headers.len() {
            if self.headers[i] as u8 == header as u8 {
                return Some(at);
            }
            at += self.headers[i].size();
            i += 1;
        }
        None
    }

    /// Whether this opcode carries `header`.
    #[must_use]
    pub const fn has(&self, header: ExtHeader) -> bool {
        self.offset_of(header).is_some()
    }
}

/// The opcode byte of a BTH.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

impl Opcode {
    /// The congestion notification packet (rule R-WIR-18).
    pub const CNP: Self = Self(0x81);

    /// Any byte, known or not.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Self {
        Self(byte)
    }

    /// The opcode of `operation` on `transport`; `None` where that transport has no such operation.
    #[must_use]
    pub const fn new(transport: Transport, operation: Operation) -> Option<Self> {
        let op = match operation {
            Operation::Cnp => Self::CNP,
            _ => Self(transport.base() | operation as u8),
        };
        match TABLE[op.0 as usize] {
            Some(info)
                if info.transport as u8 == transport as u8 && info.operation as u8 == operation as u8 =>
            {
                Some(op)
            }
            _ => None,
        }
    }

    /// An RC opcode. RC has every operation but [`Operation::Cnp`], for which this is an unknown opcode.
    #[must_use]
    pub const fn rc(operation: Operation) -> Self {
        match Self::new(Transport::Rc, operation) {
            Some(op) => op,
            None => Self(operation as u8),
        }
    }

    /// The byte on the wire.
    #[must_use]
    pub const fn byte(self) -> u8 {
        self.0
    }

    /// Its row in the table; `None` for an opcode that no RoCE transport uses (rule R-ADM-14).
    #[must_use]
    pub const fn info(self) -> Option<&'static Info> {
        TABLE[self.0 as usize].as_ref()
    }

    /// Every opcode in the table.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(Self).filter(|op| op.info().is_some())
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.write_str(info.name),
            None => write!(f, "OPCODE_{:#04x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// One operation, before it is combined with a transport. Which headers each has on which transport is rules
/// R-WIR-22, R-WIR-23, R-WIR-27, R-WIR-28 and R-WIR-29.
struct Row {
    operation: Operation,
    name: &'static str,
    kind: Kind,
    position: Position,
    payload: PayloadRule,
    /// Headers on RC and UC.
    headers: &'static [ExtHeader],
    /// Names and header lists on the other transports that have it, `None` where they do not.
    rc: &'static str,
    uc: Option<&'static str>,
    ud: Option<(&'static str, &'static [ExtHeader])>,
    xrc: (&'static str, &'static [ExtHeader]),
}

macro_rules! rows {
    ($( $operation:ident $name:literal $kind:ident $position:ident $payload:ident
        [$($header:ident),*] $(uc $uc:tt)? $(ud [$($ud:ident),*])? xrc [$($xrc:ident),*]; )*) => {
        [$( Row {
            operation: Operation::$operation,
            name: $name,
            kind: Kind::$kind,
            position: Position::$position,
            payload: PayloadRule::$payload,
            headers: &[$(ExtHeader::$header),*],
            rc: concat!("RC_", $name),
            uc: rows!(@uc $name $($uc)?),
            ud: rows!(@ud $name $([$(ExtHeader::$ud),*])?),
            xrc: (concat!("XRC_", $name), &[$(ExtHeader::$xrc),*]),
        } ),*]
    };
    (@uc $name:literal) => { None };
    (@uc $name:literal yes) => { Some(concat!("UC_", $name)) };
    (@ud $name:literal) => { None };
    (@ud $name:literal $headers:expr) => { Some((concat!("UD_", $name), &$headers)) };
}

const ROWS: [Row; 25] = rows! {
    SendFirst "SEND_FIRST" Send First Full [] uc yes xrc [Xrceth];
    SendMiddle "SEND_MIDDLE" Send Middle Full [] uc yes xrc [Xrceth];
    SendLast "SEND_LAST" Send Last Some [] uc yes xrc [Xrceth];
    SendLastImm "SEND_LAST_IMM" Send Last Some [ImmDt] uc yes xrc [Xrceth, ImmDt];
    SendOnly "SEND_ONLY" Send Only Any [] uc yes ud [Deth] xrc [Xrceth];
    SendOnlyImm "SEND_ONLY_IMM" Send Only Any [ImmDt] uc yes ud [Deth, ImmDt] xrc [Xrceth, ImmDt];
    WriteFirst "WRITE_FIRST" Write First Full [Reth] uc yes xrc [Xrceth, Reth];
    WriteMiddle "WRITE_MIDDLE" Write Middle Full [] uc yes xrc [Xrceth];
    WriteLast "WRITE_LAST" Write Last Some [] uc yes xrc [Xrceth];
    WriteLastImm "WRITE_LAST_IMM" Write Last Some [ImmDt] uc yes xrc [Xrceth, ImmDt];
    WriteOnly "WRITE_ONLY" Write Only Any [Reth] uc yes xrc [Xrceth, Reth];
    WriteOnlyImm "WRITE_ONLY_IMM" Write Only Any [Reth, ImmDt] uc yes xrc [Xrceth, Reth, ImmDt];
    ReadRequest "READ_REQUEST" Read Only None [Reth] xrc [Xrceth, Reth];
    ReadResponseFirst "READ_RESP_FIRST" ReadResponse First Full [Aeth] xrc [Aeth];
    ReadResponseMiddle "READ_RESP_MIDDLE" ReadResponse Middle Full [] xrc [];
    ReadResponseLast "READ_RESP_LAST" ReadResponse Last Some [Aeth] xrc [Aeth];
    ReadResponseOnly "READ_RESP_ONLY" ReadResponse Only Any [Aeth] xrc [Aeth];
    Acknowledge "ACKNOWLEDGE" Acknowledge Only None [Aeth] xrc [Aeth];
    AtomicAcknowledge "ATOMIC_ACKNOWLEDGE" AtomicAcknowledge Only None [Aeth, AtomicAckEth] xrc [Aeth, AtomicAckEth];
    CmpSwap "CMP_SWAP" Atomic Only None [AtomicEth] xrc [Xrceth, AtomicEth];
    FetchAdd "FETCH_ADD" Atomic Only None [AtomicEth] xrc [Xrceth, AtomicEth];
    SendLastInv "SEND_LAST_INV" Send Last Some [Ieth] xrc [Xrceth, Ieth];
    SendOnlyInv "SEND_ONLY_INV" Send Only Any [Ieth] xrc [Xrceth, Ieth];
    Flush "FLUSH" Flush Only None [Feth, Reth] xrc [Xrceth, Feth, Reth];
    AtomicWrite "ATOMIC_WRITE" AtomicWrite Only Eight [Reth] xrc [Xrceth, Reth];
};

static TABLE: [Option<Info>; 256] = build();

const fn total(headers: &[ExtHeader]) -> usize {
    let (mut sum, mut i) = (0, 0);
    while i < headers.len() {
        sum += headers[i].size();
        i += 1;
    }
    sum
}

const fn build() -> [Option<Info>; 256] {
    let mut table = [None; 256];
    let mut i = 0;
    while i < ROWS.len() {
        let row = &ROWS[i];
        let mut t = 0;
        while t < Transport::ALL.len() {
            let transport = Transport::ALL[t];
            let entry = match transport {
                Transport::Rc => Some((row.rc, row.headers)),
                Transport::Uc => match row.uc {
                    Some(name) => Some((name, row.headers)),
                    None => None,
                },
                Transport::Ud => row.ud,
                Transport::Xrc => Some(row.xrc),
                Transport::Cnp => None,
            };
            if let Some((name, headers)) = entry {
                table[(transport.base() | row.operation as u8) as usize] = Some(Info {
                    name,
                    transport,
                    operation: row.operation,
                    kind: row.kind,
                    position: row.position,
                    headers,
                    payload: row.payload,
                    headers_len: total(headers),
                });
            }
            t += 1;
        }
        i += 1;
    }
    const CNP: &[ExtHeader] = &[ExtHeader::CnpReserved];
    table[Opcode::CNP.0 as usize] = Some(Info {
        name: "CNP",
        transport: Transport::Cnp,
        operation: Operation::Cnp,
        kind: Kind::Cnp,
        position: Position::Only,
        headers: CNP,
        payload: PayloadRule::None,
        headers_len: total(CNP),
    });
    table
}

impl Info {
    /// Name without the transport, such as `SEND_ONLY_IMM`.
    #[must_use]
    pub fn operation_name(&self) -> &'static str {
        ROWS.iter().find(|row| row.operation == self.operation).map_or(self.name, |row| row.name)
    }
}

/// The operation of one packet of a segmented message: `first` and `last` say where it stands.
#[must_use]
pub const fn segment(kind: SegmentKind, first: bool, last: bool) -> Operation {
    use Operation as O;
    match (kind, first, last) {
        (SegmentKind::Send | SegmentKind::SendImm | SegmentKind::SendInv, true, false) => O::SendFirst,
        (SegmentKind::Send | SegmentKind::SendImm | SegmentKind::SendInv, false, false) => O::SendMiddle,
        (SegmentKind::Send, false, true) => O::SendLast,
        (SegmentKind::Send, true, true) => O::SendOnly,
        (SegmentKind::SendImm, false, true) => O::SendLastImm,
        (SegmentKind::SendImm, true, true) => O::SendOnlyImm,
        (SegmentKind::SendInv, false, true) => O::SendLastInv,
        (SegmentKind::SendInv, true, true) => O::SendOnlyInv,
        (SegmentKind::Write | SegmentKind::WriteImm, true, false) => O::WriteFirst,
        (SegmentKind::Write | SegmentKind::WriteImm, false, false) => O::WriteMiddle,
        (SegmentKind::Write, false, true) => O::WriteLast,
        (SegmentKind::Write, true, true) => O::WriteOnly,
        (SegmentKind::WriteImm, false, true) => O::WriteLastImm,
        (SegmentKind::WriteImm, true, true) => O::WriteOnlyImm,
        (SegmentKind::ReadResponse, true, false) => O::ReadResponseFirst,
        (SegmentKind::ReadResponse, false, false) => O::ReadResponseMiddle,
        (SegmentKind::ReadResponse, false, true) => O::ReadResponseLast,
        (SegmentKind::ReadResponse, true, true) => O::ReadResponseOnly,
    }
}

/// Messages that are cut into packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// SEND.
    Send,
    /// SEND with immediate.
    SendImm,
    /// SEND with invalidate.
    SendInv,
    /// WRITE.
    Write,
    /// WRITE with immediate.
    WriteImm,
    /// The answer to a READ.
    ReadResponse,
}

#[cfg(test)]
mod tests;
