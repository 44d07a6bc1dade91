//! Why children could not be forked.

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
    /// Its agent did not take the new identity.
    #[error("the guest did not take its new identity")]
    Identity(#[source] GuestError),
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

impl ForkError {
    /// Who has to act: what the first failure says.
    pub fn class(&self) -> ErrorClass {
        let Self::Children { failed, .. } = self else { return ErrorClass::Conflict };
        match failed.first().map(|(_, e)| e) {
            Some(ChildError::Monitor(e)) => e.class(),
            Some(ChildError::Identity(_)) => ErrorClass::GuestFault,
            Some(ChildError::GivenUp) => ErrorClass::Conflict,
            Some(ChildError::Entropy(_) | ChildError::Broken) | None => ErrorClass::Internal,
        }
    }

    /// What happened, for the machine.
    pub fn code(&self) -> Option<&'static str> {
        Some(match self {
            Self::Children { failed, .. } => match failed.first().map(|(_, e)| e) {
                Some(ChildError::Monitor(e)) => e.code().unwrap_or("fork_failed"),
                _ => "fork_failed",
            },
            Self::GivenUp => "given_up",
        })
    }

    /// One line per child that failed.
    pub fn failures(&self) -> Vec<String> {
        let Self::Children { failed, .. } = self else { return Vec::new() };
        failed.iter().map(|(id, e)| format!("{id}: {}", chain(e))).collect()
    }
}
