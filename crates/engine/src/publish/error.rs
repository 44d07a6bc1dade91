//! Why a port is not published.

use std::io;
use std::net::SocketAddr;

use forkd_protocol::error::ErrorClass;

/// Why ports are not published. Nothing of the sandbox was made.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Two children cannot have one address.
    #[error(
        "ports are published of one child; fork {0} without them, or one by one with addresses of their own"
    )]
    Many(u32),
    /// Another program, or another sandbox, listens there.
    #[error("{0} is taken; choose another port, or 0 for any")]
    Taken(SocketAddr),
    /// It cannot be listened at.
    #[error("{at} cannot be listened at")]
    Address {
        /// Where.
        at: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
}

impl PublishError {
    pub(super) fn of(at: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::Taken(at),
            _ => Self::Address { at, source },
        }
    }

    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Many(_) | Self::Address { .. } => ErrorClass::Caller,
            Self::Taken(_) => ErrorClass::Conflict,
        }
    }

    /// What happened, for the machine.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::Taken(_) => Some("address_taken"),
            Self::Address { .. } => Some("address_not_possible"),
            Self::Many(_) => None,
        }
    }
}
