//! Monitors: one `forkd-vmm` process per machine.
//!
//! A monitor is started with its listening control socket as stdin and everything else by message. What is started
//! jails it: it is a descendant of that, as a user that no other monitor is, and found by asking the socket who listens.
//! It outlives the engine on purpose: it is in its own process group, its sockets are found by path in its run folder, and
//! the end of a control connection means nothing to it. So nothing here keeps a connection: each question is a
//! connection of its own.

mod branch;
mod ending;
mod error;
mod launch;
mod pool;
mod process;
mod rundir;
mod users;

pub(crate) use branch::{FrozenTop, guards};
pub(crate) use ending::{KILLED_BY_FILTER, KILLED_FOR_MEMORY};
pub use error::MonitorError;
pub(crate) use launch::{Launcher, ParentPlan, stop_by_socket};
pub(crate) use process::{Monitor, NOTICE_END_WITHIN, Watch};
pub(crate) use rundir::{Mended, RunDir, check_root};
