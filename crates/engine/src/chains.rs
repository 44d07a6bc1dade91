//! Snapshots as chains: verbs that only concern the store.

use forkd_protocol::names::Tag;
use forkd_protocol::rest::{
    CompactSnapshot, EventKind, GarbageReport, RemoveSnapshot, SnapshotInfo, SnapshotInfoDetail,
    VerifyReport, VerifySnapshots,
};
use forkd_store::Removal;

use crate::engine::Engine;
use crate::error::{EngineError, RequestError};

impl Engine {
    /// Everything about one snapshot.
    pub async fn snapshot_detail(&self, tag: Tag) -> Result<SnapshotInfoDetail, EngineError> {
        self.in_store(move |store| store.snapshot_detail(&tag)).await
    }

    /// Removes a snapshot; children that run keep what they need. Where others descend from it, it is refused unless
    /// the request says what to do about them.
    pub async fn remove_snapshot(&self, tag: Tag, asked: RemoveSnapshot) -> Result<(), EngineError> {
        let how = match (asked.cascade, asked.force) {
            (false, false) => Removal::Alone,
            (true, false) => Removal::Cascade,
            (false, true) => Removal::Force,
            (true, true) => return Err(RequestError::Together("cascade", "force").into()),
        };
        if self.shared.branches.forget_failed(tag.as_str()) {
            return Ok(());
        }
        self.shared.branches.check_ready(tag.as_str())?;
        let events = self.shared.events.clone();
        let removing = self.in_store(move |store| {
            // Whose they are is forgotten with them.
            let owners = store.tag_owners()?;
            for removed in store.remove_snapshot(&tag, how)? {
                let owner = owners.get(&removed).cloned();
                events.snapshot(EventKind::SnapshotRemoved, &removed, owner, None);
            }
            Ok(())
        });
        removing.await
    }

    /// Makes a flat snapshot of one that lies on others. It is made to the end beside a future that was dropped.
    pub async fn compact_snapshot(
        &self,
        from: Tag,
        asked: CompactSnapshot,
    ) -> Result<SnapshotInfo, EngineError> {
        let to: Tag = asked.to.parse()?;
        let events = self.shared.events.clone();
        let compacting = self.in_store(move |store| {
            let info = store.compact_snapshot(&from, &to)?.info;
            events.made(store, &info.tag);
            Ok(info)
        });
        compacting.await
    }

    /// Removes content that nothing names, or only says what would go.
    pub async fn collect_garbage(&self, dry_run: bool) -> Result<GarbageReport, EngineError> {
        self.in_store(move |store| store.gc(dry_run)).await
    }

    /// Hashes stored content again.
    pub async fn verify_snapshots(&self, asked: VerifySnapshots) -> Result<VerifyReport, EngineError> {
        let tag: Option<Tag> = asked.tag.as_deref().map(str::parse).transpose()?;
        self.in_store(move |store| store.verify(tag.as_ref(), asked.rebuild_views)).await
    }
}
