//! `ferroce trace`: the RoCE packets of capture files as lines, or counts of them as JSON.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use trace::{Capture, CapturedFrame, ReadError, RocePacket, Summary, dissect_port};
use wire::Instant;

use crate::cmd::{Failure, report};

/// Command line of `ferroce trace`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Print counts of each file as a JSON object; of several files, an array of them
    #[arg(long)]
    json: bool,
    /// Take this UDP destination port for RoCE v2 as well, for captures of a mirror that rewrites it
    #[arg(long, value_name = "PORT", default_value_t = wire::ROCE_V2_PORT, hide_default_value = true)]
    port: u16,
    /// Captures, pcap or pcapng
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// A file that was named on the command line.
struct Named<'a> {
    path: &'a Path,
    capture: Capture<File>,
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> Result<(), Failure> {
    // All are opened before anything is printed, so that a wrong name shows at once.
    let files = args.files.iter().map(|path| open(path)).collect::<Result<Vec<_>, _>>()?;
    let mut out = BufWriter::new(out);
    let port = args.port;
    let broken =
        if args.json { print_json(files, port, &mut out) } else { print_lines(files, port, &mut out) };
    let broken = broken.and_then(|broken| out.flush().map(|()| broken)).map_err(Failure::output)?;
    let Some((last, others)) = broken.split_last() else { return Ok(()) };
    for text in others {
        report(err, text);
    }
    Err(Failure::Failed(last.clone()))
}

fn open(path: &Path) -> Result<Named<'_>, Failure> {
    let shown = path.display();
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    match Capture::new(file) {
        Ok(capture) => Ok(Named { path, capture }),
        Err(trace::OpenError::Io(error)) => Err(unreadable(path, &error)),
        Err(error) => Err(Failure::Usage(format!("{shown} {error}"))),
    }
}

/// A file that cannot be read: a wrong name or a fault of the system.
fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let shown = path.display();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidInput => {
            Failure::Usage(format!("{shown} does not exist; name a pcap or pcapng file"))
        }
        io::ErrorKind::IsADirectory => {
            Failure::Usage(format!("{shown} is a directory; name a pcap or pcapng file"))
        }
        _ => Failure::Failed(format!("cannot read {shown}: {error}")),
    }
}

/// Prints the packets of `files`; returns what to say about those that could not be read to the end.
fn print_lines(files: Vec<Named<'_>>, port: u16, out: &mut dyn Write) -> io::Result<Vec<String>> {
    let titled = files.len() > 1;
    let mut broken = Vec::new();
    for mut file in files {
        if titled {
            writeln!(out, "{}:", file.path.display())?;
        }
        let mut start = None;
        let end = each_frame(&mut file.capture, |frame| {
            let start = *start.get_or_insert(frame.time);
            match dissect_port(frame, port).roce {
                Some(packet) => print_line(frame, start, &packet, out),
                None => Ok(()),
            }
        })?;
        broken.extend(end.err().map(|error| format!("{} {error}", file.path.display())));
    }
    Ok(broken)
}

/// Frame number, time since the first frame, and the packet.
fn print_line(
    frame: &CapturedFrame<'_>,
    start: Option<Instant>,
    packet: &RocePacket<'_>,
    out: &mut dyn Write,
) -> io::Result<()> {
    write!(out, "{:>6} ", frame.number)?;
    match (frame.time, start) {
        (Some(time), Some(start)) => write!(out, "{:>14}", seconds(time, start))?,
        _ => write!(out, "{:>14}", "-")?,
    }
    writeln!(out, " {packet}")
}

/// `time` in seconds since `start`, to the nanosecond; negative where the capture is out of order.
fn seconds(time: Instant, start: Instant) -> String {
    let (sign, nanos) = match time.as_nanos().checked_sub(start.as_nanos()) {
        Some(nanos) => ("", nanos),
        None => ("-", start.as_nanos() - time.as_nanos()),
    };
    format!("{sign}{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

/// Prints the counts of `files`; returns what to say about those that could not be read to the end.
fn print_json(files: Vec<Named<'_>>, port: u16, out: &mut dyn Write) -> io::Result<Vec<String>> {
    let mut summaries = Vec::new();
    let mut broken = Vec::new();
    for mut file in files {
        let mut summary = Summary::default();
        let end = each_frame(&mut file.capture, |frame| {
            summary.add(frame, &dissect_port(frame, port));
            Ok(())
        })?;
        broken.extend(end.err().map(|error| format!("{} {error}", file.path.display())));
        summaries.push(summary);
    }
    match summaries.as_slice() {
        [summary] => serde_json::to_writer_pretty(&mut *out, summary)?,
        all => serde_json::to_writer_pretty(&mut *out, all)?,
    }
    writeln!(out)?;
    Ok(broken)
}

/// Gives every frame of `capture` to `take`. The outer error is of `take`, the inner one of the file, after
/// all frames before it were taken.
fn each_frame(
    capture: &mut Capture<File>,
    mut take: impl FnMut(&CapturedFrame<'_>) -> io::Result<()>,
) -> io::Result<Result<(), ReadError>> {
    while let Some(frame) = capture.next_frame() {
        match frame {
            Ok(frame) => take(&frame)?,
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(()))
}
