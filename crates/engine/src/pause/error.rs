//! Why a sandbox could not be paused or continued.

use forkd_protocol::error::ErrorClass;

use crate::fork::ChildError;
use crate::guest::GuestError;

/// Why a sandbox was not paused, and runs on; or was not continued, and is paused still.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    /// The guest did not freeze its workload: what runs is never written.
    #[error("the guest did not freeze its workload, so it was not paused")]
    NotFrozen(#[source] GuestError),
    /// The agent is of an earlier version. Make the snapshot again and fork a new sandbox from it.
    #[error(
        "the agent of this sandbox speaks version {found} of the protocol and cannot be continued after a pause; make \
         its snapshot again with `forkd snapshot refresh {tag}` and fork a new sandbox from it"
    )]
    OldAgent {
        /// What it speaks.
        found: u32,
        /// Tag of the snapshot that it was forked from.
        tag: String,
    },
    /// The monitor is of an earlier version.
    #[error("the sandbox runs in an older monitor, which cannot write what it changed; fork a new sandbox")]
    OldMonitor,
    /// The sandbox was found again after a restart by a forkd that did not note what it lies on.
    #[error("it is not known which snapshot this sandbox lies on; fork a new sandbox")]
    OriginUnknown,
    /// Somebody wants the sandbox gone.
    #[error("the sandbox is being removed")]
    GivenUp,
    /// It could not be restored, or its guest did not answer.
    #[error("the sandbox could not be continued and is paused still")]
    NotContinued(#[source] ChildError),
}

impl PauseError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NotFrozen(_)
            | Self::OldAgent { .. }
            | Self::OldMonitor
            | Self::OriginUnknown
            | Self::GivenUp => ErrorClass::Conflict,
            Self::NotContinued(e) => e.class(),
        }
    }

    /// What happened, for the machine.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::NotFrozen(_) => Some("guest_did_not_freeze"),
            Self::OldAgent { .. } => Some("agent_too_old"),
            Self::OldMonitor => Some("monitor_too_old"),
            Self::GivenUp => Some("given_up"),
            Self::NotContinued(ChildError::Monitor(e)) => e.code().or(Some("not_continued")),
            Self::NotContinued(ChildError::Network(e)) => e.code().or(Some("not_continued")),
            Self::NotContinued(_) => Some("not_continued"),
            Self::OriginUnknown => None,
        }
    }
}
