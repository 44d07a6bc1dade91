//! How much of the disk a store takes.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::store::Store;

/// The kernel counts what files take in blocks of so many bytes, whatever those of the file system are.
const BLOCK: u64 = 512;

/// Bytes on the disk, without the holes of sparse files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreUsage {
    /// Root file systems.
    pub images: u64,
    /// Memory and disk of snapshots.
    pub layers: u64,
    /// Manifests, machine states and views of snapshots.
    pub snapshots: u64,
    /// Kernels and the ramdisks made for them.
    pub kernels: u64,
    /// What sandboxes wrote to their disks, and their logs.
    pub sandboxes: u64,
    /// What is on its way in.
    pub staging: u64,
}

impl StoreUsage {
    /// Each with its name.
    pub fn kinds(&self) -> [(&'static str, u64); 6] {
        let Self { images, layers, snapshots, kernels, sandboxes, staging } = *self;
        [
            ("images", images),
            ("layers", layers),
            ("snapshots", snapshots),
            ("kernels", kernels),
            ("sandboxes", sandboxes),
            ("staging", staging),
        ]
    }
}

impl Store {
    /// How much of the disk it takes. What comes or goes meanwhile is counted or not.
    pub fn usage(&self) -> StoreUsage {
        let of = |folders: &[&str]| folders.iter().map(|name| taken(&self.folder(name))).sum();
        StoreUsage {
            images: of(&["images"]),
            layers: of(&["layers"]),
            snapshots: of(&["snapshots"]),
            kernels: of(&["kernels", "initrd"]),
            sandboxes: of(&["run"]),
            staging: of(&["staging", "imports"]),
        }
    }
}

/// What lies below a folder. Links are not followed, and what cannot be read is nothing.
fn taken(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => taken(&entry.path()),
            Ok(found) => found.blocks().saturating_mul(BLOCK),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{image, snapshot};

    #[test]
    fn what_a_store_takes_is_counted_by_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.usage(), StoreUsage::default());
        let image = image(&store);
        let before = store.usage();
        assert!(before.images > 0 && before.layers == 0, "{before:?}");
        snapshot(&store, &image, "a", None, &[(1, 1)]);
        let after = store.usage();
        assert!(after.layers >= 4096 && after.snapshots > 0, "{after:?}");
        assert_eq!((after.images, after.staging), (before.images, 0));
    }
}
