//! Where this process is accounted for, and how soon it is killed where the host's memory runs out.
//!
//! A process enters its cgroup by itself, before it maps anything or starts another: so nothing of it is charged, or left,
//! elsewhere, whatever it becomes.

use std::env;
use std::fs;
use std::io;

use forkd_protocol::control::CGROUP_DOOR;

/// Of two processes of a like size this one is killed: half of the host's memory is added to what it takes.
const OOM_SCORE: &str = "500";

/// Enters the cgroup whose door the environment names, where it names one.
///
/// # Errors
/// It cannot be entered: then this process has no limit, and must not go on.
pub fn enter() -> io::Result<()> {
    match env::var_os(CGROUP_DOOR) {
        // The process that writes it.
        Some(door) => fs::write(door, "0"),
        None => Ok(()),
    }
}

/// Has the kernel take a guest before the host's own services. Not being allowed to is no reason not to run.
pub fn dies_first() {
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
}
