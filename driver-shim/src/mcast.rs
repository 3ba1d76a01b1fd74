//! Why a queue pair was not attached to a multicast group.

use qp::McastError;

use crate::backend::JoinError;

/// Why a queue pair was not attached to a multicast group. It is no member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The queue pair or the group.
    #[error(transparent)]
    Mcast(#[from] McastError),
    /// The packet path.
    #[error(transparent)]
    Join(#[from] JoinError),
}

impl AttachError {
    /// The error number verbs would give.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Mcast(error) => error.errno(),
            Self::Join(error) => error.errno(),
        }
    }
}
