//! What the tools of perftest (`ib_write_bw` and its kin) tell each other over TCP.
//!
//! Every message is a swap of equal length: the client writes and then reads, the server reads and then writes. The stock
//! tools read each message with one `read`, so each is written with one `write`. Which swaps a tool makes, and when, is
//! its own business; here are the kinds there are.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use wire::{Gid, Mtu, Psn, Qpn, RKey, VirtAddr};

use super::{OobError, Role, accept_one, connect_to};

/// The version that we speak: newer ones negotiate more.
const VERSION: &str = "6.06";
/// The oldest version that the tools accept.
const OLDEST: (u32, u32) = (5, 70);
const VERSION_LEN: usize = 16;
const KEY_LEN: usize = 108;
const DONE: &[u8; 5] = b"done\0";
/// How often whoever waits for the other end is asked whether to go on.
const LOOK: Duration = Duration::from_millis(50);
/// Looks in vain after which an end that never said anything has nothing to say.
const SILENCE: u32 = 400;
/// How long the other end may take to close the connection.
const CLOSING: Duration = Duration::from_millis(500);

/// Where one queue pair of an end is found, and the memory that its peer may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// READs and atomics that this end can answer at a time.
    pub outstanding: u16,
    /// Queue pair.
    pub qpn: Qpn,
    /// PSN of the first packet that it sends.
    pub psn: Psn,
    /// Key of the memory.
    pub rkey: RKey,
    /// Its first byte.
    pub vaddr: VirtAddr,
    /// GID of the queue pair.
    pub gid: Gid,
}

/// What a sender has measured, in the unit of its own table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Bytes of a message.
    pub size: u64,
    /// Messages of all queue pairs.
    pub iterations: u64,
    /// Best bandwidth seen.
    pub peak: f64,
    /// Bandwidth.
    pub average: f64,
    /// Millions of messages a second.
    pub rate: f64,
}

/// What both ends have agreed on at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Bytes after which the places of messages repeat: the larger page size.
    pub cycle: u32,
    /// The larger cache line, to which places of messages are aligned.
    pub cache_line: u32,
    /// The smaller path MTU.
    pub mtu: Mtu,
}

/// The connection of one run.
#[derive(Debug)]
pub struct Exchange {
    stream: TcpStream,
    role: Role,
}

impl Exchange {
    /// Waits for one client on `port`. The port is closed once it is there.
    ///
    /// # Errors
    /// Where the port cannot be had.
    pub fn listen(port: u16) -> Result<Self, OobError> {
        Self::over(accept_one(port)?, Role::Server)
    }

    /// Connects to a server, which may still be starting.
    ///
    /// # Errors
    /// Where the name means nothing, or nobody answers for five seconds.
    pub fn connect(host: &str, port: u16) -> Result<Self, OobError> {
        Self::over(connect_to(host, port)?, Role::Client)
    }

    fn over(stream: TcpStream, role: Role) -> Result<Self, OobError> {
        stream.set_read_timeout(Some(LOOK)).map_err(OobError::Closed)?;
        Ok(Self { stream, role })
    }

    /// Versions, page size, cache line and path MTU. `waiting` is asked now and then whether to go on waiting.
    ///
    /// # Errors
    /// Where the connection breaks, or the other end is something else or too old, or says nothing for 20 seconds.
    pub fn agree(&mut self, mine: &Agreed, waiting: &mut dyn FnMut() -> bool) -> Result<Agreed, OobError> {
        let mut version = [0; VERSION_LEN];
        version[..VERSION.len()].copy_from_slice(VERSION.as_bytes());
        let mut looks = 0;
        let patient = &mut || {
            looks += 1;
            looks < SILENCE && waiting()
        };
        let theirs = self.swap(&version, patient);
        if looks >= SILENCE {
            return Err(OobError::Silent);
        }
        check_version(&theirs?)?;
        let cycle = u32::from_be_bytes(self.swap(&mine.cycle.to_be_bytes(), waiting)?);
        let cache_line = u32::from_be_bytes(self.swap(&mine.cache_line.to_be_bytes(), waiting)?);
        let theirs = self.swap(&[b'0' + mine.mtu.code(), 0], waiting)?;
        // An MTU that is none is ignored, as the tools do.
        let mtu =
            theirs[0].checked_sub(b'0').and_then(Mtu::from_code).map_or(mine.mtu, |mtu| mtu.min(mine.mtu));
        let sane = |theirs: u32, mine: u32| if theirs <= MOST { theirs.max(mine) } else { mine };
        Ok(Agreed { cycle: sane(cycle, mine.cycle), cache_line: sane(cache_line, mine.cache_line), mtu })
    }

    /// Tells the other end of a queue pair and gives that of the other end. This is also the barrier: it returns when
    /// both ends are there.
    ///
    /// # Errors
    /// Where the connection breaks or something else comes, or `waiting` says no.
    pub fn swap_key(&mut self, mine: &Key, waiting: &mut dyn FnMut() -> bool) -> Result<Key, OobError> {
        let theirs = self.swap(&format(mine), waiting)?;
        parse(&theirs).ok_or_else(|| OobError::Garbled(String::from_utf8_lossy(&theirs).into_owned()))
    }

