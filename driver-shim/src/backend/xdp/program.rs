//! The XDP program that steers a device's packets into its AF_XDP socket.
//!
//! Built as an array of instructions when the device opens, with the device's addresses as constants; everything that
//! is not for the device goes on to the kernel as if the program were not there. It decides nothing else: what it lets
//! through is checked again in user space.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::sys::{self, Instruction};

/// Registers by their use.
const RESULT: u8 = 0;
const ARG1: u8 = 1;
/// Start of the packet.
const DATA: u8 = 2;
/// End of its first piece.
const END: u8 = 3;
const BOUND: u8 = 4;
const VALUE: u8 = 5;
const CONTEXT: u8 = 6;

/// Instruction codes.
const MOVE: u8 = 0xBF;
const MOVE_CONSTANT: u8 = 0xB7;
const ADD_CONSTANT: u8 = 0x07;
const AND_CONSTANT: u8 = 0x57;
const LOAD_BYTE: u8 = 0x71;
const LOAD_HALF: u8 = 0x69;
const LOAD_WORD: u8 = 0x61;
const LOAD_MAP: u8 = 0x18;
const JUMP: u8 = 0x05;
const JUMP_GREATER: u8 = 0x2D;
/// These compare 32 bits.
const JUMP_EQUAL: u8 = 0x16;
const JUMP_NOT_EQUAL: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// What the program returns to send a packet on to the kernel.
const PASS: i32 = 2;
/// The kernel's function that redirects to an entry of a map.
const REDIRECT_MAP: i32 = 51;
/// Places in the context: start, end, receive queue.
const CONTEXT_DATA: i16 = 0;
const CONTEXT_END: i16 = 4;
const CONTEXT_QUEUE: i16 = 16;

/// Places in a frame without VLAN tags.
mod at {
    pub(super) const TYPE: i16 = 12;
    pub(super) const IP: i16 = 14;
    pub(super) const V4_FRAGMENT: i16 = 20;
    pub(super) const V4_PROTOCOL: i16 = 23;
    pub(super) const V4_DST: i16 = 30;
    pub(super) const V4_PORT: i16 = 36;
    pub(super) const V4_ENOUGH: i32 = 42;
    pub(super) const V6_PROTOCOL: i16 = 20;
    pub(super) const V6_DST: i16 = 38;
    pub(super) const V6_ICMP_TYPE: i16 = 54;
    pub(super) const V6_PORT: i16 = 56;
    pub(super) const V6_ENOUGH: i32 = 62;
    pub(super) const ND_TARGET: i16 = 62;
    pub(super) const ND_ENOUGH: i32 = 78;
    pub(super) const ARP_TARGET: i16 = 38;
}

/// What a device wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// Its addresses. Multicast it wants in any case.
    pub(super) addresses: &'a [IpAddr],
    /// UDP port.
    pub(super) port: u16,
    /// Also ARP and neighbour discovery for its addresses.
    pub(super) neighbours: bool,
}

/// Loads the program that sends what is `wanted` to the sockets in `map`.
pub(super) fn load(wanted: &Wanted<'_>, map: impl AsFd) -> io::Result<OwnedFd> {
    sys::load_xdp(&instructions(wanted, map.as_fd().as_raw_fd()), c"MIT")
}

/// Places that jumps lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Pass,
    Take,
    V4,
    V6,
    Icmp,
    Solicitation,
    Arp,
    /// The n-th made as needed.
    Next(usize),
}

/// Instructions, with jumps whose distance is not known yet.
#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    places: Vec<(Label, usize)>,
    made: usize,
}

impl Assembler {
    fn put(&mut self, code: u8, dst: u8, src: u8, offset: i16, constant: i32) {
        self.code.push(Instruction { code, registers: dst | src << 4, offset, constant });
    }

    fn here(&mut self, label: Label) {
        self.places.push((label, self.code.len()));
    }

    fn fresh(&mut self) -> Label {
        self.made += 1;
        Label::Next(self.made)
    }

    fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(JUMP, 0, 0, 0, 0);
    }

    /// Jumps where the value compares so with `constant`.
    fn compare(&mut self, code: u8, constant: u32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(code, VALUE, 0, 0, constant.cast_signed());
    }

    fn load(&mut self, code: u8, at: i16) {
        self.put(code, VALUE, DATA, at, 0);
    }

    /// Passes what is shorter than `len`.
    fn need(&mut self, len: i32) {
        self.put(MOVE, BOUND, DATA, 0, 0);
        self.put(ADD_CONSTANT, BOUND, 0, 0, len);
        self.jumps.push((self.code.len(), Label::Pass));
        self.put(JUMP_GREATER, BOUND, END, 0, 0);
    }

    /// Takes what has one of the `addresses` of IPv4 at `at`.
    fn take_v4(&mut self, at: i16, addresses: &[IpAddr]) {
        self.load(LOAD_WORD, at);
        for address in addresses {
            if let IpAddr::V4(v4) = address {
                self.compare(JUMP_EQUAL, u32::from_ne_bytes(v4.octets()), Label::Take);
            }
        }
    }

    /// Takes what has one of the `addresses` of IPv6 at `at`.
    fn take_v6(&mut self, at: i16, addresses: &[IpAddr]) {
        for address in addresses {
            let IpAddr::V6(v6) = address else { continue };
            let next = self.fresh();
            // The last word differs most often.
            for (offset, word) in [0, 4, 8, 12].into_iter().zip(v6.octets().as_chunks::<4>().0).rev() {
                self.load(LOAD_WORD, at + offset);
                self.compare(JUMP_NOT_EQUAL, u32::from_ne_bytes(*word), next);
            }
            self.jump(Label::Take);
            self.here(next);
        }
    }

    /// The instructions with all jumps resolved.
    fn finish(mut self) -> Vec<Instruction> {
        for (from, label) in self.jumps {
            let place = self.places.iter().find(|(known, _)| *known == label);
            let distance = place.and_then(|(_, to)| i16::try_from(to.checked_sub(from + 1)?).ok());
            self.code[from].offset =
                distance.expect("jumps lead forward, not far, to labels that are placed");
        }
        self.code
    }
}

