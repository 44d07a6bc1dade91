//! Hashing stored content again and comparing it with its names.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use forkd_protocol::names::Tag;
use forkd_protocol::rest::{Damage, VerifyReport};

use super::view::{self, VIEW};
use crate::disk;
use crate::draft::MAX_STATE_BYTES;
use crate::error::StoreError;
use crate::layers::{self, LayerBounds};
use crate::manifest::LayerRef;
use crate::records::SnapshotRecord;
use crate::store::Store;

/// The longest manifest.
const MAX_MANIFEST_BYTES: u64 = 1 << 30;

/// A file of a snapshot and what it has to be.
#[derive(Debug)]
struct Part<'a> {
    kind: &'static str,
    path: PathBuf,
    is: Is<'a>,
}

#[derive(Debug)]
enum Is<'a> {
    /// A whole file of this hash, of at most so many bytes.
    File(&'a str, u64),
    Image(&'a str),
    Layer(&'a LayerRef),
    View(PathBuf),
}

impl Store {
    /// Hashes everything that snapshots consist of: those of one tag, or all, and what paused sandboxes are continued
    /// from. What several share is hashed once. With
    /// `rebuild_views` their views are made again from their layers instead.
    pub fn verify(&self, tag: Option<&Tag>, rebuild_views: bool) -> Result<VerifyReport, StoreError> {
        let records = match tag {
            Some(tag) => vec![self.snapshot(tag)?],
            None => self.snapshots()?.into_iter().chain(self.paused()?).collect(),
        };
        let mut report = VerifyReport { snapshots: records.len() as u64, ..VerifyReport::default() };
        // What was found wrong with each file.
        let mut done: HashMap<PathBuf, Option<usize>> = HashMap::new();
        for record in &records {
            if rebuild_views && view::wanted(&record.manifest.memory) {
                report.views_rebuilt += u64::from(self.rebuilt(record, &mut report)?);
            }
            for part in self.parts(record) {
                if rebuild_views && matches!(part.is, Is::View(_)) {
                    continue;
                }
                let found = match done.get(&part.path) {
                    Some(found) => *found,
                    None => {
                        report.files += 1;
                        let found = self.damage(record, &part, check(&part));
                        let at = found.map(|damage| {
                            report.damage.push(damage);
                            report.damage.len() - 1
                        });
                        done.insert(part.path, at);
                        at
                    }
                };
                let named = found.and_then(|at| report.damage.get_mut(at));
                if let Some(damage) = named {
                    damage.tags.push(record.info.tag.clone());
                }
            }
        }
        Ok(report)
    }

    /// Makes a view again; layers that do not let it are damage.
    fn rebuilt(&self, record: &SnapshotRecord, report: &mut VerifyReport) -> Result<bool, StoreError> {
        match self.rebuild_view(record) {
            Ok(()) => return Ok(true),
            Err(e @ StoreError::Full { .. }) => return Err(e),
            Err(e) => {
                let path = self.snapshot_folder(&record.id).join(VIEW);
                let part = Part { kind: "view", path: path.clone(), is: Is::View(path) };
                if let Some(mut damage) = self.damage(record, &part, Err(e)) {
                    damage.tags.push(record.info.tag.clone());
                    report.damage.push(damage);
                }
            }
        }
        Ok(false)
    }

    /// What is wrong with a part, unless its snapshot was removed meanwhile.
    fn damage(
        &self,
        record: &SnapshotRecord,
        part: &Part<'_>,
        found: Result<(), StoreError>,
    ) -> Option<Damage> {
        let error = found.err()?;
        let is_there = || Ok::<_, StoreError>(self.has_snapshot(&record.id)? || self.is_paused(&record.id)?);
        is_there().unwrap_or(true).then(|| Damage {
            kind: part.kind.to_owned(),
            path: part.path.display().to_string(),
            error: forkd_protocol::error::chain(&error),
            tags: Vec::new(),
        })
    }

    /// Reads everything that a snapshot consists of and compares it with what its names say; the first difference
    /// is the error.
    pub fn verify_snapshot(&self, tag: &Tag) -> Result<(), StoreError> {
        let record = self.snapshot(tag)?;
        self.parts(&record).iter().try_for_each(check)
    }

    fn parts<'a>(&self, record: &'a SnapshotRecord) -> Vec<Part<'a>> {
        let SnapshotRecord { id, manifest, .. } = record;
        let folder = self.snapshot_folder(id);
        let text = folder.join("manifest.json");
        let image = &manifest.image.hash;
        let mut parts = vec![
            Part { kind: "manifest", path: text, is: Is::File(id, MAX_MANIFEST_BYTES) },
            Part {
                kind: "state",
                path: self.state_path(id),
                is: Is::File(&manifest.state_hash, MAX_STATE_BYTES),
            },
            Part { kind: "image", path: self.image_path(image), is: Is::Image(image) },
        ];
        for (kind, layers) in [("memory layer", &manifest.memory), ("disk layer", &manifest.disk)] {
            parts.extend(layers.iter().map(|layer| Part {
                kind,
                path: self.layer_path(&layer.hash),
                is: Is::Layer(layer),
            }));
        }
        // As a layer it is looked at already.
        if view::wanted(&manifest.memory) && !view::is_layer(&folder) {
            parts.push(Part { kind: "view", path: folder.join(VIEW), is: Is::View(folder) });
        }
        parts
    }
}

