//! What a sandbox needs from Linux.
//!
//! * [`process`]: a handle on a process that can never mean a stranger;
//! * [`cpu`]: which processor it is;
//! * [`cgroup`]: limits and accounting, one leaf per sandbox;
//! * [`net`]: network namespaces, policies, names;
//! * [`jail`]: what a process is allowed and what it holds;
//! * [`memory`]: what a monitor costs, apart from what its guest costs;
//! * [`seccomp`]: which system call a process was killed for;
//! * [`census`]: what sandboxes could leave behind, counted.

#![deny(unsafe_code)]

pub mod census;
pub mod cgroup;
pub mod cpu;
pub mod jail;
pub mod memory;
pub mod net;
pub mod process;
pub mod seccomp;
