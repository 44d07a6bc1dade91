//! What all tests share.

mod api;
mod children;
mod command;
mod disk;
mod host;
mod world;

pub(crate) use api::{delete, get, post, post_in_a_crowd, raw, send};
pub(crate) use children::{Child, Children, Snapshot, each};
pub(crate) use command::{Ran, forkd, forkd_fed};
pub(crate) use disk::check_disk;
pub(crate) use host::{LIST, MONITORS, controller_pid, crash, full_pool, host_sh, store_root};
pub(crate) use world::{BARE, IMAGE, NUMPY, alone, at_soak, bare, becomes, eventually, numpy, together};
