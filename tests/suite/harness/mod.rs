//! What tests with two peers are made of: NICs on a simulated network, a hand-made peer, a random workload with its
//! model, and a dump of the packets. Everything runs in virtual time and repeats with its seed.

pub(crate) mod connect;
pub(crate) mod lone;
pub(crate) mod packets;
pub(crate) mod pcap;
pub(crate) mod plan;
pub(crate) mod workload;
pub(crate) mod world;

pub(crate) use connect::Conn;
pub(crate) use lone::Lone;
pub(crate) use packets::{Crafted, Sent};
pub(crate) use world::{World, WorldConfig};

/// The seed of a test: the number in `FERROCE_SEED` where it is set, else `default`.
pub(crate) fn seed(default: u64) -> u64 {
    given_seed().unwrap_or(default)
}

/// The number in `FERROCE_SEED`, where it is set.
pub(crate) fn given_seed() -> Option<u64> {
    let text = std::env::var("FERROCE_SEED").ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("FERROCE_SEED={text} is no number")))
}
