//! Captures: every packet of a back end, single as on the wire, into a pcapng file.
//!
//! [`Capture`] wraps a back end and is one itself. Each is an interface of its file; packets carry their
//! direction. Attach it to one of two devices that talk to each other, or every packet is in the file twice.
//! A file that cannot be written is reported once and never stops the traffic.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration as StdDuration, SystemTime, UNIX_EPOCH};

use mio::{Registry, Token, Waker};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};
use wire::batch::{Caps, HeaderKnowledge, RxBurst, RxPacket, TxBatch};
use wire::{Instant, NetHeader, icrc};

use crate::backend::{Backend, IoCounters, JoinError, Reachability};
use crate::interfaces::GidTable;

/// Time stamps count nanoseconds: 10 to the minus 9.
const NANOSECONDS: u8 = 9;

/// Direction bits of a packet's flags.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// A pcapng file that several back ends may write to. Clones are the same file.
#[derive(Clone, Debug)]
pub struct CaptureFile {
    writer: Arc<Mutex<Writer>>,
}

struct Writer {
    pcapng: PcapNgWriter<Box<dyn Write + Send>>,
    interfaces: u32,
    /// One whole packet, for a format that wants it in one piece.
    packet: Vec<u8>,
    /// What ended the writing.
    failed: Option<io::ErrorKind>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("interfaces", &self.interfaces).field("failed", &self.failed).finish()
    }
}

impl CaptureFile {
    /// Creates the file, or empties it where it exists.
    ///
    /// # Errors
    /// When it cannot be created or written.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::new(Box::new(BufWriter::new(File::create(path)?)))
    }

    /// A capture written to `out`, which should buffer.
    ///
    /// # Errors
    /// When the file's header cannot be written.
    pub fn new(out: Box<dyn Write + Send>) -> io::Result<Self> {
        let pcapng = PcapNgWriter::new(out).map_err(io_error)?;
        let writer = Writer { pcapng, interfaces: 0, packet: Vec::new(), failed: None };
        Ok(Self { writer: Arc::new(Mutex::new(writer)) })
    }

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// When it cannot be written, or a packet before could not.
    pub fn flush(&self) -> io::Result<()> {
        let mut writer = self.lock();
        if writer.failed.is_none() {
            let result = writer.pcapng.get_mut().flush();
            writer.note(result.map(|()| 0).map_err(PcapError::IoError));
        }
        writer.failed.map_or(Ok(()), |kind| Err(kind.into()))
    }

    /// Adds an interface and returns its number.
    fn add_interface(&self, name: &str, table: &GidTable) -> u32 {
        let mut options = vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        if let Some(IpAddr::V4(v4)) = table.gids().last().map(|gid| gid.ip()) {
            options.push(InterfaceDescriptionOption::IfDescription(Cow::Owned(v4.to_string())));
        }
        self.add_described(DataLink::RAW, options)
    }

    /// Adds an interface whose packets are whole Ethernet frames, or IP packets, and returns its number.
    pub(crate) fn add_link(&self, name: &str, has_frames: bool) -> u32 {
        let link = if has_frames { DataLink::ETHERNET } else { DataLink::RAW };
        let options = vec![
            InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
            InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
        ];
        self.add_described(link, options)
    }

    /// Writes a packet of an interface that [`CaptureFile::add_link`] has added.
    pub(crate) fn write_bytes(&self, interface: u32, bytes: &[u8]) {
        let time = wall_clock();
        let mut writer = self.lock();
        writer.packet.clear();
        writer.packet.extend_from_slice(bytes);
        writer.write_packet(interface, OUTBOUND, time);
    }

    fn add_described(&self, linktype: DataLink, options: Vec<InterfaceDescriptionOption<'_>>) -> u32 {
        let block = InterfaceDescriptionBlock { linktype, snaplen: 0, options };
        let mut writer = self.lock();
        let number = writer.interfaces;
        writer.interfaces += 1;
        let result = writer.pcapng.write_pcapng_block(block);
        writer.note(result);
        number
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        // Every change under it is complete, whatever panicked elsewhere.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    fn write(&mut self, interface: u32, direction: u32, time: StdDuration, net: &NetHeader, body: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        self.packet.clear();
        self.packet.resize(net.len(), 0);
        net.emit(&mut self.packet);
        self.packet.extend_from_slice(body);
        self.write_packet(interface, direction, time);
    }

    /// Writes [`Writer::packet`].
    fn write_packet(&mut self, interface: u32, direction: u32, time: StdDuration) {
        if self.failed.is_some() {
            return;
        }
        let block = EnhancedPacketBlock {
            interface_id: interface,
            timestamp: time,
            original_len: u32::try_from(self.packet.len()).unwrap_or(u32::MAX),
            data: Cow::Borrowed(&self.packet),
            options: vec![EnhancedPacketOption::Flags(direction)],
        };
        let result = self.pcapng.write_pcapng_block(block);
        self.note(result);
    }

    /// Reports the first failure, and ends the writing with it.
    fn note(&mut self, result: Result<usize, PcapError>) {
        if let Err(error) = result.map_err(io_error)
            && self.failed.is_none()
        {
            self.failed = Some(error.kind());
            tracing::warn!(%error, "the capture ends here: its file cannot be written");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let result = self.pcapng.get_mut().flush();
        self.note(result.map(|()| 0).map_err(PcapError::IoError));
    }
}

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// A back end whose packets are captured.
#[derive(Debug)]
pub struct Capture {
    backend: Box<dyn Backend>,
    file: CaptureFile,
    interface: u32,
}

