//! An image of what the disk of a snapshot holds.

use std::fs::File;
use std::path::PathBuf;

use forkd_protocol::names::{ImageName, Tag};

use super::{Form, ImageDraft};
use crate::chain::Stack;
use crate::disk;
use crate::error::StoreError;
use crate::extents::{Extent, PAGE};
use crate::records::ImageRecord;
use crate::sparse::{Sink, stretch};
use crate::store::Store;

/// Read at a time, pages.
const PIECE: u64 = 256;

impl Store {
    /// Makes an image of the disk of a snapshot: its image with all layers over it, as one file. The file system in it was
    /// in use: whoever mounts it replays its journal, as after a power cut, and all that was written before is there.
    pub fn image_of_snapshot(
        &self,
        tag: &Tag,
        name: &ImageName,
        origin: &str,
    ) -> Result<ImageRecord, StoreError> {
        let disk = self.disk_of(tag)?;
        let mut draft = self.begin_image(name, origin)?;
        draft.form = Form::Raw;
        disk.copy(&mut draft)?;
        draft.publish()
    }

    /// Opened as long as nobody can remove it.
    fn disk_of(&self, tag: &Tag) -> Result<Disk, StoreError> {
        let _guard = self.content_lock();
        let manifest = self.snapshot(tag)?.manifest;
        let path = self.image_path(&manifest.image.hash);
        let floor = disk::open(&path)?;
        let holes = floor.try_clone().map_err(|e| StoreError::io("open", &path, e))?;
        let mut stack = Stack::over(floor, path.clone());
        manifest.disk.iter().try_for_each(|layer| self.lay(&mut stack, layer))?;
        Ok(Disk { runs: stack.runs(), stack, floor: (holes, path), size: manifest.image.size_bytes })
    }
}

/// A disk as the guest sees it.
struct Disk {
    stack: Stack,
    /// Pages that some layer lists.
    runs: Vec<Extent>,
    /// What lies lowest, for its holes.
    floor: (File, PathBuf),
    size: u64,
}

impl Disk {
    fn copy(&self, draft: &mut ImageDraft) -> Result<(), StoreError> {
        let mut buffer = vec![0; usize::try_from(PIECE * PAGE).unwrap_or_default()];
        let mut at = 0;
        while let Some((first, end)) = self.next(at)? {
            draft.blocks.skip_to(first * PAGE)?;
            let piece = &mut buffer[..usize::try_from((end - first) * PAGE).unwrap_or_default()];
            self.stack.read(first, piece)?;
            draft.blocks.append(piece)?;
            at = end;
        }
        draft.blocks.skip_to(self.size).map(drop)
    }

    /// The next pages that may hold something, from page `at` on: first and end.
    fn next(&self, at: u64) -> Result<Option<(u64, u64)>, StoreError> {
        let (file, path) = &self.floor;
        let of_floor = stretch(file, at * PAGE, self.size).map_err(|e| StoreError::io("read", path, e))?;
        let of_floor = of_floor.map(|(start, end)| (start / PAGE, end.div_ceil(PAGE)));
        let run = self.runs.get(self.runs.partition_point(|run| run.end() <= at));
        let of_layers = run.map(|run| (run.first.max(at), run.end()));
        let next = of_floor.into_iter().chain(of_layers).min();
        Ok(next.map(|(first, end)| (first, end.min(first + PIECE).min(self.size.div_ceil(PAGE)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Below;
    use crate::records::SnapshotMeta;
    use crate::testing::{draft, image, meta, snapshot, tag, top};

    #[test]
    fn it_holds_what_the_topmost_layer_says_and_else_what_the_image_does() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let below = image(&store);
        let a = snapshot(&store, &below, "a", None, &[(1, 1)]);
        let (data, table) = top(&store, &[(3, 1), (9, 0)]);
        let mut made = draft(&store, "b", &[(2, 2)]);
        let listed = &made.outputs().disk_extents;
        std::io::copy(&mut File::open(table).unwrap(), &mut (listed as &File)).unwrap();
        made.adopt_disk_top(&data).unwrap();
        let over = Below { parent: a.id.clone(), memory: a.manifest.memory.clone(), disk: Vec::new() };
        made.publish(SnapshotMeta { below: Some(over), ..meta(&below) }).unwrap();
        let name = "built".parse().unwrap();
        let record = store.image_of_snapshot(&tag("b"), &name, "a test").unwrap();
        let bytes = std::fs::read(&record.path).unwrap();
        let page = |n: usize| bytes[n * 4096];
        assert_eq!((bytes.len(), page(0), page(3), page(9), page(63)), (64 * 4096, 5, 1, 0, 5));
        assert_eq!(record.info.origin, "a test");
        // The same as what it lies on where nothing was written.
        let same = store.image_of_snapshot(&tag("a"), &"same".parse().unwrap(), "").unwrap();
        assert_eq!(same.info.hash, below.info.hash);
        assert!(store.image_of_snapshot(&tag("none"), &name, "").is_err());
    }
}
