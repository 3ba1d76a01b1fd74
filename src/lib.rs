//! A RoCE v2 network card in user space.
//!
//! The public interface of the project, re-exported from its crates: what a program needs to open a device,
//! connect queue pairs and move data. The `ferroce` command stands on the same.
//!
//! ```
//! use ferroce::backend::Loopback;
//! use ferroce::{Access, ConnectOptions, Device, QpType, RecvWr, SendWr};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two soft NICs on a wire in memory.
//! let wire = Loopback::hub();
//! let a = Device::builder(wire.attach("127.0.0.2".parse()?)?).seed(1).open()?;
//! let b = Device::builder(wire.attach("127.0.0.3".parse()?)?).seed(2).open()?;
//!
//! let (pd_a, pd_b) = (a.alloc_pd(), b.alloc_pd());
//! let (cq_a, cq_b) = (a.create_cq(16)?, b.create_cq(16)?);
//! let source = pd_a.register(b"hello".to_vec(), Access::LOCAL_WRITE)?;
//! let target = pd_b.register(vec![0; 16], Access::LOCAL_WRITE)?;
//!
//! let qp_a = pd_a.create_qp(QpType::Rc, &cq_a, &cq_a).build()?;
//! let qp_b = pd_b.create_qp(QpType::Rc, &cq_b, &cq_b).build()?;
//! // Normally told to each other over a socket.
//! let (end_a, end_b) = (qp_a.endpoint(1), qp_b.endpoint(1));
//! let qp_a = qp_a.connect(end_b, &ConnectOptions::default())?;
//! let qp_b = qp_b.connect(end_a, &ConnectOptions::default())?;
//!
//! qp_b.post_recv(RecvWr::new(1, &[target.slice(0..16)?]))?;
//! qp_a.post_send(SendWr::send(2, &[source.slice(0..5)?]).signaled())?;
//! while cq_b.poll(1).is_empty() {}
//! assert_eq!(target.to_vec(0..5)?, b"hello");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod cmd;

pub use driver_shim::{
    AddressHandle, AttachError, CompletionChannel, CompletionQueue, ConnectError, ConnectOptions, CqEvent,
    Device, DeviceBuilder, Driver, Endpoint, FastRegion, MemoryRegion, MemoryWindow, PairCc, PreparedQp,
    ProtectionDomain, QpBuilder, QueuePair, SharedReceiveQueue, UnknownDriver, XrcDomain, backend, capture,
    interfaces, oob, stat,
};
pub use qp::{
    Access, AddressVector, AhId, Algorithm, AsyncEvent, AsyncEventKind, AttrMask, BadWr, CcConfig, CcParams,
    CcState, Completion, ConfigError, Counters, CqId, CreateError, DropReason, Drops, Limits, LocalOp,
    McastError, ModifyQpError, ModifySrqError, MrError, MwRange, MwType, Placement, PostError, Profile,
    QpAttr, QpCap, QpState, QpType, Rate, RateState, RecvWr, ResizeCqError, SendData, SendFlags, SendOp,
    SendTo, SendWr, Sge, SgeList, SrqAttr, SrqMask, TraceEvent, Tracer, UnknownProfile, WcOpcode, WcStatus,
};
pub use wire;