impl Capture {
    /// `backend`, with every packet that it sends or receives written to `file`.
    #[must_use]
    pub fn new(backend: Box<dyn Backend>, file: CaptureFile) -> Self {
        let interface = file.add_interface(backend.name(), backend.addresses());
        Self { backend, file, interface }
    }

    fn write<'a>(&self, direction: u32, packets: impl Iterator<Item = (NetHeader, &'a [u8])>) {
        let time = wall_clock();
        let mut writer = self.file.lock();
        for (net, body) in packets {
            writer.write(self.interface, direction, time, &net, body);
        }
    }
}

/// The header that a received packet had on the wire, as far as its ICRC can tell.
fn as_it_was(packet: &RxPacket, body: &[u8]) -> NetHeader {
    match packet.knowledge {
        HeaderKnowledge::Seen | HeaderKnowledge::Assumed => packet.net,
        HeaderKnowledge::Near | HeaderKnowledge::Unknown => {
            icrc::solve_id(&packet.net, body).map_or(packet.net, |id| packet.net.with_id(id))
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "time stamps of a capture are wall clock times")]
fn wall_clock() -> StdDuration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

impl Backend for Capture {
    fn name(&self) -> &'static str {
        self.backend.name()
    }

    fn caps(&self) -> Caps {
        self.backend.caps()
    }

    fn addresses(&self) -> &GidTable {
        self.backend.addresses()
    }

    fn recv_burst(&mut self, rx: &mut RxBurst) -> io::Result<usize> {
        let before = rx.len();
        let taken = self.backend.recv_burst(rx)?;
        if rx.len() > before {
            self.write(INBOUND, rx.iter().skip(before).map(|(packet, body)| (as_it_was(packet, body), body)));
        }
        Ok(taken)
    }

    fn send_batch(&mut self, tx: &TxBatch, from: usize) -> io::Result<usize> {
        let taken = self.backend.send_batch(tx, from)?;
        if taken > 0 {
            self.write(OUTBOUND, tx.iter_from(from).take(taken));
        }
        Ok(taken)
    }

    fn kick(&mut self) -> io::Result<()> {
        self.backend.kick()
    }

    fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.backend.register(registry, token)
    }

    fn lane(&self) -> qp::Lane {
        self.backend.lane()
    }

    fn before_wait(&mut self) -> bool {
        self.backend.before_wait()
    }

    fn set_waker(&mut self, waker: Arc<Waker>) {
        self.backend.set_waker(waker);
    }

    fn prepare(&mut self, now: Instant, dst: IpAddr) -> Reachability {
        self.backend.prepare(now, dst)
    }

    fn join(&mut self, group: IpAddr) -> Result<(), JoinError> {
        self.backend.join(group)
    }

    fn leave(&mut self, group: IpAddr) {
        self.backend.leave(group);
    }

    fn link_is_up(&self) -> bool {
        self.backend.link_is_up()
    }

    fn poll(&mut self, now: Instant) {
        self.backend.poll(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.backend.poll_timeout()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.backend.flush()
    }

    fn counters(&self) -> IoCounters {
        self.backend.counters()
    }
}

#[cfg(test)]
mod tests {
    use pcap_file::pcapng::{Block, PcapNgReader};
    use wire::{Packet, ROCE_V2_PORT};

    use super::*;
    use crate::backend::Hub;

