//! The `ferroce` command.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(ferroce::cmd::run(std::env::args_os(), &mut io::stdout(), &mut io::stderr()))
}
