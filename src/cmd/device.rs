//! The options that every command which opens a device takes, and the opening.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clap::builder::{EnumValueParser, PossibleValue, TypedValueParser};
use driver_shim::backend::{
    Backend, BridgePort, Faulty, Hub, Local, OpenError, Packet, PacketConfig, Raw, Shm, Udp, UdpConfig, Xdp,
    XdpConfig,
};
use driver_shim::capture::{Capture, CaptureFile};
use driver_shim::{Device, DeviceBuilder, Driver, stat};
use fabric::{FaultKind, FaultSpec};
use qp::{Algorithm, CcConfig, Profile, Rate};
use wire::Mac;

use crate::cmd::{Failure, interrupt};

/// Ways to send and receive packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BackendKind {
    /// Ordinary UDP sockets; no privilege
    Udp,
    /// In memory, within this process
    Loopback,
    /// Header-included raw socket; needs CAP_NET_RAW
    Raw,
    /// AF_PACKET on an interface; needs CAP_NET_RAW
    Packet,
    /// AF_XDP on a receive queue of an interface; needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF
    Xdp,
    /// Memory shared by processes of one user on this host; not RoCE on the wire
    Shm,
    /// The slow link of a `ferroce bridge PATH`, between processes of this host; no privilege
    #[value(name = "bridge:PATH")]
    Bridge,
}

/// A back end, with what its name says beside.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Named {
    kind: BackendKind,
    /// Socket of the bridge; empty for others.
    path: PathBuf,
}

/// Reads the name of a back end.
#[derive(Clone, Copy, Debug)]
struct BackendParser;

impl TypedValueParser for BackendParser {
    type Value = Named;

    fn parse_ref(
        &self,
        command: &clap::Command,
        option: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Named, clap::Error> {
        if let Some(path) = value.as_bytes().strip_prefix(b"bridge:").filter(|path| !path.is_empty()) {
            return Ok(Named { kind: BackendKind::Bridge, path: OsStr::from_bytes(path).into() });
        }
        let kind = EnumValueParser::new().parse_ref(command, option, value)?;
        Ok(Named { kind, path: PathBuf::new() })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(BackendKind::value_variants().iter().filter_map(ValueEnum::to_possible_value)))
    }
}

/// Options for the device.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Device")]
pub struct DeviceArgs {
    /// Packet I/O [default: udp; packet where --ip is given]
    #[arg(long, value_parser = BackendParser)]
    backend: Option<Named>,
    /// Own address; without it and --dev, udp, shm and bridge take the first free of 127.0.0.2, 127.0.0.3, …
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    bind: Option<IpAddr>,
    /// Network interface, with all its addresses
    #[arg(short = 'd', long, value_name = "IFNAME")]
    dev: Option<String>,
    /// Be a host of its own on --dev with this address; may be given several times
    #[arg(long, value_name = "ADDR/LEN", value_parser = parse_prefix)]
    ip: Vec<(IpAddr, u8)>,
    /// Ethernet address of the host of its own
    #[arg(long, value_parser = parse_mac)]
    mac: Option<Mac>,
    /// Let the kernel segment what udp and packet send; off is several times slower, and other programs then capture
    /// single packets
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = parse_switch, action = clap::ArgAction::Set)]
    gso: bool,
    /// udp: also take packets from network cards and rdma_rxe, whose IPv4 identification must then be solved for, which
    /// leaves half the check of their ICRC
    #[arg(long)]
    foreign_senders: bool,
    /// Behave like this NIC where the protocol leaves a choice: strict (the rules to the letter), rxe (Linux's
    /// rdma_rxe) or connectx (NVIDIA ConnectX)
    #[arg(long, value_name = "NIC", default_value_t)]
    profile: Profile,
    /// Who runs the device: inline (the command's own calls, and a thread while it is silent), background (only a
    /// thread, which sleeps when there is nothing to do) or spin (a thread that never sleeps and takes a core)
    #[arg(long, value_name = "WHO", default_value_t)]
    driver: Driver,
    /// Congestion control: off, dcqcn (rates follow the marks of switches), timely (rates follow round-trip times) or
    /// rate=200M (each queue pair keeps this rate) [default: off, or what --cc-config says]
    #[arg(long, value_name = "HOW")]
    cc: Option<Algorithm>,
    /// Parameters of congestion control: a TOML file with the keys cc, profile, dilation, burst_us and the tables dcqcn
    /// and timely
    #[arg(long, value_name = "FILE")]
    cc_config: Option<PathBuf>,
    /// What the port sends at most, as congestion control takes it, such as 10G [default: the interface's speed, or 10G]
    #[arg(long, value_name = "RATE")]
    line_rate: Option<Rate>,
    /// Name that `ferroce stat` knows the device by [default: BACKEND-PROCESS]
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    name: Option<String>,
    /// Seed of everything random, faults included; without it faults take seed 0
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Write every packet to this pcapng file
    #[arg(long, value_name = "FILE")]
    pub(crate) pcap: Option<PathBuf>,
    #[command(flatten)]
    faults: FaultArgs,
}

