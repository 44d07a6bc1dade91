//! Whether KVM runs our guests: a small one is tried, and the answer remembered.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forkd_host::process::Process;
use forkd_protocol::error::ErrorClass;
use forkd_store::make::cache_dir;
use serde::{Deserialize, Serialize};

use crate::error::{BoxError, CliError};
use crate::machine;

/// How long the small guest may take; where KVM works it is a second, also in an emulated host.
const WITHIN: Duration = Duration::from_secs(10);

/// What `forkd-vmm probe` found out about KVM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Probe {
    /// `usable`, `absent` or `unusable`.
    pub(crate) kvm: String,
    /// In words.
    #[serde(default)]
    pub(crate) detail: String,
    /// What its small guest tried.
    #[serde(default)]
    pub(crate) items: Vec<ProbeItem>,
}

/// One thing that guests need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProbeItem {
    /// Such as `64-bit mode`.
    pub(crate) name: String,
    /// Whether it worked.
    pub(crate) ok: bool,
}

impl Probe {
    /// Whether guests run here.
    pub(crate) fn is_usable(&self) -> bool {
        self.kvm == "usable"
    }
}

/// What an answer holds for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Surroundings {
    boot_id: String,
    user: u32,
    monitor: PathBuf,
    program: Option<FileId>,
    kvm: Option<FileId>,
}

/// A file as it is: another one, or the same one changed, differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileId {
    device: u64,
    inode: u64,
    node: u64,
    size: u64,
    /// Of its last change, also of owner or mode.
    changed: (i64, i64),
}

impl FileId {
    fn of(path: &Path) -> Option<Self> {
        let found = path.metadata().ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
            node: found.rdev(),
            size: found.size(),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

impl Surroundings {
    fn now(monitor: PathBuf) -> Self {
        Self {
            boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            user: rustix::process::geteuid().as_raw(),
            program: FileId::of(&monitor),
            kvm: FileId::of(Path::new("/dev/kvm")),
            monitor,
        }
    }
}

/// An answer and what it holds for.
#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    surroundings: Surroundings,
    probe: Probe,
}

/// Whether KVM is usable; tried again only where what it depends on has changed, since it takes a small guest.
pub(crate) fn probe() -> Result<Probe, CliError> {
    let now = Surroundings::now(monitor()?);
    let cache = cache_dir().join("kvm-probe.json");
    if let Some(probe) = remembered(&cache, &now) {
        return Ok(probe);
    }
    let probe = ask(&now.monitor, WITHIN)?;
    // A cache that cannot be written costs a second next time.
    let _ = remember(&cache, &Remembered { surroundings: now, probe: probe.clone() });
    Ok(probe)
}

/// Whether KVM is usable, tried now.
pub(super) fn afresh() -> Result<Probe, CliError> {
    ask(&monitor()?, WITHIN)
}

fn monitor() -> Result<PathBuf, CliError> {
    Ok(machine::programs::folder()?.join("forkd-vmm"))
}

/// Runs the small guest.
fn ask(monitor: &Path, within: Duration) -> Result<Probe, CliError> {
    let unfit = |what: String, e: BoxError| {
        CliError::caused(ErrorClass::HostUnfit, what, e)
            .with_hint("forkd, forkd-vmm and forkd-agent lie in one folder; FORKD_LIBEXEC names another")
    };
    let running = || format!("running {}", monitor.display());
    let mut child = Command::new(monitor)
        .arg("probe")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| unfit(running(), e.into()))?;
    let ended = ended_within(&mut child, within).map_err(|e| unfit(running(), e))?;
    if !ended {
        return Ok(Probe {
            kvm: "unusable".to_owned(),
            detail: format!("a small guest did not end within {} s", within.as_secs_f32()),
            items: Vec::new(),
        });
    }
    // One short line, which fits into the pipe.
    let mut line = Vec::new();
    if let Some(out) = child.stdout.take() {
        out.take(1 << 16).read_to_end(&mut line).map_err(|e| unfit(running(), e.into()))?;
    }
    serde_json::from_slice(&line)
        .map_err(|e| unfit(format!("reading what {} probe says", monitor.display()), e.into()))
}

/// Waits for a child; one that takes longer is killed. Nothing of it is left.
fn ended_within(child: &mut Child, within: Duration) -> Result<bool, BoxError> {
    let ended = Process::of_child(child.id()).and_then(|process| process.ended_within(within));
    if !matches!(ended, Ok(true)) {
        child.kill()?;
    }
    child.wait()?;
    Ok(ended?)
}

fn remembered(cache: &Path, now: &Surroundings) -> Option<Probe> {
    let kept: Remembered = serde_json::from_slice(&std::fs::read(cache).ok()?).ok()?;
    (kept.surroundings == *now && !now.boot_id.is_empty()).then_some(kept.probe)
}

fn remember(cache: &Path, kept: &Remembered) -> std::io::Result<()> {
    let folder = cache.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut aside = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer(&mut aside, kept)?;
    aside.persist(cache)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const LINE: &str = r#"{"kvm":"unusable","detail":"internal error","items":[{"name":"int3","ok":false}]}"#;

    fn script(path: &Path, text: &str) {
        // Renamed into place: another test's child may still have a file open that was just written.
        let aside = path.with_extension("new");
        fs::write(&aside, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&aside, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&aside, path).unwrap();
    }

    #[test]
    fn an_answer_is_remembered_until_what_it_depends_on_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, monitor) = (folder.path().join("a/kvm-probe.json"), folder.path().join("forkd-vmm"));
        script(&monitor, "exit 1");
        let now = || Surroundings::now(monitor.clone());
        let probe: Probe = serde_json::from_str(LINE).unwrap();
        remember(&cache, &Remembered { surroundings: now(), probe: probe.clone() }).unwrap();
        assert_eq!(remembered(&cache, &now()), Some(probe));
        for other in [
            Surroundings { boot_id: "later".to_owned(), ..now() },
            Surroundings { user: now().user + 1, ..now() },
            Surroundings { kvm: FileId::of(&monitor), ..now() },
            Surroundings { monitor: "/y".into(), ..now() },
        ] {
            assert_eq!(remembered(&cache, &other), None, "{other:?}");
        }
        script(&monitor, "exit 0");
        assert_eq!(remembered(&cache, &now()), None, "another program");
        fs::write(&cache, "{").unwrap();
        assert_eq!(remembered(&cache, &now()), None);
    }

    #[test]
    fn a_monitor_is_asked_and_one_that_is_missing_makes_the_host_unfit() {
        let folder = tempfile::tempdir().unwrap();
        let monitor = folder.path().join("forkd-vmm");
        assert_eq!(ask(&monitor, WITHIN).unwrap_err().exit_code(), 6);
        script(&monitor, &format!("echo '{LINE}'\nexit 1"));
        let probe = ask(&monitor, WITHIN).unwrap();
        assert!(!probe.is_usable());
        assert_eq!(probe.items[0].name, "int3");
    }

    #[test]
    fn a_guest_that_hangs_is_ended_and_makes_kvm_unusable() {
        let folder = tempfile::tempdir().unwrap();
        let monitor = folder.path().join("forkd-vmm");
        script(&monitor, "exec sleep 1000");
        let probe = ask(&monitor, Duration::from_millis(100)).unwrap();
        assert!(!probe.is_usable() && probe.detail.contains("did not end"), "{probe:?}");
    }
}
