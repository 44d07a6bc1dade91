//! What can go wrong with container images.

use std::fmt::Display;
use std::io;

use forkd_protocol::error::ErrorClass;
use oci_client::errors::OciDistributionError;

/// Why an image was not had.
#[derive(Debug, thiserror::Error)]
pub enum OciError {
    /// The reference names nothing.
    #[error(
        "{reference:?} is no container image: {reason}; give NAME[:TAG|@DIGEST], or the path of an archive (./FILE.tar)"
    )]
    Reference {
        /// As it was given.
        reference: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The registry has no such image.
    #[error("{image} is not there; look at its name and tag")]
    NoImage {
        /// Its reference.
        image: String,
    },
    /// The registry wants to know who asks.
    #[error("{image} is not for everyone: log in with `docker login`, whose file is read, and try again")]
    Unauthorized {
        /// Its reference.
        image: String,
        /// What the registry said.
        source: Box<OciDistributionError>,
    },
    /// No variant of the image runs here.
    #[error("{image} is not for linux/amd64, but for {platforms}")]
    Platform {
        /// Its reference.
        image: String,
        /// What it is for.
        platforms: String,
    },
    /// A document or a blob is not what it has to be.
    #[error("{image} is refused: {what} {reason}")]
    Refused {
        /// Its reference.
        image: String,
        /// Which part.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The registry did not answer as it should.
    #[error("{image} could not be fetched")]
    Registry {
        /// Its reference.
        image: String,
        /// What happened.
        source: Box<OciDistributionError>,
    },
    /// The file system is full.
    #[error("no space is left (ENOSPC) to {what} {name}; free some, or set FORKD_CACHE_DIR, and try again")]
    Full {
        /// The operation, as a verb.
        what: &'static str,
        /// On what.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file operation failed.
    #[error("could not {what} {name}")]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// On what.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl OciError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Reference { .. } | Self::Platform { .. } | Self::Refused { .. } => ErrorClass::Caller,
            Self::Unauthorized { .. } => ErrorClass::Caller,
            Self::NoImage { .. } => ErrorClass::NotFound,
            Self::Full { .. } => ErrorClass::Exhausted,
            Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => ErrorClass::NotFound,
            Self::Registry { .. } | Self::Io { .. } => ErrorClass::Internal,
        }
    }

    pub(crate) fn io(what: &'static str, name: impl Display, source: io::Error) -> Self {
        let name = name.to_string();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { what, name, source },
            _ => Self::Io { what, name, source },
        }
    }

    pub(crate) fn refused(image: impl Display, what: impl Display, reason: impl Display) -> Self {
        Self::Refused { image: image.to_string(), what: what.to_string(), reason: reason.to_string() }
    }

    /// What a registry said, sorted by who has to act.
    pub(crate) fn of_registry(image: impl Display, error: OciDistributionError) -> Self {
        use OciDistributionError as E;
        let image = image.to_string();
        match &error {
            E::ImageManifestNotFoundError(text) if text.contains("platform") => {
                Self::Platform { image, platforms: "other platforms".to_owned() }
            }
            E::ImageManifestNotFoundError(_) => Self::NoImage { image },
            E::UnauthorizedError { .. } | E::AuthenticationFailure(_) => {
                Self::Unauthorized { image, source: Box::new(error) }
            }
            E::RegistryError { envelope, .. } if says_it_is_not_there(envelope) => Self::NoImage { image },
            E::ServerError { code: 404, .. } => Self::NoImage { image },
            E::DigestError(_) => Self::refused(image, "a blob", "is not what its digest says"),
            _ => Self::Registry { image, source: Box::new(error) },
        }
    }
}

fn says_it_is_not_there(envelope: &oci_client::errors::OciEnvelope) -> bool {
    use oci_client::errors::OciErrorCode as Code;
    let absent = |code: &Code| {
        matches!(code, Code::ManifestUnknown | Code::NameUnknown | Code::NotFound | Code::BlobUnknown)
    };
    envelope.errors.iter().any(|e| absent(&e.code))
}
