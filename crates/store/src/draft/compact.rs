//! Flattening: a snapshot with one memory layer and one disk layer, from one with many.

use std::path::PathBuf;

use forkd_protocol::names::Tag;

use super::examine::Examined;
use super::{Draft, MAX_STATE_BYTES, SnapshotDraft, TAKEN_STATE};
use crate::chain::{LayerWriter, NewLayer, Stack, page_runs};
use crate::disk;
use crate::error::StoreError;
use crate::extents::PAGE;
use crate::fault;
use crate::layers::is_zero;
use crate::manifest::{LayerRef, Manifest};
use crate::records::SnapshotRecord;
use crate::store::{Store, now};

/// Read at once.
const STEP: u64 = 1 << 20;

/// Which pages of the layers a flat layer keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// Pages that are not zero: nothing is below.
    Data,
    /// All that some layer lists: an image is below, and the machine state counts them.
    Listed,
}

impl Store {
    /// Makes a flat snapshot `to` that restores to the same machine as `from`. Layers are read while `from` may be
    /// removed and used by others.
    pub fn compact_snapshot(&self, from: &Tag, to: &Tag) -> Result<SnapshotRecord, StoreError> {
        // Open, it keeps its content whatever happens to the tag.
        let source = self.open_snapshot(from)?;
        let SnapshotDraft { draft, reserved, .. } = self.begin_snapshot(to)?;
        let examined = draft.flatten(&source.record)?;
        fault::at!("store::compact::flattened");
        draft.commit(&examined, &reserved)
    }
}

impl Draft {
    fn flatten(&self, record: &SnapshotRecord) -> Result<Examined, StoreError> {
        let manifest = &record.manifest;
        let store = &self.store;
        let state = self.copy_state(record)?;
        let flat = |name: &str, layers: &[LayerRef], keep| -> Result<(Vec<LayerRef>, Option<NewLayer>), _> {
            if layers.len() < 2 {
                return Ok::<_, StoreError>((layers.to_vec(), None));
            }
            let new = self.merge(name, &store.listed(layers)?, layers, keep)?;
            Ok((vec![new.layer.clone()], Some(new)))
        };
        let (memory, new_memory) = flat("memory.flat", &manifest.memory, Keep::Data)?;
        let (disk, new_disk) = flat("disk.flat", &manifest.disk, Keep::Listed)?;
        let manifest = Manifest {
            uuid: uuid::Uuid::new_v4().to_string(),
            created_at_unix: now(),
            parent: None,
            memory,
            disk,
            ..manifest.clone()
        };
        let akin = Some(record.id.clone());
        Ok(Examined { manifest, state, memory: new_memory, disk: new_disk, akin })
    }

    fn copy_state(&self, record: &SnapshotRecord) -> Result<PathBuf, StoreError> {
        let store = &self.store;
        let (from, to) = (store.state_path(&record.id), self.path(TAKEN_STATE));
        // It goes with the snapshot's row, unlike layers, and is small.
        let _guard = store.content_lock();
        if !store.snapshot_folder(&record.id).exists() {
            return Err(StoreError::NotFound { kind: "snapshot", name: record.info.tag.clone() });
        }
        let (_, hash) = disk::take_in("a machine state", disk::open(&from)?, &to, MAX_STATE_BYTES)?;
        match hash.to_hex() {
            found if found.as_str() == record.manifest.state_hash => Ok(to),
            found => Err(StoreError::Damaged { path: from, found: found.to_string() }),
        }
    }

    /// One layer of what several have.
    pub(super) fn merge(
        &self,
        name: &str,
        stack: &Stack,
        layers: &[LayerRef],
        keep: Keep,
    ) -> Result<NewLayer, StoreError> {
        let (data, table) = (self.path(name), self.path(&format!("{name}.extents")));
        let mut writer = LayerWriter::create(&data, &table)?;
        let mut buffer = vec![0; STEP as usize];
        for run in stack.runs() {
            for first in (run.first..run.end()).step_by((STEP / PAGE) as usize) {
                let bytes = &mut buffer[..((run.end() - first) * PAGE).min(STEP) as usize];
                stack.read(first, bytes)?;
                let kept = |page: &[u8]| keep == Keep::Listed || !is_zero(page);
                for run in page_runs(bytes.chunks(PAGE as usize).map(kept)) {
                    writer.pages(first + run.start as u64 / PAGE, &bytes[run])?;
                }
            }
        }
        let size = layers.iter().map(|layer| layer.size_bytes).max().unwrap_or(0);
        writer.finish(size)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::chain::{Below, Removal};
    use crate::records::SnapshotMeta;
    use crate::testing::{below, draft, fill, image, meta, sandbox, snapshot, tag};

    /// The pages that the layers say, without a view.
    fn memory(store: &Store, record: &SnapshotRecord) -> Vec<u8> {
        let mut bytes = vec![0; 2048 * PAGE as usize];
        store.memory_stack(&record.manifest.memory).unwrap().read(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_flat_snapshot_is_the_same_machine_and_needs_nothing_of_the_chain() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let image = image(&store);
        let a = snapshot(&store, &image, "a", None, &[(1, 1), (2, 1), (1999, 4)]);
        store.put_sandbox(&sandbox("sb-1", &a)).unwrap();
        let mut frozen = Vec::new();
        for pages in [[(3, 1), (4, 1)], [(4, 0), (9, 2)]] {
            let (data, table) = (folder.path().join("run/top"), folder.path().join("run/top.extents"));
            fill(&File::create(&data).unwrap(), &File::create(&table).unwrap(), &pages, 64);
            let adopted = store.adopt_layer(&"sb-1".parse().unwrap(), &data, &table, 64 * PAGE);
            frozen.extend(adopted.unwrap());
        }
        let over = Below { disk: frozen, ..below(&a) };
        let meta = SnapshotMeta { below: Some(over), branched_from: Some("sb-1".into()), ..meta(&image) };
        let b = draft(&store, "b", &[(2, 0), (3, 3)]).publish(meta).unwrap();
        let expected = memory(&store, &b);

        let flat = store.compact_snapshot(&tag("b"), &tag("flat")).unwrap();
        assert_eq!((flat.manifest.memory.len(), flat.manifest.disk.len()), (1, 1));
        assert_eq!((flat.info.chain_depth, flat.manifest.parent.as_ref()), (1, None));
        assert_eq!(
            (flat.manifest.memory[0].data_bytes, flat.manifest.disk[0].data_bytes),
            (3 * PAGE, 3 * PAGE)
        );
        assert_eq!(memory(&store, &flat), expected);
        assert_eq!(flat.manifest.state_hash, b.manifest.state_hash);
        assert!(matches!(store.compact_snapshot(&tag("b"), &tag("a")), Err(StoreError::TagTaken { .. })));
        assert!(store.compact_snapshot(&tag("none"), &tag("new")).is_err());

        store.remove_sandbox(&"sb-1".parse().unwrap()).unwrap();
        store.remove_snapshot(&tag("a"), Removal::Cascade).unwrap();
        store.gc(false).unwrap();
        store.verify_snapshot(&tag("flat")).unwrap();
        assert_eq!(memory(&store, &flat), expected);
        // A flat one has nothing to flatten: its layers are shared.
        let again = store.compact_snapshot(&tag("flat"), &tag("again")).unwrap();
        assert_eq!(
            (&again.manifest.memory, &again.manifest.disk),
            (&flat.manifest.memory, &flat.manifest.disk)
        );
        assert_eq!(std::fs::read_dir(store.folder("staging")).unwrap().count(), 0);
    }
}
