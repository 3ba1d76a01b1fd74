use proptest::prelude::*;

use super::*;

const PACKET: [u8; 5] = [1, 2, 3, 4, 5];

/// A number in the byte order under test.
fn u32_of(value: u32, big: bool) -> [u8; 4] {
    if big { value.to_be_bytes() } else { value.to_le_bytes() }
}

fn u16_of(value: u16, big: bool) -> [u8; 2] {
    if big { value.to_be_bytes() } else { value.to_le_bytes() }
}

fn pcap(nanos: bool, big: bool, packets: &[(u32, u32, &[u8], u32)]) -> Vec<u8> {
    let magic = if nanos { 0xA1B2_3C4D } else { 0xA1B2_C3D4 };
    let mut out = u32_of(magic, big).to_vec();
    out.extend(u16_of(2, big));
    out.extend(u16_of(4, big));
    // The last word is the link type below 16 bits of what else is told of frames.
    for word in [0, 0, 4, 0x1400_0000 | 1] {
        out.extend(u32_of(word, big));
    }
    for (seconds, fraction, data, wire_len) in packets {
        for word in [*seconds, *fraction, u32::try_from(data.len()).unwrap(), *wire_len] {
            out.extend(u32_of(word, big));
        }
        out.extend_from_slice(data);
    }
    out
}

/// A block of `kind` around `body`, which is padded to whole words.
fn block(kind: u32, body: &[u8], big: bool) -> Vec<u8> {
    let padded = body.len().next_multiple_of(4);
    let len = u32::try_from(padded + 12).unwrap();
    let mut out = [u32_of(kind, big), u32_of(len, big)].concat();
    out.extend_from_slice(body);
    out.resize(8 + padded, 0);
    out.extend(u32_of(len, big));
    out
}

fn section(big: bool) -> Vec<u8> {
    let body = [
        &u32_of(0x1A2B_3C4D, big)[..],
        &u16_of(1, big),
        &u16_of(0, big),
        &[0xFF; 8], // Length of the section: unknown.
    ];
    block(0x0A0D_0D0A, &body.concat(), big)
}

/// An interface with an optional timestamp resolution.
fn interface(link_type: u16, resolution: Option<u8>, big: bool) -> Vec<u8> {
    let mut body = [&u16_of(link_type, big)[..], &[0; 2], &u32_of(3, big)].concat();
    if let Some(resolution) = resolution {
        body.extend(u16_of(9, big));
        body.extend(u16_of(1, big));
        body.extend([resolution, 0, 0, 0]);
        body.extend([0; 4]);
    }
    block(1, &body, big)
}

fn enhanced(interface: u32, units: u64, data: &[u8], wire_len: u32, big: bool) -> Vec<u8> {
    let captured = u32::try_from(data.len()).unwrap();
    let [high, low] = [(units >> 32) as u32, (units & 0xFFFF_FFFF) as u32];
    let mut body = Vec::new();
    for word in [interface, high, low, captured, wire_len] {
        body.extend(u32_of(word, big));
    }
    body.extend_from_slice(data);
    block(6, &body, big)
}

/// Number, time in nanoseconds, link type, bytes and length on the wire of every frame, and how it ended.
type Outcome = (Vec<(u64, Option<u64>, u32, Vec<u8>, u32)>, Option<ReadError>);

fn read(bytes: &[u8]) -> Outcome {
    let mut capture = Capture::new(bytes).unwrap();
    let mut frames = Vec::new();
    let mut end = None;
    while let Some(next) = capture.next_frame() {
        match next {
            Ok(frame) => frames.push((
                frame.number,
                frame.time.map(Instant::as_nanos),
                frame.link_type,
                frame.data.to_vec(),
                frame.wire_len,
            )),
            Err(error) => end = Some(error),
        }
    }
    assert!(capture.next_frame().is_none());
    (frames, end)
}

#[test]
fn pcap_in_both_byte_orders_and_both_resolutions() {
    for big in [false, true] {
        for (nanos, fraction) in [(false, 5), (true, 5_000)] {
            // The second packet was longer than the snap length, so only its start was captured.
            let file = pcap(nanos, big, &[(2, fraction, &PACKET[..4], 4), (3, 0, &PACKET[..4], 70)]);
            let (frames, end) = read(&file);
            assert!(end.is_none());
            assert_eq!(frames[0], (1, Some(2_000_005_000), 1, PACKET[..4].to_vec(), 4));
            assert_eq!(frames[1], (2, Some(3_000_000_000), 1, PACKET[..4].to_vec(), 70));
        }
    }
}

#[test]
fn pcapng_in_both_byte_orders_with_every_resolution() {
    for big in [false, true] {
        let mut file = section(big);
        file.extend(interface(1, None, big));
        file.extend(interface(276, Some(9), big));
        file.extend(interface(101, Some(0x80 | 1), big));
        file.extend(block(5, &[1; 8], big)); // Statistics: no packet.
        file.extend(block(4, &[0xFF; 8], big)); // Name resolution, damaged: no packet either.
        file.extend(enhanced(0, 7, &PACKET, 5, big));
        file.extend(enhanced(1, 1 << 33, &PACKET, 9, big));
        file.extend(enhanced(2, 3, &PACKET, 5, big));
        let (frames, end) = read(&file);
        assert!(end.is_none(), "{end:?}");
        assert_eq!(frames[0], (1, Some(7_000), 1, PACKET.to_vec(), 5));
        assert_eq!(frames[1], (2, Some(1 << 33), 276, PACKET.to_vec(), 9));
        assert_eq!(frames[2], (3, Some(1_500_000_000), 101, PACKET.to_vec(), 5));
    }
}

