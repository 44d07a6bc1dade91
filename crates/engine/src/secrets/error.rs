//! Why something is not done with secrets, or with a sandbox that holds some.

use forkd_protocol::error::ErrorClass;
use forkd_protocol::guest::SECRETS_VERSION;
use forkd_protocol::names::NameError;
use forkd_protocol::rest::{MAX_SECRET_BYTES, MAX_SECRETS};

/// Why something is not done with secrets. No value is ever part of it.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// A name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// More than a sandbox can have.
    #[error("a sandbox has at most {MAX_SECRETS} secrets, not {0}")]
    TooMany(usize),
    /// A value has no bytes.
    #[error("the secret {0} is empty")]
    Empty(String),
    /// A value has too many bytes.
    #[error("the secret {name} has {bytes} bytes; at most {MAX_SECRET_BYTES} are possible")]
    TooLong {
        /// Which.
        name: String,
        /// How many.
        bytes: usize,
    },
    /// A value that is given as base64 is none.
    #[error("the value of the secret {0} is no base64")]
    NoBase64(String),
    /// Secrets of nobody were asked for.
    #[error("with_secrets goes with from_sandbox; a snapshot has no secrets to give")]
    NoSource,
    /// The sandbox holds secrets and nobody said that a snapshot of it may be made.
    #[error(
        "sandbox {id} holds secrets ({}), and its processes may have read them into the memory that would be written; \
         say --with-secrets (`with_secrets` in the API) to make a snapshot all the same", .names.join(", ")
    )]
    Holder {
        /// Which.
        id: String,
        /// Of its secrets.
        names: Vec<String>,
    },
    /// The sandbox would lose its secrets.
    #[error(
        "the controller was started again since sandbox {id} was given its secrets ({}) and does not know them, so that \
         the sandbox would lose them; give them again with `forkd secret {id} NAME`", .names.join(", ")
    )]
    NotHeld {
        /// Which.
        id: String,
        /// Of the secrets.
        names: Vec<String>,
    },
    /// The agent in a snapshot is older than secrets.
    #[error(
        "the agent of {tag} speaks version {found} of the protocol and keeps no secrets, which takes {SECRETS_VERSION}; \
         make the snapshot again with `forkd snapshot refresh {tag}`"
    )]
    OldAgent {
        /// Tag of the snapshot.
        tag: String,
        /// What it speaks.
        found: u32,
    },
}

impl SecretError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Name(_)
            | Self::TooMany(_)
            | Self::Empty(_)
            | Self::TooLong { .. }
            | Self::NoBase64(_)
            | Self::NoSource => ErrorClass::Caller,
            Self::Holder { .. } | Self::NotHeld { .. } | Self::OldAgent { .. } => ErrorClass::Conflict,
        }
    }

    /// What happened, for the machine.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::Holder { .. } => Some("sandbox_holds_secrets"),
            Self::NotHeld { .. } => Some("secrets_not_held"),
            Self::OldAgent { .. } => Some("agent_too_old"),
            Self::Name(_)
            | Self::TooMany(_)
            | Self::Empty(_)
            | Self::TooLong { .. }
            | Self::NoBase64(_)
            | Self::NoSource => None,
        }
    }
}
