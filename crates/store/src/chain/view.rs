//! Views: all layers above the base in one file, in few extents.
//!
//! A mapping costs microseconds at every fork, so children do not map layers but the base and one upper file
//! with at most [`MAX_EXTENTS`] extents; small gaps between its extents are filled with what lies below. A layer that
//! alone lies on a base and has few extents is its own view. A view is derived: lost or damaged, it is made again from
//! its layers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::take::Files;
use super::{LayerWriter, Stack};
use crate::disk;
use crate::error::StoreError;
use crate::extents::{Extent, PAGE};
use crate::fault;
use crate::layers::{self, LayerBounds};
use crate::manifest::LayerRef;
use crate::records::SnapshotRecord;
use crate::store::Store;

/// Most extents of a view.
const MAX_EXTENTS: usize = 256;
/// Read at once.
const STEP: u64 = 1 << 20;

/// Data of a view, in the folder of its snapshot.
pub(crate) const VIEW: &str = "view";
/// Its extent table.
pub(crate) const VIEW_EXTENTS: &str = "view.extents";
/// What both must be; written last, so without it there is no view.
const VIEW_CHECK: &str = "view.json";

/// Tells a sound view from a damaged one.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Check {
    /// Named as a layer is.
    view: LayerRef,
    /// When data and table were written last. While both still say so, nothing is hashed.
    modified_ns: [i64; 2],
}

/// Whether a snapshot of these memory layers has a view.
pub(crate) fn wanted(memory: &[LayerRef]) -> bool {
    memory.len() > 1
}

/// Whether a layer that alone lies on a base is a view as it is.
pub(crate) fn can_be(layer: &LayerRef) -> bool {
    layer.extents <= MAX_EXTENTS as u64
}

/// Makes a layer the view in `folder`: one file, written and cached once, under both names.
pub(crate) fn link(layer: &LayerRef, from: Files<'_>, folder: &Path) -> Result<(), StoreError> {
    for (from, name) in [(from.0, VIEW), (from.1, VIEW_EXTENTS)] {
        fs::hard_link(from, folder.join(name)).map_err(|e| StoreError::io("link", from, e))?;
        disk::seal(from)?;
        fault::at!("store::view::linked");
    }
    write_check(folder, layer.clone())
}

/// Writes the view of `stack` into `folder`.
pub(crate) fn write(stack: &Stack, size_bytes: u64, folder: &Path) -> Result<(), StoreError> {
    let (data, table) = (folder.join(VIEW), folder.join(VIEW_EXTENTS));
    let mut writer = LayerWriter::create(&data, &table)?;
    let mut buffer = vec![0; STEP as usize];
    for run in merged(stack.runs(), MAX_EXTENTS) {
        for first in (run.first..run.end()).step_by((STEP / PAGE) as usize) {
            let bytes = ((run.end() - first) * PAGE).min(STEP) as usize;
            stack.read(first, &mut buffer[..bytes])?;
            writer.pages(first, &buffer[..bytes])?;
        }
    }
    let view = writer.finish(size_bytes)?.layer;
    disk::seal(&data)?;
    disk::seal(&table)?;
    fault::at!("store::view::written");
    write_check(folder, view)
}

fn write_check(folder: &Path, view: LayerRef) -> Result<(), StoreError> {
    let check = Check { view, modified_ns: modified(folder)? };
    let (path, aside) = (folder.join(VIEW_CHECK), folder.join("view.json.new"));
    let text = serde_json::to_vec_pretty(&check).map_err(|e| StoreError::io("write", &path, e))?;
    disk::remove_file(&aside)?;
    fs::write(&aside, text).map_err(|e| StoreError::io("write", &aside, e))?;
    disk::seal(&aside)?;
    fault::at!("store::view::check_written");
    disk::rename(&aside, &path)?;
    disk::sync_folder(folder)
}

/// Extents with the smallest gaps between them filled, so that at most `most` are left.
fn merged(runs: Vec<Extent>, most: usize) -> Vec<Extent> {
    let gap = |n: usize| runs[n].first - runs[n - 1].end();
    let mut by_gap: Vec<usize> = (1..runs.len()).collect();
    by_gap.sort_by_key(|n| gap(*n));
    let mut fill = vec![false; runs.len()];
    for n in by_gap.into_iter().take(runs.len().saturating_sub(most)) {
        fill[n] = true;
    }
    let mut out: Vec<Extent> = Vec::new();
    for (run, fill) in runs.into_iter().zip(fill) {
        match out.last_mut() {
            Some(last) if fill => last.pages = run.end() - last.first,
            _ => out.push(run),
        }
    }
    out
}

