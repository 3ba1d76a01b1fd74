//! Capture files in, dissected packets and flows out.
//!
//! [`Capture`] reads pcap and pcapng, [`dissect`](dissect::dissect) says what each frame is, and
//! [`Summary`] counts what was seen. The `ferroce trace` command and the tests call it. Nothing here sends,
//! waits or judges: every frame is counted, whatever it holds, and no input makes it panic.
//!
//! ```
//! # use ferroce_trace as trace;
//! # fn count(file: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
//! let mut capture = trace::Capture::new(file)?;
//! let mut summary = trace::Summary::default();
//! while let Some(frame) = capture.next_frame() {
//!     let frame = frame?;
//!     summary.add(&frame, &trace::dissect(&frame));
//! }
//! println!("{} frames in {} flows", summary.frames, summary.flows.len());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

pub mod capture;
pub mod cm;
pub mod dissect;
pub mod flow;
mod repeats;
pub mod summary;

pub use capture::{Capture, CapturedFrame, OpenError, ReadError};
pub use cm::CmMessage;
pub use dissect::{Dissection, FrameKind, IcrcCheck, RocePacket, dissect, dissect_port};
pub use flow::Flow;
pub use summary::Summary;
