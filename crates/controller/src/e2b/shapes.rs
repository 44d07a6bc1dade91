//! The objects that clients read. Names and what is required are theirs.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use forkd_engine::{Access, Engine, Shape};
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{OnTimeout, SandboxInfo};
use serde::{Deserialize, Serialize};

use super::CLIENT_ID;
use super::error::E2bError;

/// The version of the sandbox API that clients are told: it decides which calls they dare.
pub(super) const ENVD_VERSION: &str = "0.6.13";
/// The end of a sandbox that has none: clients require one. The first second of 2100.
const NO_END_MS: u64 = 4_102_444_800_000;

/// A sandbox that runs, for whoever made or connected to it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    envd_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traffic_access_token: Option<String>,
    /// Of host names; clients use their own where there is none.
    domain: Option<String>,
}

/// A sandbox in a list.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed {
    #[serde(rename = "templateID")]
    pub(super) template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    started_at: String,
    end_at: String,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    state: &'static str,
    envd_version: &'static str,
    metadata: BTreeMap<String, String>,
}

/// A sandbox with all that is known of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Detail {
    #[serde(flatten)]
    listed: Listed,
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
    domain: Option<String>,
    lifecycle: Lifecycle,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Lifecycle {
    auto_resume: bool,
    on_timeout: OnTimeout,
}

/// What a new sandbox is to be like.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NewSandbox {
    #[serde(rename = "templateID")]
    pub(super) template_id: String,
    pub(super) timeout: Option<u64>,
    pub(super) metadata: Option<BTreeMap<String, String>>,
    pub(super) env_vars: Option<BTreeMap<String, String>>,
    pub(super) auto_pause: Option<bool>,
    pub(super) auto_resume: Option<AutoResume>,
    pub(super) secure: Option<bool>,
    #[serde(rename = "allow_internet_access")]
    pub(super) allow_internet_access: Option<bool>,
    pub(super) network: Option<NetworkConfig>,
    pub(super) mcp: Option<serde_json::Value>,
    pub(super) iam: Option<serde_json::Value>,
    pub(super) volume_mounts: Option<Vec<serde_json::Value>>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct AutoResume {
    #[serde(default)]
    pub(super) enabled: bool,
}

/// What may reach it, and what it may reach.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NetworkConfig {
    pub(super) allow_public_traffic: Option<bool>,
    pub(super) allow_out: Option<Vec<String>>,
    pub(super) deny_out: Option<Vec<String>>,
    #[serde(rename = "allow_internet_access")]
    pub(super) allow_internet_access: Option<bool>,
    /// Whatever else is asked for.
    #[serde(flatten)]
    pub(super) more: BTreeMap<String, serde_json::Value>,
}

impl Sandbox {
    pub(super) fn of(engine: &Engine, info: SandboxInfo, id: &SandboxId) -> Result<Self, E2bError> {
        let access = engine.access(id)?;
        Ok(Self {
            template_id: info.snapshot_tag,
            sandbox_id: info.id,
            client_id: CLIENT_ID,
            envd_version: ENVD_VERSION,
            envd_access_token: token(&access),
            traffic_access_token: access.traffic_token,
            domain: None,
        })
    }
}

impl Listed {
    /// None of one that is of no state that clients know: not yet there, or over.
    pub(super) fn of(engine: &Engine, info: SandboxInfo) -> Option<Self> {
        let state = state_of(&info)?;
        let shape = engine.shape(&info.id.parse().ok()?).unwrap_or_default();
        Some(Self::with(info, state, shape))
    }

    fn with(info: SandboxInfo, state: &'static str, shape: Shape) -> Self {
        Self {
            template_id: info.snapshot_tag,
            sandbox_id: info.id,
            client_id: CLIENT_ID,
            started_at: rfc3339(info.created_at_unix * 1000),
            end_at: rfc3339(info.settings.ends_at_unix_ms.unwrap_or(NO_END_MS)),
            cpu_count: shape.vcpus,
            memory_mb: shape.memory_mib,
            disk_size_mb: shape.disk_bytes >> 20,
            state,
            envd_version: ENVD_VERSION,
            metadata: info.settings.metadata,
        }
    }
}

impl Detail {
    pub(super) fn of(engine: &Engine, info: SandboxInfo, id: &SandboxId) -> Result<Self, E2bError> {
        let settings = info.settings.clone();
        let listed = Listed::of(engine, info).ok_or_else(|| E2bError::no_sandbox(id.as_str()))?;
        Ok(Self {
            listed,
            envd_access_token: token(&engine.access(id)?),
            domain: None,
            lifecycle: Lifecycle { auto_resume: settings.auto_resume, on_timeout: settings.on_timeout },
        })
    }
}

/// Clients send the token that they were told; one that asked for none is told none.
fn token(access: &Access) -> Option<String> {
    (!access.open && !access.token.is_empty()).then(|| access.token.clone())
}

/// Clients know two states. What is on its way to one is in it.
pub(super) fn state_of(info: &SandboxInfo) -> Option<&'static str> {
    match info.state.as_str() {
        "running" | "resuming" => Some("running"),
        "paused" | "pausing" => Some("paused"),
        _ => None,
    }
}

/// A time of the API.
pub(super) fn rfc3339(unix_ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(unix_ms.min(NO_END_MS))).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_what_clients_parse() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(u64::MAX), "2100-01-01T00:00:00.000Z");
    }

    #[test]
    fn unset_and_unknown_fields_are_fine() {
        let new: NewSandbox = serde_json::from_str(
            r#"{"templateID":"base","autoResume":{"enabled":true},"allow_internet_access":false,"later":1}"#,
        )
        .unwrap();
        assert!(
            new.auto_resume.unwrap().enabled
                && new.allow_internet_access == Some(false)
                && new.timeout.is_none()
        );
        let network: NetworkConfig =
            serde_json::from_str(r#"{"allowPublicTraffic":false,"dnsServers":[]}"#).unwrap();
        assert_eq!(network.more.keys().collect::<Vec<_>>(), ["dnsServers"]);
    }
}