#[test]
fn a_new_section_may_have_another_byte_order_and_forgets_the_interfaces() {
    let mut file = section(false);
    file.extend(interface(1, None, false));
    file.extend(enhanced(0, 1, &PACKET, 5, false));
    file.extend(section(true));
    file.extend(interface(101, None, true));
    file.extend(enhanced(0, 2, &PACKET, 5, true));
    file.extend(enhanced(1, 2, &PACKET, 5, true));
    let (frames, end) = read(&file);
    assert_eq!(frames.iter().map(|frame| frame.2).collect::<Vec<_>>(), [1, 101]);
    assert!(matches!(end, Some(ReadError::Damaged { after: 2, .. })), "{end:?}");
}

#[test]
fn a_simple_packet_has_no_time_and_ends_at_the_snap_length() {
    let mut file = section(false);
    file.extend(interface(1, None, false));
    file.extend(block(3, &[&u32_of(2, false)[..], &[8, 9]].concat(), false));
    file.extend(block(3, &[&u32_of(70, false)[..], &PACKET].concat(), false));
    let (frames, end) = read(&file);
    assert!(end.is_none());
    assert_eq!(frames[0], (1, None, 1, vec![8, 9], 2));
    assert_eq!(frames[1], (2, None, 1, PACKET[..3].to_vec(), 70));
}

#[test]
fn what_is_no_capture_is_named() {
    let open = |bytes: &[u8]| Capture::new(bytes).err().map(|error| error.to_string()).unwrap();
    assert!(open(b"").starts_with("is empty"));
    assert!(open(b"abc").starts_with("is no capture"));
    assert!(open(b"#!/bin/sh").starts_with("is no capture"));
    assert!(open(&[0x1F, 0x8B, 8, 0]).contains("gzip"));
    assert!(open(&pcap(false, false, &[])[..23]).starts_with("is no usable capture"));
    assert!(open(&section(false)[..20]).starts_with("is no usable capture"));
}

#[test]
fn a_file_cut_in_a_block_yields_what_came_before() {
    let mut file = section(false);
    file.extend(interface(1, None, false));
    file.extend(enhanced(0, 1, &PACKET, 5, false));
    let whole = file.len();
    file.extend(enhanced(0, 2, &PACKET, 5, false));
    for cut in whole + 1..file.len() {
        let (frames, end) = read(&file[..cut]);
        assert_eq!(frames.len(), 1, "cut at {cut}");
        assert!(matches!(end, Some(ReadError::CutShort { after: 1 })), "cut at {cut}: {end:?}");
    }
}

#[test]
fn a_stream_that_fails_is_told_from_a_cut_file() {
    struct Failing;
    impl Read for Failing {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("unplugged"))
        }
    }
    let file = pcap(false, false, &[(0, 0, &PACKET, 5)]);
    let mut capture = Capture::new(file.as_slice().chain(Failing)).unwrap();
    assert!(capture.next_frame().unwrap().is_ok());
    assert!(matches!(capture.next_frame(), Some(Err(ReadError::Io { after: 1, .. }))));
    assert!(matches!(Capture::new(Failing), Err(OpenError::Io(_))));
}

/// Reads `bytes` to the end, with all that is done with frames.
fn digest(bytes: &[u8]) -> u64 {
    let mut summary = crate::Summary::default();
    let Ok(mut capture) = Capture::new(bytes) else { return 0 };
    while let Some(Ok(frame)) = capture.next_frame() {
        let dissection = crate::dissect(&frame);
        if let Some(packet) = &dissection.roce {
            assert!(!packet.to_string().contains('\n'));
        }
        summary.add(&frame, &dissection);
    }
    assert!(serde_json::to_string(&summary).is_ok());
    summary.frames
}

proptest! {
    /// F2: no file whatever makes the reader or the dissector panic.
    #[test]
    fn arbitrary_files_never_panic(
        magic in prop::sample::select(vec![
            vec![0xD4, 0xC3, 0xB2, 0xA1], vec![0xA1, 0xB2, 0x3C, 0x4D], section(false), section(true), vec![],
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        digest(&[magic, rest].concat());
    }

    #[test]
    fn damaged_files_never_panic(
        big in any::<bool>(),
        at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        data in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut file = section(big);
        file.extend(interface(1, Some(6), big));
        file.extend(enhanced(0, 1, &data, 80, big));
        file.extend(enhanced(0, 2, &data, 5, big));
        prop_assert_eq!(digest(&file), 2);
        for (index, value) in at {
            let index = index.index(file.len());
            file[index] = value;
        }
        prop_assert!(digest(&file) <= 3);
    }
}