/// Faults to inject.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Faults: [tx:|rx:]P or [tx:|rx:]qp=Q,psn=+N,pass=K")]
struct FaultArgs {
    /// Lose packets
    ///
    /// WHICH is a probability (0.01 or 1%) or one packet: psn=+N (N after the first seen) or psn=N; with qp=Q only of
    /// this destination queue pair, with kind=req or kind=resp only requests or responses, with pass=K the K-th time
    /// that it passes. tx: before it means packets that leave (the default), rx: those that come. Each option may be
    /// given several times.
    #[arg(long, value_name = "WHICH", value_parser = |s: &str| FaultSpec::parse(FaultKind::Drop, s))]
    drop: Vec<FaultSpec>,
    /// Send packets twice
    #[arg(long, value_name = "WHICH", value_parser = |s: &str| FaultSpec::parse(FaultKind::Duplicate, s))]
    dup: Vec<FaultSpec>,
    /// Flip a bit of packets
    #[arg(long, value_name = "WHICH", value_parser = |s: &str| FaultSpec::parse(FaultKind::Corrupt, s))]
    corrupt: Vec<FaultSpec>,
    /// Let the next packet overtake
    #[arg(long, value_name = "WHICH", value_parser = |s: &str| FaultSpec::parse(FaultKind::Reorder, s))]
    reorder: Vec<FaultSpec>,
    /// Hold packets back, as in --delay 1%:2ms
    #[arg(long, value_name = "WHICH:TIME", value_parser = |s: &str| FaultSpec::parse(FaultKind::Delay, s))]
    delay: Vec<FaultSpec>,
}

impl FaultArgs {
    fn specs(&self) -> Vec<FaultSpec> {
        [&self.drop, &self.dup, &self.corrupt, &self.reorder, &self.delay]
            .into_iter()
            .flatten()
            .copied()
            .collect()
    }
}

impl DeviceArgs {
    /// The back end that is meant.
    pub(crate) fn backend(&self) -> BackendKind {
        let default = if self.ip.is_empty() { BackendKind::Udp } else { BackendKind::Packet };
        self.backend.as_ref().map_or(default, |named| named.kind)
    }

    /// Opens the one device of a command.
    ///
    /// # Errors
    /// Options that do not go together, or what the system says.
    pub fn open(&self) -> Result<Device, Failure> {
        let backend: Box<dyn Backend> = match self.backend() {
            BackendKind::Loopback => {
                return Err(Failure::Usage(
                    "the loopback back end reaches only devices of the same process; use udp (no privilege), \
                     raw, packet or xdp, or shm or bridge:PATH between processes of this host"
                        .into(),
                ));
            }
            BackendKind::Udp => Box::new(Udp::open(&self.udp_config(self.local()?))?),
            BackendKind::Raw => Box::new(Raw::open(&self.local()?)?),
            BackendKind::Packet => Box::new(Packet::open(&self.packet_config()?)?),
            BackendKind::Xdp => Box::new(Xdp::open(&self.xdp_config()?)?),
            BackendKind::Shm => Box::new(Shm::open(&self.own_address("shm")?)?),
            BackendKind::Bridge => Box::new(self.bridge_port(&self.own_address("bridge")?)?),
        };
        self.finish(backend, 0)
    }

