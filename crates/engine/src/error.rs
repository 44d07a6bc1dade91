//! What callers of the engine see when something is not done.

use std::path::PathBuf;

use forkd_protocol::error::{ErrorClass, chain};
use forkd_protocol::names::NameError;
use forkd_protocol::rest::ErrorBody;
use forkd_store::StoreError;

use crate::admission::AdmissionError;
use crate::branch::BranchError;
use crate::fork::ForkError;
use crate::guest::GuestError;
use crate::monitor::MonitorError;
use crate::network::NetworkError;
use crate::pause::PauseError;
use crate::publish::PublishError;
use crate::sandbox::SandboxError;
use crate::secrets::SecretError;
use crate::snapshot::SnapshotError;

/// Anything the engine did not do; one variant per concern.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The request is wrong.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The engine did not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store refused or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A sandbox is not there, or not in a state for this.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// What was asked for does not fit on this host.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// Children could not be forked; nothing of them is left.
    #[error(transparent)]
    Fork(#[from] ForkError),
    /// A snapshot could not be made; nothing of it is left.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A sandbox could not be branched; it runs on.
    #[error(transparent)]
    Branch(#[from] BranchError),
    /// A sandbox could not be paused, and runs on, or continued, and is paused still.
    #[error(transparent)]
    Pause(#[from] PauseError),
    /// Ports could not be published; nothing was made.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// Secrets are not possible, or stand in the way.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// A monitor refused or failed.
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    /// A sandbox is not given the network that was asked for.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A guest refused or failed.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// A background thread of the engine broke; a fault of forkd.
    #[error("a task of the engine ended before its work was done")]
    Broken,
}

/// What is wrong with a request.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// A tag, id or other name is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A number is outside its range.
    #[error("{what} must be {min} to {max}, not {given}")]
    Range {
        /// Which number.
        what: &'static str,
        /// Smallest.
        min: u64,
        /// Largest.
        max: u64,
        /// What was asked for.
        given: u64,
    },
    /// A field that may not be empty is.
    #[error("{0} must not be empty")]
    Empty(&'static str),
    /// Two things that exclude each other.
    #[error("{0} and {1} cannot be asked for together")]
    Together(&'static str, &'static str),
    /// An uploaded kernel archive is not one.
    #[error("the kernel archive is refused: {0}")]
    KernelArchive(String),
    /// A body could not be read to its end.
    #[error("the upload broke off")]
    Upload(#[source] std::io::Error),
}

/// Why an engine did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Sockets below this root would have paths that the kernel refuses. Choose a shorter one.
    #[error(
        "the root {root} is too long: sockets below it would need {needed} bytes, at most {max} are possible"
    )]
    RootTooLong {
        /// The root.
        root: PathBuf,
        /// What the longest socket path would need.
        needed: usize,
        /// What the kernel takes.
        max: usize,
    },
    /// Something of the host could not be read.
    #[error("{path} could not be opened")]
    Host {
        /// What.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
}

impl EngineError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Request(_) => ErrorClass::Caller,
            Self::Open(OpenError::RootTooLong { .. }) => ErrorClass::Caller,
            Self::Open(OpenError::Host { .. }) => ErrorClass::HostUnfit,
            Self::Store(e) => e.class(),
            Self::Sandbox(e) => e.class(),
            Self::Admission(e) => e.class(),
            Self::Fork(e) => e.class(),
            Self::Snapshot(e) => e.class(),
            Self::Branch(e) => e.class(),
            Self::Pause(e) => e.class(),
            Self::Publish(e) => e.class(),
            Self::Secret(e) => e.class(),
            Self::Monitor(e) => e.class(),
            Self::Network(e) => e.class(),
            Self::Guest(e) => e.class(),
            Self::Broken => ErrorClass::Internal,
        }
    }

    /// What happened, for the machine.
    pub fn code(&self) -> &str {
        let own = match self {
            Self::Store(e) => store_code(e),
            Self::Sandbox(e) => Some(e.code()),
            Self::Admission(e) => Some(e.code()),
            Self::Fork(e) => e.code(),
            Self::Snapshot(e) => e.code(),
            Self::Branch(e) => e.code(),
            Self::Pause(e) => e.code(),
            Self::Publish(e) => e.code(),
            Self::Secret(e) => e.code(),
            Self::Guest(e) => Some(e.code()),
            Self::Monitor(e) => e.code(),
            Self::Network(e) => e.code(),
            Self::Request(_) | Self::Open(_) | Self::Broken => None,
        };
        own.unwrap_or_else(|| class_code(self.class()))
    }

    /// The shape that clients are answered with: the whole chain of causes as one text.
    pub fn body(&self) -> ErrorBody {
        let failures = if let Self::Fork(e) = self { e.failures() } else { Vec::new() };
        ErrorBody { error: chain(self), code: self.code().to_owned(), failures }
    }
}

impl From<NameError> for EngineError {
    fn from(e: NameError) -> Self {
        Self::Request(e.into())
    }
}

/// A number in its range, as the type it is used as.
pub(crate) fn in_range<T: TryFrom<u64>>(
    what: &'static str,
    given: u64,
    min: u64,
    max: u64,
) -> Result<T, RequestError> {
    let fits = (min..=max).contains(&given).then(|| T::try_from(given).ok()).flatten();
    fits.ok_or(RequestError::Range { what, min, max, given })
}

/// Whether it is the disk, or somebody's share of it, that is full.
pub(crate) fn is_full(e: &std::io::Error) -> bool {
    matches!(e.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// The code of a full disk, whoever noticed it.
pub(crate) const NO_SPACE: &str = "no_space";

pub(crate) fn store_code(e: &StoreError) -> Option<&'static str> {
    match e {
        StoreError::Bundle(e) => Some(e.code()),
        StoreError::TagTaken { .. } => Some("tag_taken"),
        StoreError::NameTaken { .. } => Some("name_taken"),
        StoreError::HasDependents { .. } => Some("has_dependents"),
        StoreError::Locked { .. } => Some("store_in_use"),
        StoreError::Full { .. } => Some(NO_SPACE),
        _ => None,
    }
}

fn class_code(class: ErrorClass) -> &'static str {
    match class {
        ErrorClass::Caller => "bad_request",
        ErrorClass::NotFound => "not_found",
        ErrorClass::Conflict => "conflict",
        ErrorClass::Exhausted => "exhausted",
        ErrorClass::HostUnfit => "host_unfit",
        ErrorClass::GuestFault => "guest_fault",
        ErrorClass::Corrupt => "corrupt",
        ErrorClass::Internal => "internal",
    }
}
