//! Making a snapshot again of what its manifest records, with the programs of now.

use forkd_protocol::names::Tag;
use forkd_protocol::rest::{CreateSnapshot, RefreshSnapshot, SnapshotInfo};
use forkd_store::{SnapshotDraft, SnapshotRecord, Store, StoreError};
use tokio::sync::mpsc;

use super::{Plan, SnapshotError, Source, check, make};
use crate::engine::{Engine, blocking};
use crate::error::EngineError;
use crate::fault;

impl Engine {
    /// Boots the image that a snapshot was made of, warms it up in the same way, and freezes it under another tag, or in
    /// the place of the old one: then the tag names that until the new one is ready. Children of the old one keep what
    /// they need. Dropping the future undoes what was done, as with [`Engine::create_snapshot`].
    ///
    /// # Errors
    /// It was branched from a sandbox, so nothing says how it came to be; and those of making a snapshot.
    pub async fn refresh_snapshot(
        &self,
        from: Tag,
        asked: RefreshSnapshot,
        progress: mpsc::Sender<String>,
    ) -> Result<SnapshotInfo, EngineError> {
        self.shared.branches.check_ready(from.as_str())?;
        let old = self.in_store(move |store| store.snapshot(&from)).await?;
        let plan = plan(&self.shared.store, &old, &asked)?;
        let (store, tag, in_place) = (self.shared.store.clone(), plan.tag.clone(), asked.tag.is_none());
        let beginning = move || -> Result<SnapshotDraft, StoreError> {
            if in_place { store.begin_replacement(&old) } else { store.begin_snapshot(&tag) }
        };
        let draft = blocking(beginning).await??;
        fault::at!("engine::refresh::reserved");
        make(&self.shared, plan, draft, &progress).await
    }
}

fn plan(store: &Store, old: &SnapshotRecord, asked: &RefreshSnapshot) -> Result<Plan, EngineError> {
    let SnapshotRecord { info, manifest, .. } = old;
    if manifest.branched_from.is_some() {
        let (tag, parent) = (info.tag.clone(), info.parent_tag.clone());
        return Err(SnapshotError::NotRecorded { tag, parent }.into());
    }
    let image = Source::Recorded(store.image_below(&manifest.image));
    let asked = CreateSnapshot {
        tag: asked.tag.clone().unwrap_or_else(|| info.tag.clone()),
        image: manifest.image.name.clone(),
        kernel: asked.kernel.clone(),
        warm: manifest.warm.clone(),
        vcpus: manifest.vcpus,
        memory_mib: manifest.memory_mib,
        cpu: manifest.cpu,
        warm_timeout_secs: asked.warm_timeout_secs,
        network: None,
    };
    let network = manifest.network.clone().unwrap_or_default();
    Ok(Plan { image, network, ..check(asked)? })
}
