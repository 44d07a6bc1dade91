//! Engine to monitor: one Unix stream socket, length-prefixed JSON frames, descriptors alongside.
//!
//! A frame is a little-endian `u32` length and that many bytes of JSON; the descriptors that belong to it
//! travel with its first byte (`SCM_RIGHTS`). The engine asks, the monitor answers, one at a time. The
//! end of a connection means nothing to the monitor: it goes on listening, so that a restarted engine
//! finds its sandboxes again.

mod frame;
mod message;

pub use frame::{Connection, ControlError, MAX_DESCRIPTORS, MAX_FRAME_BYTES};
pub use message::{
    BRANCH_VERSION, Boot, CGROUP_DOOR, CONTROL_VERSION, ControlVersion, CpuModel, DiskPart, Exit, FdRole,
    GUARD_VERSION, LayerStats, MAX_HOT_PAGES, MemoryMode, OLDEST_STATE_VERSION, Phase, ProcessEnd, Refusal,
    RefusalClass, Reply, Request, Restore, STATE_MAGIC, STATE_VERSION, Snapshot, Snapshotted, Status,
    WriterEnd,
};
