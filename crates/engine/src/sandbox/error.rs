//! What can go wrong with a sandbox as such.

use forkd_protocol::error::ErrorClass;

/// Why a sandbox is not there for what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SandboxError {
    /// No sandbox has this id, or no longer.
    #[error("sandbox {0} not found")]
    NotFound(String),
    /// It has not confirmed its identity yet, stands still, or is being removed.
    #[error("sandbox {id} is {state}, not running{}", resume_hint(.id, .state))]
    NotRunning {
        /// Which.
        id: String,
        /// `starting`, `pausing`, `paused`, `resuming`, `stopping`.
        state: &'static str,
    },
    /// It was to be continued, and is not paused.
    #[error("sandbox {id} is {state}, not paused")]
    NotPaused {
        /// Which.
        id: String,
        /// Any other state.
        state: &'static str,
    },
    /// It ended by itself; it stays listed until it is killed.
    #[error("sandbox {id} has ended: {reason}")]
    Ended {
        /// Which.
        id: String,
        /// Why.
        reason: String,
    },
    /// Something of it could not be removed. It stays listed; kill it again to try again.
    #[error("sandbox {id} could not be removed: {reason}")]
    NotRemoved {
        /// Which.
        id: String,
        /// What failed.
        reason: String,
    },
    /// A log of it could not be read.
    #[error("the {what} of sandbox {id} could not be read: {reason}")]
    Unreadable {
        /// Which log.
        what: &'static str,
        /// Whose.
        id: String,
        /// What the kernel said.
        reason: String,
    },
}

fn resume_hint(id: &str, state: &str) -> String {
    if state == "paused" { format!("; continue it with `forkd resume {id}`") } else { String::new() }
}

impl SandboxError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotFound(_) => ErrorClass::NotFound,
            Self::NotRunning { .. } | Self::NotPaused { .. } | Self::Ended { .. } => ErrorClass::Conflict,
            Self::NotRemoved { .. } | Self::Unreadable { .. } => ErrorClass::Internal,
        }
    }

    /// What happened, for the machine.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "not_found",
            Self::NotRunning { .. } => "not_running",
            Self::NotPaused { .. } => "not_paused",
            Self::Ended { .. } => "sandbox_ended",
            Self::NotRemoved { .. } => "not_removed",
            Self::Unreadable { .. } => "internal",
        }
    }
}
