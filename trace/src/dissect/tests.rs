use proptest::prelude::*;
use wire::ext::Ext;
use wire::opcode::{Opcode, Operation};
use wire::repr::PacketRepr;
use wire::{Psn, Qpn};

use super::*;

fn packet_over(src: &str, dst: &str) -> PacketRepr {
    let net = NetHeader::v2(src.parse().unwrap(), dst.parse().unwrap(), 0xC123, 0, 64).unwrap();
    let bth = Bth::new(Opcode::rc(Operation::SendOnly), Qpn::new(0x12), Psn::new(7));
    PacketRepr::new(net, bth, Vec::<Ext>::new(), *b"hello").unwrap()
}

fn packet() -> PacketRepr {
    packet_over("10.0.0.1", "10.0.0.2")
}

fn bytes(packet: &PacketRepr) -> Vec<u8> {
    let mut out = Vec::new();
    packet.emit(&mut out);
    out
}

/// `rest` behind an Ethernet header with `types` before it: tags and the type of what follows.
fn ethernet(types: &[u8], rest: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], types, rest].concat()
}

fn frame(link_type: u32, data: &[u8]) -> CapturedFrame<'_> {
    let wire_len = u32::try_from(data.len()).unwrap();
    CapturedFrame { number: 1, time: None, link_type, data, wire_len }
}

const LINE: &str = "10.0.0.1 > 10.0.0.2 RC SEND_ONLY qp=0x12 psn=7 len=5";

/// The line of the RoCE packet in `frame`.
fn line(frame: &CapturedFrame<'_>) -> String {
    dissect(frame).roce.unwrap().to_string()
}

/// Rules R-WIR-1, R-WIR-3, R-WIR-5.
#[test]
fn every_link_layer_leads_to_the_same_packet() {
    let ip = bytes(&packet());
    let frames = [
        (1, ethernet(&[0x08, 0x00], &ip)),
        (1, ethernet(&[0x81, 0x00, 0x60, 0x05, 0x08, 0x00], &ip)),
        (1, ethernet(&[0x88, 0xA8, 0, 1, 0x81, 0x00, 0, 2, 0x08, 0x00], &ip)),
        // Ethernet padding is no part of the packet.
        (1, ethernet(&[0x08, 0x00], &[&ip[..], &[0; 4]].concat())),
        (113, [&[0; 14], &[0x08, 0x00][..], &ip].concat()),
        (276, [&[0x08, 0x00][..], &[0; 18], &ip].concat()),
        (12, ip.clone()),
        (14, ip.clone()),
        (101, ip.clone()),
        (228, ip.clone()),
    ];
    for (link_type, data) in &frames {
        let frame = frame(*link_type, data);
        let dissection = dissect(&frame);
        assert_eq!(dissection.kind, FrameKind::Roce2, "link type {link_type}");
        let roce = dissection.roce.unwrap();
        assert_eq!((roce.icrc, roce.complete), (IcrcCheck::Ok, true), "link type {link_type}");
        assert_eq!(roce.parse().unwrap().payload(), b"hello");
        assert_eq!(roce.to_string(), LINE);
    }
}

/// Rules R-WIR-1, R-WIR-2.
#[test]
fn ipv6_and_roce_v1() {
    let v6 = bytes(&packet_over("fe80::1", "fe80::2"));
    let data = ethernet(&[0x86, 0xDD], &v6);
    assert_eq!(line(&frame(1, &data)), "fe80::1 > fe80::2 RC SEND_ONLY qp=0x12 psn=7 len=5");
    assert_eq!(line(&frame(229, &v6)), "fe80::1 > fe80::2 RC SEND_ONLY qp=0x12 psn=7 len=5");

    let mut v1 = packet_over("fe80::1", "fe80::2");
    let NetHeader::V6(ip, _) = v1.net else { panic!("not IPv6") };
    v1.net = NetHeader::V1(ip);
    v1.finish();
    let data = ethernet(&[0x89, 0x15], &bytes(&v1));
    let tagged = ethernet(&[0x81, 0x00, 0, 5, 0x89, 0x15], &bytes(&v1));
    for data in [data, tagged] {
        let frame = frame(1, &data);
        assert_eq!(dissect(&frame).kind, FrameKind::Roce1);
        assert_eq!(line(&frame), "fe80::1 > fe80::2 v1 RC SEND_ONLY qp=0x12 psn=7 len=5");
    }
}

/// Rules R-WIR-4, R-WIR-6.
#[test]
fn what_is_not_roce_is_only_named() {
    let mut tcp = bytes(&packet());
    tcp[9] = 6;
    let mut other_port = bytes(&packet());
    other_port[23] = 0xB6;
    let mut fragment = bytes(&packet());
    fragment[7] = 1;
    // F5: the source port decides nothing.
    let mut from_port = bytes(&packet());
    from_port[20..22].copy_from_slice(&ROCE_V2_PORT.to_be_bytes());
    from_port[22..24].copy_from_slice(&[0, 69]);
    let mut erf = vec![0; 40];
    erf[8] = 0x80 | 21;
    for (link_type, data, kind) in [
        (101, &tcp[..], FrameKind::Tcp),
        (101, &tcp[..24], FrameKind::Tcp),
        (101, &other_port, FrameKind::Other),
        (101, &fragment, FrameKind::Other),
        (101, &from_port, FrameKind::Other),
        (1, &ethernet(&[0x08, 0x06], &[0; 28]), FrameKind::Other),
        (1, &[0; 5], FrameKind::Other),
        (113, &[0; 15], FrameKind::Other),
        (197, &erf, FrameKind::Ib),
        (197, &[0; 40], FrameKind::Other),
        (247, &[], FrameKind::Ib),
        (9999, &[1, 2, 3], FrameKind::Other),
    ] {
        let dissection = dissect(&frame(link_type, data));
        assert_eq!(dissection.kind, kind, "link type {link_type}, {data:02x?}");
        assert!(dissection.roce.is_none());
    }
}

