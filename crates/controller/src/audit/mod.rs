//! The audit log: one line of JSON for every call that changes something, and for every one that was refused.
//!
//! Each line carries the hash of the one before, so that a line that was changed, removed or put in between is found;
//! the registry keeps the hash of the newest line that is safely on the disk, so that a cut end is found as well.
//!
//! Durability: a line is written before its call is answered, so that the end of the controller loses none. It is
//! synced to the disk within [`writer::SYNC_EVERY`] (at once where tokens or tenants were changed): what was done in the
//! moment before the power went may lack its line.
//!
//! Arguments, bodies and tokens are never written.

mod files;
mod ticket;
mod verify;
mod writer;

pub(crate) use forkd_protocol::rest::{AuditLine as Line, AuditReport};

pub(crate) use files::newest;
pub(crate) use ticket::{Deferred, Made, Ticket};
pub(crate) use verify::verify;
pub(crate) use writer::Log;

/// What the first line has in the place of the hash of the one before.
pub(crate) const NOTHING_BEFORE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The hash of a line as it is written, hex.
pub(crate) fn hash_of(line: &[u8]) -> String {
    blake3::hash(line).to_hex().to_string()
}
