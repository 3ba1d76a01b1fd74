//! The sockets of a back end that shares the host's addresses: one for each address, and one for each multicast group
//! that was joined.
//!
//! The back ends `udp` and `raw` keep theirs here. What a socket is and how it sends is their own business.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use socket2::Socket;

use super::local::join_group;
use super::{BURST, JoinError, OpenError};

/// What is bound to one address or group.
pub(super) trait Bound {
    /// The address or group.
    fn address(&self) -> IpAddr;
    /// Index of the interface, for link-local addresses and groups.
    fn scope(&self) -> u32;
    /// The socket that receives.
    fn receiver(&self) -> &Socket;
}

/// All of a back end, at least one.
#[derive(Debug)]
pub(super) struct Sockets<S> {
    all: Vec<S>,
    /// Where sockets are registered that are opened later.
    registration: Option<(Registry, Token)>,
    /// The one that is asked first.
    next: usize,
}

impl<S: Bound> Sockets<S> {
    pub(super) fn new(all: Vec<S>) -> Self {
        Self { all, registration: None, next: 0 }
    }

    pub(super) fn all(&self) -> &[S] {
        &self.all
    }

    pub(super) fn addresses(&self) -> Vec<IpAddr> {
        self.all.iter().map(Bound::address).collect()
    }

    /// The one that packets from `address` leave through.
    pub(super) fn of(&self, address: IpAddr) -> Option<&S> {
        self.all.iter().find(|bound| bound.address() == address)
    }

    /// Calls `receive` with each, until a burst has come or all have had their turn; it is told how many datagrams it
    /// may take, and says how many it took. Each gets its turn, however busy another is.
    pub(super) fn receive(
        &mut self,
        mut receive: impl FnMut(&mut S, usize) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let turns = self.all.len();
        let mut count = 0;
        for step in 0..turns {
            count += receive(&mut self.all[(self.next + step) % turns], BURST - count)?;
            if count >= BURST {
                break;
            }
        }
        self.next = (self.next + 1) % turns;
        Ok(count)
    }

    pub(super) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        for bound in &self.all {
            register(bound, registry, token)?;
        }
        self.registration = Some((registry.try_clone()?, token));
        Ok(())
    }

    /// Opens a socket for `group` with `open`, which is told the interface's index, and joins it. It is a socket of its
    /// own: one that is bound to an address takes nothing else.
    pub(super) fn join(
        &mut self,
        group: IpAddr,
        open: impl FnOnce(u32) -> Result<S, OpenError>,
    ) -> Result<(), JoinError> {
        let own = self.all.iter().find(|bound| bound.address().is_ipv4() == group.is_ipv4());
        let scope = own.ok_or(JoinError::NoAddress { group })?.scope();
        let bound = open(scope).map_err(|source| JoinError::Open { group, source })?;
        let membership = |source| JoinError::Membership { group, source };
        join_group(bound.receiver(), group, scope).map_err(membership)?;
        if let Some((registry, token)) = &self.registration {
            register(&bound, registry, *token).map_err(membership)?;
        }
        self.all.push(bound);
        Ok(())
    }

    /// Closes the socket of `group`, which ends the membership and the registration.
    pub(super) fn leave(&mut self, group: IpAddr) {
        self.all.retain(|bound| bound.address() != group);
        self.next = 0;
    }
}

fn register(bound: &impl Bound, registry: &Registry, token: Token) -> io::Result<()> {
    registry.register(&mut SourceFd(&bound.receiver().as_raw_fd()), token, Interest::READABLE)
}
