//! Programs of the host that the machine needs, and running them.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::error::MachineError;

/// A program and the Debian package that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
}

pub(crate) const QEMU: Tool = Tool { name: "qemu-system-x86_64", package: "qemu-system-x86" };
pub(crate) const SSH: Tool = Tool { name: "ssh", package: "openssh-client" };
pub(crate) const SSH_KEYGEN: Tool = Tool { name: "ssh-keygen", package: "openssh-client" };
pub(crate) const MKE2FS: Tool = Tool { name: "mke2fs", package: "e2fsprogs" };
pub(crate) const MMDEBSTRAP: Tool = Tool { name: "mmdebstrap", package: "mmdebstrap" };
pub(crate) const BUSYBOX: Tool = Tool { name: "busybox", package: "busybox-static" };

impl Tool {
    /// Where it lies. The administrators' folders are looked at as well: a user's `PATH` often lacks them.
    pub(crate) fn find(&self) -> Result<PathBuf, MachineError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        find_in(std::env::split_paths(&path), self.name)
            .ok_or(MachineError::ToolMissing { tool: self.name, package: self.package })
    }

    /// Runs it to its end; its output where it succeeds, else the end of its complaints.
    pub(crate) fn run<I, S>(&self, args: I) -> Result<Output, MachineError>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let path = self.find()?;
        let output = Command::new(&path).args(args).stdin(Stdio::null()).output();
        let output = output.map_err(|e| MachineError::io("run", &path, e))?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = said.lines().filter(|l| !l.trim().is_empty()).collect();
        let tail = lines[lines.len().saturating_sub(5)..].join("\n");
        let tail = if tail.is_empty() { output.status.to_string() } else { tail };
        Err(MachineError::ToolFailed { tool: self.name, tail })
    }
}

fn find_in(folders: impl Iterator<Item = PathBuf>, name: &str) -> Option<PathBuf> {
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    folders
        .chain(more)
        .map(|folder| folder.join(name))
        .find(|path| path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0))
}

/// A busybox that runs where there is no C library.
pub(crate) fn static_busybox() -> Result<PathBuf, MachineError> {
    let path = BUSYBOX.find()?;
    if is_static(&path).map_err(|e| MachineError::io("read", &path, e))? {
        return Ok(path);
    }
    Err(MachineError::ToolMissing { tool: "a static busybox", package: BUSYBOX.package })
}

/// Whether a 64-bit ELF file asks for no interpreter.
fn is_static(path: &Path) -> std::io::Result<bool> {
    const PT_INTERP: [u8; 4] = 3u32.to_le_bytes();
    let file = File::open(path)?;
    let mut header = [0u8; 64];
    file.read_exact_at(&mut header, 0)?;
    let word = |at: usize| u64::from(header[at]) | u64::from(header[at + 1]) << 8;
    let table = u64::from_le_bytes(std::array::from_fn(|i| header[32 + i]));
    let (size, count) = (word(54), word(56));
    for entry in 0..count {
        let mut kind = [0u8; 4];
        file.read_exact_at(&mut kind, table.saturating_add(entry * size))?;
        if kind == PT_INTERP {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_found_outside_of_path_and_a_missing_one_names_its_package() {
        assert!(find_in(std::iter::empty(), "sh").is_some());
        let none = Tool { name: "no-such-program", package: "no-such-package" };
        let Err(e) = none.find() else { panic!("found") };
        assert!(e.hint().unwrap().contains("no-such-package"));
    }

    #[test]
    fn a_failing_tool_says_why() {
        let sh = Tool { name: "sh", package: "dash" };
        assert!(sh.run(["-c", "exit 0"]).is_ok());
        let Err(MachineError::ToolFailed { tail, .. }) = sh.run(["-c", "echo no room >&2; exit 3"]) else {
            panic!("no failure")
        };
        assert_eq!(tail, "no room");
    }

    #[test]
    fn a_program_with_an_interpreter_is_not_static() {
        assert!(!is_static(Path::new("/bin/sh")).unwrap());
        assert!(is_static(&std::env::current_exe().unwrap()).unwrap(), "this project builds static programs");
    }
}