    /// Opens the two devices of a command that needs no other end, on loopback.
    pub(crate) fn open_two(&self) -> Result<[Device; 2], Failure> {
        let own_host = !self.ip.is_empty() || self.mac.is_some();
        if self.dev.is_some() || own_host || matches!(self.backend(), BackendKind::Packet | BackendKind::Xdp)
        {
            return Err(Failure::Usage(
                "this command makes both ends on the loopback interface: choose the back end udp, loopback, raw, \
                 shm or bridge:PATH, without --dev, --ip and --mac"
                    .into(),
            ));
        }
        if let Some(IpAddr::V6(first)) = self.bind
            && !matches!(self.backend(), BackendKind::Loopback | BackendKind::Shm | BackendKind::Bridge)
        {
            return Err(Failure::Usage(format!(
                "the loopback interface has one IPv6 address only, and this command needs {first} and the one after \
                 it: bind an IPv4 address such as 127.0.0.2, or choose --backend loopback"
            )));
        }
        let hub = Hub::default();
        let open = |which: u8| -> Result<Device, Failure> {
            let local = match self.bind {
                Some(first) => Local::Address(nth_after(first, which)),
                None => Local::FreeLoopback,
            };
            let backend: Box<dyn Backend> = match self.backend() {
                BackendKind::Loopback => {
                    let first = self.bind.unwrap_or_else(|| [127, 0, 0, 2].into());
                    Box::new(hub.attach(nth_after(first, which))?)
                }
                BackendKind::Raw => Box::new(Raw::open(&local)?),
                BackendKind::Shm => Box::new(Shm::open(&local)?),
                BackendKind::Bridge => Box::new(self.bridge_port(&local)?),
                _ => Box::new(Udp::open(&self.udp_config(local))?),
            };
            self.finish(backend, u64::from(which))
        };
        Ok([open(0)?, open(1)?])
    }

    fn local(&self) -> Result<Local, Failure> {
        if !self.ip.is_empty() || self.mac.is_some() {
            return Err(Failure::Usage(
                "--ip and --mac make a host of its own: they need --backend packet or xdp, and --dev".into(),
            ));
        }
        match (&self.bind, &self.dev) {
            (Some(_), Some(_)) => Err(Failure::Usage(
                "--bind names an address and --dev an interface with all of its own: give one of them".into(),
            )),
            (Some(address), None) => Ok(Local::Address(*address)),
            (None, Some(name)) => Ok(Local::Interface(name.clone())),
            (None, None) => Ok(Local::FreeLoopback),
        }
    }

    /// The address of a device whose back end uses none of the host's.
    fn own_address(&self, backend: &str) -> Result<Local, Failure> {
        if self.dev.is_some() {
            return Err(Failure::Usage(format!(
                "the {backend} back end uses no interface: give an address with --bind instead of --dev"
            )));
        }
        self.local()
    }

    fn bridge_port(&self, local: &Local) -> Result<BridgePort, OpenError> {
        let path = self.backend.as_ref().map(|named| named.path.as_path());
        BridgePort::open(path.unwrap_or(Path::new("")), local)
    }

    fn udp_config(&self, local: Local) -> UdpConfig {
        UdpConfig { local, foreign_senders: self.foreign_senders, offload: self.gso }
    }

    fn packet_config(&self) -> Result<PacketConfig, Failure> {
        let interface = self.own_interface("packet")?;
        Ok(PacketConfig { interface, own: self.ip.clone(), mac: self.mac, offload: self.gso })
    }

    fn xdp_config(&self) -> Result<XdpConfig, Failure> {
        let interface = self.own_interface("xdp")?;
        Ok(XdpConfig { interface, own: self.ip.clone(), mac: self.mac, ..XdpConfig::default() })
    }

    /// The interface of a back end that writes whole frames.
    fn own_interface(&self, backend: &str) -> Result<String, Failure> {
        let Some(interface) = self.dev.clone() else {
            return Err(Failure::Usage(format!(
                "the {backend} back end needs an interface: --dev IFNAME (see `ferroce devinfo`)"
            )));
        };
        if self.bind.is_some() {
            return Err(Failure::Usage(format!(
                "the {backend} back end takes the interface's addresses, or its own with --ip: drop --bind"
            )));
        }
        if self.mac.is_some() && self.ip.is_empty() {
            return Err(Failure::Usage("--mac needs --ip: it is the address of a host of its own".into()));
        }
        Ok(interface)
    }

