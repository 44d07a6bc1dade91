//! What a sandbox needs from Linux.
//!
//! * [`process`]: a handle on a process that can never mean a stranger;
//! * [`cpu`]: which processor it is;
//! * [`cgroup`]: limits and accounting, one leaf per sandbox;
//! * [`memory`]: what a monitor costs, apart from what its guest costs;
//! * [`census`]: what sandboxes could leave behind, counted.

#![forbid(unsafe_code)]

pub mod census;
pub mod cgroup;
pub mod cpu;
pub mod memory;
pub mod process;
