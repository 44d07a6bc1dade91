//! Taking in what a machine wrote that runs on.
//!
//! Its monitor may have been captured and may still have the files open for writing, so they are never made
//! part of the store: what counts is the copy, hashed from the very bytes that are written.

use std::path::Path;

use super::{LayerWriter, Stack};
use crate::error::StoreError;
use crate::extents::PAGE;
use crate::layers::{self, LayerBounds};
use crate::manifest::LayerRef;

/// A layer's two files.
pub(crate) type Files<'a> = (&'a Path, &'a Path);

/// Copies the layer in `from` to new files, and checks it on the way as [`layers::examine`] does. Pages that
/// equal what `below` has are left out.
pub(crate) fn take(
    from: Files<'_>,
    to: Files<'_>,
    bounds: LayerBounds,
    below: Option<&Stack>,
) -> Result<LayerRef, StoreError> {
    let mut writer = LayerWriter::create(to.0, to.1)?;
    let mut under = Vec::new();
    let size = layers::each_page_run(from.0, from.1, bounds, |first, bytes| {
        let Some(below) = below else { return writer.pages(first, bytes) };
        under.resize(bytes.len(), 0);
        below.read(first, &mut under)?;
        for (start, end) in differing(bytes, &under) {
            writer.pages(first + start as u64 / PAGE, &bytes[start..end])?;
        }
        Ok(())
    })?;
    writer.finish(size)
}

/// Where whole pages differ: byte ranges.
fn differing(new: &[u8], old: &[u8]) -> Vec<(usize, usize)> {
    let page = PAGE as usize;
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (n, _) in new.chunks(page).zip(old.chunks(page)).enumerate().filter(|(_, (new, old))| new != old) {
        match runs.last_mut() {
            Some(last) if last.1 == n * page => last.1 += page,
            _ => runs.push((n * page, (n + 1) * page)),
        }
    }
    runs
}
