//! What the owner of the device knows of its port and its packet path, and tells the program by events (rule R-CQE-19).

use wire::Gid;

use super::Nic;
use crate::event::{AsyncEvent, Event};

/// State of the port.
#[derive(Debug)]
pub(super) struct Port {
    active: bool,
    /// The packet path is gone.
    failed: bool,
}

impl Default for Port {
    fn default() -> Self {
        Self { active: true, failed: false }
    }
}

impl Nic {
    /// Whether the port's link is up; it is until [`Nic::set_port_active`] says otherwise.
    #[must_use]
    pub const fn port_is_active(&self) -> bool {
        self.port.active
    }

    /// The port's link is up, or down: a change raises PORT_ACTIVE or PORT_ERR. Connections live on, and give up as
    /// their retry counters say.
    pub fn set_port_active(&mut self, active: bool) {
        if core::mem::replace(&mut self.port.active, active) != active {
            let event = if active { AsyncEvent::PortActive } else { AsyncEvent::PortErr };
            self.events.push_back(Event::Async(event));
        }
    }

    /// The port has other addresses now: a change raises GID_CHANGE. Connections keep the addresses they were made
    /// with.
    pub fn set_gids(&mut self, gids: Vec<Gid>) {
        if self.config.gids != gids {
            self.config.gids = gids;
            self.events.push_back(Event::Async(AsyncEvent::GidChange));
        }
    }

    /// The packet path is gone for good: raises DEVICE_FATAL, once.
    pub fn fail_device(&mut self) {
        if !core::mem::replace(&mut self.port.failed, true) {
            self.events.push_back(Event::Async(AsyncEvent::DeviceFatal));
        }
    }
}
