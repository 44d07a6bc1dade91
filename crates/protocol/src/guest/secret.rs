//! Secrets as the agent is given them.
//!
//! They lie in a file system in the guest's memory, below [`SECRETS_FOLDER`], each a file that only the user of the
//! workload reads. The agent empties these files once the workload stands still for a snapshot, so that no snapshot has
//! them; whoever lets the workload run again gives them anew in the same breath.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a guest finds its secrets, each a file of its name.
pub const SECRETS_FOLDER: &str = "/run/secrets";
/// The first version whose agent keeps secrets.
pub const SECRETS_VERSION: u32 = 4;
/// `POST` [`GiveSecrets`]: empty object. From [`SECRETS_VERSION`] on.
pub const PATH_SECRETS: &str = "/forkd/v1/secrets";

/// A secret on its way into a guest. Its value is not shown where it is printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSecret {
    /// Name of its file.
    pub name: String,
    /// What is in it.
    pub value_base64: String,
}

impl fmt::Debug for GuestSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestSecret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Let the workload run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thaw {
    /// What it is given before that. Secrets that it had and that are not among these are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<GuestSecret>,
}

/// Add secrets to those of a running workload, or replace them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiveSecrets {
    /// The ones to add.
    pub secrets: Vec<GuestSecret>,
}
