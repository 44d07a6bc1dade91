//! What can go wrong around the machine.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forkd_protocol::error::ErrorClass;
use forkd_store::make::MakeError;

use crate::error::CliError;
use crate::ui::took;

/// Why the machine did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MachineError {
    /// A program of the host is not installed.
    #[error("{tool} is not installed")]
    ToolMissing {
        /// The program.
        tool: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// forkd's own programs do not lie together.
    #[error("{name} is not in {}", .folder.display())]
    ProgramMissing {
        /// The program.
        name: &'static str,
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// Somebody else listens where the API is to be reached.
    #[error("port {port} of 127.0.0.1 is taken by another program")]
    PortTaken {
        /// The port.
        port: u16,
    },
    /// The disk or the kernel could not be made.
    #[error("could not make {what} of the machine")]
    Make {
        /// The disk, or the kernel.
        what: &'static str,
        /// Why.
        source: MakeError,
    },
    /// A file operation failed.
    #[error("could not {what} {}", .path.display())]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program ended with a failure.
    #[error("{tool} failed: {tail}")]
    ToolFailed {
        /// The program.
        tool: &'static str,
        /// The end of what it wrote.
        tail: String,
    },
    /// The machine ended, or gave up, while it started.
    #[error("the machine ended while it was {doing}: {tail}")]
    Ended {
        /// What it was doing.
        doing: String,
        /// The end of its console.
        tail: String,
    },
    /// One of its processors stood still while it started.
    #[error("a processor of the machine stood still while it was {doing}")]
    Stalled {
        /// What it was doing.
        doing: String,
    },
    /// The controller in the machine ends again and again.
    #[error("the controller in the machine ends again and again: {tail}")]
    Controller {
        /// The end of its log.
        tail: String,
    },
    /// It takes longer than is reasonable.
    #[error("the machine was still {doing} after {}", took(*.after))]
    TooSlow {
        /// What it was doing.
        doing: String,
        /// The bound.
        after: Duration,
    },
    /// There is no machine.
    #[error("no machine runs")]
    NotRunning,
    /// The note about the running machine cannot be read.
    #[error("{} is not understood: {why}", .path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

impl MachineError {
    /// Who has to act.
    pub(crate) fn class(&self) -> ErrorClass {
        match self {
            Self::ToolMissing { .. } | Self::ProgramMissing { .. } => ErrorClass::HostUnfit,
            Self::PortTaken { .. } => ErrorClass::Conflict,
            Self::Make { source, .. } => source.class(),
            Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull => ErrorClass::Exhausted,
            Self::NotRunning => ErrorClass::NotFound,
            Self::Record { .. } => ErrorClass::Corrupt,
            Self::Io { .. }
            | Self::ToolFailed { .. }
            | Self::Ended { .. }
            | Self::Controller { .. }
            | Self::TooSlow { .. }
            | Self::Stalled { .. } => ErrorClass::Internal,
        }
    }

    /// What to do about it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::ToolMissing { package, .. } => {
                Some(format!("apt-get install --no-install-recommends {package}"))
            }
            Self::ProgramMissing { .. } => Some(
                "`cargo build --release` builds all three; FORKD_LIBEXEC names another folder".to_owned(),
            ),
            Self::PortTaken { .. } => {
                Some("end that program, or set FORKD_MACHINE_PORT and FORKD_URL to another port".to_owned())
            }
            Self::NotRunning => Some("`forkd machine start` starts it".to_owned()),
            Self::Record { .. } => {
                Some("end its QEMU by hand if it still runs, then remove the file".to_owned())
            }
            Self::Ended { .. } | Self::Controller { .. } | Self::TooSlow { .. } | Self::Stalled { .. } => {
                Some("`forkd machine logs` shows the console and the controller's log".to_owned())
            }
            _ => None,
        }
    }

    pub(crate) fn io(what: &'static str, path: impl AsRef<Path>, source: impl Into<io::Error>) -> Self {
        Self::Io { what, path: path.as_ref().to_owned(), source: source.into() }
    }
}

impl From<MachineError> for CliError {
    fn from(e: MachineError) -> Self {
        let (class, hint) = (e.class(), e.hint());
        let error = CliError::caused(class, "the machine", e);
        match hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}
