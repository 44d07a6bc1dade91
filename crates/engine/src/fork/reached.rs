//! Children that are reached by their own addresses, and children of a running sandbox that are like it.

use forkd_protocol::error::chain;
use forkd_protocol::names::{SandboxId, Tag};
use forkd_protocol::rest::{BranchRequest, CreateSandboxes, SandboxInfo, SandboxSettings};
use forkd_store::{Removal, Store};
use tracing::warn;

use super::{Wishes, fork};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::settings::Access;

impl Engine {
    /// Forks children of a snapshot that are reached by their own tokens.
    ///
    /// # Errors
    /// As [`Engine::fork`].
    pub async fn fork_with_access(
        &self,
        asked: CreateSandboxes,
        access: Access,
    ) -> Result<Vec<SandboxInfo>, EngineError> {
        fork(&self.shared, asked, Wishes { access, ..Wishes::default() }).await
    }

    /// Forks children of a running sandbox that have its labels, environment and manner of ending, and live for `secs`.
    /// Nothing but the children is left.
    ///
    /// # Errors
    /// As [`Engine::branch`] and [`Engine::fork`].
    pub async fn fork_sandbox(
        &self,
        id: &SandboxId,
        n: u32,
        secs: u64,
    ) -> Result<Vec<SandboxInfo>, EngineError> {
        let handle = self.running(id)?;
        let settings = handle.settings.get();
        let branched = self.branch(id, BranchRequest::default()).await?;
        let between = Between::new(self, branched.tag.parse()?);
        let asked = CreateSandboxes {
            n,
            env: settings.env,
            settings: SandboxSettings {
                metadata: settings.metadata,
                timeout_secs: Some(secs),
                on_timeout: settings.on_timeout,
                auto_resume: settings.auto_resume,
                idle_timeout_secs: settings.idle_timeout_secs,
            },
            ..CreateSandboxes::of(&branched.tag)
        };
        let template = settings.template.unwrap_or_else(|| handle.info().snapshot_tag);
        let wishes = Wishes { access: settings.access, template: Some(template), ..Wishes::default() };
        let children = fork(&self.shared, asked, wishes).await;
        between.remove().await;
        children
    }
}

/// The snapshot between a sandbox and its children: nobody asked for it. Removed also where the request is given up.
struct Between(Option<(Store, Tag)>);

impl Between {
    fn new(engine: &Engine, tag: Tag) -> Self {
        Self(Some((engine.store().clone(), tag)))
    }

    /// What the children need of it stays as long as they do.
    async fn remove(mut self) {
        if let Some((store, tag)) = self.0.take() {
            // A panic of it is told by the runtime.
            let _ = tokio::task::spawn_blocking(move || remove(&store, &tag)).await;
        }
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        if let Some((store, tag)) = self.0.take() {
            tokio::task::spawn_blocking(move || remove(&store, &tag));
        }
    }
}

fn remove(store: &Store, tag: &Tag) {
    if let Err(e) = store.remove_snapshot(tag, Removal::Force) {
        warn!(%tag, error = %chain(&e), "the snapshot that a sandbox was forked by stays");
    }
}
