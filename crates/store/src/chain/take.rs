//! Taking in what a machine wrote that runs on.
//!
//! Its monitor may have been captured, so nothing becomes part of the store that it can still write to
//! ([`crate::sealed`]). What nobody can write to any more is taken as it is: hashed where it lies, which is its only
//! reading. Of the rest what counts is a copy, hashed from the very bytes that are written.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::{LayerWriter, Stack};
use crate::error::StoreError;
use crate::extents::PAGE;
use crate::layers::{self, LayerBounds};
use crate::manifest::LayerRef;
use crate::sealed;

/// A layer's two files.
pub(crate) type Files<'a> = (&'a Path, &'a Path);

/// A layer that is about to become part of the store, and where its files are.
#[derive(Debug)]
pub(crate) struct NewLayer {
    pub(crate) layer: LayerRef,
    pub(crate) data: PathBuf,
    pub(crate) table: PathBuf,
}

/// Takes the layer in `from` in, under the names in `to`, and checks it on the way as [`layers::examine`] does. Pages that
/// equal what `below` has are left out. The names in `from` stay, and what they name may have lost those pages.
pub(crate) fn take(
    from: Files<'_>,
    to: Files<'_>,
    bounds: LayerBounds,
    below: Option<&Stack>,
) -> Result<NewLayer, StoreError> {
    let sealed = sealed::nobody_writes(from.0)? && sealed::nobody_writes(from.1)?;
    // A file system may know no second names, or be another one.
    if !sealed || fs::hard_link(from.0, to.0).is_err() {
        return copy(from, to, bounds, below);
    }
    sift((to.0, from.1), LayerWriter::over(to.0, to.1)?, bounds, below)
}

/// The same of a layer that somebody writes to.
pub(crate) fn copy(
    from: Files<'_>,
    to: Files<'_>,
    bounds: LayerBounds,
    below: Option<&Stack>,
) -> Result<NewLayer, StoreError> {
    sift(from, LayerWriter::create(to.0, to.1)?, bounds, below)
}

fn sift(
    from: Files<'_>,
    mut writer: LayerWriter,
    bounds: LayerBounds,
    below: Option<&Stack>,
) -> Result<NewLayer, StoreError> {
    let mut under = Vec::new();
    let size = layers::each_page_run(from.0, from.1, bounds, |first, bytes| {
        let Some(below) = below else { return writer.pages(first, bytes) };
        under.resize(bytes.len(), 0);
        below.read(first, &mut under)?;
        let pages = bytes.chunks(PAGE as usize).zip(under.chunks(PAGE as usize));
        let differs: Vec<bool> = pages.map(|(new, old)| new != old).collect();
        for run in page_runs(differs.iter().copied()) {
            writer.pages(first + run.start as u64 / PAGE, &bytes[run])?;
        }
        for run in page_runs(differs.iter().map(|differs| !differs)) {
            writer.leave_out(first + run.start as u64 / PAGE, run.len() as u64)?;
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
