//! Secrets of sandboxes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Most secrets of one sandbox.
pub const MAX_SECRETS: usize = 64;
/// Most bytes of one of them.
pub const MAX_SECRET_BYTES: usize = 64 * 1024;

/// Secrets by name.
pub type SecretValues = BTreeMap<String, SecretValue>;

/// The value of a secret: text, or bytes as base64. It is not shown where it is printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SecretValue {
    /// Text as it is.
    Text(String),
    /// Any bytes.
    Bytes {
        /// Of them, standard alphabet with padding.
        base64: String,
    },
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue(..)")
    }
}

/// A secret of a sandbox, without its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ShownSecret {
    /// Its name: that of its file in `/run/secrets`.
    pub name: String,
    /// Sandbox or snapshot that it came from; absent where it was given to this sandbox itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited_from: Option<String>,
    /// Whether the controller holds its value in memory, so that the sandbox has it again after a pause or a branch.
    /// One that came with a snapshot may be in the memory of its processes, and has no value here.
    pub held: bool,
}

/// Give a running sandbox secrets, beside those that it has or in their place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GiveSecretsRequest {
    /// Value of each, by name.
    pub secrets: SecretValues,
}
