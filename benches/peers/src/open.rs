//! Opens back ends by name.

use std::net::IpAddr;

use driver_shim::backend::{Backend, Local, Packet, PacketConfig, Shm, Udp, UdpConfig, Xdp, XdpConfig};

use crate::Result;

/// Packet paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BackendKind {
    /// Ordinary UDP sockets
    Udp,
    /// AF_PACKET
    Packet,
    /// AF_XDP
    Xdp,
    /// Shared memory; not RoCE on the wire
    Shm,
}

/// Opens the path at `address`, which is that of the interface `dev` where the path needs one.
pub(crate) fn open(kind: BackendKind, address: IpAddr, dev: Option<&str>) -> Result<Box<dyn Backend>> {
    let dev = || dev.map(str::to_owned).ok_or("this path needs --dev");
    Ok(match kind {
        BackendKind::Udp => {
            Box::new(Udp::open(&UdpConfig { local: Local::Address(address), ..UdpConfig::default() })?)
        }
        BackendKind::Packet => {
            Box::new(Packet::open(&PacketConfig { interface: dev()?, ..PacketConfig::default() })?)
        }
        BackendKind::Xdp => Box::new(Xdp::open(&XdpConfig { interface: dev()?, ..XdpConfig::default() })?),
        BackendKind::Shm => Box::new(Shm::open(&Local::Address(address))?),
    })
}
