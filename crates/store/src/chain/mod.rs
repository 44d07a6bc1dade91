//! Chains: layers over layers, and what is derived from them.
//!
//! ```text
//!   stack    several layers read as one
//!   writer   one layer written page by page, hashed on the way
//!   take     what a machine that runs on wrote, so that nobody can write to it any more
//!   view     the merged upper file that children map
//!   pins     what a running sandbox keeps: its template, its frozen disk tops
//!   family   ancestors and dependents; removing with regard to them
//!   gc       removing what nothing names
//!   verify   hashing everything again
//! ```

mod family;
mod gc;
mod pins;
mod stack;
mod take;
mod verify;
pub(crate) mod view;
mod writer;

pub use family::Removal;
pub use pins::Template;
pub(crate) use pins::{name_content, pin_template};
pub(crate) use stack::Stack;
pub(crate) use take::{Files, NewLayer, copy, page_runs, take};
pub(crate) use writer::LayerWriter;

use crate::disk;
use crate::error::StoreError;
use crate::extents;
use crate::manifest::LayerRef;
use crate::store::Store;

/// What a snapshot of a restored machine lies on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Below {
    /// Id of the snapshot that its source was restored from.
    pub parent: String,
    /// Memory layers below the new one, from base to head. Where there are none the new one is a whole guest,
    /// and the snapshot has no parent.
    pub memory: Vec<LayerRef>,
    /// Disk layers below the new one, from base to head.
    pub disk: Vec<LayerRef>,
}

impl Store {
    /// The layers as one memory; the first is the floor.
    pub(crate) fn memory_stack(&self, layers: &[LayerRef]) -> Result<Stack, StoreError> {
        let Some((base, upper)) = layers.split_first() else { return Ok(Stack::default()) };
        let path = self.layer_path(&base.hash);
        let mut stack = Stack::over(self.open_content(&path, base)?, path);
        for layer in upper {
            self.lay(&mut stack, layer)?;
        }
        Ok(stack)
    }

    /// The layers as one, and nothing below them.
    pub(crate) fn listed(&self, layers: &[LayerRef]) -> Result<Stack, StoreError> {
        let mut stack = Stack::default();
        layers.iter().try_for_each(|layer| self.lay(&mut stack, layer))?;
        Ok(stack)
    }

    /// Lays one more layer over a stack.
    pub(crate) fn lay(&self, stack: &mut Stack, layer: &LayerRef) -> Result<(), StoreError> {
        let path = self.layer_path(&layer.hash);
        let table = self.layer_table_path(&layer.hash);
        let data = self.open_content(&path, layer)?;
        let runs = extents::read(&self.open_content(&table, layer)?, &table, layer.size_bytes)?;
        stack.push(data, path, &runs);
        Ok(())
    }

    fn open_content(&self, path: &std::path::Path, layer: &LayerRef) -> Result<std::fs::File, StoreError> {
        if !path.exists() {
            return Err(StoreError::Vanished { kind: "layer", name: layer.hash.clone() });
        }
        disk::open(path)
    }
}

#[cfg(test)]
mod life_tests;
#[cfg(test)]
mod tests;
