//! Writes what a simulated network carried to a file that Wireshark opens.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use fabric::{Record, TapPoint};
use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};

/// Writes all sent packets of `records`, as their senders sent them.
pub(crate) fn write(path: &Path, records: &[Record]) -> io::Result<()> {
    let header = PcapHeader { datalink: DataLink::RAW, ..PcapHeader::default() };
    let mut writer = PcapWriter::with_header(File::create(path)?, header).map_err(io::Error::other)?;
    for record in records.iter().filter(|record| record.point == TapPoint::Sent) {
        let packet = record.frame.to_ip();
        let len = u32::try_from(packet.len()).map_err(io::Error::other)?;
        let at = Duration::from_nanos(record.at.as_nanos());
        writer.write_packet(&PcapPacket::new(at, len, &packet)).map_err(io::Error::other)?;
    }
    Ok(())
}
