//! PID 1 of the guest: processes, files, warm interpreters, identity.
//!
//! ```text
//! boot         from the ramdisk to the image           reaper       every child that ends
//! http         server, forkd's own verbs               process      what runs for callers
//! e2b          the sandbox API in E2B's words          interpreter  kept Python, node and bash
//! contexts     code that is run in them and watched
//! agent        all parts together; freeze and thaw     identity     becoming someone else
//! tunnel       a connection becomes one to a port      network      the device, and who answers names
//! cgroup, users, image, sys   what the kernel and the image give
//! ```
//!
//! One thread does everything but waiting for disks: no lock is contended, and no thread holds one when a process
//! is made.

mod agent;
mod boot;
mod cgroup;
mod contexts;
mod e2b;
mod http;
mod identity;
mod image;
mod interpreter;
mod log;
mod network;
mod process;
mod reaper;
mod run;
mod secrets;
mod sys;
mod tunnel;
mod users;

pub use run::{Options, RunError, main};
