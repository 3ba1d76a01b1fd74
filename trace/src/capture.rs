//! Reads capture files, pcap and pcapng, one frame after the other.
//!
//! Takes any byte stream and never more of it in memory than one block. It does not look into frames, and it
//! does not give up what came before a fault: a file that is cut short yields every whole frame first.

use std::io::{self, Cursor, Read};

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::PcapNgReader;
use pcap_file::{Endianness, PcapError, TsResolution};
use wire::Instant;

use crate::capture::blocks::PacketHead;

mod blocks;

/// One frame of a capture.
#[derive(Clone, Copy, Debug)]
pub struct CapturedFrame<'a> {
    /// Its place in the file, from 1.
    pub number: u64,
    /// When it was captured, counted from 1970; `None` where the file does not say.
    pub time: Option<Instant>,
    /// Link type, as the registry of pcap link types numbers them.
    pub link_type: u32,
    /// The bytes that were captured, from the link layer's header on.
    pub data: &'a [u8],
    /// Bytes it had on the wire, more than `data` where the capture cut it.
    pub wire_len: u32,
}

/// Why something cannot be read as a capture at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The stream itself failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It holds nothing.
    #[error("is empty; a pcap or pcapng capture is wanted")]
    Empty,
    /// It is compressed.
    #[error("is compressed with {0}; decompress it first")]
    Compressed(&'static str),
    /// It is something else.
    #[error("is no capture: it begins neither as pcap nor as pcapng")]
    Unknown,
    /// It begins as a capture does, but its first header is cut or damaged.
    #[error("is no usable capture: its file header is cut or damaged ({0})")]
    Header(String),
}

/// Why a capture cannot be read on. Every frame before was delivered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file ends where more was announced.
    #[error("is cut short: it ends in the middle of a packet, after frame {after}")]
    CutShort {
        /// Number of the last whole frame.
        after: u64,
    },
    /// The file's own structure is broken.
    #[error("is damaged after frame {after}: {reason}")]
    Damaged {
        /// Number of the last whole frame.
        after: u64,
        /// What is wrong.
        reason: String,
    },
    /// The stream itself failed.
    #[error("cannot be read after frame {after}: {source}")]
    Io {
        /// Number of the last whole frame.
        after: u64,
        /// What the stream said.
        source: io::Error,
    },
}

/// The stream with its first bytes, which told the format, put back.
type Whole<R> = io::Chain<Cursor<Vec<u8>>, R>;

enum Format<R: Read> {
    Pcap(PcapReader<Whole<R>>),
    PcapNg(PcapNgReader<Whole<R>>),
}

/// What is known of a frame besides its bytes.
struct Meta {
    time: Option<Instant>,
    link_type: u32,
    wire_len: u32,
}

/// A capture being read.
pub struct Capture<R: Read> {
    format: Format<R>,
    /// Bytes of the frame that was read last.
    buffer: Vec<u8>,
    /// Frames delivered.
    count: u64,
    /// An error was reported: nothing comes after it.
    failed: bool,
}

impl<R: Read> Capture<R> {
    /// Reads the file header of `stream`.
    ///
    /// # Errors
    /// Where that is no capture. The texts complete a sentence that begins with the file's name.
    pub fn new(mut stream: R) -> Result<Self, OpenError> {
        let mut magic = Vec::new();
        stream.by_ref().take(4).read_to_end(&mut magic)?;
        let read_magic = |stream| Cursor::new(magic.clone()).chain(stream);
        let format = match *magic {
            [0xD4, 0xC3, 0xB2, 0xA1]
            | [0xA1, 0xB2, 0xC3, 0xD4]
            | [0x4D, 0x3C, 0xB2, 0xA1]
            | [0xA1, 0xB2, 0x3C, 0x4D] => {
                Format::Pcap(PcapReader::new(read_magic(stream)).map_err(header_error)?)
            }
            [0x0A, 0x0D, 0x0D, 0x0A] => {
                Format::PcapNg(PcapNgReader::new(read_magic(stream)).map_err(header_error)?)
            }
            [] => return Err(OpenError::Empty),
            [0x1F, 0x8B, ..] => return Err(OpenError::Compressed("gzip")),
            [0x28, 0xB5, 0x2F, 0xFD] => return Err(OpenError::Compressed("zstd")),
            [0xFD, b'7', b'z', b'X'] => return Err(OpenError::Compressed("xz")),
            [b'B', b'Z', b'h', _] => return Err(OpenError::Compressed("bzip2")),
            _ => return Err(OpenError::Unknown),
        };
        Ok(Self { format, buffer: Vec::new(), count: 0, failed: false })
    }

