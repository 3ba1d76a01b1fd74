//! Who holds the RoCE port: a look at what the kernel shows of sockets and processes, for an error message.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use wire::ROCE_V2_PORT;

/// Who most likely holds the RoCE port.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortOwner {
    /// The kernel itself: its soft RoCE driver.
    Rxe,
    /// A process that may be seen.
    Process {
        /// Its id.
        pid: u32,
        /// Its command name.
        name: String,
    },
    /// Somebody: perhaps a process of another user.
    Unknown,
}

impl fmt::Display for PortOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rxe => f.write_str("the kernel's soft RoCE (rdma_rxe; `rdma link delete` frees it)"),
            Self::Process { pid, name } if name == "ferroce" => write!(f, "another ferroce (process {pid})"),
            Self::Process { pid, name } => write!(f, "{name} (process {pid})"),
            Self::Unknown => f.write_str("a program of another user, perhaps another ferroce or rdma_rxe"),
        }
    }
}

/// Who holds the RoCE port of `address`.
pub(super) fn of_port(address: IpAddr) -> PortOwner {
    // Sockets that come and go while the kernel writes its table may hide one that stays.
    let tries = std::iter::repeat_with(|| look_for(address)).take(4);
    tries.flatten().next().unwrap_or(if has_rxe() { PortOwner::Rxe } else { PortOwner::Unknown })
}

fn look_for(address: IpAddr) -> Option<PortOwner> {
    let tables = ["/proc/net/udp", "/proc/net/udp6"].iter().filter_map(|path| fs::read_to_string(path).ok());
    let mut lines = tables.flat_map(|table| table.lines().map(String::from).collect::<Vec<_>>());
    match lines.find_map(|line| holder(&line, address))? {
        // Sockets of the kernel's own have no inode.
        0 => Some(PortOwner::Rxe),
        inode => process_with_socket(inode),
    }
}

/// Inode of the socket of a line of the kernel's UDP table that keeps others off the port of `address`.
fn holder(line: &str, address: IpAddr) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, port) = fields.next()?.split_once(':')?;
    if u16::from_str_radix(port, 16).ok()? != ROCE_V2_PORT {
        return None;
    }
    let local = parse_address(local)?;
    let wild_v6 = local == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    if local != address && !(local.is_unspecified() && (wild_v6 || local.is_ipv4() == address.is_ipv4())) {
        return None;
    }
    // Past: remote, state, queues, timer, retransmits, uid, timeout.
    fields.nth(7)?.parse().ok()
}

/// An address as the kernel's tables print it: 32-bit words in the byte order of the host.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |i: usize| Some(u32::from_str_radix(text.get(i * 8..i * 8 + 8)?, 16).ok()?.to_ne_bytes());
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut raw = [0; 16];
            for (i, octets) in raw.chunks_exact_mut(4).enumerate() {
                octets.copy_from_slice(&word(i)?);
            }
            Some(Ipv6Addr::from(raw).into())
        }
        _ => None,
    }
}

fn process_with_socket(inode: u64) -> Option<PortOwner> {
    let wanted = format!("socket:[{inode}]");
    let holds = |process: &Path| {
        let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|to| to.as_os_str() == wanted.as_str())
    };
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        holds(&entry.path()).then(|| PortOwner::Process { pid, name: command(&entry.path()) })
    })
}

fn command(process: &Path) -> String {
    fs::read_to_string(process.join("comm")).map_or_else(|_| "a program".into(), |name| name.trim().into())
}

/// Whether the kernel's soft RoCE has a device: its names start so unless someone chose another.
fn has_rxe() -> bool {
    let devices = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    devices.into_iter().any(|device| device.file_name().to_string_lossy().starts_with("rxe"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Little-endian hosts print 127.0.0.2 so; the test states the words by value.
    fn line(address: [u8; 4], port: u16, inode: u64) -> String {
        let word = u32::from_ne_bytes(address);
        format!(
            " 9: {word:08X}:{port:04X} 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 {inode} 2"
        )
    }

    #[test]
    fn a_line_of_the_kernels_table_holds_an_address_or_all() {
        let address = IpAddr::from([127, 0, 0, 2]);
        assert_eq!(holder(&line([127, 0, 0, 2], 4791, 77), address), Some(77));
        assert_eq!(holder(&line([0, 0, 0, 0], 4791, 0), address), Some(0));
        assert_eq!(holder(&line([127, 0, 0, 3], 4791, 77), address), None);
        assert_eq!(holder(&line([127, 0, 0, 2], 4792, 77), address), None);
        assert_eq!(holder("garbage", address), None);
    }

    #[test]
    fn this_process_is_found_by_its_socket() {
        let address = IpAddr::from([127, 77, 1, 1]);
        let _held = std::net::UdpSocket::bind((address, ROCE_V2_PORT)).expect("free address");
        let PortOwner::Process { pid, .. } = of_port(address) else { panic!("owner not found") };
        assert_eq!(pid, std::process::id());
    }
}
