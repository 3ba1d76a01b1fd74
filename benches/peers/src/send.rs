//! The sending end.

use std::time::{Duration, Instant};

use crate::Result;
use crate::path::Path;

/// How long to wait for a count before what is in flight is taken for lost.
const PATIENCE: Duration = Duration::from_millis(20);
/// Round trips before the first that is measured.
const WARM_UP: usize = 200;

/// What a stream carried.
pub(crate) struct Sent {
    /// Payload that arrived.
    pub(crate) gbps: f64,
    /// Packets that arrived, in millions a second.
    pub(crate) mpps: f64,
    /// Packets that did not arrive.
    pub(crate) lost: u64,
}

/// Sends for so long, with at most `window` packets in flight.
pub(crate) fn stream(path: &mut Path, span: Duration, window: u32) -> Result<Sent> {
    let window = u64::from(window.min(path.caps.credit));
    let payload = path.payload;
    let (mut sent, mut arrived, mut lost) = (0_u64, 0, 0);
    let start = Instant::now();
    let mut progress = start;
    loop {
        let mut newest = arrived;
        if path.receive(|count| newest = newest.max(count))? > 0 {
            progress = Instant::now();
        }
        arrived = newest;
        // What was taken for lost may have been late.
        let room = window.saturating_sub(sent.saturating_sub(lost + arrived));
        if room > 0 {
            let mut room = usize::try_from(room)?;
            while room > 0 {
                let n = path.send(room, payload, 0)?;
                sent += n as u64;
                room -= n;
            }
            path.kick()?;
        }
        let now = Instant::now();
        if now - start >= span {
            break;
        }
        if now - progress > PATIENCE {
            lost = sent - arrived;
            progress = now;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Sent {
        gbps: arrived as f64 * payload as f64 * 8.0 / seconds / 1e9,
        mpps: arrived as f64 / seconds / 1e6,
        lost,
    })
}

/// Median time of one way, in microseconds: half of a round trip.
pub(crate) fn one_way(path: &mut Path, span: Duration) -> Result<f64> {
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < span {
        let sent = Instant::now();
        path.send(1, path.payload, 0)?;
        path.kick()?;
        while path.receive(|_| ())? == 0 {
            if sent.elapsed() > PATIENCE {
                break;
            }
        }
        times.push(sent.elapsed());
    }
    let mut times = times.split_off(WARM_UP.min(times.len() / 2));
    times.sort_unstable();
    Ok(times[times.len() / 2].as_secs_f64() * 1e6 / 2.0)
}