    /// The next frame, or `None` at the end of the file or after an error.
    ///
    /// # Errors
    /// Where the file is cut short or damaged. No frame follows an error.
    pub fn next_frame(&mut self) -> Option<Result<CapturedFrame<'_>, ReadError>> {
        if self.failed {
            return None;
        }
        let after = self.count;
        let read = match &mut self.format {
            Format::Pcap(reader) => next_pcap(reader, &mut self.buffer),
            Format::PcapNg(reader) => next_pcapng(reader, &mut self.buffer),
        };
        match read {
            Ok(None) => None,
            Ok(Some(Meta { time, link_type, wire_len })) => {
                self.count += 1;
                let frame =
                    CapturedFrame { number: self.count, time, link_type, data: &self.buffer, wire_len };
                Some(Ok(frame))
            }
            Err(error) => {
                self.failed = true;
                Some(Err(read_error(error, after)))
            }
        }
    }
}

fn next_pcap<R: Read>(reader: &mut PcapReader<R>, buffer: &mut Vec<u8>) -> Result<Option<Meta>, PcapError> {
    let header = reader.header();
    // The raw form: the checked one refuses packets longer than the snap length, that is, those that
    // were cut when captured.
    let Some(packet) = reader.next_raw_packet().transpose()? else { return Ok(None) };
    buffer.clear();
    buffer.extend_from_slice(&packet.data);
    let nanos_per_unit = match header.ts_resolution {
        TsResolution::MicroSecond => 1_000,
        TsResolution::NanoSecond => 1,
    };
    let nanos = u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * nanos_per_unit;
    // The upper half of the field tells the length of a frame check sequence.
    let link_type = u32::from(header.datalink) & 0xFFFF;
    Ok(Some(Meta { time: Some(Instant::from_nanos(nanos)), link_type, wire_len: packet.orig_len }))
}

fn next_pcapng<R: Read>(
    reader: &mut PcapNgReader<R>,
    buffer: &mut Vec<u8>,
) -> Result<Option<Meta>, PcapError> {
    loop {
        let big_endian = reader.section().endianness == Endianness::Big;
        // Raw blocks: those without packets may hold anything, and only the first few fields of those
        // with packets matter here.
        let Some(block) = reader.next_raw_block().transpose()? else { return Ok(None) };
        let Some((head, data)) = PacketHead::parse(block.type_, &block.body, big_endian)? else { continue };
        buffer.clear();
        buffer.extend_from_slice(data);
        let interface = reader
            .interfaces()
            .get(head.interface as usize)
            .ok_or(PcapError::InvalidInterfaceId(head.interface))?;
        if head.units.is_none() && interface.snaplen != 0 {
            buffer.truncate(interface.snaplen as usize);
        }
        let time = head.units.map(|units| blocks::time(interface, units));
        let link_type = u32::from(interface.linktype);
        return Ok(Some(Meta { time, link_type, wire_len: head.wire_len }));
    }
}

fn header_error(error: PcapError) -> OpenError {
    match error {
        PcapError::IoError(error) if error.kind() != io::ErrorKind::UnexpectedEof => OpenError::Io(error),
        PcapError::IoError(_) | PcapError::IncompleteBuffer => {
            OpenError::Header("the file ends in it".into())
        }
        other => OpenError::Header(other.to_string()),
    }
}

fn read_error(error: PcapError, after: u64) -> ReadError {
    match error {
        PcapError::IoError(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
            ReadError::Io { after, source: error }
        }
        PcapError::IoError(_) | PcapError::IncompleteBuffer => ReadError::CutShort { after },
        other => ReadError::Damaged { after, reason: other.to_string() },
    }
}

#[cfg(test)]
mod tests;