    /// What --cc and --cc-config ask for; the option overrides what the file names. Of several devices of one command
    /// only for the first is it said what has no effect.
    fn congestion_control(&self, which: u64) -> Result<CcConfig, Failure> {
        let mut config = match &self.cc_config {
            None => CcConfig::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
                    io::ErrorKind::InvalidData => {
                        Failure::Usage(format!("{} is no text; name a TOML file", path.display()))
                    }
                    _ => Failure::Usage(format!("cannot read {}: {error}", path.display())),
                })?;
                CcConfig::parse(&text)
                    .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?
            }
        };
        if let Some(algorithm) = self.cc {
            config.algorithm = algorithm;
        }
        // Both profiles have the same, and whoever asks for it has asked for nothing.
        if which == 0 && config.params.cnp_802p_prio != dcqcn::Params::CONNECTX.cnp_802p_prio {
            let note =
                "ferroce: cnp_802p_prio changes nothing: no VLAN tags are sent; cnp_dscp is what CNPs carry";
            // Where nobody listens, nobody is told.
            let _ = writeln!(io::stderr(), "{note}");
        }
        Ok(config)
    }

    /// Wraps `backend` in what the options ask for and opens the device. Of several devices of one command only
    /// the first is captured: it sees every packet once.
    fn finish(&self, mut backend: Box<dyn Backend>, which: u64) -> Result<Device, Failure> {
        let backend_name = backend.name();
        interrupt::leave_nothing();
        if let Some(path) = self.pcap.as_deref().filter(|_| which == 0) {
            let file = CaptureFile::create(path).map_err(|error| {
                Failure::Usage(format!("cannot write the capture {}: {error}", path.display()))
            })?;
            backend = Box::new(Capture::new(backend, file));
        }
        let faults = self.faults.specs();
        if !faults.is_empty() {
            backend = Box::new(Faulty::new(backend, &faults, self.seed.unwrap_or(0).wrapping_add(which)));
        }
        let mut builder: DeviceBuilder = Device::boxed(backend).profile(self.profile).driver(self.driver);
        builder = builder.cc(self.congestion_control(which)?).stat(match &self.name {
            Some(name) => name.clone(),
            None => format!("{backend_name}-{}", std::process::id()),
        });
        if let Some(rate) = self.line_rate {
            builder = builder.line_rate(rate);
        }
        if let Some(seed) = self.seed {
            builder = builder.seed(seed.wrapping_add(which));
        }
        builder.open().map_err(|error| Failure::Failed(format!("cannot start the device: {error}")))
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            // A name on the command line that means nothing here.
            OpenError::NoSuchAddress { .. }
            | OpenError::NoHostAddress { .. }
            | OpenError::NoSuchInterface { .. } => Self::Usage(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

fn nth_after(first: IpAddr, n: u8) -> IpAddr {
    match first {
        IpAddr::V4(v4) => IpAddr::V4(v4.to_bits().wrapping_add(u32::from(n)).into()),
        IpAddr::V6(v6) => IpAddr::V6(v6.to_bits().wrapping_add(u128::from(n)).into()),
    }
}

/// Reads an address.
pub(crate) fn parse_address(text: &str) -> Result<IpAddr, &'static str> {
    text.parse().map_err(|_| "write an IPv4 or IPv6 address, such as 10.0.0.7 or fd00::7")
}

fn parse_prefix(text: &str) -> Result<(IpAddr, u8), String> {
    let right = "write ADDR/LEN, such as 10.0.0.7/24 or fd00::7/64";
    let (address, length) = text.split_once('/').ok_or(right)?;
    let address: IpAddr = address.parse().map_err(|_| right)?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = length.parse().ok().filter(|length| *length <= most).ok_or(right)?;
    Ok((address, length))
}

fn parse_switch(text: &str) -> Result<bool, &'static str> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("write on or off"),
    }
}

fn parse_name(text: &str) -> Result<String, &'static str> {
    let right = "a name has up to 48 letters, digits, '.', '_' or '-', and no '.' in front";
    if stat::is_name(text) { Ok(text.to_owned()) } else { Err(right) }
}

fn parse_mac(text: &str) -> Result<Mac, String> {
    let right = "write six bytes, such as 02:00:00:00:00:07";
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2).ok_or(right)?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| right)?;
    }
    if parts.next().is_some() || mac[0] & 1 != 0 {
        return Err(right.into());
    }
    Ok(Mac(mac))
}
