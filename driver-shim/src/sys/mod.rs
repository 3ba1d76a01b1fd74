//! The system calls that no crate wraps, behind safe signatures. The only unsafe code of the project's core.
//!
//! The back ends call it. Nothing here keeps a pointer beyond the call it was made for, and nothing decides
//! anything: errors are those of the kernel.

mod bpf;
mod link;
mod mapping;
mod memfd;
mod mmsg;
mod socket;
mod xsk;

pub use bpf::XdpMode;
pub(crate) use bpf::{Instruction, attach_xdp, load_xdp, set_socket, socket_map};
pub(crate) use link::{bind_link, join_ethernet_group, join_promiscuous, leave_ethernet_group};
pub(crate) use mapping::Mapping;
pub(crate) use memfd::{
    effective_user, is_sealed_against_shrinking, receive_with_descriptor, sealed_memory,
    send_with_descriptor, try_lock,
};
pub(crate) use mmsg::{BURST, ControlBuf, Inbox, Incoming, Outgoing, send_many};
pub(crate) use socket::{
    choose_socket_by, event_counter, interface_mtu, set_option, wait_precisely, wait_readable, wake_in_time,
};
pub(crate) use xsk::{
    RingOffsets, bind_xdp, kick_xdp, lost_by_xdp, register_packet_memory, ring_offsets, xdp_socket,
};
