//! Classic socket filters, built from their four-field instructions.
//!
//! The kernel runs them on every packet of a socket before it is queued. Offsets are relative to the network
//! header unless said otherwise, whatever the socket's own view starts with.

use socket2::SockFilter;

/// Longest packet that a filter lets through; longer than any.
const ALL: u32 = 0x4_0000;

/// Offset of the network header in the kernel's load instructions.
const NET: u32 = 0xFFF0_0000;

/// Place of the Ethernet type in the kernel's load instructions; a VLAN tag is already off.
const PROTOCOL: u32 = 0xFFFF_F000;

const LOAD_BYTE: u16 = code(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS);
const LOAD_HALF: u16 = code(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS);
const JUMP_EQUAL: u16 = code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
const JUMP_AT_LEAST: u16 = code(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K);
const RETURN: u16 = code(libc::BPF_RET | libc::BPF_K);

#[expect(clippy::cast_possible_truncation, reason = "instruction codes have 16 bits")]
const fn code(bits: u32) -> u16 {
    bits as u16
}

/// Lets nothing through.
pub(super) fn nothing() -> Vec<SockFilter> {
    vec![SockFilter::new(RETURN, 0, 0, 0)]
}

/// Lets through IPv4 packets whose header is known without being seen: no options, an identification below
/// `bound`, only "don't fragment" set.
pub(super) fn known_ipv4_header(bound: u16) -> Vec<SockFilter> {
    vec![
        SockFilter::new(LOAD_BYTE, 0, 0, NET),
        SockFilter::new(JUMP_EQUAL, 0, 5, 0x45),
        SockFilter::new(LOAD_HALF, 0, 0, NET + 4),
        SockFilter::new(JUMP_AT_LEAST, 3, 0, bound.into()),
        SockFilter::new(LOAD_HALF, 0, 0, NET + 6),
        SockFilter::new(JUMP_EQUAL, 0, 1, 0x4000),
        SockFilter::new(RETURN, 0, 0, ALL),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

/// Chooses among the sockets of `lanes` lanes by the destination queue pair, as [`qp::Lane`] has it. It sees packets from
/// the BTH on. A packet too short for one is for lane 0.
pub(super) fn lane_of_packet(lanes: u32) -> Vec<libc::sock_filter> {
    const LOAD_WORD: u16 = code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS);
    const AND: u16 = code(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K);
    const MODULO: u16 = code(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K);
    const RETURN_VALUE: u16 = code(libc::BPF_RET | libc::BPF_A);
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    vec![
        instruction(LOAD_WORD, 0, 0, 4),
        instruction(AND, 0, 0, 0xFF_FFFF),
        instruction(JUMP_EQUAL, 0, 1, wire::Qpn::GSI.value()),
        instruction(RETURN, 0, 0, 0),
        instruction(MODULO, 0, 0, lanes),
        instruction(RETURN_VALUE, 0, 0, 0),
    ]
}

/// Lets through IPv4 packets without options to this UDP port.
pub(super) fn ipv4_to_port(port: u16) -> Vec<SockFilter> {
    any_of(&[&ipv4_tests(port)])
}

/// Lets through IPv6 packets without extension headers to this UDP port.
pub(super) fn ipv6_to_port(port: u16) -> Vec<SockFilter> {
    any_of(&[&ipv6_tests(port)])
}

/// Of whole frames, lets through packets to this UDP port, and with `neighbours` ARP and neighbour discovery.
pub(super) fn frames_to_port(port: u16, neighbours: bool) -> Vec<SockFilter> {
    let protocol = |value: i32| (LOAD_HALF, PROTOCOL, value.cast_unsigned());
    let [ipv4, ipv6] = [protocol(libc::ETH_P_IP), protocol(libc::ETH_P_IPV6)];
    let ipv4_to_port = [&[ipv4][..], &ipv4_tests(port)].concat();
    let ipv6_to_port = [&[ipv6][..], &ipv6_tests(port)].concat();
    let discovery = |kind| {
        [ipv6, (LOAD_BYTE, NET + 6, libc::IPPROTO_ICMPV6.cast_unsigned()), (LOAD_BYTE, NET + 40, kind)]
    };
    let (solicitation, advertisement) = (discovery(135), discovery(136));
    let arp = [protocol(libc::ETH_P_ARP)];
    let all: [&[Test]; 5] = [&ipv4_to_port, &ipv6_to_port, &arp, &solicitation, &advertisement];
    any_of(if neighbours { &all } else { &all[..2] })
}

/// A load instruction, its offset, and the value that must be there.
type Test = (u16, u32, u32);

fn ipv4_tests(port: u16) -> [Test; 3] {
    [
        (LOAD_BYTE, NET, 0x45),
        (LOAD_BYTE, NET + 9, libc::IPPROTO_UDP.cast_unsigned()),
        (LOAD_HALF, NET + 22, port.into()),
    ]
}

fn ipv6_tests(port: u16) -> [Test; 2] {
    [(LOAD_BYTE, NET + 6, libc::IPPROTO_UDP.cast_unsigned()), (LOAD_HALF, NET + 42, port.into())]
}

/// A filter that lets through what passes all tests of any of the `alternatives`. A load beyond the end of a
/// packet rejects it.
fn any_of(alternatives: &[&[Test]]) -> Vec<SockFilter> {
    let mut program = Vec::new();
    for tests in alternatives {
        for (i, (load, offset, value)) in tests.iter().enumerate() {
            // Over the rest of the tests and the accepting return, to the next alternative.
            let to_next = u8::try_from(2 * (tests.len() - 1 - i) + 1).expect("a handful of tests");
            program.push(SockFilter::new(*load, 0, 0, *offset));
            program.push(SockFilter::new(JUMP_EQUAL, 0, to_next, *value));
        }
        program.push(SockFilter::new(RETURN, 0, 0, ALL));
    }
    program.push(SockFilter::new(RETURN, 0, 0, 0));
    program
}