    /// A file in memory, which fails after so many bytes.
    #[derive(Clone)]
    struct Shared {
        bytes: Arc<Mutex<Vec<u8>>>,
        room: usize,
    }

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut held = self.bytes.lock().expect("not poisoned");
            if held.len() + bytes.len() > self.room {
                return Err(io::ErrorKind::StorageFull.into());
            }
            held.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn file(room: usize) -> (Shared, CaptureFile) {
        let shared = Shared { bytes: Arc::default(), room };
        (shared.clone(), CaptureFile::new(Box::new(shared)).expect("room for the header"))
    }

    fn device(hub: &Hub, last: u8, file: &CaptureFile) -> Capture {
        Capture::new(Box::new(hub.attach(address(last)).expect("free")), file.clone())
    }

    /// Two ACKs from 10.0.0.1 to 10.0.0.2.
    fn batch(caps: &Caps) -> TxBatch {
        let net = NetHeader::v2(address(1), address(2), ROCE_V2_PORT, 0, 64).expect("one family");
        let mut tx = TxBatch::new();
        tx.begin(net, caps, 9);
        for _ in 0..2 {
            tx.push(20)[..4].copy_from_slice(&[0x11, 0x40, 0xFF, 0xFF]);
        }
        tx.seal();
        tx
    }

    #[test]
    fn sent_and_received_packets_are_whole_in_the_file_with_time_and_direction() {
        let (shared, file) = file(usize::MAX);
        let hub = Hub::default();
        let (mut a, mut b) = (device(&hub, 1, &file), device(&hub, 2, &file));
        let tx = batch(&a.caps());
        assert_eq!(a.send_batch(&tx, 1).expect("sends"), 1);
        assert_eq!(b.recv_burst(&mut RxBurst::new()).expect("receives"), 1);
        a.flush().expect("flushes");
        let bytes = shared.bytes.lock().expect("not poisoned").clone();
        let mut reader = PcapNgReader::new(&bytes[..]).expect("a pcapng file");
        let (mut interfaces, mut packets) = (0, Vec::new());
        while let Some(block) = reader.next_block() {
            match block.expect("whole blocks") {
                Block::InterfaceDescription(block) => {
                    assert_eq!(block.linktype, DataLink::RAW);
                    assert!(block.options.contains(&InterfaceDescriptionOption::IfTsResol(NANOSECONDS)));
                    interfaces += 1;
                }
                Block::EnhancedPacket(block) => packets.push(block.into_owned()),
                other => panic!("unexpected block {other:?}"),
            }
        }
        assert_eq!((interfaces, packets.len()), (2, 2));
        for (i, (packet, flags)) in (0..).zip(packets.iter().zip([OUTBOUND, INBOUND])) {
            assert_eq!(packet.interface_id, i);
            assert_eq!(packet.options, [EnhancedPacketOption::Flags(flags)]);
            let age = wall_clock().checked_sub(packet.timestamp).expect("in the past");
            assert!(age < StdDuration::from_secs(3600), "{age:?}");
            let (net, body) = NetHeader::parse_ip(&packet.data).expect("an IP packet");
            assert_eq!(Some(net), tx.header(1));
            assert!(icrc::verify(&net, body) && Packet::parse_body(net, body).is_ok());
        }
    }

    #[test]
    fn an_identification_that_nobody_saw_is_the_one_that_makes_the_icrc_right() {
        let hub = Hub::default();
        let tx = batch(&hub.attach(address(1)).expect("free").caps());
        let (net, body) = tx.iter().nth(1).expect("two packets");
        for (knowledge, captured) in [
            (HeaderKnowledge::Near, net),
            (HeaderKnowledge::Unknown, net),
            (HeaderKnowledge::Seen, net.with_id(0)),
        ] {
            let mut rx = RxBurst::new();
            rx.push(net.with_id(0), knowledge, body);
            let (packet, body) = rx.iter().next().expect("one");
            assert_eq!(as_it_was(packet, body), captured);
        }
    }

    #[test]
    fn a_full_disk_ends_the_capture_but_not_the_traffic() {
        let (shared, file) = file(300);
        let hub = Hub::default();
        let (mut a, mut b) = (device(&hub, 1, &file), device(&hub, 2, &file));
        let tx = batch(&a.caps());
        for _ in 0..10 {
            assert_eq!(a.send_batch(&tx, 0).expect("sends"), 2);
        }
        assert_eq!(b.recv_burst(&mut RxBurst::new()).expect("receives"), 20);
        assert_eq!(file.flush().unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(shared.bytes.lock().expect("not poisoned").len() <= 300);
    }
}
