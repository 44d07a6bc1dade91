//! Taking in what a machine wrote that runs on.
//!
//! Its monitor may have been captured and may still have the files open for writing, so they are never made
//! part of the store: what counts is the copy, hashed from the very bytes that are written.

use std::ops::Range;
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
        let pages = bytes.chunks(PAGE as usize).zip(under.chunks(PAGE as usize));
        for run in page_runs(pages.map(|(new, old)| new != old)) {
            writer.pages(first + run.start as u64 / PAGE, &bytes[run])?;
        }
        Ok(())
    })?;
    writer.finish(size)
}

/// Runs of pages that are kept, as byte ranges.
pub(crate) fn page_runs(kept: impl Iterator<Item = bool>) -> Vec<Range<usize>> {
    let page = PAGE as usize;
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (n, _) in kept.enumerate().filter(|(_, kept)| *kept) {
        match runs.last_mut() {
            Some(last) if last.end == n * page => last.end += page,
            _ => runs.push(n * page..(n + 1) * page),
        }
    }
    runs
}