#[test]
fn a_packet_cut_when_captured_keeps_its_length_and_is_not_called_bad() {
    let mut long = packet();
    long.payload = vec![7; 1000];
    long.finish();
    let whole = ethernet(&[0x08, 0x00], &bytes(&long));
    let through_bth = 14 + 28 + 12;
    for captured in [through_bth, through_bth + 100, whole.len() - 1] {
        let frame =
            CapturedFrame { wire_len: u32::try_from(whole.len()).unwrap(), ..frame(1, &whole[..captured]) };
        let roce = dissect(&frame).roce.unwrap();
        assert_eq!((roce.icrc, roce.payload_len()), (IcrcCheck::Unchecked, 1000));
        assert_eq!(line(&frame), LINE.replace("len=5", "len=1000 cut"), "{captured} bytes captured");
        assert_eq!(roce.parse().unwrap_err(), ParseError::TooShort);
    }
    let frame = CapturedFrame {
        wire_len: u32::try_from(whole.len()).unwrap(),
        ..frame(1, &whole[..through_bth - 1])
    };
    let roce = dissect(&frame).roce.unwrap();
    assert!(roce.bth().is_none());
    assert!(roce.to_string().ends_with(" cut"));
}

/// Rules R-WIR-7, R-WIR-13.
#[test]
fn a_packet_that_lies_about_its_length_is_bad() {
    // Nothing was cut off, yet the headers announce more.
    let mut long = bytes(&packet());
    long[3] += 4;
    long[25] += 4;
    let roce_line = line(&frame(101, &long));
    assert!(roce_line.ends_with("malformed: IP and UDP lengths disagree icrc=bad"), "{roce_line}");
    // The two headers announce different lengths.
    let mut unlike = bytes(&packet());
    unlike[25] -= 4;
    assert!(line(&frame(101, &unlike)).ends_with("icrc=bad"));
    // There is no room for what every packet has.
    let mut short = bytes(&packet())[..28 + 11].to_vec();
    short[3] = 39;
    short[25] = 19;
    let roce = dissect(&frame(101, &short)).roce.unwrap();
    assert_eq!(roce.icrc, IcrcCheck::Bad);
    assert!(roce.to_string().contains("malformed"), "{roce}");
}

/// Rule R-WIR-6.
#[test]
fn ip_options_leave_the_icrc_unchecked() {
    let plain = bytes(&packet());
    let mut options = plain[..20].to_vec();
    options[0] = 0x46;
    options[3] += 4;
    options.extend([1, 1, 1, 1]);
    options.extend_from_slice(&plain[20..]);
    let frame = frame(101, &options);
    let roce = dissect(&frame).roce.unwrap();
    assert_eq!(roce.icrc, IcrcCheck::Unchecked);
    assert_eq!(roce.parse().unwrap_err(), ParseError::NotRoce);
    assert_eq!(line(&frame), format!("{LINE} icrc=unchecked"));
}

#[test]
fn an_unknown_opcode_has_an_icrc_all_the_same() {
    let mut unknown = packet();
    unknown.bth = unknown.bth.with_opcode(Opcode::from_byte(0x1F));
    unknown.refill_icrc();
    let data = bytes(&unknown);
    let frame = frame(101, &data);
    let roce = dissect(&frame).roce.unwrap();
    assert_eq!(roce.icrc, IcrcCheck::Ok);
    assert_eq!(roce.payload_len(), 0);
    assert!(line(&frame).contains("OPCODE_0x1f qp=0x12 psn=7"));
}

proptest! {
    #[test]
    fn arbitrary_frames_never_panic(
        link_type in prop::sample::select(vec![1, 12, 101, 113, 197, 229, 247, 276, 5]),
        head in prop::sample::select(vec![
            vec![], ethernet(&[0x08, 0x00], &[0x45]), ethernet(&[0x86, 0xDD], &[0x60]),
            ethernet(&[0x89, 0x15], &[0x60]), ethernet(&[0x81, 0], &[]), vec![0x45],
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..120),
        cut in 0_u32..2000,
    ) {
        let data = [head, rest].concat();
        let frame = frame(link_type, &data);
        let frame = CapturedFrame { wire_len: frame.wire_len.saturating_add(cut), ..frame };
        if let Some(packet) = dissect(&frame).roce {
            let _ = (packet.parse(), packet.to_string(), packet.payload());
        }
    }

    #[test]
    fn a_damaged_packet_never_panics(
        at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut data = ethernet(&[0x08, 0x00], &bytes(&packet()));
        let wire_len = u32::try_from(data.len()).unwrap();
        for (index, value) in at {
            let index = index.index(data.len());
            data[index] = value;
        }
        data.truncate(keep.index(data.len()));
        let frame = CapturedFrame { wire_len, ..frame(1, &data) };
        if let Some(packet) = dissect(&frame).roce {
            let _ = (packet.parse(), packet.to_string(), packet.payload());
        }
    }
}
