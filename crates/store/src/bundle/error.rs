//! Why a bundle does not leave or does not arrive.

use forkd_protocol::digest::Digest;
use forkd_protocol::error::ErrorClass;

use crate::room::Room;

/// A bundle that was refused.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Its document or its archive is not what the format says. Have it made again.
    #[error("the bundle is refused: {reason}")]
    Refused {
        /// What is wrong with it.
        reason: String,
    },
    /// It, or something in it, was written by a later forkd.
    #[error("the bundle is refused: {what} has version {found}, this forkd knows {known}; use a newer forkd")]
    Newer {
        /// Of what.
        what: &'static str,
        /// What it says.
        found: u64,
        /// The newest that is understood.
        known: u64,
    },
    /// An object is not what its name and the document say.
    #[error("the object {hash} is refused: {reason}")]
    Object {
        /// Its name.
        hash: Digest,
        /// What is wrong with it.
        reason: String,
    },
    /// Objects have not come yet. Send them and commit again.
    #[error("{missing} of the bundle's objects have not come: it is cut off, or not all of it was sent")]
    Incomplete {
        /// How many.
        missing: usize,
    },
    /// The bundle is a thin one, and what it leaves out is not here.
    #[error(
        "the bundle is thin and this store lacks the image {name:?} ({hash}): make a bundle without --thin, or bring the image here in another bundle"
    )]
    Thin {
        /// Name of the image where it comes from.
        name: String,
        /// What its content hashes to.
        hash: String,
    },
    /// The snapshot is here under another tag.
    #[error("this snapshot is here already, as {tag:?}")]
    Here {
        /// The tag.
        tag: String,
    },
    /// No import of this name is under way.
    #[error("there is no import {id}: begin it again")]
    NoImport {
        /// BLAKE3 of its document.
        id: Digest,
    },
    /// Too many imports wait for objects. End or finish some; `forkd gc` removes those that nobody goes on with.
    #[error("{max} imports are under way; finish some, or have `forkd gc` remove those that were left")]
    TooMany {
        /// How many may be.
        max: usize,
    },
    /// What it needs does not fit. Make room and begin again.
    #[error(
        "no space is left for the bundle (ENOSPC): it needs {} MiB here, and {room}; free some and try again",
        .needed.div_ceil(1 << 20)
    )]
    NoRoom {
        /// Bytes of what the store lacks.
        needed: u64,
        /// What there is.
        room: Room,
    },
    /// No such object belongs to this snapshot.
    #[error("{tag:?} has no object {hash}: it names another snapshot now; begin again")]
    NoObject {
        /// The snapshot.
        tag: String,
        /// The object.
        hash: Digest,
    },
    /// Guests of the snapshot were shown another processor than this host has.
    #[error(
        "{tag:?} was made on a processor of {made} and this host has one of {here}, which cannot go on with it: \
         take it to a host like the one it was made on, or make it again here with `forkd snapshot`"
    )]
    Unfit {
        /// The snapshot.
        tag: String,
        /// What its guests were shown.
        made: String,
        /// What this host has.
        here: String,
    },
}

impl BundleError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Refused { .. } | Self::Newer { .. } | Self::Object { .. } => ErrorClass::Caller,
            Self::Incomplete { .. } | Self::Here { .. } | Self::Thin { .. } => ErrorClass::Conflict,
            Self::NoImport { .. } | Self::NoObject { .. } => ErrorClass::NotFound,
            Self::TooMany { .. } | Self::NoRoom { .. } => ErrorClass::Exhausted,
            Self::Unfit { .. } => ErrorClass::HostUnfit,
        }
    }

    /// What happened, for the machine.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "bundle_refused",
            Self::Newer { .. } => "bundle_too_new",
            Self::Object { .. } => "object_refused",
            Self::Incomplete { .. } => "bundle_incomplete",
            Self::Thin { .. } => "image_missing",
            Self::Here { .. } => "snapshot_present",
            Self::NoImport { .. } => "no_import",
            Self::NoObject { .. } => "no_object",
            Self::NoRoom { .. } => "no_space",
            Self::TooMany { .. } => "too_many_imports",
            Self::Unfit { .. } => "host_unfit",
        }
    }

    pub(crate) fn refused(reason: impl Into<String>) -> Self {
        Self::Refused { reason: reason.into() }
    }
}
