//! What lies below the writable top: the base and the frozen layers, merged.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use forkd_memory::extents::Extent;

use super::{BLOCK_SIZE, DiskError};

/// A frozen layer: a sparse file in which a block lies at its own address, and the blocks it holds.
#[derive(Debug)]
pub struct DiskLayer {
    /// The blocks.
    pub data: File,
    /// Which blocks, sorted and disjoint.
    pub extents: Vec<Extent>,
}

/// A run of blocks that one layer answers for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: u64,
    /// First block after it.
    end: u64,
    layer: usize,
}

/// Base and frozen layers.
#[derive(Debug)]
pub(super) struct Lower {
    base: File,
    layers: Vec<File>,
    /// Sorted and disjoint.
    runs: Vec<Run>,
}

impl Lower {
    /// Merges `layers`, the lowest first.
    pub(super) fn new(base: File, layers: Vec<DiskLayer>, blocks: u64) -> Result<Self, DiskError> {
        let mut lower = Self { base, layers: Vec::new(), runs: Vec::new() };
        for DiskLayer { data, extents } in layers {
            let sorted = extents.windows(2).all(|pair| matches!(pair, [a, b] if a.end() <= b.first_page));
            let inside = extents.iter().all(|extent| extent.pages > 0 && extent.end() <= blocks);
            if !sorted || !inside {
                return Err(DiskError::Extents);
            }
            lower.push(data, &extents);
        }
        Ok(lower)
    }

    /// Adds a layer above all others. `extents` are sorted and disjoint.
    pub(super) fn push(&mut self, data: File, extents: &[Extent]) {
        let layer = self.layers.len();
        self.layers.push(data);
        self.runs = overlay(&self.runs, extents, layer);
    }

    /// Number of blocks that the layers and `above` together hold.
    pub(super) fn overlaid_blocks(&self, above: &[Extent]) -> u64 {
        overlay(&self.runs, above, self.layers.len()).iter().map(|run| run.end - run.first).sum()
    }

    /// Reads at byte `offset`; what neither base nor layers have is zeros.
    pub(super) fn read_at(&self, mut offset: u64, mut to: &mut [u8]) -> io::Result<()> {
        while !to.is_empty() {
            let block = offset / BLOCK_SIZE;
            let at = self.runs.partition_point(|run| run.end <= block);
            let (file, end) = match self.runs.get(at) {
                Some(run) if run.first <= block => (self.layers.get(run.layer), run.end),
                Some(next) => (Some(&self.base), next.first),
                None => (Some(&self.base), u64::MAX / BLOCK_SIZE),
            };
            let same_source = end.saturating_mul(BLOCK_SIZE).saturating_sub(offset);
            let len = usize::try_from(same_source).unwrap_or(usize::MAX).min(to.len());
            let (head, rest) = to.split_at_mut(len);
            read_or_zeros(file.unwrap_or(&self.base), offset, head)?;
            offset += same_source.min(u64::try_from(len).unwrap_or(same_source));
            to = rest;
        }
        Ok(())
    }
}

/// Fills `to` from `offset`; what lies past the file's end is zeros.
pub(super) fn read_or_zeros(file: &File, mut offset: u64, mut to: &mut [u8]) -> io::Result<()> {
    while !to.is_empty() {
        match file.read_at(to, offset) {
            Ok(0) => {
                to.fill(0);
                return Ok(());
            }
            Ok(len) => {
                offset = offset.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
                to = to.get_mut(len..).unwrap_or_default();
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// `below` with the blocks of `above` taken over by `layer`.
fn overlay(below: &[Run], above: &[Extent], layer: usize) -> Vec<Run> {
    let mut merged = Vec::with_capacity(below.len() + above.len());
    let mut rest = below.iter().copied();
    let mut current = rest.next();
    for extent in above {
        let (first, end) = (extent.first_page, extent.end());
        // Whatever ends before the new run stays; what it covers goes; what sticks out behind remains.
        while let Some(run) = current.filter(|run| run.first < end) {
            if run.first < first {
                merged.push(Run { end: run.end.min(first), ..run });
            }
            if run.end > end {
                current = Some(Run { first: end, ..run });
                break;
            }
            current = rest.next();
        }
        merged.push(Run { first, end, layer });
    }
    merged.extend(current);
    merged.extend(rest);
    merged
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extents() -> impl Strategy<Value = Vec<Extent>> {
        proptest::collection::btree_set(0u64..60, 0..30).prop_map(|blocks| {
            let mut builder = forkd_memory::extents::ExtentsBuilder::default();
            blocks.into_iter().for_each(|block| builder.push(block));
            builder.finish()
        })
    }

    proptest! {
        #[test]
        fn the_highest_layer_that_has_a_block_wins(layers in proptest::collection::vec(extents(), 0..6)) {
            let mut runs = Vec::new();
            for (layer, table) in layers.iter().enumerate() {
                runs = overlay(&runs, table, layer);
            }
            prop_assert!(runs.windows(2).all(|pair| pair[0].end <= pair[1].first));
            prop_assert!(runs.iter().all(|run| run.first < run.end));
            for block in 0..64 {
                let has = |table: &Vec<Extent>| table.iter().any(|e| e.first_page <= block && block < e.end());
                let expected = layers.iter().rposition(has);
                let found = runs.iter().find(|run| run.first <= block && block < run.end);
                prop_assert_eq!(found.map(|run| run.layer), expected, "block {}", block);
            }
        }
    }
}
