//! Why a sandbox could not be branched.

use forkd_protocol::error::ErrorClass;
use forkd_store::Room;

use crate::error::NO_SPACE;
use crate::guest::GuestError;

/// Why a sandbox was not branched. It runs on, and no tag is taken.
#[derive(Debug, thiserror::Error)]
pub enum BranchError {
    /// Two fields of the request exclude each other.
    #[error("the request contradicts itself: {0}")]
    Contradiction(&'static str),
    /// The request names another snapshot than the sandbox lies on.
    #[error("the sandbox was forked from {0:?}; leave `parent_tag` out or name that one")]
    OtherParent(String),
    /// Too many at once.
    #[error("{0} sandboxes are being branched already; try again when one is done")]
    TooMany(usize),
    /// The guest did not freeze its workload: an unfrozen snapshot is never made.
    #[error("the guest did not freeze its workload, so it was not branched")]
    NotFrozen(#[source] GuestError),
    /// The monitor is of an earlier version.
    #[error(
        "the sandbox runs in an older monitor, which writes whole snapshots only; branch it with mode full"
    )]
    OldMonitor,
    /// An earlier branch broke in the middle of freezing the disk, and the monitor is too old to tell what it writes to.
    #[error(
        "an earlier branch of this sandbox broke while its disk was frozen, and its monitor does not tell how far it \
         came; fork a new sandbox"
    )]
    DiskUnknown,
    /// The sandbox was found again after a restart by a forkd that did not note what it lies on.
    #[error("it is not known which snapshot this sandbox lies on; fork a new sandbox to branch from")]
    OriginUnknown,
    /// The writer said that it failed.
    #[error("the changed pages could not be written: {0}")]
    WriterFailed(#[source] std::io::Error),
    /// The writer said that the disk is full.
    #[error(
        "the changed pages could not be written: no space is left (ENOSPC): {0}; free some and try again"
    )]
    WriterNoRoom(Room),
    /// The writer said nothing, or nothing sensible.
    #[error("the writer of the changed pages ended without a word; it was killed")]
    WriterKilled,
    /// A snapshot is not ready to be used.
    #[error("snapshot {tag:?} is {status}; {what}")]
    NotReady {
        /// Which.
        tag: String,
        /// `writing` or `failed`.
        status: String,
        /// What to do, or why.
        what: String,
    },
}

impl BranchError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Contradiction(_) | Self::OtherParent(_) => ErrorClass::Caller,
            Self::TooMany(_) => ErrorClass::Exhausted,
            Self::WriterNoRoom(_) => ErrorClass::Exhausted,
            Self::NotFrozen(_)
            | Self::OldMonitor
            | Self::DiskUnknown
            | Self::OriginUnknown
            | Self::NotReady { .. } => ErrorClass::Conflict,
            Self::WriterFailed(_) | Self::WriterKilled => ErrorClass::Internal,
        }
    }

    /// What happened, for the machine.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::TooMany(_) => Some("branch_limit"),
            Self::NotFrozen(_) => Some("guest_did_not_freeze"),
            Self::OldMonitor => Some("monitor_too_old"),
            Self::WriterNoRoom(_) => Some(NO_SPACE),
            Self::WriterFailed(_) | Self::WriterKilled => Some("writer_failed"),
            Self::NotReady { .. } => Some("snapshot_not_ready"),
            Self::Contradiction(_) | Self::OtherParent(_) | Self::DiskUnknown | Self::OriginUnknown => None,
        }
    }
}
