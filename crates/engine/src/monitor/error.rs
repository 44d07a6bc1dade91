//! What can go wrong with a monitor.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use forkd_host::cgroup::CgroupError;
use forkd_host::process::ProcessError;
use forkd_protocol::control::{ControlError, ControlVersion, Refusal, RefusalClass};
use forkd_protocol::error::ErrorClass;
use forkd_store::{Room, StoreError};

use crate::error::{NO_SPACE, is_full, store_code};

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
    /// It speaks another version: `forkd-vmm` is not of this forkd.
    #[error(
        "the monitor (forkd-vmm {program}) speaks version {found} of the control protocol, this forkd {} to {}: \
         install both from one release; what runs already is reached with the forkd that started it", .known.start(), .known.end()
    )]
    Version {
        /// What it speaks.
        found: ControlVersion,
        /// Version of its program.
        program: String,
        /// What is spoken here.
        known: RangeInclusive<ControlVersion>,
    },
    /// No machine can be built of the kernel, ramdisk, memory and disk that were asked for.
    #[error("the machine cannot be built: {}", .0.message)]
    Unbuildable(Refusal),
    /// The disk has no room for the machine that it was to write.
    #[error("the machine could not be written: {}: {}; free some and try again", .0.message, .1)]
    NoRoom(Refusal, Room),
    /// It could not be jailed, or made no machine; its log says why.
    #[error("the monitor did not come up: {0}")]
    NotReady(String),
    /// Every user of the range is some monitor's.
    #[error("all users of the range are taken: widen FORKD_SANDBOX_UIDS, or end sandboxes")]
    NoUser,
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
    /// Whether the monitor surely is as before it was asked.
    pub(crate) fn changed_nothing(&self) -> bool {
        !matches!(self, Self::Control { .. } | Self::WrongAnswer)
    }

    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::NoUser => ErrorClass::Exhausted,
            Self::Start { .. }
            | Self::NotReady(_)
            | Self::Version { .. }
            | Self::Cgroup(CgroupError::Unavailable { .. }) => ErrorClass::HostUnfit,
            Self::Unbuildable(_) => ErrorClass::Caller,
            Self::NoRoom(..) => ErrorClass::Exhausted,
            Self::File { source, .. } | Self::Process(ProcessError::Open { source, .. }) => {
                class_of_io(source)
            }
            Self::Cgroup(CgroupError::Io { source, .. }) => class_of_io(source),
            Self::Store(e) => e.class(),
            Self::Refused(refusal) => match refusal.class {
                // Ours: what the engine asks of a monitor fits its phase and is complete.
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

    /// What happened, for the machine, where the class does not say it.
    pub fn code(&self) -> Option<&'static str> {
        match self {
            Self::NoRoom(..) => Some(NO_SPACE),
            Self::Start { source, .. }
            | Self::File { source, .. }
            | Self::Cgroup(CgroupError::Io { source, .. }) => is_full(source).then_some(NO_SPACE),
            Self::Version { .. } => Some("version_mismatch"),
            Self::Store(e) => store_code(e),
            _ => None,
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

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::error::EngineError;
    use crate::fork::{ChildError, ForkError};

    #[test]
    fn a_full_disk_is_said_wherever_it_shows() {
        let full = || MonitorError::file("create", Path::new("/x/disk"), rustix::io::Errno::NOSPC);
        let store = || StoreError::full("/x".into(), ErrorKind::StorageFull.into());
        let folder = tempfile::tempdir().unwrap();
        let room = forkd_store::Store::open(folder.path()).unwrap().room();
        let refusal = Refusal { class: RefusalClass::Exhausted, message: "no room".to_owned() };
        let child = |e: MonitorError| {
            let failed = vec![("sb-1".parse().unwrap(), ChildError::Monitor(e))];
            EngineError::Fork(ForkError::Children { asked: 1, failed })
        };
        let errors = [
            EngineError::Monitor(full()),
            EngineError::Monitor(store().into()),
            EngineError::Monitor(MonitorError::NoRoom(refusal, room)),
            EngineError::Store(store()),
            child(full()),
            child(store().into()),
        ];
        for e in errors {
            assert_eq!((e.code(), e.class()), ("no_space", ErrorClass::Exhausted), "{e:?}");
        }
        let memory = child(MonitorError::file("create", Path::new("/x"), rustix::io::Errno::NOMEM));
        assert_eq!((memory.code(), memory.class()), ("fork_failed", ErrorClass::Exhausted));
    }
}
