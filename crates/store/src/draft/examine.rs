//! What was written into a draft, bounded and hashed: from files to a manifest.

use std::path::PathBuf;

use super::pause::push;
use super::{
    DISK, DISK_EXTENTS, MAX_MEMORY_MIB, MAX_STATE_BYTES, MEMORY, MEMORY_EXTENTS, MEMORY_HOLE, STATE,
};
use super::{Draft, TAKEN_STATE};
use crate::chain::{Below, Files, NewLayer, Stack, copy, take};
use crate::disk;
use crate::error::StoreError;
use crate::layers::{self, LayerBounds};
use crate::manifest::{ImageRef, LayerRef, MANIFEST_FORMAT, Manifest};
use crate::records::SnapshotMeta;
use crate::sealed;
use crate::store::now;

/// [`take`] or [`copy`].
type Take = fn(Files<'_>, Files<'_>, LayerBounds, Option<&Stack>) -> Result<NewLayer, StoreError>;

/// A draft that may be published.
#[derive(Debug)]
pub(super) struct Examined {
    pub(super) manifest: Manifest,
    pub(super) state: PathBuf,
    pub(super) memory: Option<NewLayer>,
    pub(super) disk: Option<NewLayer>,
    /// Id of the snapshot whose children change the same pages at once.
    pub(super) akin: Option<String>,
}

impl Examined {
    pub(super) fn new_layers(&self) -> impl Iterator<Item = &NewLayer> {
        self.memory.iter().chain(&self.disk)
    }
}

impl Draft {
    /// Bounds and hashes what was written. A source that runs on may still have its files open for writing: those are
    /// copied then.
    pub(super) fn examine(&self, meta: SnapshotMeta) -> Result<Examined, StoreError> {
        if meta.memory_mib > MAX_MEMORY_MIB {
            let (bytes, max) = (meta.memory_mib << 20, MAX_MEMORY_MIB << 20);
            return Err(StoreError::Size { what: "guest memory", bytes, max });
        }
        let runs_on = meta.branched_from.is_some();
        let (state, state_bytes, state_hash) = self.examine_state(runs_on)?;
        let akin = meta.below.as_ref().map(|below| below.parent.clone());
        let parent = meta.below.as_ref().filter(|b| !b.memory.is_empty()).map(|b| b.parent.clone());
        let (mut memory, mut disk) = match meta.below {
            Some(Below { memory, disk, .. }) => (memory, disk),
            None => (Vec::new(), Vec::new()),
        };
        let new_memory = self.examine_memory(&memory, meta.memory_mib << 20, runs_on)?;
        memory.extend(new_memory.iter().map(|new| new.layer.clone()));
        let image = meta.image.info;
        let new_disk = self.examine_disk(image.size_bytes, runs_on)?;
        disk.extend(new_disk.iter().map(|new| new.layer.clone()));
        let manifest = Manifest {
            format: MANIFEST_FORMAT,
            uuid: uuid::Uuid::new_v4().to_string(),
            created_at_unix: now(),
            parent,
            state_hash,
            state_bytes,
            memory,
            image: ImageRef {
                name: image.name,
                hash: image.hash,
                size_bytes: image.size_bytes,
                origin: image.origin,
            },
            disk,
            kernel: meta.kernel.to_string(),
            vcpus: meta.vcpus,
            memory_mib: meta.memory_mib,
            cpu: meta.cpu,
            warm: meta.warm,
            agent_protocol: meta.agent_protocol,
            branched_from: meta.branched_from,
            pause_ms: meta.pause_ms,
            workload_pause_ms: meta.workload_pause_ms,
            limits: meta.limits,
            network: meta.network,
            secrets: meta.secrets,
            timing: meta.timing,
        };
        Ok(Examined { manifest, state, memory: new_memory, disk: new_disk, akin })
    }

    fn examine_state(&self, runs_on: bool) -> Result<(PathBuf, u64, String), StoreError> {
        const WHAT: &str = "a machine state";
        let written = self.path(STATE);
        let (path, (bytes, hash)) = if runs_on && !sealed::nobody_writes(&written)? {
            let taken = self.path(TAKEN_STATE);
            (taken.clone(), disk::take_in(WHAT, disk::open(&written)?, &taken, MAX_STATE_BYTES)?)
        } else {
            (written.clone(), disk::hash_file(WHAT, &written, MAX_STATE_BYTES)?)
        };
        Ok((path, bytes, hash.to_hex().to_string()))
    }

    /// The whole memory where nothing is below. Else what differs, unless nothing does.
    fn examine_memory(
        &self,
        below: &[LayerRef],
        bytes: u64,
        runs_on: bool,
    ) -> Result<Option<NewLayer>, StoreError> {
        let bounds = LayerBounds { file_bytes: bytes + MEMORY_HOLE, data_bytes: bytes };
        if below.is_empty() {
            // Nothing below is zero everywhere: pages of zeroes are left out.
            return self
                .layer((MEMORY, MEMORY_EXTENTS), bounds, runs_on.then(Stack::default).as_ref())
                .map(Some);
        }
        let stack = self.store.memory_stack(below)?;
        let new = self.layer((MEMORY, MEMORY_EXTENTS), bounds, Some(&stack))?;
        Ok(Some(new).filter(|new| new.layer.extents > 0))
    }

    /// The frozen top, unless nothing was written to it. Every block that it lists is kept: the machine state says
    /// how many blocks the layers hold.
    fn examine_disk(&self, image_bytes: u64, runs_on: bool) -> Result<Option<NewLayer>, StoreError> {
        if !self.has_disk {
            return Ok(None);
        }
        let bounds = LayerBounds { file_bytes: image_bytes, data_bytes: image_bytes };
        let names = (DISK, DISK_EXTENTS);
        // It stays the top of a sandbox that runs on.
        let new =
            if runs_on { self.taken(copy, names, bounds, None)? } else { self.layer(names, bounds, None)? };
        Ok(Some(new).filter(|new| new.layer.extents > 0))
    }

    /// A layer as it was written, or without what `below` has.
    fn layer(
        &self,
        names: (&str, &str),
        bounds: LayerBounds,
        below: Option<&Stack>,
    ) -> Result<NewLayer, StoreError> {
        if below.is_some() {
            return self.taken(take, names, bounds, below);
        }
        let (data, table) = (self.path(names.0), self.path(names.1));
        Ok(NewLayer { layer: layers::examine(&data, &table, bounds)?, data, table })
    }

    fn taken(
        &self,
        how: Take,
        names: (&str, &str),
        bounds: LayerBounds,
        below: Option<&Stack>,
    ) -> Result<NewLayer, StoreError> {
        let (data, table) =
            (self.path(&format!("{}.taken", names.0)), self.path(&format!("{}.taken", names.1)));
        let from = (&*self.path(names.0), &*self.path(names.1));
        how(from, (&data, &table), bounds, below)
    }

    /// All memory layers as one, the new one where it lies now.
    pub(super) fn whole_memory(&self, examined: &Examined) -> Result<Stack, StoreError> {
        let layers = &examined.manifest.memory;
        let Some(new) = &examined.memory else { return self.store.memory_stack(layers) };
        let mut stack = self.store.memory_stack(&layers[..layers.len() - 1])?;
        push(&mut stack, new)?;
        Ok(stack)
    }
}
