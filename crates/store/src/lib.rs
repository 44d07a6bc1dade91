//! Images, kernels, layers, snapshots: everything that lies on disk.
//!
//! ```text
//! <root>/
//!   lock                     held by the one process that has the store open
//!   forkd.db                 SQLite: what exists; a row is the only commit point
//!   images/<hash>.ext4       root disks, by content
//!   kernels/<hash>/          vmlinuz, modules.cpio
//!   initrd/<..>.cpio         derived: agent + modules
//!   layers/<hash>            sparse pages of a memory or disk layer; <hash>.extents lists them
//!   snapshots/<id>/          manifest.json, state; derived: hot, and where there is a chain view, view.extents, view.json;
//!                            also what a paused sandbox is continued from, which its row names
//!   imports/<digest>/        bundles on their way in: the document, objects that came so far
//!   run/<sandbox>/           sockets, console, private disk top
//!   staging/<random>/        drafts; whatever is here when the store opens is garbage
//! ```
//!
//! Everything is written aside, fsynced, renamed and only then named by a row. A file that no row names is
//! garbage and swept when the store opens.
#![deny(unsafe_code)]

pub mod bundle;
mod chain;
mod content;
pub mod cpio;
#[cfg(test)]
mod crash_tests;
mod db;
mod disk;
mod draft;
mod error;
mod extents;
mod fault;
mod hot;
mod images;
mod initrd;
mod kernels;
mod layers;
pub mod make;
mod manifest;
mod open;
mod paused;
mod records;
mod room;
#[cfg(test)]
mod room_tests;
mod sandboxes;
mod sealed;
mod service;
mod settings;
mod snapshots;
mod sparse;
mod store;
#[cfg(test)]
mod stress_tests;
mod tarball;
#[cfg(test)]
mod testing;
mod usage;

pub use bundle::BundleError;
pub use chain::{Below, Removal, Template};
pub use draft::{DraftFiles, Floor, PauseDraft, SnapshotDraft};
pub use error::StoreError;
pub use images::ImageDraft;
pub use kernels::KernelDraft;
pub use manifest::{ImageRef, LayerRef, MANIFEST_FORMAT, Manifest};
pub use open::OpenSnapshot;
pub use records::{ImageRecord, KernelRecord, SandboxRow, SnapshotMeta, SnapshotRecord};
pub use room::Room;
pub use service::{Answered, AuditHead, KeyState, TokenRow, WorkspaceRow};
pub use sparse::write_sparse;
pub use store::Store;
pub use usage::StoreUsage;
