//! Why a snapshot could not be made.

use std::time::Duration;

use forkd_protocol::error::ErrorClass;
use forkd_protocol::guest::PythonError;

use crate::guest::{GuestError, error_line};

/// Why a snapshot could not be made. Nothing of it is left, and its tag is free.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The agent of the booted image did not answer in time.
    #[error("the parent did not come up within {} s{}", .after.as_secs(), console_suffix(.console))]
    NotUp {
        /// How long it was waited for.
        after: Duration,
        /// The end of its console.
        console: String,
        /// What stood in the way last.
        source: GuestError,
    },
    /// The parent ended before it was written.
    #[error("the parent ended while {during}: {reason}{}", console_suffix(.console))]
    Ended {
        /// What was being done.
        during: &'static str,
        /// How its machine ended.
        reason: String,
        /// The end of its console.
        console: String,
    },
    /// The warm-up raised an exception.
    #[error("the warm-up failed: {}\n{}", error_line(.0.name.as_str(), .0.value.as_str()), .0.traceback.trim_end())]
    WarmUp(PythonError),
    /// The warm-up took longer than it was given.
    #[error("the warm-up did not end within {0} s")]
    WarmUpLate(u64),
    /// The agent could not warm up.
    #[error("the warm-up could not be run")]
    WarmUpRefused(#[source] GuestError),
    /// The snapshot was taken of a sandbox: what ran in that is not recorded. Make the one below again, and from it this
    /// one.
    #[error(
        "snapshot {tag:?} was taken of a sandbox, and what had run in that is not recorded: make it again by hand, {}",
        by_hand(.parent)
    )]
    NotRecorded {
        /// Its tag.
        tag: String,
        /// Tag of the snapshot that it lies on, where that has one.
        parent: Option<String>,
    },
    /// The guest did not freeze its workload: an unfrozen snapshot is never made.
    #[error("the guest did not freeze its workload")]
    NotFrozen(#[source] GuestError),
}

fn by_hand(parent: &Option<String>) -> String {
    match parent {
        Some(tag) => {
            format!("with `forkd snapshot refresh {tag}`, `forkd fork --tag {tag}` and `forkd branch`")
        }
        None => "from a snapshot of its image and with `forkd branch`".to_owned(),
    }
}

fn console_suffix(console: &str) -> String {
    if console.is_empty() { String::new() } else { format!("; the end of its console:\n{console}") }
}

impl SnapshotError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            // The code to warm up with is the caller's.
            Self::WarmUp(_) | Self::WarmUpLate(_) => ErrorClass::Caller,
            Self::WarmUpRefused(e) => e.class(),
            Self::NotFrozen(_) | Self::NotRecorded { .. } => ErrorClass::Conflict,
            Self::NotUp { .. } | Self::Ended { .. } => ErrorClass::GuestFault,
        }
    }

    /// What happened, for the machine.
    pub fn code(&self) -> Option<&str> {
        Some(match self {
            Self::NotUp { .. } | Self::Ended { .. } => "parent_failed",
            Self::WarmUp(_) => "warm_up_failed",
            Self::WarmUpLate(_) => "warm_up_timeout",
            Self::WarmUpRefused(e) => e.code(),
            Self::NotFrozen(_) => "guest_did_not_freeze",
            Self::NotRecorded { .. } => "not_recorded",
        })
    }
}
