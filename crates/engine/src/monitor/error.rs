//! What can go wrong with a monitor.

use std::io;
use std::path::{Path, PathBuf};

use forkd_host::cgroup::CgroupError;
use forkd_host::process::ProcessError;
use forkd_protocol::control::{ControlError, Refusal, RefusalClass};
use forkd_protocol::error::ErrorClass;
use forkd_store::StoreError;

/// Why a monitor did not do what it was asked, or was not even there.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// The program could not be started. Install it beside `forkd`, or set `FORKD_LIBEXEC`.
    #[error("could not start the monitor {program}")]
    Start {
        /// The program.
        program: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file of its run folder could not be made or read.
    #[error("could not {what} {path}")]
    File {
        /// The operation, as a verb.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its run folder could not be made or removed, or a file of its snapshot opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its process could not be held or signalled.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Its limit cannot be set.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// It did not answer, or nonsense. `ended` says how it ended, where it did.
    #[error("the monitor did not answer{}", ended_suffix(.ended))]
    Control {
        /// How it ended, where it did.
        ended: Option<String>,
        /// What the socket said.
        source: ControlError,
    },
    /// It answered something that was not asked.
    #[error("the monitor gave an answer that does not belong to the question")]
    WrongAnswer,
    /// It refused; its machine is as before.
    #[error("the monitor refused: {}", .0.message)]
    Refused(Refusal),
    /// It ended while it was needed.
    #[error("the monitor ended: {0}")]
    Ended(String),
    /// It was killed but does not go away (a process stuck in the kernel). Killing again tries again.
    #[error("monitor process {0} was killed but is still there")]
    Stuck(u32),
}

impl MonitorError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Start { .. } | Self::Cgroup(CgroupError::Unavailable { .. }) => ErrorClass::HostUnfit,
            Self::File { source, .. } | Self::Process(ProcessError::Open { source, .. }) => {
                class_of_io(source)
            }
            Self::Cgroup(CgroupError::Io { source, .. }) => class_of_io(source),
            Self::Store(e) => e.class(),
            Self::Refused(refusal) => match refusal.class {
                RefusalClass::Caller | RefusalClass::Internal => ErrorClass::Internal,
                RefusalClass::HostUnfit => ErrorClass::HostUnfit,
                RefusalClass::Corrupt => ErrorClass::Corrupt,
                RefusalClass::Exhausted => ErrorClass::Exhausted,
            },
            Self::Ended(_) => ErrorClass::GuestFault,
            Self::Process(_) | Self::Control { .. } | Self::WrongAnswer | Self::Stuck(_) => {
                ErrorClass::Internal
            }
        }
    }

    pub(crate) fn file(what: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::File { what, path: path.to_owned(), source: source.into() }
    }
}

fn ended_suffix(ended: &Option<String>) -> String {
    ended.as_ref().map_or_else(String::new, |how| format!(" ({how})"))
}

/// A full disk, no memory or no descriptors: works again once there is room.
fn class_of_io(e: &io::Error) -> ErrorClass {
    use rustix::io::Errno;
    let full = [Errno::NOSPC, Errno::DQUOT, Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];
    let is_full = e.raw_os_error().is_some_and(|code| full.iter().any(|f| f.raw_os_error() == code));
    if is_full { ErrorClass::Exhausted } else { ErrorClass::Internal }
}
