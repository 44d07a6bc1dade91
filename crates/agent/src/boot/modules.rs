//! The kernel's modules, as the ramdisk carries them.

use std::fs::{self, File};
use std::path::Path;

use crate::sys;

/// One path a line, in the order in which they are to be loaded.
const ORDER: &str = "/modules.order.forkd";

/// Loads all; what could not be loaded is told, since it matters only where something is missing afterwards.
/// Frees the ramdisk of them.
pub(super) fn load_all() -> Vec<String> {
    let order = fs::read_to_string(ORDER).unwrap_or_default();
    let paths = order.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let failures = paths.filter_map(|path| load(&Path::new("/").join(path))).collect();
    let _ = fs::remove_dir_all("/lib/modules");
    failures
}

fn load(path: &Path) -> Option<String> {
    match File::open(path).and_then(|file| sys::load_module(&file)) {
        Ok(()) => None,
        // Built in, or loaded for the sake of another.
        Err(e) if e.raw_os_error() == Some(libc::EEXIST) => None,
        Err(e) => Some(format!("{}: {e}", path.display())),
    }
}
