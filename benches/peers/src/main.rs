//! What a packet path carries without an engine: packets of a RoCE NIC's size, in batches as the engine makes
//! them, each copied and given its ICRC by the sender, checked and copied out by the receiver. No protocol but a
//! count of what arrived, which goes back after each burst and bounds what is in flight.
//!
//! `benches/peers/run` starts it twice, as receiver and as sender, and compares the engine with what it prints.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use clap::Parser;
use serde_json::json;

mod open;
mod path;
mod receive;
mod send;

use open::BackendKind;
use path::Path;

/// What a receiver says once it is open.
const READY: &str = "ready";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Carries packets over a back end without an engine.
#[derive(Parser)]
struct Args {
    /// Packet path
    #[arg(long, value_enum)]
    backend: BackendKind,
    /// Own address
    #[arg(long)]
    bind: IpAddr,
    /// Interface, for the paths that need one
    #[arg(long)]
    dev: Option<String>,
    /// Address of the other end
    #[arg(long)]
    peer: IpAddr,
    /// Payload of each packet
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(16..=4096))]
    payload: u32,
    /// Packets in flight at most, and never more than the path's own bound
    #[arg(long, default_value_t = u32::MAX)]
    window: u32,
    /// How long the sender sends
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// One packet at a time, sent back at once: prints the time of one way
    #[arg(long)]
    echo: bool,
    /// Be the receiver, until ended by a signal
    #[arg(long)]
    receive: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let backend = open::open(args.backend, args.bind, args.dev.as_deref())?;
    if args.receive {
        // Before the way to the sender is known: on some paths it must be there for that.
        println!("{READY}");
    }
    let mut path = Path::new(backend, args.bind, args.peer, args.payload as usize)?;
    if args.receive {
        return receive::receive(&mut path, args.echo);
    }
    let seconds = Duration::from_secs_f64(args.seconds);
    let result = if args.echo {
        json!({ "usec": send::one_way(&mut path, seconds)? })
    } else {
        let sent = send::stream(&mut path, seconds, args.window)?;
        json!({ "gbps": sent.gbps, "mpps": sent.mpps, "lost": sent.lost })
    };
    println!("{result}");
    Ok(())
}
