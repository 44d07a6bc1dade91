//! Messages for the person who reads the guest's console.

use std::io::Write;
use std::sync::OnceLock;

static KERNEL_LOG: OnceLock<std::fs::File> = OnceLock::new();

/// From now on messages go into the kernel's log, which the console shows beside the kernel's own.
pub(crate) fn use_kernel_log() {
    if let Ok(file) = std::fs::OpenOptions::new().write(true).open("/dev/kmsg") {
        // A second call keeps the first file.
        let _ = KERNEL_LOG.set(file);
    }
}

/// Something worth knowing. Best effort: a full or absent log stops nothing.
pub(crate) fn info(message: impl std::fmt::Display) {
    write(6, &message);
}

/// Something went wrong that the guest lives with.
pub(crate) fn warn(message: impl std::fmt::Display) {
    write(4, &message);
}

/// The guest cannot go on.
pub(crate) fn fatal(message: impl std::fmt::Display) {
    write(2, &message);
}

fn write(level: u8, message: &dyn std::fmt::Display) {
    let _ = match KERNEL_LOG.get() {
        // The kernel takes one record per write.
        Some(mut log) => log.write_all(format!("<{level}>forkd-agent: {message}\n").as_bytes()),
        None => std::io::stderr().write_all(format!("forkd-agent: {message}\n").as_bytes()),
    };
}