fn check(part: &Part<'_>) -> Result<(), StoreError> {
    let path = &part.path;
    match &part.is {
        Is::File(hash, max) => {
            let found = disk::hash_file("stored content", path, *max)?.1.to_hex();
            expect(path, hash, found.as_str())
        }
        Is::Image(hash) => expect(path, hash, &layers::hash_image(path)?),
        Is::Layer(layer) => {
            let bounds = LayerBounds { file_bytes: layer.size_bytes, data_bytes: layer.data_bytes };
            let table = path.with_extension("extents");
            expect(path, &layer.hash, &layers::examine(path, &table, bounds)?.hash)
        }
        Is::View(folder) if view::verify(folder)? => Ok(()),
        Is::View(_) => Err(StoreError::Damaged { path: path.clone(), found: "something else".to_owned() }),
    }
}

fn expect(path: &Path, expected: &str, found: &str) -> Result<(), StoreError> {
    if expected == found {
        return Ok(());
    }
    Err(StoreError::Damaged { path: path.to_owned(), found: found.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::extents::PAGE;
    use crate::testing::{image, snapshot, tag};

    #[test]
    fn the_damaged_layer_is_named_with_all_who_need_it() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let image = image(&store);
        let a = snapshot(&store, &image, "a", None, &[(1, 1)]);
        let b = snapshot(&store, &image, "b", Some(&a), &[(2, 2)]);
        snapshot(&store, &image, "c", Some(&b), &[(3, 3)]);
        snapshot(&store, &image, "other", None, &[(9, 9)]);
        let sound = store.verify(None, false).unwrap();
        // Four manifests, states and memory layers, one view that is no layer, one image.
        assert_eq!((sound.snapshots, sound.files, sound.damage.len()), (4, 14, 0));

        let damaged = store.layer_path(&b.manifest.memory[1].hash);
        let file = File::options().write(true).open(&damaged).unwrap();
        file.write_all_at(&[7], 2 * PAGE).unwrap();
        let report = store.verify(None, false).unwrap();
        assert_eq!(report.damage.len(), 1);
        let damage = &report.damage[0];
        assert_eq!(
            (damage.kind.as_str(), &*damage.tags),
            ("memory layer", &["b".to_owned(), "c".to_owned()][..])
        );
        assert!(damage.path.contains(&b.manifest.memory[1].hash) && damage.error.contains("damaged"));
        assert!(store.verify(Some(&tag("a")), false).unwrap().damage.is_empty());

        fs::remove_file(&damaged).unwrap();
        let report = store.verify(Some(&tag("c")), true).unwrap();
        assert_eq!(report.views_rebuilt, 0);
        assert!(report.damage.iter().any(|d| d.kind == "memory layer" && d.tags == ["c"]), "{report:?}");
    }

    #[test]
    fn a_damaged_view_is_found_and_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let image = image(&store);
        let a = snapshot(&store, &image, "a", None, &[(1, 1)]);
        let b = snapshot(&store, &image, "a2", Some(&a), &[(2, 5)]);
        let b = snapshot(&store, &image, "b", Some(&b), &[(2, 2)]);
        let view = store.snapshot_folder(&b.id).join(VIEW);
        let before = fs::read(&view).unwrap();
        File::options().write(true).open(&view).unwrap().write_all_at(&[7], 2 * PAGE).unwrap();
        let report = store.verify(None, false).unwrap();
        assert_eq!(report.damage.iter().map(|d| d.kind.as_str()).collect::<Vec<_>>(), ["view"]);
        let report = store.verify(None, true).unwrap();
        assert_eq!((report.views_rebuilt, report.damage.len()), (2, 0));
        assert_eq!(fs::read(&view).unwrap(), before);
    }
}
