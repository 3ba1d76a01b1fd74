//! `ferroce devinfo`: what a device would be, and which interfaces the host has.

use std::io::{self, Write};

use driver_shim::Device;
use driver_shim::interfaces::{GidTable, Interface};
use serde_json::{Map, Value, json};
use wire::Mac;

use crate::cmd::Failure;
use crate::cmd::device::DeviceArgs;

/// Command line of `ferroce devinfo`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

pub(super) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let device = args.device.open()?;
    let interfaces =
        Interface::all().map_err(|error| Failure::Failed(format!("cannot list the interfaces: {error}")))?;
    let printed = if args.json {
        let report = json!({
            "device": device_json(&device),
            "interfaces": interfaces.iter().map(interface_json).collect::<Vec<_>>(),
        });
        writeln!(out, "{report:#}")
    } else {
        print_device(out, &device).and_then(|()| print_interfaces(out, &interfaces))
    };
    printed.map_err(Failure::output)
}

/// GIDs that a device on `interface` has.
fn table(interface: &Interface) -> GidTable {
    let addresses: Vec<_> = interface.addresses.iter().map(|(address, _)| *address).collect();
    GidTable::new(&addresses, interface.mac.unwrap_or_default(), interface.mtu)
}

fn guid(mac: Mac) -> String {
    let raw = mac.eui64();
    let groups = raw.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    groups.collect::<Vec<_>>().join(":")
}

fn print_device(out: &mut dyn Write, device: &Device) -> io::Result<()> {
    let table = device.addresses();
    let mtu = device.active_mtu();
    writeln!(out, "hca_id: ferroce ({})", device.backend_name())?;
    if device.backend_name() == "shm" {
        writeln!(out, "        path:               shared memory of this host, not RoCE on the wire")?;
    }
    writeln!(out, "        transport:          InfiniBand (RC, UC, UD, XRC)")?;
    writeln!(out, "        node_guid:          {}", guid(table.mac()))?;
    for (name, limit) in device.limits().iter() {
        writeln!(out, "        {:<19} {limit}", format!("{name}:"))?;
    }
    writeln!(out, "        profile:            {}", device.profile())?;
    writeln!(out, "        window:             {} packets", device.window())?;
    writeln!(out, "        port:   1")?;
    writeln!(out, "                state:      PORT_ACTIVE")?;
    writeln!(out, "                active_mtu: {mtu} ({})", mtu.code())?;
    writeln!(out, "                link_layer: Ethernet")?;
    for (index, gid) in table.gids().iter().enumerate() {
        writeln!(out, "                GID[{index:3}]:   {gid}, RoCE v2")?;
    }
    Ok(())
}

fn print_interfaces(out: &mut dyn Write, interfaces: &[Interface]) -> io::Result<()> {
    writeln!(out)?;
    writeln!(out, "Interfaces (--dev):")?;
    for interface in interfaces {
        let mac = interface.mac.map_or_else(|| "no MAC".to_owned(), |mac| mac.to_string());
        let state = if interface.is_up { "up" } else { "down" };
        let ib = wire::Mtu::for_interface(interface.mtu)
            .map_or_else(|| "too small for RoCE".to_owned(), |mtu| mtu.to_string());
        writeln!(out, "  {}: {state}, {mac}, MTU {}, path MTU {ib}", interface.name, interface.mtu)?;
        for (index, gid) in table(interface).gids().iter().enumerate() {
            writeln!(out, "      GID[{index}]: {gid}")?;
        }
    }
    Ok(())
}

fn device_json(device: &Device) -> Value {
    let table = device.addresses();
    let limits: Map<String, Value> =
        device.limits().iter().map(|(name, limit)| (name.to_owned(), limit.into())).collect();
    json!({
        "backend": device.backend_name(),
        "node_guid": guid(table.mac()),
        "mac": table.mac().to_string(),
        "active_mtu": device.active_mtu().bytes(),
        "interface_mtu": table.interface_mtu(),
        "window": device.window(),
        "limits": limits,
        "profile": device.profile().name(),
        "gids": gids(table),
        "qp_types": ["RC", "UC", "UD", "XRC", "GSI"],
    })
}

fn interface_json(interface: &Interface) -> Value {
    json!({
        "name": interface.name,
        "up": interface.is_up,
        "mac": interface.mac.map(|mac| mac.to_string()),
        "mtu": interface.mtu,
        "path_mtu": wire::Mtu::for_interface(interface.mtu).map(wire::Mtu::bytes),
        "gids": gids(&table(interface)),
    })
}

fn gids(table: &GidTable) -> Vec<String> {
    table.gids().iter().map(ToString::to_string).collect()
}
