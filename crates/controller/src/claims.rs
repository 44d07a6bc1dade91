//! Snapshots that belong to a tenant: the tag is the tenant's before the snapshot is begun.

use forkd_engine::EngineError;
use forkd_protocol::names::{SandboxId, Tag};
use forkd_store::Store;

use crate::clock::unix_now;
use crate::error::ApiError;
use crate::service::{Service, blocking};

/// A claim that is given back where no snapshot came of it.
#[derive(Debug)]
struct Claim {
    store: Store,
    tag: Tag,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let (store, tag) = (self.store.clone(), self.tag.clone());
        // It does nothing where there is a snapshot, or one on its way.
        let free = move || {
            if let Err(e) = store.free_claim(&tag) {
                tracing::warn!(%tag, error = %forkd_protocol::error::chain(&e), "a claim stays until the next start");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(free)),
            Err(_) => free(),
        }
    }
}

impl Service {
    /// Makes a snapshot of `tag` that is `tenant`'s from its beginning; shared where there is no tenant.
    pub(crate) async fn making<T>(
        &self,
        tenant: Option<&str>,
        tag: &Tag,
        making: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, ApiError> {
        let Some(tenant) = tenant.map(str::to_owned) else { return Ok(making.await?) };
        self.quotas().admit_snapshot(Some(&tenant), &self.engine().snapshots().await?)?;
        let (store, asked) = (self.engine().store().clone(), tag.clone());
        blocking(move || store.claim_tag(&asked, &tenant)).await??;
        let _claim = Claim { store: self.engine().store().clone(), tag: tag.clone() };
        Ok(making.await?)
    }
}

/// A tag for a branch that nobody named, as published clients know them.
pub(crate) fn branch_tag(id: &SandboxId) -> Result<Tag, ApiError> {
    Ok(format!("branch-{id}-{}-{:x}", unix_now(), rand::random::<u32>()).parse()?)
}
