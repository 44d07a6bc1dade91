//! What can go wrong with a hub.

use forkd_protocol::error::ErrorClass;

/// Why something was not read from a hub, or not written to it.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The URL names no hub.
    #[error("{url:?} is no hub: {reason}")]
    Url {
        /// As it was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The hub has no such tag.
    #[error("{hub} has no tag {tag:?}; `forkd images --remote {hub}` lists those it has")]
    NoTag {
        /// Its URL.
        hub: String,
        /// The tag.
        tag: String,
    },
    /// It has no index: it is no hub, or nothing was pushed to it yet.
    #[error("{hub} has no index.json: it is no hub, or nothing was pushed to it yet")]
    NoIndex {
        /// Its URL.
        hub: String,
    },
    /// The tag names another snapshot.
    #[error("{hub} has the tag {tag:?} for another snapshot; push it under another name (--as)")]
    TagTaken {
        /// Its URL.
        hub: String,
        /// The tag.
        tag: String,
    },
    /// Web servers are read only.
    #[error("{hub} can only be read; push to the folder or the bucket that it serves (file://, s3://)")]
    ReadOnly {
        /// Its URL.
        hub: String,
    },
    /// What it holds is not what its name says.
    #[error("{hub} is damaged: {name} {reason}")]
    Damaged {
        /// Its URL.
        hub: String,
        /// Which file.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A bundle or an object is not there.
    #[error("{hub} lacks {name}: push it again")]
    Lacks {
        /// Its URL.
        hub: String,
        /// Which file.
        name: String,
    },
    /// It cannot be reached, or does not let us.
    #[error("{hub} could not be used ({name})")]
    Unusable {
        /// Its URL.
        hub: String,
        /// Which file.
        name: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl HubError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Url { .. } | Self::ReadOnly { .. } => ErrorClass::Caller,
            Self::NoTag { .. } | Self::NoIndex { .. } => ErrorClass::NotFound,
            Self::TagTaken { .. } => ErrorClass::Conflict,
            Self::Damaged { .. } | Self::Lacks { .. } => ErrorClass::Corrupt,
            Self::Unusable { .. } => ErrorClass::Internal,
        }
    }
}
