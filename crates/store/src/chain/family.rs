//! Which snapshot descends from which, and removing with regard to that.

use std::collections::HashMap;

use forkd_protocol::names::Tag;
use forkd_protocol::rest::{LayerInfo, SnapshotInfoDetail};

use super::view;
use crate::content::forget;
use crate::disk;
use crate::error::StoreError;
use crate::fault;
use crate::manifest::LayerRef;
use crate::records::SnapshotRecord;
use crate::store::Store;

/// What removing a snapshot does about those that descend from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Removal {
    /// Refuses where there are any.
    #[default]
    Alone,
    /// Removes them, too.
    Cascade,
    /// Leaves them. They lack nothing: layers stay as long as anybody names them.
    Force,
}

impl Store {
    /// Everything about a snapshot.
    pub fn snapshot_detail(&self, tag: &Tag) -> Result<SnapshotInfoDetail, StoreError> {
        let SnapshotRecord { info, id, manifest } = self.snapshot(tag)?;
        let all = self.snapshots()?;
        let layers =
            |layers: &[LayerRef]| layers.iter().map(|layer| self.layer_info(layer)).collect::<Vec<_>>();
        let (memory_layers, disk_layers) = (layers(&manifest.memory), layers(&manifest.disk));
        let state_format = self.state_format(&id);
        let physical = |layers: &[LayerInfo]| layers.iter().map(|layer| layer.physical_bytes).sum();
        Ok(SnapshotInfoDetail {
            tag: info.tag,
            dir: info.dir,
            created_at_unix: info.created_at_unix,
            memory_logical_bytes: manifest.memory_mib << 20,
            memory_physical_bytes: physical(&memory_layers),
            view_physical_bytes: view::physical_bytes(&self.snapshot_folder(&id)),
            disk_logical_bytes: manifest.image.size_bytes,
            disk_physical_bytes: physical(&disk_layers),
            vmstate_bytes: manifest.state_bytes,
            ancestors: ancestors(&all, manifest.parent.as_deref()),
            dependents: dependents(&all, &id).into_iter().map(|record| record.info.tag.clone()).collect(),
            id,
            parent_tag: info.parent_tag,
            parent_content_hash: manifest.parent,
            chain_depth: info.chain_depth,
            memory_layers,
            disk_layers,
            image: manifest.image.name,
            image_hash: manifest.image.hash,
            kernel: manifest.kernel,
            agent_protocol: manifest.agent_protocol,
            secrets: manifest.secrets.clone(),
            state_format,
        })
    }

    fn layer_info(&self, layer: &LayerRef) -> LayerInfo {
        LayerInfo {
            hash: layer.hash.clone(),
            logical_bytes: layer.data_bytes,
            physical_bytes: disk::physical_bytes(&self.layer_path(&layer.hash)),
            extents: layer.extents,
        }
    }

    /// Removes a snapshot; children that run keep what they need. Returns the tags that are gone.
    pub fn remove_snapshot(&self, tag: &Tag, how: Removal) -> Result<Vec<String>, StoreError> {
        let _guard = self.content_lock();
        let record = self.snapshot(tag)?;
        let all = self.snapshots()?;
        let below = dependents(&all, &record.id);
        let doomed: Vec<&SnapshotRecord> = match how {
            Removal::Alone if !below.is_empty() => {
                let dependents = below.into_iter().map(|record| record.info.tag.clone()).collect();
                return Err(StoreError::HasDependents { tag: tag.to_string(), dependents });
            }
            Removal::Cascade => below.into_iter().chain([&record]).collect(),
            Removal::Alone | Removal::Force => vec![&record],
        };
        let content = self.shared.db.commit_removal(|t| {
            for record in &doomed {
                t.execute("DELETE FROM snapshots WHERE id = ?1", [&record.id])?;
            }
            forget(t)
        })?;
        fault::at!("store::remove::forgotten");
        for record in &doomed {
            self.shared.open.forget(&record.id);
            self.shared.exports.forget(&record.id);
            disk::remove_folder(&self.snapshot_folder(&record.id))?;
            fault::at!("store::remove::folder_removed");
        }
        self.drop_content(content)?;
        Ok(doomed.into_iter().map(|record| record.info.tag.clone()).collect())
    }
}

