//! The private top of a sandbox's disk, which a branch freezes: keeping it, also after a branch that broke off.

use forkd_store::{LayerRef, Store};

use super::BranchError;
use crate::engine::Shared;
use crate::error::EngineError;
use crate::monitor::{FrozenTop, Mended};
use crate::sandbox::Handle;

/// Does what an earlier branch, maybe of another controller, left to be done about the disk. What its monitor writes to
/// now says how far it came. To be called with the turn, and before the sandbox's template is asked for.
pub(crate) fn reconcile_tops(shared: &Shared, handle: &Handle) -> Result<(), EngineError> {
    if !handle.dir.has_branch_files() {
        return Ok(());
    }
    let written = shared.launcher.status(&handle.dir)?.tops.first().copied();
    match handle.dir.mend_tops(written)?.ok_or(BranchError::DiskUnknown)? {
        Mended::NotFrozen => Ok(()),
        Mended::Frozen(top) => {
            let template = shared.store.template(&handle.id)?.ok_or(BranchError::OriginUnknown)?;
            keep_top(&shared.store, handle, &top, template.manifest.image.size_bytes).map(drop)
        }
    }
}

/// The frozen top becomes a layer of the store, which the sandbox and all its later branches share. None where nothing
/// was written to it.
pub(super) fn keep_top(
    store: &Store,
    handle: &Handle,
    top: &FrozenTop,
    disk_bytes: u64,
) -> Result<Option<LayerRef>, EngineError> {
    Ok(store.adopt_layer(&handle.id, &top.data, &top.table, disk_bytes)?)
}
