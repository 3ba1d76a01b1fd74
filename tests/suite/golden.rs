//! Golden captures: every ICRC verifies, every packet is written again byte for byte, every count is right.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use trace::{Capture, FrameKind, IcrcCheck, ReadError, Summary, dissect};
use wire::repr::PacketRepr;
use wire::{Frame, ParseError};

use crate::captures;

fn summary_of(file: &Path) -> Summary {
    let mut summary = Summary::default();
    captures::each_frame(file, |frame| summary.add(frame, &dissect(frame)));
    summary
}

fn name_of(file: &Path) -> &str {
    file.file_name().and_then(|name| name.to_str()).unwrap()
}

/// Rule R-WIR-9 and F1: every packet of the kernel, and every one made to look like it, has the right ICRC;
/// one was spoiled on purpose.
#[test]
fn every_icrc_verifies_but_the_spoiled_one() {
    let mut packets = 0;
    for file in captures::all_vectors() {
        let name = name_of(&file);
        captures::each_frame(&file, |frame| {
            let spoiled = name == "bad_icrc.pcap" && frame.number == 1;
            let expected = if spoiled { IcrcCheck::Bad } else { IcrcCheck::Ok };
            let dissection = dissect(frame);
            assert_eq!(dissection.kind, FrameKind::Roce2, "{name} frame {}", frame.number);
            assert_eq!(dissection.roce.unwrap().icrc, expected, "{name} frame {}", frame.number);
            packets += 1;
        });
    }
    assert!(packets > 1500, "only {packets} packets were checked");
}

/// Takes every RoCE packet of `file` apart and writes it again; returns how many there were.
fn reemit(file: &Path) -> usize {
    let name = name_of(file);
    let mut packets = 0;
    captures::each_frame(file, |captured| {
        let frame = match Frame::parse(captured.data) {
            Ok(frame) => frame,
            Err(ParseError::NotRoce) => return,
            Err(error) => panic!("{name} frame {}: {error}", captured.number),
        };
        let repr = PacketRepr::parse_body(frame.net, frame.body)
            .unwrap_or_else(|error| panic!("{name} frame {}: {error}", captured.number));
        let mut again = vec![0; frame.eth.len()];
        frame.eth.emit(&mut again);
        repr.emit(&mut again);
        let through_icrc = captured.data.len() - frame.trailer.len();
        assert_eq!(again, captured.data[..through_icrc], "{name} frame {}", captured.number);
        packets += 1;
    });
    packets
}

#[test]
fn every_packet_is_written_again_byte_for_byte() {
    for file in captures::all_vectors() {
        let packets = reemit(&file) as u64;
        assert_eq!(packets, summary_of(&file).frames, "{}", name_of(&file));
    }
}

/// The tables of the READMEs say how many packets with a right ICRC an independent checker found.
#[test]
fn packets_are_as_many_as_the_tables_say() {
    for folder in ["rxe", "rxe_cm"] {
        let files = captures::vectors(folder);
        let counts: BTreeMap<_, _> =
            files.iter().map(|file| (name_of(file).to_owned(), summary_of(file).icrc)).collect();
        let readme = fs::read_to_string(files[0].with_file_name("README.md")).unwrap();
        let mut listed = 0;
        for line in readme.lines().filter(|line| line.starts_with("| ") && line.contains(".pcap")) {
            let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let (name, result) = (cells[0], cells[cells.len() - 1]);
            let packets: u64 = result.split([' ', ',']).next().unwrap().parse().unwrap();
            assert_eq!(counts[name], BTreeMap::from([(IcrcCheck::Ok, packets)]), "{folder}/{name}");
            listed += 1;
        }
        assert_eq!(listed, files.len(), "{folder}: files in the table");
    }
}

#[test]
fn public_captures_count_as_expected() {
    let Some(folder) = captures::public("public_captures_count_as_expected") else { return };
    let text = fs::read_to_string(folder.join("expected.json")).unwrap();
    let expected: BTreeMap<String, Value> = serde_json::from_str(&text).unwrap();
    let mut compared = 0;
    for (name, mut expected) in expected {
        let counted = serde_json::to_value(summary_of(&folder.join(&name))).unwrap();
        if expected["linktypes"] == serde_json::json!([197]) {
            // Native InfiniBand is counted, but not taken apart.
            assert_eq!(counted["frames"], expected["frames"], "{name}");
            assert_eq!(counted["kinds"], expected["kinds"], "{name}");
            continue;
        }
        // The hash is of the file, not of what was counted in it.
        expected.as_object_mut().unwrap().remove("sha256");
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(&counted[key], value, "{name}: {key}");
        }
        assert_eq!(counted.as_object().unwrap().len(), expected.as_object().unwrap().len(), "{name}");
        compared += 1;
    }
    assert!(compared >= 26, "only {compared} captures were compared");
}

#[test]
fn public_packets_are_written_again_byte_for_byte() {
    let Some(folder) = captures::public("public_packets_are_written_again_byte_for_byte") else { return };
    let mut packets = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|ext| ext == "pcap" || ext == "pcapng") {
            let roce = summary_of(&file).kinds.get(&FrameKind::Roce2).copied().unwrap_or(0);
            // Frames of other link types than Ethernet are none of these.
            let written = if roce == 0 { 0 } else { reemit(&file) as u64 };
            assert_eq!(written, roce, "{}", name_of(&file));
            packets += written;
        }
    }
    assert!(packets >= 1359, "only {packets} packets were written");
}

/// Wherever a capture is cut: all frames before the cut, then one error, then nothing.
#[test]
fn a_cut_capture_yields_all_before_the_cut() {
    let file = captures::vectors("rxe").into_iter().find(|file| name_of(file) == "rc_faa.pcap").unwrap();
    let mut ends = vec![24];
    captures::each_frame(&file, |frame| ends.push(ends[ends.len() - 1] + 16 + frame.data.len()));
    let bytes = fs::read(&file).unwrap();
    assert_eq!(ends.last(), Some(&bytes.len()));
    for cut in 24..=bytes.len() {
        let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
        let mut capture = Capture::new(&bytes[..cut]).unwrap();
        for number in 1..=whole {
            assert_eq!(capture.next_frame().unwrap().unwrap().number, number as u64, "cut at {cut}");
        }
        match capture.next_frame() {
            None => assert!(ends.contains(&cut), "no error for a cut at {cut}"),
            Some(Err(ReadError::CutShort { after })) => {
                assert_eq!(after, whole as u64, "cut at {cut}");
                assert!(!ends.contains(&cut), "an error for a cut between packets at {cut}");
            }
            other => panic!("cut at {cut}: {other:?}"),
        }
        assert!(capture.next_frame().is_none(), "cut at {cut}");
    }
}
