//! Where nobody names a controller and none runs, one is started: here where KVM is usable, else in the
//! machine.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::Healthz;
use forkd_store::make::cache_dir;
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::context::{DEFAULT_LISTEN, DEFAULT_URL};
use crate::error::CliError;
use crate::machine::{self, StartOptions};
use crate::ui::Ui;
use crate::upload::blocking;

/// How long an answer of a controller that listens may take, on a computer that is busy.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a controller that was started may take until it answers: it adopts sandboxes and sweeps first.
const START: Duration = Duration::from_secs(60);
/// How often it is asked meanwhile; that it listens is not said anywhere else.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// A client of the controller at the usual place, which is started where it does not run.
pub(crate) async fn controller(ui: &Ui) -> Result<Client, CliError> {
    let client = Client::new(DEFAULT_URL)?;
    if answers(&client).await {
        return Ok(client);
    }
    let probe = blocking(probe).await??;
    if probe.is_usable() {
        start_here(ui, &client).await?;
        return Ok(client);
    }
    ui.note(&format!("no usable KVM here ({}); using the machine (`forkd machine status`)", probe.detail));
    let speaker = ui.clone();
    let endpoint = blocking(move || machine::start(&speaker, &StartOptions::from_env())).await??;
    Client::new(&endpoint.url)
}

async fn answers(client: &Client) -> bool {
    matches!(
        tokio::time::timeout(ANSWER, client.get::<Healthz>("/healthz")).await,
        Ok(Ok(Healthz { ok: true }))
    )
}

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

/// A probe and what it holds for.
#[derive(Debug, Serialize, Deserialize)]
struct CachedProbe {
    boot_id: String,
    monitor: PathBuf,
    probe: Probe,
}

/// Whether KVM is usable: asked once per boot and monitor, since the answer takes a small guest.
pub(crate) fn probe() -> Result<Probe, CliError> {
    let monitor = machine::programs::folder()?.join("forkd-vmm");
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let cache = cache_dir().join("kvm-probe.json");
    if let Some(probe) = remembered(&cache, &boot_id, &monitor) {
        return Ok(probe);
    }
    let probe = ask(&monitor)?;
    // A cache that cannot be written costs a second next time.
    let _ = remember(&cache, CachedProbe { boot_id, monitor, probe: probe.clone() });
    Ok(probe)
}

/// Runs the small guest.
pub(crate) fn ask(monitor: &Path) -> Result<Probe, CliError> {
    let unfit = |what: String, e: crate::error::BoxError| {
        CliError::caused(ErrorClass::HostUnfit, what, e)
            .with_hint("forkd, forkd-vmm and forkd-agent lie in one folder; FORKD_LIBEXEC names another")
    };
    let output = Command::new(monitor)
        .arg("probe")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| unfit(format!("running {}", monitor.display()), e.into()))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|e| unfit(format!("reading what {} probe says", monitor.display()), e.into()))
}

fn remembered(cache: &Path, boot_id: &str, monitor: &Path) -> Option<Probe> {
    let cached: CachedProbe = serde_json::from_slice(&std::fs::read(cache).ok()?).ok()?;
    (cached.boot_id == boot_id && !boot_id.is_empty() && cached.monitor == monitor).then_some(cached.probe)
}

fn remember(cache: &Path, probe: CachedProbe) -> std::io::Result<()> {
    let folder = cache.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut aside = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer(&mut aside, &probe)?;
    aside.persist(cache)?;
    Ok(())
}

/// Starts `forkd serve` so that it outlives this command, and waits until it answers.
async fn start_here(ui: &Ui, client: &Client) -> Result<(), CliError> {
    let step = ui.step("Starting the controller");
    let root = crate::commands::default_root();
    let log = root.join("controller.log");
    let mut child = spawn(&root, &log)?;
    let began = Instant::now();
    while !answers(client).await {
        let ended = child.try_wait().map_err(|e| CliError::io("watching the controller", e))?;
        // Another one may have been faster; then this one found the store locked and the other answers.
        if let Some(status) = ended
            && !answers(client).await
        {
            return Err(not_started(&format!("it ended ({status})"), &log));
        }
        if began.elapsed() > START {
            return Err(not_started("it does not answer", &log));
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
    step.done(DEFAULT_LISTEN);
    Ok(())
}

fn spawn(root: &Path, log: &Path) -> Result<Child, CliError> {
    let failed = |e| CliError::io("starting the controller", e);
    std::fs::create_dir_all(root).map_err(|e| CliError::io(format!("making {}", root.display()), e))?;
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .map_err(|e| CliError::io(format!("opening {}", log.display()), e))?;
    let program = std::env::current_exe().map_err(failed)?;
    Command::new(program)
        .args(["serve", "--detach", "--listen", DEFAULT_LISTEN, "--root"])
        .arg(root)
        .stdin(Stdio::null())
        .stdout(file.try_clone().map_err(failed)?)
        .stderr(file)
        .spawn()
        .map_err(failed)
}

fn not_started(why: &str, log: &Path) -> CliError {
    let tail = machine::tail(log, 5);
    let said = if tail.is_empty() { String::new() } else { format!("; its last words: {tail}") };
    CliError::local(ErrorClass::Internal, format!("the controller was started, but {why}{said}"))
        .with_hint(format!("its log is {}", log.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"kvm":"unusable","detail":"internal error","items":[{"name":"int3","ok":false}]}"#;

    #[test]
    fn a_probe_is_remembered_for_this_boot_and_this_monitor() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("a/kvm-probe.json");
        let probe: Probe = serde_json::from_str(LINE).unwrap();
        let monitor = PathBuf::from("/x/forkd-vmm");
        let cached = CachedProbe { boot_id: "boot".into(), monitor: monitor.clone(), probe: probe.clone() };
        remember(&cache, cached).unwrap();
        assert_eq!(remembered(&cache, "boot", &monitor), Some(probe));
        assert_eq!(remembered(&cache, "later", &monitor), None);
        assert_eq!(remembered(&cache, "boot", Path::new("/y")), None);
        std::fs::write(&cache, "{").unwrap();
        assert_eq!(remembered(&cache, "boot", &monitor), None);
    }

    #[test]
    fn a_monitor_is_asked_and_one_that_is_missing_makes_the_host_unfit() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let monitor = folder.path().join("forkd-vmm");
        assert_eq!(ask(&monitor).unwrap_err().exit_code(), 6);
        std::fs::write(&monitor, format!("#!/bin/sh\necho '{LINE}'\nexit 1\n")).unwrap();
        std::fs::set_permissions(&monitor, std::fs::Permissions::from_mode(0o755)).unwrap();
        let probe = ask(&monitor).unwrap();
        assert!(!probe.is_usable());
        assert_eq!(probe.items[0].name, "int3");
    }
}
