//! What a sandbox was given beside its snapshot: labels, time to live, tokens. None of it changes what state the sandbox
//! is in; it is kept in the registry, so that the next controller knows it.
//!
//! ```text
//!   activity   whether anything is going on in it
//!   access     tokens that let traffic in: new for each sandbox, gone with it
//!   keeper     one sandbox's settings: read by everybody, changed one at a time
//!   lifetime   ends or pauses those whose time is over
//!   idle       pauses those that nobody uses
//!   change     what callers of the engine can change
//! ```

mod access;
mod activity;
mod change;
mod idle;
mod keeper;
mod lifetime;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use forkd_protocol::rest::{
    CreateSandboxes, MAX_LIFETIME_SECS, MAX_METADATA, MAX_METADATA_BYTES, NetworkPolicy, OnTimeout, Publish,
    SandboxSettings, ShownSettings,
};
use forkd_store::Manifest;
use serde::{Deserialize, Serialize};

pub use access::Access;
pub(crate) use activity::Busy;
pub use change::Connected;
pub(crate) use keeper::Keeper;
pub(crate) use lifetime::{Alarm, keep_lifetimes};

use crate::error::{EngineError, RequestError, in_range};
use crate::secrets::Secrets;

/// Everything that is kept of one sandbox. Fields that an older controller did not write have their defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Settings {
    /// Labels.
    pub(crate) metadata: BTreeMap<String, String>,
    /// Environment that its processes were promised: for those who are forked off it.
    pub(crate) env: BTreeMap<String, String>,
    /// When its time is over, milliseconds since the Unix epoch.
    pub(crate) ends_at_ms: Option<u64>,
    /// How long it was last given.
    pub(crate) timeout_secs: Option<u64>,
    pub(crate) on_timeout: OnTimeout,
    pub(crate) auto_resume: bool,
    /// It is paused once nobody has used it for so long.
    pub(crate) idle_timeout_secs: Option<u64>,
    /// Its ports at addresses of the host.
    pub(crate) published: Vec<Publish>,
    /// Who may reach it.
    pub(crate) access: Access,
    /// The tag to show in the place of one that was made for its fork alone.
    pub(crate) template: Option<String>,
    /// What may leave it; none where its guest has no network device.
    pub(crate) network: Option<NetworkPolicy>,
    /// That was written down, and maybe another one holds still.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) network_pending: bool,
    /// What its machine is like.
    pub(crate) shape: Shape,
    /// By name; the values are in memory alone.
    pub(crate) secrets: Secrets,
}

/// What a sandbox's machine is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Shape {
    /// Processors.
    pub vcpus: u32,
    /// Memory.
    pub memory_mib: u64,
    /// Size of its disk.
    pub disk_bytes: u64,
}

impl Settings {
    /// Of a child of a snapshot, from now on.
    pub(crate) fn of(asked: &CreateSandboxes, manifest: &Manifest) -> Self {
        let SandboxSettings { metadata, timeout_secs, on_timeout, auto_resume, idle_timeout_secs } =
            asked.settings.clone();
        Self {
            metadata,
            env: asked.env.clone(),
            ends_at_ms: timeout_secs.map(from_now),
            timeout_secs,
            on_timeout,
            auto_resume,
            idle_timeout_secs,
            published: Vec::new(),
            access: Access::default(),
            template: None,
            network: None,
            network_pending: false,
            shape: Shape {
                vcpus: manifest.vcpus,
                memory_mib: manifest.memory_mib,
                disk_bytes: manifest.image.size_bytes,
            },
            secrets: Secrets::of(asked, manifest),
        }
    }

    /// As the registry keeps it.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The way back; a text of a later version loses what is not known here.
    pub(crate) fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    pub(crate) fn shown(&self) -> ShownSettings {
        ShownSettings {
            metadata: self.metadata.clone(),
            ends_at_unix_ms: self.ends_at_ms,
            on_timeout: self.on_timeout,
            auto_resume: self.auto_resume,
            idle_timeout_secs: self.idle_timeout_secs,
            published: Vec::new(),
            secrets: self.secrets.shown(),
        }
    }

    /// It lives for this long from now on.
    pub(crate) fn live_for(&mut self, secs: u64) {
        self.timeout_secs = Some(secs);
        self.ends_at_ms = Some(from_now(secs));
    }

    /// It lives for at least this long from now on.
    pub(crate) fn live_at_least(&mut self, secs: u64) {
        self.ends_at_ms = self.ends_at_ms.map(|ends| ends.max(from_now(secs)));
    }
}

/// Refuses what cannot be kept.
pub(crate) fn check(asked: &SandboxSettings) -> Result<(), EngineError> {
    check_secs(asked.timeout_secs)?;
    in_range::<u64>("idle_timeout_secs", asked.idle_timeout_secs.unwrap_or(1), 1, MAX_LIFETIME_SECS)?;
    let sizes = asked.metadata.iter().flat_map(|(key, value)| [key.len(), value.len()]);
    in_range::<usize>("entries of metadata", asked.metadata.len() as u64, 0, MAX_METADATA as u64)?;
    let longest = sizes.max().unwrap_or_default();
    in_range::<usize>("bytes of a metadata entry", longest as u64, 0, MAX_METADATA_BYTES as u64)?;
    Ok(())
}

pub(crate) fn check_secs(secs: Option<u64>) -> Result<(), RequestError> {
    in_range::<u64>("timeout", secs.unwrap_or_default(), 0, MAX_LIFETIME_SECS).map(drop)
}

fn from_now(secs: u64) -> u64 {
    now_ms().saturating_add(secs.saturating_mul(1000))
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_registry_and_unknown_ones_do_no_harm() {
        let mut settings = Settings { on_timeout: OnTimeout::Pause, ..Settings::default() };
        settings.metadata.insert("a".into(), "b".into());
        settings.live_for(60);
        assert_eq!(Settings::read(&settings.text()), settings);
        assert!(Settings::read(r#"{"later":1,"auto_resume":true}"#).auto_resume);
        assert_eq!(Settings::read("no json"), Settings::default());
    }

    #[test]
    fn a_life_is_only_extended_where_that_is_asked_for() {
        let mut settings = Settings::default();
        settings.live_at_least(60);
        assert_eq!(settings.ends_at_ms, None, "for ever is longer than any time");
        settings.live_for(100);
        let ends = settings.ends_at_ms;
        settings.live_at_least(10);
        assert_eq!(settings.ends_at_ms, ends);
        settings.live_at_least(200);
        assert!(settings.ends_at_ms > ends);
        settings.live_for(1);
        assert!(settings.ends_at_ms < ends);
    }

    #[test]
    fn what_is_too_much_is_refused() {
        let mut asked = SandboxSettings { timeout_secs: Some(MAX_LIFETIME_SECS + 1), ..Default::default() };
        assert!(check(&asked).is_err());
        asked.timeout_secs = None;
        asked.metadata = [("k".to_owned(), "v".repeat(MAX_METADATA_BYTES + 1))].into();
        assert!(check(&asked).is_err());
        asked.metadata = (0..=MAX_METADATA).map(|n| (n.to_string(), String::new())).collect();
        assert!(check(&asked).is_err());
        asked.metadata.pop_first();
        assert!(check(&asked).is_ok());
    }
}
