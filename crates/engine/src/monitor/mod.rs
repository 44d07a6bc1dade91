//! Monitors: one `forkd-vmm` process per machine.
//!
//! A monitor is started with its listening control socket as stdin and everything else by message. It outlives
//! the engine on purpose: it is in its own process group, its sockets are found by path in its run folder, and
//! the end of a control connection means nothing to it. So nothing here keeps a connection: each question is a
//! connection of its own.

mod branch;
mod ending;
mod error;
mod launch;
mod pool;
mod process;
mod rundir;

pub(crate) use branch::{FrozenTop, guards};
pub use error::MonitorError;
pub(crate) use launch::{Launcher, ParentPlan, stop_by_socket};
pub(crate) use process::{Monitor, NOTICE_END_WITHIN, Watch};
pub(crate) use rundir::{Mended, RunDir, check_root};
