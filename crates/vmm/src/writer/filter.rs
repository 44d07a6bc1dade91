//! What a writer may ask of the kernel. Source: Documentation/userspace-api/seccomp_filter.rst.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompFilter, TargetArch};

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

/// A program of the kernel's filter; made before the fork, since making it allocates.
#[derive(Debug)]
pub struct Filter(BpfProgram);

impl Filter {
    /// Everything but what a writer does ends its process.
    ///
    /// # Errors
    /// The rules make no program, which is a mistake in them.
    pub fn new() -> Result<Self, BackendError> {
        let rules: BTreeMap<_, _> = ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
        let filter =
            SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, TargetArch::x86_64)?;
        Ok(Self(filter.try_into()?))
    }

    /// Binds the calling thread for the rest of its life. Allocates nothing.
    pub(super) fn apply(&self) -> io::Result<()> {
        seccompiler::apply_filter(&self.0).map_err(|e| match e {
            seccompiler::Error::Prctl(e) | seccompiler::Error::Seccomp(e) => e,
            _ => io::ErrorKind::InvalidInput.into(),
        })
    }
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
            Filter::new().unwrap().apply().unwrap();
            let _ = std::fs::read("/proc/self/status");
            return;
        }
        let name = "writer::filter::tests::a_writer_that_does_anything_else_is_ended";
        let mut copy = Command::new(std::env::current_exe().unwrap());
        let ended = copy.args(["--exact", name, "--nocapture"]).env(BREAK, "1").output().unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGSYS), "{ended:?}");
    }
}