/// A 16-bit field as a load gives it.
fn field(value: u16) -> u32 {
    value.to_be().into()
}

#[rustfmt::skip]
fn instructions(wanted: &Wanted<'_>, map: i32) -> Vec<Instruction> {
    const IPV4: u16 = 0x0800;
    const IPV6: u16 = 0x86DD;
    const ARP: u16 = 0x0806;
    const UDP: u32 = 17;
    const ICMPV6: u32 = 58;
    const SOLICITATION: u32 = 135;
    const ADVERTISEMENT: u32 = 136;
    let mut asm = Assembler::default();
    asm.put(MOVE, CONTEXT, ARG1, 0, 0);
    asm.put(LOAD_WORD, DATA, CONTEXT, CONTEXT_DATA, 0);
    asm.put(LOAD_WORD, END, CONTEXT, CONTEXT_END, 0);
    asm.need(at::V4_ENOUGH);
    asm.load(LOAD_HALF, at::TYPE);
    asm.compare(JUMP_EQUAL, field(IPV4), Label::V4);
    asm.compare(JUMP_EQUAL, field(IPV6), Label::V6);
    if wanted.neighbours {
        asm.compare(JUMP_EQUAL, field(ARP), Label::Arp);
    }
    asm.jump(Label::Pass);

    asm.here(Label::V4);
    asm.load(LOAD_BYTE, at::IP);
    asm.compare(JUMP_NOT_EQUAL, 0x45, Label::Pass);
    asm.load(LOAD_BYTE, at::V4_PROTOCOL);
    asm.compare(JUMP_NOT_EQUAL, UDP, Label::Pass);
    asm.load(LOAD_HALF, at::V4_FRAGMENT);
    asm.put(AND_CONSTANT, VALUE, 0, 0, field(0x3FFF).cast_signed());
    asm.compare(JUMP_NOT_EQUAL, 0, Label::Pass);
    asm.load(LOAD_HALF, at::V4_PORT);
    asm.compare(JUMP_NOT_EQUAL, field(wanted.port), Label::Pass);
    asm.take_v4(at::V4_DST, wanted.addresses);
    asm.load(LOAD_BYTE, at::V4_DST);
    asm.put(AND_CONSTANT, VALUE, 0, 0, 0xF0);
    asm.compare(JUMP_EQUAL, 0xE0, Label::Take);
    asm.jump(Label::Pass);

    asm.here(Label::V6);
    asm.need(at::V6_ENOUGH);
    asm.load(LOAD_BYTE, at::V6_PROTOCOL);
    if wanted.neighbours {
        asm.compare(JUMP_EQUAL, ICMPV6, Label::Icmp);
    }
    asm.compare(JUMP_NOT_EQUAL, UDP, Label::Pass);
    asm.load(LOAD_HALF, at::V6_PORT);
    asm.compare(JUMP_NOT_EQUAL, field(wanted.port), Label::Pass);
    asm.load(LOAD_BYTE, at::V6_DST);
    asm.compare(JUMP_EQUAL, 0xFF, Label::Take);
    asm.take_v6(at::V6_DST, wanted.addresses);
    asm.jump(Label::Pass);

    if wanted.neighbours {
        asm.here(Label::Icmp);
        asm.need(at::ND_ENOUGH);
        asm.load(LOAD_BYTE, at::V6_ICMP_TYPE);
        asm.compare(JUMP_EQUAL, SOLICITATION, Label::Solicitation);
        asm.compare(JUMP_NOT_EQUAL, ADVERTISEMENT, Label::Pass);
        asm.take_v6(at::V6_DST, wanted.addresses);
        asm.jump(Label::Pass);

        asm.here(Label::Solicitation);
        asm.take_v6(at::ND_TARGET, wanted.addresses);
        asm.jump(Label::Pass);

        asm.here(Label::Arp);
        asm.take_v4(at::ARP_TARGET, wanted.addresses);
        asm.jump(Label::Pass);
    }

    asm.here(Label::Take);
    asm.put(LOAD_WORD, 2, CONTEXT, CONTEXT_QUEUE, 0);
    // Two instructions long; the source register says that the constant is a map.
    asm.put(LOAD_MAP, ARG1, 1, 0, map);
    asm.put(0, 0, 0, 0, 0);
    asm.put(MOVE_CONSTANT, 3, 0, 0, PASS);
    asm.put(CALL, 0, 0, 0, REDIRECT_MAP);
    asm.put(EXIT, 0, 0, 0, 0);

    asm.here(Label::Pass);
    asm.put(MOVE_CONSTANT, RESULT, 0, 0, PASS);
    asm.put(EXIT, 0, 0, 0, 0);
    asm.finish()
}

#[cfg(test)]
mod tests;
