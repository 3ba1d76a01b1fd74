//! Whoever looks at a run of the lab: a bar on a terminal, and a capture.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

use fabric::Frame;
use indicatif::{ProgressBar, ProgressStyle};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};
use wire::Instant;

use crate::cmd::Failure;

/// Parts of a bar.
const PARTS: u64 = 1_000;

pub(super) struct Watch {
    bar: Option<ProgressBar>,
    capture: Option<Capture>,
}

struct Capture {
    path: PathBuf,
    writer: PcapWriter<BufWriter<File>>,
    failed: Option<PcapError>,
}

impl Watch {
    /// Begins; packets go to the file `pcap`.
    pub(super) fn begin(pcap: Option<&Path>) -> Result<Self, Failure> {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(PARTS);
            match ProgressStyle::with_template("{wide_bar} {percent} % {eta}") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        let capture = pcap.map(|path| -> Result<_, Failure> {
            let header = PcapHeader {
                datalink: DataLink::RAW,
                ts_resolution: TsResolution::NanoSecond,
                endianness: Endianness::Little,
                ..PcapHeader::default()
            };
            let file = super::create(path)?;
            let writer = PcapWriter::with_header(BufWriter::new(file), header)
                .map_err(|error| failed(path, &error))?;
            Ok(Capture { path: path.to_owned(), writer, failed: None })
        });
        Ok(Self { bar, capture: capture.transpose()? })
    }

    /// Takes the bar off the screen and closes the file.
    pub(super) fn end(self) -> Result<(), Failure> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let Some(Capture { path, writer, failed: error }) = self.capture else { return Ok(()) };
        if let Some(error) = error {
            return Err(failed(&path, &error));
        }
        writer.into_writer().flush().map_err(|error| super::unwritable(&path, &error))
    }
}

fn failed(path: &Path, error: &PcapError) -> Failure {
    match error {
        // Its own text says only that there was an error.
        PcapError::IoError(error) => super::unwritable(path, error),
        _ => Failure::Failed(format!("cannot write {}: {error}", path.display())),
    }
}

impl lab::Observer for Watch {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
    fn progress(&mut self, part: f64) {
        if let Some(bar) = &self.bar {
            bar.set_position((part * PARTS as f64) as u64);
        }
    }

    fn packet(&mut self, at: Instant, frame: &Frame) {
        let Some(capture) = &mut self.capture else { return };
        if capture.failed.is_some() {
            return;
        }
        let packet = frame.to_ip();
        let packet = PcapPacket {
            timestamp: std::time::Duration::from_nanos(at.as_nanos()),
            orig_len: u32::try_from(packet.len()).unwrap_or(u32::MAX),
            data: Cow::Owned(packet),
        };
        capture.failed = capture.writer.write_packet(&packet).err();
    }

    fn wants_packets(&self) -> bool {
        self.capture.is_some()
    }
}
