//! Programs of the image that run in a child before its workload does.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Change;
use super::steps::StepError;
use crate::cgroup::Branch;
use crate::process::{Command, ExecLimits, Exit, execute};

const HOOKS: &str = "/etc/forkd/after-fork.d";
const LIMITS: ExecLimits = ExecLimits { timeout: Some(Duration::from_secs(10)), max_output: 64 * 1024 };

/// Every executable in [`HOOKS`], in order of name, one after the other. The first that fails fails the fork.
pub(super) async fn after_fork(change: &Change<'_>) -> Result<(), StepError> {
    for hook in executables(Path::new(HOOKS)) {
        run(change, &hook.to_string_lossy(), &[]).await?;
    }
    Ok(())
}

/// A host key proves to be one machine, so a clone makes its own. RSA keys are not made anew: finding primes
/// can take longer than all other steps together, and no client needs them.
pub(super) async fn ssh_host_keys(change: &Change<'_>) -> Result<(), StepError> {
    let Ok(folder) = fs::read_dir("/etc/ssh") else { return Ok(()) };
    let keys = folder.flatten().filter(|e| e.file_name().to_string_lossy().starts_with("ssh_host_"));
    let mut removed = false;
    for key in keys {
        fs::remove_file(key.path())?;
        removed = true;
    }
    let generator = "/usr/bin/ssh-keygen";
    if removed && Path::new("/usr/sbin/sshd").exists() && Path::new(generator).exists() {
        let args = ["-q", "-t", "ed25519", "-N", "", "-f", "/etc/ssh/ssh_host_ed25519_key"];
        run(change, generator, &args).await?;
    }
    Ok(())
}

async fn run(change: &Change<'_>, program: &str, args: &[&str]) -> Result<(), StepError> {
    let command = Command {
        program: program.to_owned(),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
        env: [("FORKD_SANDBOX_ID".to_owned(), change.identity.id.clone())].into(),
        ..Command::default()
    };
    let finished = execute(&change.agent.spawner, Branch::Hooks, &command, None, LIMITS).await;
    let finished = finished.map_err(|e| format!("{program}: {e}"))?;
    let complaint = String::from_utf8_lossy(&finished.stderr);
    match finished.exit {
        Exit::Code(0) => Ok(()),
        _ if finished.timed_out => {
            Err(format!("{program}: took longer than 10 s: {}", complaint.trim()).into())
        }
        exit => Err(format!("{program}: {}: {}", exit.describe(), complaint.trim()).into()),
    }
}

fn executables(folder: &Path) -> Vec<PathBuf> {
    let Ok(folder) = fs::read_dir(folder) else { return Vec::new() };
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    let mut programs: Vec<PathBuf> = folder.flatten().map(|entry| entry.path()).filter(is_program).collect();
    programs.sort();
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_of_name_and_only_programs() {
        let tmp = tempfile::tempdir().unwrap();
        for (name, mode) in [("20-b", 0o755), ("10-a", 0o700), ("15-no", 0o644)] {
            fs::write(tmp.path().join(name), "").unwrap();
            fs::set_permissions(tmp.path().join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(tmp.path().join("00-folder")).unwrap();
        assert_eq!(executables(tmp.path()), [tmp.path().join("10-a"), tmp.path().join("20-b")]);
        assert!(executables(&tmp.path().join("none")).is_empty());
    }
}
