//! How a sandbox's monitor is jailed, as its host's kernel tells it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/sandboxes/{id}/jail`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JailReport {
    /// The sandbox.
    pub id: String,
    /// Process id of its monitor.
    pub pid: u32,
    /// Whether all that is needed is as it should be.
    pub ok: bool,
    /// One by one.
    pub checks: Vec<JailCheck>,
    /// How many open descriptors of each kind it has.
    pub descriptors: BTreeMap<String, usize>,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JailCheck {
    /// What.
    pub name: String,
    /// Whether it is as it should be.
    pub ok: bool,
    /// Whether it must be: user namespaces are not to be had on every host.
    pub needed: bool,
    /// What was found.
    pub found: String,
}