/// The snapshots that descend from `id`, parents before their children.
fn dependents<'a>(all: &'a [SnapshotRecord], id: &str) -> Vec<&'a SnapshotRecord> {
    let mut by_parent: HashMap<&str, Vec<&SnapshotRecord>> = HashMap::new();
    for record in all {
        if let Some(parent) = &record.manifest.parent {
            by_parent.entry(parent).or_default().push(record);
        }
    }
    let mut found = by_parent.remove(id).unwrap_or_default();
    let mut at = 0;
    while let Some(record) = found.get(at).copied() {
        // Taken out, so that this ends whatever manifests say.
        found.extend(by_parent.remove(record.id.as_str()).unwrap_or_default());
        at += 1;
    }
    found
}

/// Tags of parent, its parent and so on; the id of the first that has no tag any more.
fn ancestors(all: &[SnapshotRecord], parent: Option<&str>) -> Vec<String> {
    let mut by_id: HashMap<&str, &SnapshotRecord> = all.iter().map(|r| (r.id.as_str(), r)).collect();
    let mut found = Vec::new();
    let mut next = parent;
    while let Some(id) = next {
        let record = by_id.remove(id);
        found.push(record.map_or_else(|| id.to_owned(), |record| record.info.tag.clone()));
        next = record.and_then(|record| record.manifest.parent.as_deref());
    }
    found
}

#[cfg(test)]
mod tests {
    use forkd_protocol::error::ErrorClass;

    use super::*;
    use crate::testing::{image, snapshot, tag};

    #[test]
    fn a_snapshot_with_descendants_is_removed_only_on_purpose() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let image = image(&store);
        let a = snapshot(&store, &image, "a", None, &[(1, 1), (2, 1)]);
        let b = snapshot(&store, &image, "b", Some(&a), &[(2, 2)]);
        let c = snapshot(&store, &image, "c", Some(&b), &[(3, 3)]);
        snapshot(&store, &image, "side", Some(&a), &[(4, 4)]);
        let detail = store.snapshot_detail(&tag("c")).unwrap();
        assert_eq!((detail.ancestors, detail.chain_depth), (vec!["b".to_owned(), "a".to_owned()], 3));
        assert_eq!(detail.parent_content_hash.as_ref(), Some(&b.id));
        assert_eq!(
            detail.memory_layers.iter().map(|l| l.logical_bytes).collect::<Vec<_>>(),
            [8192, 4096, 4096]
        );
        assert!(
            detail.view_physical_bytes > 0
                && store.snapshot_detail(&tag("b")).unwrap().view_physical_bytes == 0
        );
        assert!(detail.memory_physical_bytes >= 4 * 4096);
        assert_eq!(store.snapshot_detail(&tag("a")).unwrap().dependents, ["b", "side", "c"]);

        let refused = store.remove_snapshot(&tag("a"), Removal::Alone).unwrap_err();
        assert_eq!(refused.class(), ErrorClass::Conflict);
        assert!(refused.to_string().contains("b, side, c descend from \"a\""), "{refused}");
        assert_eq!(store.remove_snapshot(&tag("b"), Removal::Force).unwrap(), ["b"]);
        store.verify_snapshot(&tag("c")).unwrap();
        assert_eq!(store.snapshot_detail(&tag("c")).unwrap().ancestors, [b.id]);
        assert_eq!(store.snapshot_detail(&tag("a")).unwrap().dependents, ["side"]);
        // What "c" shares with others stays.
        assert_eq!(store.remove_snapshot(&tag("c"), Removal::Alone).unwrap(), ["c"]);
        assert!(!store.layer_path(&c.manifest.memory[2].hash).exists());
        store.verify_snapshot(&tag("side")).unwrap();
        assert_eq!(store.remove_snapshot(&tag("a"), Removal::Cascade).unwrap(), ["side", "a"]);
        assert!(store.snapshots().unwrap().is_empty());
        assert_eq!(std::fs::read_dir(store.folder("layers")).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(store.folder("snapshots")).unwrap().count(), 0);
    }
}
