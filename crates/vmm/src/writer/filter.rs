//! What a writer may ask of the kernel. Source: Documentation/userspace-api/seccomp_filter.rst.

use seccompiler::BackendError;

use crate::jail::Filter;

/// Reading the page map, writing data, table and status, ending.
const ALLOWED: [i64; 6] = [
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_write,
    libc::SYS_ftruncate,
    libc::SYS_exit_group,
    // Back from the handler of a signal that somebody sends.
    libc::SYS_rt_sigreturn,
];

/// Everything but what a writer does ends its process. Made before the fork, since making it allocates.
///
/// # Errors
/// The rules make no program, which is a mistake in them.
pub fn of_writer() -> Result<Filter, BackendError> {
    Filter::only(&ALLOWED)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// Set for the copy of this program that is to break the rules.
    const BREAK: &str = "FORKD_TEST_BREAK_FILTER";

    #[test]
    fn a_writer_that_does_anything_else_is_ended() {
        if std::env::var_os(BREAK).is_some() {
            of_writer().unwrap().bind().unwrap();
            let _ = std::fs::read("/proc/self/status");
            return;
        }
        let name = "writer::filter::tests::a_writer_that_does_anything_else_is_ended";
        let mut copy = Command::new(std::env::current_exe().unwrap());
        let ended = copy.args(["--exact", name, "--nocapture"]).env(BREAK, "1").output().unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGSYS), "{ended:?}");
    }
}
