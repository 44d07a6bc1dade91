//! What an image says about running its processes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where an image that was a container's keeps its [`ImageSettings`], as JSON. In the image itself: so they
/// are wherever it is, in every snapshot, branch and bundle.
pub const IMAGE_SETTINGS: &str = "/etc/forkd/image.json";

/// How processes are run where nobody says otherwise; the `config` of a container image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageSettings {
    /// `USER`: a name or number, with or without `:group`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// `WORKDIR`, absolute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// `ENV`.
    pub env: BTreeMap<String, String>,
    /// `ENTRYPOINT`.
    pub entrypoint: Vec<String>,
    /// `CMD`.
    pub cmd: Vec<String>,
}
