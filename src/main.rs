//! The `ferroce` command.

#![forbid(unsafe_code)]

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

/// What `tracing` says goes to standard error: errors, or what this variable asks for, such as
/// `ferroce_driver_shim=trace`. Of warnings, the commands say themselves what matters to their user.
const LOG: &str = "FERROCE_LOG";

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_env(LOG).unwrap_or_else(|_| EnvFilter::new("error"));
    let colours = io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours).init();
    ExitCode::from(ferroce::cmd::run(std::env::args_os(), &mut io::stdout(), &mut io::stderr()))
}
