//! Several layers read as one: what a page holds is what the topmost layer that lists it says.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::error::StoreError;
use crate::extents::{Extent, PAGE, append};

/// Layers over each other, over a floor that has every page. Without a floor the rest is zero.
#[derive(Debug, Default)]
pub(crate) struct Stack {
    floor: Option<(File, PathBuf)>,
    layers: Vec<(File, PathBuf)>,
    /// Which layer has which pages: sorted, apart.
    parts: Vec<Part>,
}

/// Pages that one layer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    run: Extent,
    layer: usize,
}

impl Part {
    fn cut(self, first: u64, end: u64) -> Self {
        Self { run: Extent { first, pages: end - first }, layer: self.layer }
    }
}

impl Stack {
    /// A floor with nothing on it yet.
    pub(crate) fn over(floor: File, path: PathBuf) -> Self {
        Self { floor: Some((floor, path)), ..Self::default() }
    }

    /// Lays a layer on top.
    pub(crate) fn push(&mut self, data: File, path: PathBuf, runs: &[Extent]) {
        self.parts = overlay(&self.parts, runs, self.layers.len());
        self.layers.push((data, path));
    }

    /// The pages that some layer above the floor lists.
    pub(crate) fn runs(&self) -> Vec<Extent> {
        let mut runs: Vec<Extent> = Vec::new();
        self.parts.iter().for_each(|part| append(&mut runs, part.run));
        runs
    }

    /// Reads whole pages from `first` on. What lies beyond the end of a file is zero.
    pub(crate) fn read(&self, first: u64, buffer: &mut [u8]) -> Result<(), StoreError> {
        let end = first + buffer.len() as u64 / PAGE;
        let mut at = first;
        let from = self.parts.partition_point(|part| part.run.end() <= first);
        for part in self.parts[from..].iter().take_while(|part| part.run.first < end) {
            let (start, stop) = (part.run.first.max(first), part.run.end().min(end));
            self.read_floor(slice(buffer, first, at, start), at)?;
            read_or_zero(&self.layers[part.layer], slice(buffer, first, start, stop), start)?;
            at = stop;
        }
        self.read_floor(slice(buffer, first, at, end), at)
    }

    fn read_floor(&self, buffer: &mut [u8], first: u64) -> Result<(), StoreError> {
        match &self.floor {
            Some(floor) => read_or_zero(floor, buffer, first),
            None => {
                buffer.fill(0);
                Ok(())
            }
        }
    }
}

/// The part of a buffer that begins at page `first` which holds pages `from..to`.
fn slice(buffer: &mut [u8], first: u64, from: u64, to: u64) -> &mut [u8] {
    let byte = |page: u64| usize::try_from((page - first) * PAGE).unwrap_or(usize::MAX);
    &mut buffer[byte(from)..byte(to)]
}

fn read_or_zero((file, path): &(File, PathBuf), buffer: &mut [u8], first: u64) -> Result<(), StoreError> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], first * PAGE + done as u64) {
            Ok(0) => break,
            Ok(length) => done += length,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(StoreError::io("read", path, e)),
        }
    }
    buffer[done..].fill(0);
    Ok(())
}

/// `lower` with the pages of `upper` taken over by `layer`.
fn overlay(lower: &[Part], upper: &[Extent], layer: usize) -> Vec<Part> {
    let mut parts = Vec::with_capacity(lower.len() + upper.len());
    let mut rest = lower.iter().copied();
    let mut next = rest.next();
    for run in upper {
        while let Some(part) = next {
            let (first, end) = (part.run.first, part.run.end());
            if first < run.first {
                parts.push(part.cut(first, end.min(run.first)));
            }
            if end > run.end() {
                next = Some(part.cut(first.max(run.end()), end));
                break;
            }
            next = rest.next();
        }
        parts.push(Part { run: *run, layer });
    }
    parts.extend(next);
    parts.extend(rest);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(taken: &[bool]) -> Vec<Extent> {
        let mut runs: Vec<Extent> = Vec::new();
        for (first, _) in (0u64..).zip(taken).filter(|(_, taken)| **taken) {
            append(&mut runs, Extent { first, pages: 1 });
        }
        runs
    }

    proptest::proptest! {
        #[test]
        fn the_topmost_layer_that_lists_a_page_has_it(
            layers in proptest::collection::vec(proptest::collection::vec(proptest::bool::ANY, 40), 0..6)
        ) {
            let mut parts = Vec::new();
            let mut model = [None; 40];
            for (n, taken) in layers.iter().enumerate() {
                parts = overlay(&parts, &runs(taken), n);
                for (page, _) in taken.iter().enumerate().filter(|(_, taken)| **taken) {
                    model[page] = Some(n);
                }
            }
            for (page, expected) in (0u64..).zip(model) {
                let found = parts.iter().find(|p| (p.run.first..p.run.end()).contains(&page));
                assert_eq!(found.map(|p| p.layer), expected, "page {page} of {parts:?}");
            }
            assert!(parts.windows(2).all(|pair| pair[0].run.end() <= pair[1].run.first), "{parts:?}");
            assert!(parts.iter().all(|p| p.run.pages > 0), "{parts:?}");
        }
    }
}
