//! Why a sandbox is not given the network that was asked for.

use forkd_host::net::NetError;
use forkd_protocol::error::ErrorClass;

/// Why a sandbox is not given the network that was asked for. Whatever held before holds still.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The host cannot do it, has no more of them, or the policy cannot be enforced.
    #[error(transparent)]
    Host(#[from] NetError),
    /// The guests of a snapshot have no network device: it was made by an older forkd.
    #[error(
        "the guests of snapshot {0:?} have no network device; make it again with `forkd snapshot refresh {0}`, or ask \
         for `--net none`"
    )]
    NoDevice(String),
    /// A sandbox that runs without a network stays without.
    #[error("sandbox {0} was started without a network, which it cannot be given now; fork a new one")]
    Without(String),
}

impl NetworkError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Host(e) => e.class(),
            Self::NoDevice(_) | Self::Without(_) => ErrorClass::Conflict,
        }
    }

    /// What happened, for the machine.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::Host(e) => e.code(),
            Self::NoDevice(_) => Some("no_network_device"),
            Self::Without(_) => Some("without_network"),
        }
    }
}
