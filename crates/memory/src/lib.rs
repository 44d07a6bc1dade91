//! Guest RAM: where it lies, how layers are mapped copy-on-write, and which pages changed.
//!
//! * [`layout`]: which guest-physical addresses are RAM (with the hole below 4 GiB);
//! * [`map`]: RAM of a booting machine (anonymous) and of a restored one (layers, `MAP_PRIVATE`);
//! * [`changed`]: the exact set of pages a machine changed, from `/proc/self/pagemap`;
//! * [`extents`]: the table that says which pages a layer holds;
//! * [`discard`]: giving pages back to the host;
//! * [`dump`]: writing pages out as a layer;
//! * [`writer`]: writing changed pages out without allocating, for a process that was forked off.
//!
//! Guest memory is never seen as a Rust slice: the guest writes to it at any time, so every access goes
//! through the volatile accessors of `vm-memory`.

pub mod changed;
pub mod discard;
pub mod dump;
pub mod extents;
pub mod layout;
pub mod map;
pub mod writer;

/// The unit of layers, extents and change tracking, in bytes.
pub const PAGE_SIZE: u64 = 4096;

/// Guest RAM as every crate above sees it.
pub type GuestRam = vm_memory::GuestMemoryMmap<()>;
