//! What happened.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What can happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum EventKind {
    /// A child was forked, and runs.
    #[serde(rename = "sandbox.forked")]
    Forked,
    /// A sandbox became a snapshot, and runs on.
    #[serde(rename = "sandbox.branched")]
    Branched,
    /// It was taken to the disk.
    #[serde(rename = "sandbox.paused")]
    Paused,
    /// It was continued.
    #[serde(rename = "sandbox.resumed")]
    Resumed,
    /// It ended by itself; the detail says why, such as `killed: memory`.
    #[serde(rename = "sandbox.ended")]
    Ended,
    /// It was ended because somebody asked for that, or its time was over.
    #[serde(rename = "sandbox.killed")]
    Killed,
    /// One that had ended by itself was removed.
    #[serde(rename = "sandbox.removed")]
    Removed,
    /// There is a new snapshot, or another one of that tag.
    #[serde(rename = "snapshot.made")]
    SnapshotMade,
    /// A branch that nobody waited for came to nothing; the detail says why.
    #[serde(rename = "snapshot.failed")]
    SnapshotFailed,
    /// A snapshot was removed.
    #[serde(rename = "snapshot.removed")]
    SnapshotRemoved,
    /// An image was taken in.
    #[serde(rename = "image.made")]
    ImageMade,
    /// An image was removed.
    #[serde(rename = "image.removed")]
    ImageRemoved,
    /// A kernel was taken in.
    #[serde(rename = "kernel.made")]
    KernelMade,
    /// A kernel was removed.
    #[serde(rename = "kernel.removed")]
    KernelRemoved,
}

impl EventKind {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forked => "sandbox.forked",
            Self::Branched => "sandbox.branched",
            Self::Paused => "sandbox.paused",
            Self::Resumed => "sandbox.resumed",
            Self::Ended => "sandbox.ended",
            Self::Killed => "sandbox.killed",
            Self::Removed => "sandbox.removed",
            Self::SnapshotMade => "snapshot.made",
            Self::SnapshotFailed => "snapshot.failed",
            Self::SnapshotRemoved => "snapshot.removed",
            Self::ImageMade => "image.made",
            Self::ImageRemoved => "image.removed",
            Self::KernelMade => "kernel.made",
            Self::KernelRemoved => "kernel.removed",
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventInfo {
    /// Its number: they go up, and none is used twice.
    pub seq: u64,
    /// Milliseconds since the Unix epoch.
    pub at_unix_ms: u64,
    /// What.
    pub kind: EventKind,
    /// To what: a sandbox's id, a snapshot's tag, the name of an image or kernel.
    pub subject: String,
    /// Tag of the snapshot that the sandbox was forked from, or that was made of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whose it is; absent where it belongs to nobody but the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Why, or how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_are_written() {
        use EventKind::*;
        for kind in [
            Forked,
            Branched,
            Paused,
            Resumed,
            Ended,
            Killed,
            Removed,
            SnapshotMade,
            SnapshotFailed,
            SnapshotRemoved,
            ImageMade,
            ImageRemoved,
            KernelMade,
            KernelRemoved,
        ] {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
