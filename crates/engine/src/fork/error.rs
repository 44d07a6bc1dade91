//! Why children could not be forked.

use std::ops::RangeInclusive;

use forkd_host::net::NetError;
use forkd_protocol::error::{ErrorClass, chain};
use forkd_protocol::names::SandboxId;

use crate::guest::GuestError;
use crate::identity::EntropyError;
use crate::monitor::MonitorError;

/// Why children could not be forked. Nothing of any of them is left.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// Some children failed.
    #[error("{} of {asked} children failed, so none was kept; the first: {}", .failed.len(), first(.failed))]
    Children {
        /// How many were asked for.
        asked: u32,
        /// Which failed, and why.
        failed: Vec<(SandboxId, ChildError)>,
    },
    /// The snapshot is of another time. Make it again, or use the forkd that made it.
    #[error(
        "snapshot {tag:?} has {what} of version {found}, this forkd knows {} to {}: make it again with `forkd snapshot \
         refresh {tag}`, or use the forkd that made it", .known.start(), .known.end()
    )]
    Version {
        /// Its tag.
        tag: String,
        /// Which part of it.
        what: &'static str,
        /// Version of that part.
        found: u32,
        /// What is understood here.
        known: RangeInclusive<u32>,
    },
    /// The host's generator gave no entropy for its tokens.
    #[error("the host gave no entropy")]
    Entropy(#[source] EntropyError),
    /// A child was killed while its request was still being carried out.
    #[error("the children were given up while they were starting")]
    GivenUp,
}

/// Why one child failed.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// Its monitor did not start, or refused the snapshot.
    #[error(transparent)]
    Monitor(#[from] MonitorError),
    /// There was no network for it.
    #[error(transparent)]
    Network(#[from] NetError),
    /// Its agent did not take the new identity.
    #[error("the guest did not take its new identity")]
    Identity(#[source] GuestError),
    /// The agent of one that was paused did not go on.
    #[error("the guest did not go on after its pause")]
    Continuation(#[source] GuestError),
    /// The host's generator gave no entropy.
    #[error("the host gave no entropy")]
    Entropy(#[source] EntropyError),
    /// Another child failed or the request was given up.
    #[error("given up")]
    GivenUp,
    /// A background step of the engine broke.
    #[error("a step of the engine broke")]
    Broken,
}

fn first(failed: &[(SandboxId, ChildError)]) -> String {
    failed.first().map_or_else(String::new, |(_, e)| chain(e))
}

impl ChildError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Monitor(e) => e.class(),
            Self::Network(e) => e.class(),
            Self::Identity(_) | Self::Continuation(_) => ErrorClass::GuestFault,
            Self::GivenUp => ErrorClass::Conflict,
            Self::Entropy(_) | Self::Broken => ErrorClass::Internal,
        }
    }
}

impl ForkError {
    /// Who has to act: what the first failure says.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Children { failed, .. } => failed.first().map_or(ErrorClass::Internal, |(_, e)| e.class()),
            Self::Version { .. } => ErrorClass::HostUnfit,
            Self::GivenUp => ErrorClass::Conflict,
            Self::Entropy(_) => ErrorClass::Internal,
        }
    }

    /// What happened, for the machine.
    pub fn code(&self) -> Option<&'static str> {
        Some(match self {
            Self::Children { failed, .. } => match failed.first().map(|(_, e)| e) {
                Some(ChildError::Monitor(e)) => e.code().unwrap_or("fork_failed"),
                Some(ChildError::Network(e)) => e.code().unwrap_or("fork_failed"),
                _ => "fork_failed",
            },
            Self::Version { .. } => "version_mismatch",
            Self::GivenUp => "given_up",
            Self::Entropy(_) => return None,
        })
    }

    /// One line per child that failed.
    pub fn failures(&self) -> Vec<String> {
        let Self::Children { failed, .. } = self else { return Vec::new() };
        failed.iter().map(|(id, e)| format!("{id}: {}", chain(e))).collect()
    }
}