/// Whether the view in `folder` is what was written there. Where its files were touched since, they are hashed.
pub(crate) fn is_sound(folder: &Path) -> bool {
    let Some(check) = read_check(folder) else { return false };
    match modified(folder) {
        Ok(now) if now == check.modified_ns && length(folder) == Some(check.view.size_bytes) => true,
        Ok(_) => {
            hashes(folder, &check.view).is_ok_and(|same| same && write_check(folder, check.view).is_ok())
        }
        Err(_) => false,
    }
}

/// Hashes the view in `folder`; whether it is there and right.
pub(crate) fn verify(folder: &Path) -> Result<bool, StoreError> {
    match read_check(folder) {
        Some(check) => hashes(folder, &check.view),
        None => Ok(false),
    }
}

fn hashes(folder: &Path, view: &LayerRef) -> Result<bool, StoreError> {
    let bounds = LayerBounds { file_bytes: view.size_bytes, data_bytes: view.data_bytes };
    match layers::examine(&folder.join(VIEW), &folder.join(VIEW_EXTENTS), bounds) {
        Ok(found) => Ok(found == *view),
        Err(StoreError::BadLayer { .. }) => Ok(false),
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

fn read_check(folder: &Path) -> Option<Check> {
    let check: Check = serde_json::from_slice(&fs::read(folder.join(VIEW_CHECK)).ok()?).ok()?;
    Some(check).filter(|check| check.view.extents <= MAX_EXTENTS as u64)
}

/// Whether the view in `folder` is the file of a layer.
pub(crate) fn is_layer(folder: &Path) -> bool {
    fs::metadata(folder.join(VIEW)).is_ok_and(|m| m.nlink() > 1)
}

/// Bytes on disk that the view in `folder` takes beside the layers.
pub(crate) fn physical_bytes(folder: &Path) -> u64 {
    if is_layer(folder) { 0 } else { disk::physical_bytes(&folder.join(VIEW)) }
}

fn length(folder: &Path) -> Option<u64> {
    fs::metadata(folder.join(VIEW)).ok().map(|m| m.len())
}

fn modified(folder: &Path) -> Result<[i64; 2], StoreError> {
    let of = |name: &str| {
        let path = folder.join(name);
        let metadata = fs::metadata(&path).map_err(|e| StoreError::io("read", &path, e))?;
        Ok::<_, StoreError>(
            metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
        )
    };
    Ok([of(VIEW)?, of(VIEW_EXTENTS)?])
}

impl Store {
    /// Makes the view of a snapshot again. Whoever has the old one open keeps it.
    pub(crate) fn rebuild_view(&self, record: &SnapshotRecord) -> Result<(), StoreError> {
        let manifest = &record.manifest;
        let staging = self.staging()?;
        write(&self.memory_stack(&manifest.memory)?, manifest.memory_bytes(), staging.path())?;
        let _guard = self.content_lock();
        let folder = self.snapshot_folder(&record.id);
        if !folder.exists() {
            return Err(StoreError::NotFound { kind: "snapshot", name: record.info.tag.clone() });
        }
        // What the old check says of the new files is true, too, unless the old ones were damaged.
        for name in [VIEW, VIEW_EXTENTS, VIEW_CHECK] {
            disk::rename(&staging.path().join(name), &folder.join(name))?;
            fault::at!("store::view::replaced");
        }
        disk::sync_folder(&folder)?;
        self.shared.open.forget(&record.id);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_gaps_are_filled() {
        let runs = |runs: &[(u64, u64)]| -> Vec<Extent> {
            runs.iter().map(|(first, pages)| Extent { first: *first, pages: *pages }).collect()
        };
        let four = runs(&[(0, 1), (9, 1), (12, 2), (20, 1)]);
        assert_eq!(merged(four.clone(), 4), four);
        assert_eq!(merged(four.clone(), 3), runs(&[(0, 1), (9, 5), (20, 1)]));
        assert_eq!(merged(four.clone(), 2), runs(&[(0, 1), (9, 12)]));
        assert_eq!(merged(four, 1), runs(&[(0, 21)]));
        assert!(merged(Vec::new(), 256).is_empty());
    }
}
