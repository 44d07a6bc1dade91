//! Removing what nothing names. There is hardly ever any: content goes with its last name. What stays is what was
//! in use just then.

use std::fs;

use forkd_protocol::rest::{GarbageItem, GarbageReport};

use crate::content::Content;
use crate::disk;
use crate::error::StoreError;
use crate::fault;
use crate::store::Store;

impl Store {
    /// Removes content that neither a row nor an open snapshot names, or only says what would go.
    pub fn gc(&self, dry_run: bool) -> Result<GarbageReport, StoreError> {
        // What is being published is renamed and named under this lock.
        let _guard = self.content_lock();
        let mut report = GarbageReport { dry_run, ..GarbageReport::default() };
        let layers = self.names_in("layers", |name| Some(name.strip_suffix(".extents").unwrap_or(name)))?;
        for hash in layers {
            let bytes = disk::physical_bytes(&self.layer_path(&hash))
                + disk::physical_bytes(&self.layer_table_path(&hash));
            self.collect(&mut report, "layer", Content::Layer(hash), bytes)?;
        }
        for hash in self.names_in("images", |name| name.strip_suffix(".ext4"))? {
            let bytes = disk::physical_bytes(&self.image_path(&hash));
            self.collect(&mut report, "image", Content::Image(hash), bytes)?;
        }
        for id in self.names_in("snapshots", |name| Some(name))? {
            if !self.has_snapshot(&id)? && !self.is_paused(&id)? {
                let folder = self.snapshot_folder(&id);
                add(&mut report, "snapshot", &id, disk::folder_bytes(&folder));
                if !dry_run {
                    disk::remove_folder(&folder)?;
                    fault::at!("store::gc::folder_removed");
                }
            }
        }
        self.each_idle_import(|name, folder, bytes| {
            add(&mut report, "import", name, bytes);
            if dry_run {
                return Ok(());
            }
            fault::at!("store::gc::import_found");
            disk::remove_folder(folder)?;
            fault::at!("store::gc::import_removed");
            Ok(())
        })?;
        Ok(report)
    }

    fn collect(
        &self,
        report: &mut GarbageReport,
        kind: &str,
        content: Content,
        bytes: u64,
    ) -> Result<(), StoreError> {
        if self.is_needed(&content)? {
            return Ok(());
        }
        add(report, kind, content.hash(), bytes);
        if report.dry_run { Ok(()) } else { self.remove_files(&content) }
    }

    /// What lies in a folder, each once; `key` makes a name of an entry.
    fn names_in(&self, folder: &str, key: impl Fn(&str) -> Option<&str>) -> Result<Vec<String>, StoreError> {
        let folder = self.folder(folder);
        let mut names = Vec::new();
        for entry in fs::read_dir(&folder).map_err(|e| StoreError::io("list", &folder, e))? {
            let entry = entry.map_err(|e| StoreError::io("list", &folder, e))?;
            names.extend(entry.file_name().to_str().and_then(&key).map(str::to_owned));
        }
        names.sort();
        names.dedup();
        Ok(names)
    }
}

fn add(report: &mut GarbageReport, kind: &str, name: &str, bytes: u64) {
    report.bytes += bytes;
    report.items.push(GarbageItem { kind: kind.to_owned(), name: name.to_owned(), bytes });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Removal;
    use crate::testing::{image, sandbox, snapshot, tag};

    #[test]
    fn what_is_named_or_in_use_is_never_collected() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let image = image(&store);
        let a = snapshot(&store, &image, "a", None, &[(1, 1)]);
        let b = snapshot(&store, &image, "b", Some(&a), &[(2, 2)]);
        let c = snapshot(&store, &image, "c", Some(&b), &[(3, 3)]);
        store.put_sandbox(&sandbox("sb-1", &b)).unwrap();
        let open = store.open_snapshot(&tag("c")).unwrap();
        store.remove_snapshot(&tag("a"), Removal::Cascade).unwrap();
        store.remove_image(&"py".parse().unwrap()).unwrap();
        assert!(store.gc(false).unwrap().items.is_empty());
        assert!(store.open_layer(&c.manifest.memory[2]).is_ok());

        // Nobody forks from "c" any more; the sandbox still needs what lies below it.
        drop(open);
        let said = store.gc(true).unwrap();
        assert_eq!(said.items.iter().map(|i| &i.name).collect::<Vec<_>>(), [&c.manifest.memory[2].hash]);
        assert!(store.open_layer(&c.manifest.memory[2]).is_ok() && said.bytes >= 4096);
        let done = store.gc(false).unwrap();
        assert_eq!((done.items, done.bytes), (said.items, said.bytes));
        assert!(store.open_layer(&c.manifest.memory[2]).is_err());
        assert!(b.manifest.layers().all(|layer| store.open_layer(layer).is_ok()) && image.path.exists());
        assert!(store.gc(false).unwrap().items.is_empty());
        store.remove_sandbox(&"sb-1".parse().unwrap()).unwrap();
        assert!(!image.path.exists());
    }

    #[test]
    fn what_does_not_belong_is_collected() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let image = image(&store);
        snapshot(&store, &image, "a", None, &[(1, 1)]);
        for left in ["layers/0", "layers/0.extents", "layers/1.extents", "images/0.ext4"] {
            fs::write(folder.path().join(left), "left").unwrap();
        }
        fs::create_dir(folder.path().join("snapshots/0")).unwrap();
        fs::write(folder.path().join("snapshots/0/view"), "left").unwrap();
        let report = store.gc(false).unwrap();
        let found: Vec<_> = report.items.iter().map(|i| (i.kind.as_str(), i.name.as_str())).collect();
        assert_eq!(found, [("layer", "0"), ("layer", "1"), ("image", "0"), ("snapshot", "0")]);
        store.verify_snapshot(&tag("a")).unwrap();
        assert!(store.gc(true).unwrap().items.is_empty());
    }
}
