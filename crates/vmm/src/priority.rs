//! Who goes first on a busy host: what somebody waits for, then the host itself, then guests, then what writes them out.
//!
//! Values are nice values of single threads, and a thread hands its own on to those that it makes. Not being allowed to
//! change one is no reason not to run.

use rustix::process::setpriority_process;
use rustix::thread::gettid;

/// A monitor that is about to have a machine. It needs a few milliseconds, and somebody waits for them: beside thirty
/// busy guests it would get a fourth of a processor.
const STARTING: i32 = -15;
/// A monitor that serves its machine.
const SERVING: i32 = 0;
/// A vCPU. A host whose guests are busy still answers for them quickly; among themselves guests share.
const GUEST: i32 = 10;
/// A writer. While it is at work its source takes every page anew, and is not to wait for it as well.
const WRITER: i32 = 19;

/// The calling thread is to make a machine.
pub fn starting() {
    set(STARTING);
}

/// The calling thread has made its machine.
pub fn serving() {
    set(SERVING);
}

/// The calling thread runs a vCPU.
pub fn guest() {
    set(GUEST);
}

/// The calling thread is a writer.
pub fn writer() {
    set(WRITER);
}

fn set(nice: i32) {
    let _ = setpriority_process(Some(gettid()), nice);
}