    /// Tells the other end what was measured, and gives what it has. What a server says that has measured nothing is to
    /// be ignored.
    ///
    /// # Errors
    /// Where the connection breaks, or `waiting` says no.
    pub fn swap_report(
        &mut self,
        mine: &Report,
        waiting: &mut dyn FnMut() -> bool,
    ) -> Result<Report, OobError> {
        let mut word = |mine: u64| self.swap(&mine.to_be_bytes(), waiting).map(u64::from_be_bytes);
        Ok(Report {
            size: word(mine.size)?,
            iterations: word(mine.iterations)?,
            peak: f64::from_bits(word(mine.peak.to_bits())?),
            average: f64::from_bits(word(mine.average.to_bits())?),
            rate: f64::from_bits(word(mine.rate.to_bits())?),
        })
    }

    /// Whether the other end has said something that nobody has read yet: it is done and waits.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        self.look().is_ok_and(|bytes| bytes > 0)
    }

    /// Whether the other end has closed the connection.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        match self.look() {
            Ok(bytes) => bytes == 0,
            Err(error) => !is_silence(&error),
        }
    }

    /// Bytes that wait, of one; an error that [`is_silence`] where there are none yet.
    fn look(&self) -> io::Result<usize> {
        self.stream.set_nonblocking(true)?;
        let looked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false)?;
        looked
    }

    /// Ends the run: says so, and waits a moment for the other end to do the same. It may have closed already.
    pub fn finish(mut self) {
        let _ = self.stream.write_all(DONE);
        let _ = self.stream.shutdown(Shutdown::Write);
        let mut rest = [0; 64];
        let mut looks = CLOSING.as_millis() / LOOK.as_millis();
        while looks > 0 {
            match self.stream.read(&mut rest) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if is_silence(&error) => looks -= 1,
                Err(_) => break,
            }
        }
    }

    fn swap<const N: usize>(
        &mut self,
        mine: &[u8; N],
        waiting: &mut dyn FnMut() -> bool,
    ) -> Result<[u8; N], OobError> {
        if self.role == Role::Client {
            self.stream.write_all(mine).map_err(OobError::Closed)?;
        }
        let (mut theirs, mut have) = ([0; N], 0);
        while have < N {
            match self.stream.read(&mut theirs[have..]) {
                Ok(0) => return Err(OobError::Closed(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => have += n,
                Err(error) if is_silence(&error) => {
                    if !waiting() {
                        return Err(OobError::Interrupted);
                    }
                }
                Err(error) => return Err(OobError::Closed(error)),
            }
        }
        if self.role == Role::Server {
            self.stream.write_all(mine).map_err(OobError::Closed)?;
        }
        Ok(theirs)
    }
}

/// No page and no cache line is larger; what is, is not believed, since memory is made for it.
const MOST: u32 = 1 << 16;

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

fn check_version(theirs: &[u8; VERSION_LEN]) -> Result<(), OobError> {
    let text = String::from_utf8_lossy(theirs);
    let text = text.trim_end_matches('\0');
    let number = text.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    match number {
        Some(number) if number >= OLDEST => Ok(()),
        _ => Err(OobError::Garbled(text.to_owned())),
    }
}

fn format(key: &Key) -> [u8; KEY_LEN] {
    let gid: String = key.gid.raw().iter().map(|byte| format!("{byte:02x}:")).collect();
    let text = format!(
        "{:04x}:{:04x}:{:06x}:{:06x}:{:08x}:{:016x}:{gid}{:08x}:\0",
        0,
        key.outstanding,
        key.qpn.value(),
        key.psn.value(),
        key.rkey.value(),
        key.vaddr.value(),
        0
    );
    let mut bytes = [0; KEY_LEN];
    // All widths are fixed, and so is the length.
    bytes.copy_from_slice(text.as_bytes());
    bytes
}

fn parse(message: &[u8; KEY_LEN]) -> Option<Key> {
    let text = std::str::from_utf8(message.strip_suffix(b":\0")?).ok()?;
    let fields: Vec<&str> = text.split(':').collect();
    let widths = [4, 4, 6, 6, 8, 16].into_iter().chain([2; 16]).chain([8]);
    let right = fields.len() == 23 && fields.iter().zip(widths).all(|(field, width)| field.len() == width);
    if !right || !text.bytes().all(|byte| byte == b':' || byte.is_ascii_hexdigit()) {
        return None;
    }
    let number = |at: usize| u64::from_str_radix(fields[at], 16).ok();
    let small = |at: usize| number(at).and_then(|value| u32::try_from(value).ok());
    let mut gid = [0; 16];
    for (byte, at) in gid.iter_mut().zip(6..) {
        *byte = u8::try_from(number(at)?).ok()?;
    }
    Some(Key {
        outstanding: u16::try_from(number(1)?).ok()?,
        qpn: Qpn::new(small(2)?),
        psn: Psn::new(small(3)?),
        rkey: RKey::new(small(4)?),
        vaddr: VirtAddr::new(number(5)?),
        gid: Gid::new(gid),
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use proptest::prelude::*;

    use super::*;

    const CAPTURED: &[u8; KEY_LEN] = b"0000:0001:000025:dcab79:000013d7:00007f22d735e000:\
        00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:02:00000000:\0";

    fn key() -> Key {
        Key {
            outstanding: 1,
            qpn: Qpn::new(0x25),
            psn: Psn::new(0xdc_ab79),
            rkey: RKey::new(0x13d7),
            vaddr: VirtAddr::new(0x7f22_d735_e000),
            gid: Gid::from(Ipv4Addr::new(10, 77, 0, 2)),
        }
    }

    #[test]
    fn a_key_is_what_the_stock_tool_sends() {
        assert_eq!(parse(CAPTURED), Some(key()));
        assert_eq!(&format(&key()), CAPTURED);
    }

    #[test]
    fn versions_below_the_oldest_are_refused() {
        let version = |text: &str| {
            let mut bytes = [0; VERSION_LEN];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            check_version(&bytes).is_ok()
        };
        assert_eq!(
            ["6.06", "5.70", "99.9", "5.69", "", "six", "6"].map(version),
            [true, true, true, false, false, false, false]
        );
    }

    proptest! {
        #[test]
        fn a_key_survives(
            outstanding: u16, qpn in 0_u32..1 << 24, psn in 0_u32..1 << 24, rkey: u32, vaddr: u64, gid: [u8; 16]
        ) {
            let key = Key {
                outstanding,
                qpn: Qpn::new(qpn),
                psn: Psn::new(psn),
                rkey: RKey::new(rkey),
                vaddr: VirtAddr::new(vaddr),
                gid: Gid::new(gid),
            };
            prop_assert_eq!(parse(&format(&key)), Some(key));
        }

        #[test]
        fn any_bytes_are_a_key_or_none(at in 0..KEY_LEN, byte: u8) {
            let mut message = *CAPTURED;
            message[at] = byte;
            if let Some(key) = parse(&message) {
                prop_assert_eq!(parse(&format(&key)), Some(key));
            }
        }
    }

    /// Two ends on a real connection.
    fn pair() -> (Exchange, Exchange) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
        let (server, _) = listener.accept().expect("a connection");
        let over = |stream, role| Exchange::over(stream, role).expect("an exchange");
        (over(server, Role::Server), over(client, Role::Client))
    }

    #[test]
    fn two_ends_agree_and_tell_each_other() {
        let (mut server, mut client) = pair();
        let end = |exchange: &mut Exchange, cycle, mtu, size| {
            let mine = Agreed { cycle, cache_line: 64, mtu };
            let agreed = exchange.agree(&mine, &mut || true).expect("agreed");
            let key =
                exchange.swap_key(&Key { rkey: RKey::new(cycle), ..key() }, &mut || true).expect("a key");
            let report = Report { size, iterations: 5, peak: 1.5, average: 1.25, rate: 0.5 };
            (agreed, key.rkey.value(), exchange.swap_report(&report, &mut || true).expect("a report").size)
        };
        std::thread::scope(|scope| {
            let server = scope.spawn(|| end(&mut server, 4096, Mtu::B4096, 7));
            let at_client = end(&mut client, 65_536, Mtu::B1024, 9);
            let agreed = Agreed { cycle: 65_536, cache_line: 64, mtu: Mtu::B1024 };
            assert_eq!(at_client, (agreed, 4096, 7));
            assert_eq!(server.join().expect("no panic"), (agreed, 65_536, 9));
        });
        assert!(!client.is_closed() && !client.is_waited_for());
        std::thread::scope(|scope| {
            scope.spawn(|| server.finish());
            client.finish();
        });
    }

    /// Each queue pair gets two cycles of memory.
    #[test]
    fn pages_that_nobody_has_are_ignored() {
        let (mut server, mut client) = pair();
        let end = |exchange: &mut Exchange, cycle| {
            exchange
                .agree(&Agreed { cycle, cache_line: cycle, mtu: Mtu::B1024 }, &mut || true)
                .expect("agreed")
        };
        std::thread::scope(|scope| {
            scope.spawn(|| end(&mut server, (1 << 16) + 1));
            assert_eq!(end(&mut client, 4096), Agreed { cycle: 4096, cache_line: 4096, mtu: Mtu::B1024 });
        });
    }

    #[test]
    fn an_end_that_waits_can_be_told_to_stop_and_sees_the_other_go() {
        let (mut server, client) = pair();
        let mut looks = 0;
        let stopped = server.swap_key(&key(), &mut || {
            looks += 1;
            looks < 2
        });
        assert!(matches!(stopped, Err(OobError::Interrupted)), "{stopped:?}");
        drop(client);
        let gone = server.swap_key(&key(), &mut || true);
        assert!(matches!(gone, Err(OobError::Closed(_))), "{gone:?}");
        assert!(server.is_closed());
    }
}
