//! Congestion control: notification point, reaction point and pacing of DCQCN, and the seam for other algorithms.
//!
//! Pure and clock-free: whoever drives it hands in the time, so that a NIC in wall time and a simulation in virtual
//! time get the same numbers. It builds no packets, keeps no timers of its own and allocates only when something is
//! made. A queue pair has one [`RateController`] at most; a port has one [`Np`].

#![forbid(unsafe_code)]

mod alpha;
mod config;
mod controller;
mod fixed;
mod keys;
mod np;
mod pacer;
mod params;
mod rate;
mod rp;
mod timely;

pub use config::{CcConfig, ConfigError, check_text};
pub use controller::{Algorithm, AlgorithmError, RateController, RateState};
pub use fixed::FixedRate;
pub use keys::{Key, Value};
pub use np::{Marked, Np, NpCounts};
pub use pacer::Pacer;
pub use params::{AlphaOrder, CnpScope, NpMode, Params, ParamsError, Profile, StageTest, data_traffic_class};
pub use rate::{Rate, RateError};
pub use rp::Rp;
pub use timely::{Timely, TimelyParams};
