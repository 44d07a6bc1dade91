//! Snapshots that leave and arrive: one document that names everything by content, and objects that carry it.
//!
//! ```text
//!   source           stored files as bytes that are cut into pieces
//!   export           a snapshot on its way out: document and objects
//!   document         reading a document that comes from anywhere
//!   check_manifest   reading a manifest that comes from anywhere
//!   state            the head of a machine state
//!   import           a bundle on its way in: what is missing, objects one by one
//!   assemble         from objects back to files, checked against their names
//!   publish          making what arrived visible
//!   archive          the bundle file: a tar of the document and the objects
//! ```
//!
//! The controller's side is `export` and `import`; a bundle file, a hub and the API between them only carry.

mod archive;
mod assemble;
mod check_manifest;
mod document;
mod error;
mod export;
mod import;
mod publish;
mod source;
mod state;

pub use archive::{BundleWriter, Part, read_bundle};
pub use error::BundleError;
pub use export::Export;
pub(crate) use export::Exports;
pub(crate) use import::Imports;

/// How objects are compressed: fast, since both ends are mostly faster than what lies between them.
const LEVEL: i32 = 3;
/// Largest window of a compressed object (2^24 bytes): what reading one may take of memory.
const WINDOW_LOG: u32 = 24;

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
