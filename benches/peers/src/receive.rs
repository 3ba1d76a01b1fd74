//! The receiving end.

use crate::Result;
use crate::path::Path;

/// Payload of a packet that only says how many came.
const COUNT: usize = 16;

/// Receives for ever. After each burst it says how many packets came in all; or it sends one packet like the received
/// back.
pub(crate) fn receive(path: &mut Path, echo: bool) -> Result<()> {
    let mut total = 0;
    loop {
        let came = path.receive(|_| ())?;
        if came > 0 {
            total += came;
            path.send(1, if echo { path.payload } else { COUNT }, total)?;
            path.kick()?;
        }
    }
}
