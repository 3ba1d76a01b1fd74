//! Classic socket filters, built from their four-field instructions.
//!
//! The kernel runs them on every packet of a socket before it is queued. Offsets are relative to the network
//! header unless said otherwise, whatever the socket's own view starts with.

use socket2::SockFilter;

/// Longest packet that a filter lets through; longer than any.
const ALL: u32 = 0x4_0000;

/// Offset of the network header in the kernel's load instructions.
const NET: u32 = 0xFFF0_0000;

const LOAD_BYTE: u16 = code(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS);
const LOAD_HALF: u16 = code(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS);
const JUMP_EQUAL: u16 = code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
const RETURN: u16 = code(libc::BPF_RET | libc::BPF_K);

#[expect(clippy::cast_possible_truncation, reason = "instruction codes have 16 bits")]
const fn code(bits: u32) -> u16 {
    bits as u16
}

/// Lets nothing through.
pub(super) fn nothing() -> Vec<SockFilter> {
    vec![SockFilter::new(RETURN, 0, 0, 0)]
}

/// Lets through IPv4 packets whose header is known without being seen: no options, identification 0, only
/// "don't fragment" set.
pub(super) fn known_ipv4_header() -> Vec<SockFilter> {
    all_of(&[(LOAD_BYTE, NET, 0x45), (LOAD_HALF, NET + 4, 0), (LOAD_HALF, NET + 6, 0x4000)])
}

/// Lets through IPv4 packets without options to this UDP port.
pub(super) fn ipv4_to_port(port: u16) -> Vec<SockFilter> {
    all_of(&[
        (LOAD_BYTE, NET, 0x45),
        (LOAD_BYTE, NET + 9, libc::IPPROTO_UDP.cast_unsigned()),
        (LOAD_HALF, NET + 22, port.into()),
    ])
}

/// Lets through IPv6 packets without extension headers to this UDP port.
pub(super) fn ipv6_to_port(port: u16) -> Vec<SockFilter> {
    all_of(&[(LOAD_BYTE, NET + 6, libc::IPPROTO_UDP.cast_unsigned()), (LOAD_HALF, NET + 42, port.into())])
}

/// A filter that lets through what passes all `tests`: load instruction, offset, expected value.
fn all_of(tests: &[(u16, u32, u32)]) -> Vec<SockFilter> {
    let mut program = Vec::with_capacity(2 * tests.len() + 2);
    for (i, (load, offset, value)) in tests.iter().enumerate() {
        // Over the rest of the tests and the accepting return.
        let to_reject = u8::try_from(2 * (tests.len() - 1 - i) + 1).expect("a handful of tests");
        program.push(SockFilter::new(*load, 0, 0, *offset));
        program.push(SockFilter::new(JUMP_EQUAL, 0, to_reject, *value));
    }
    program.push(SockFilter::new(RETURN, 0, 0, ALL));
    program.push(SockFilter::new(RETURN, 0, 0, 0));
    program
}
