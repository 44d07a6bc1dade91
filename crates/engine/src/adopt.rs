//! Finding again what ran before this controller: adopted where it lives, removed where it does not.
//!
//! Four kinds of leftovers: a row whose monitor runs (adopted; it and its workload go on, whatever a controller had
//! stopped them for), a row whose monitor is gone (removed), a row that says `paused` (kept, without a monitor), and a
//! run folder without a row (a fork or a parent that was in the middle of being made: its monitor is ended,
//! the folder removed). A monitor is ours if it answers on the socket in our folder, or if the folder's or the
//! row's pid still has the start time noted with it, in the same boot of the host. Nothing else is signalled.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use forkd_host::net::Lease;
use forkd_host::process::{Process, boot_id};
use forkd_protocol::control::Phase;
use forkd_protocol::error::chain;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{ForkTiming, Limits, NetworkPolicy, SandboxInfo, ShownSettings};
use forkd_store::{Floor, SandboxRow, StoreError, Template};
use serde::{Deserialize, Serialize};
use tracing::{Instrument, info, warn};

use crate::engine::{Shared, blocking};
use crate::error::{EngineError, OpenError};
use crate::monitor::{Monitor, MonitorError, RunDir, stop_by_socket};
use crate::network::NetworkNote;
use crate::publish;
use crate::sandbox::{Body, Life, Task, span};
use crate::settings::Settings;

/// What a row keeps for us beside its own columns.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Kept {
    /// Pids and start times of another boot of the host mean nothing.
    boot_id: String,
    timing: ForkTiming,
    limits: Limits,
    guest_memory_mib: u64,
    /// What one that was ever paused was forked from: its row names what it lies on now.
    #[serde(skip_serializing_if = "Option::is_none")]
    origin: Option<Origin>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<NetworkNote>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Origin {
    snapshot_id: String,
    floor: Floor,
}

/// The row of a sandbox that is about to be released.
pub(crate) fn row_of(info: &SandboxInfo, id: &SandboxId, monitor: &Monitor) -> SandboxRow {
    let process = monitor.process();
    let kept = Kept {
        boot_id: boot_id().unwrap_or_default(),
        timing: info.timing,
        limits: info.limits,
        guest_memory_mib: info.guest_memory_mib,
        origin: None,
        tenant: info.tenant.clone(),
        network: monitor.network_note(),
    };
    SandboxRow {
        id: id.clone(),
        snapshot_tag: info.snapshot_tag.clone(),
        snapshot_id: info.snapshot_id.clone(),
        pid: Some(process.pid()),
        pid_start_ticks: Some(process.start_ticks()),
        state: Life::Running.name().to_owned(),
        created_at_unix: info.created_at_unix,
        memory_limit_mib: info.memory_limit_mib,
        ended: None,
        branch_count: info.branch_count,
        info_json: serde_json::to_string(&kept).unwrap_or_default(),
    }
}

/// The row of a running sandbox once it is paused, and on how many layers lies what it has changed. The store adds
/// what it is to be continued from.
pub(crate) fn paused_row(row: SandboxRow, template: &Template) -> (SandboxRow, Floor) {
    let kept = kept(&row);
    let manifest = &template.manifest;
    let origin = kept.origin.clone().unwrap_or_else(|| Origin {
        snapshot_id: template.id.clone(),
        floor: Floor { memory: manifest.memory.len(), disk: manifest.disk.len() },
    });
    let floor = origin.floor;
    let info_json =
        serde_json::to_string(&Kept { origin: Some(origin), network: None, ..kept }).unwrap_or_default();
    (SandboxRow { state: Life::Paused.name().to_owned(), info_json, ..row }, floor)
}

/// The row of a paused sandbox once it runs in this process (pid and start time) and this network.
pub(crate) fn resumed_row(
    row: SandboxRow,
    (pid, start_ticks): (u32, u64),
    network: Option<NetworkNote>,
) -> SandboxRow {
    let kept = Kept { boot_id: boot_id().unwrap_or_default(), network, ..kept(&row) };
    SandboxRow {
        state: Life::Running.name().to_owned(),
        pid: Some(pid),
        pid_start_ticks: Some(start_ticks),
        info_json: serde_json::to_string(&kept).unwrap_or_default(),
        ..row
    }
}

fn is_paused(row: &SandboxRow) -> bool {
    row.state == Life::Paused.name()
}

fn info_of(row: &SandboxRow) -> SandboxInfo {
    let kept = kept(row);
    let origin = kept.origin.map(|origin| origin.snapshot_id);
    SandboxInfo {
        id: row.id.to_string(),
        snapshot_tag: row.snapshot_tag.clone(),
        snapshot_id: origin.or_else(|| row.snapshot_id.clone()),
        netns: None,
        guest_addr: String::new(),
        created_at_unix: row.created_at_unix,
        pid: row.pid.filter(|_| !is_paused(row)),
        memory_limit_mib: row.memory_limit_mib,
        limits: Limits { memory_mib: row.memory_limit_mib, ..kept.limits },
        guest_memory_mib: kept.guest_memory_mib,
        has_branched: row.branch_count > 0,
        last_branch_memory_path: None,
        branch_count: row.branch_count,
        state: row.state.clone(),
        ended: row.ended.clone(),
        timing: kept.timing,
        network: None,
        tenant: kept.tenant,
        settings: ShownSettings::default(),
    }
}

fn kept(row: &SandboxRow) -> Kept {
    serde_json::from_str(&row.info_json).unwrap_or_default()
}

/// Goes through all leftovers. Run once, before the first request.
pub(crate) async fn adopt_all(shared: &Arc<Shared>) -> Result<(), EngineError> {
    let store = shared.store.clone();
    let (rows, settings) =
        blocking(move || Ok::<_, StoreError>((store.sandboxes()?, store.settings()?))).await??;
    let adoptions = rows.iter().map(|row| {
        let (shared, row) = (Arc::clone(shared), row.clone());
        let settings = settings.get(row.id.as_str()).map(|text| Settings::read(text)).unwrap_or_default();
        tokio::spawn(async move { adopt(&shared, row, settings).await })
    });
    for adoption in adoptions.collect::<Vec<_>>() {
        adoption.await.map_err(|_| EngineError::Broken)??;
    }
    let shared = Arc::clone(shared);
    blocking(move || {
        remove_strays(&shared, &rows)?;
        // Those of sandboxes that run are lent; whatever else there is has nobody any more.
        let lent = shared.registry.of_each(|view| view.info.netns.clone());
        shared.networks.keep_only(&lent);
        Ok(())
    })
    .await?
}

async fn adopt(shared: &Arc<Shared>, row: SandboxRow, settings: Settings) -> Result<(), EngineError> {
    let (looking, asked) = (Arc::clone(shared), row.clone());
    let (body, life) = if is_paused(&row) {
        blocking(move || leave_paused(&looking, &asked)).await??;
        (None, Life::Paused)
    } else {
        let policy = settings.network.clone().map(|policy| (policy, settings.network_pending));
        let looked = blocking(move || look(&looking, &asked, policy)).await??;
        let Some(monitor) = looked else { return Ok(()) };
        (Some(Body { watch: monitor.watch()?, monitor }), Life::Running)
    };
    let (task, handle) = Task::new(shared.surroundings(), row.id.clone(), life, info_of(&row), settings);
    task.show_body(body.as_ref());
    shared.registry.insert(handle.clone());
    publish::serve_again(shared, &handle);
    tokio::spawn(task.live_on(body).instrument(span(&row.id)));
    if life == Life::Running {
        // A controller that was killed while it branched or paused this sandbox left its workload frozen. One that is
        // not frozen does not notice.
        let bounds = shared.config.bounds;
        tokio::spawn(async move { handle.thaw(&bounds).await });
    }
    info!(sandbox = %row.id, state = life.name(), "found again");
    Ok(())
}

/// A sandbox on the disk has no monitor: one that a controller was about to end, or to continue it with, is ended.
/// Blocks.
fn leave_paused(shared: &Shared, row: &SandboxRow) -> Result<(), EngineError> {
    let bounds = shared.config.bounds;
    let dir = RunDir::new(shared.store.run_dir(&row.id));
    let cgroup = dir.noted_cgroup(shared.launcher.cgroups());
    let process = match dir.noted_process() {
        None => process_of(row)?,
        noted => noted,
    };
    if let Some(process) = process {
        info!(sandbox = %row.id, "it is paused; its monitor is ended");
        let mut monitor = Monitor::adopted(row.id.clone(), process, cgroup, shared.store.clone(), bounds.end);
        return Ok(monitor.bury()?);
    }
    stop_by_socket(&dir, bounds.control);
    if let Some(leaf) = cgroup {
        leaf.remove().map_err(MonitorError::from)?;
    }
    Ok(dir.keep_logs_only()?)
}

/// The monitor of a row where it is alive and well; otherwise nothing of it is left. Blocks.
fn look(
    shared: &Shared,
    row: &SandboxRow,
    policy: Option<(NetworkPolicy, bool)>,
) -> Result<Option<Monitor>, EngineError> {
    let bounds = shared.config.bounds;
    let dir = RunDir::new(shared.store.run_dir(&row.id));
    let cgroup = dir.noted_cgroup(shared.launcher.cgroups());
    let Some(process) = process_of(row)? else {
        let reason = dir.explain_after_the_fact(cgroup.as_ref());
        info!(sandbox = %row.id, reason, "ended while no controller ran; removed");
        stop_by_socket(&dir, bounds.control);
        if let Some(leaf) = cgroup {
            leaf.remove().map_err(MonitorError::from)?;
        }
        shared.store.remove_run_dir(&row.id)?;
        shared.store.remove_sandbox(&row.id)?;
        return Ok(None);
    };
    let mut monitor = Monitor::adopted(row.id.clone(), process, cgroup, shared.store.clone(), bounds.end);
    shared.launcher.recognise(&mut monitor)?;
    monitor.set_network(find_network(shared, row, policy));
    // It may still be writing what another controller asked of it.
    let phase = monitor.status(bounds.write).map(|status| status.phase);
    let phase = match phase {
        // Stopped in order to be written, by a controller that did not come to an end.
        Ok(Phase::Paused) => shared.launcher.run_on(&dir).map(|()| Phase::Running),
        phase => phase,
    };
    if let Ok(Phase::Running) = phase {
        return Ok(Some(monitor));
    }
    if let Err(e @ MonitorError::Version { .. }) = phase {
        // It runs well, for another forkd: nothing of it may be removed here.
        return Err(e.into());
    }
    let says = phase.map_or_else(|e| chain(&e), |phase| format!("it is {phase:?}"));
    warn!(sandbox = %row.id, says, "found again, but it does not run; removed");
    monitor.discard();
    shared.store.remove_sandbox(&row.id)?;
    Ok(None)
}

/// The network that a sandbox's tap leads to, in which its policy holds; one that may not have come to hold is enforced.
/// Where it cannot be found the sandbox's packets go where its rules let them and no name resolves any more, so it runs on.
fn find_network(shared: &Shared, row: &SandboxRow, policy: Option<(NetworkPolicy, bool)>) -> Option<Lease> {
    let (note, (policy, pending)) = kept(row).network.zip(policy)?;
    let found = shared.networks.find(&note, &policy).and_then(|lease| {
        if pending {
            lease.policing().set(&policy)?;
        }
        Ok(lease)
    });
    found.inspect_err(|e| warn!(sandbox = %row.id, error = %chain(e), "its network was not found again")).ok()
}

fn process_of(row: &SandboxRow) -> Result<Option<Process>, MonitorError> {
    let same_boot = boot_id().is_ok_and(|now| now == kept(row).boot_id);
    match (row.pid, row.pid_start_ticks) {
        (Some(pid), Some(ticks)) if same_boot => Ok(Process::find(pid, ticks)?),
        _ => Ok(None),
    }
}

/// Ends and removes what has a run folder but no row. Blocks.
fn remove_strays(shared: &Shared, rows: &[SandboxRow]) -> Result<(), EngineError> {
    let run = shared.store.root().join("run");
    for entry in list(&run)? {
        let Some(id) = entry.file_name().and_then(|name| name.to_str()?.parse::<SandboxId>().ok()) else {
            warn!(path = %entry.display(), "not a run folder; left alone");
            continue;
        };
        if !rows.iter().any(|row| row.id == id) {
            remove_stray(shared, &id)?;
        }
    }
    remove_stray_leaves(shared, rows)
}

/// Removes cgroups that no sandbox is in: all of the others are gone, whatever their folders said. Blocks.
fn remove_stray_leaves(shared: &Shared, rows: &[SandboxRow]) -> Result<(), EngineError> {
    let cgroups = shared.launcher.cgroups();
    let dirs = rows.iter().map(|row| RunDir::new(shared.store.run_dir(&row.id)));
    let used: Vec<_> = dirs.filter_map(|dir| dir.noted_cgroup(cgroups)).collect();
    for name in cgroups.leaves().map_err(MonitorError::from)? {
        if used.iter().any(|leaf| leaf.name() == name) {
            continue;
        }
        info!(leaf = name, "a cgroup that nobody is in is removed");
        if let Some(leaf) = cgroups.find(&name) {
            leaf.remove().map_err(MonitorError::from)?;
        }
    }
    Ok(())
}

fn remove_stray(shared: &Shared, id: &SandboxId) -> Result<(), EngineError> {
    let bounds = shared.config.bounds;
    let dir = RunDir::new(shared.store.run_dir(id));
    let cgroup = dir.noted_cgroup(shared.launcher.cgroups());
    info!(sandbox = %id, "the leftover of an unfinished request is removed");
    if let Some(process) = dir.noted_process() {
        Monitor::adopted(id.clone(), process, cgroup, shared.store.clone(), bounds.end).discard();
        return Ok(());
    }
    // Killed between starting it and noting it: then it still waits for a first message on its socket.
    stop_by_socket(&dir, bounds.control);
    if let Some(leaf) = cgroup {
        leaf.remove().map_err(MonitorError::from)?;
    }
    Ok(shared.store.remove_run_dir(id)?)
}

fn list(folder: &PathBuf) -> Result<Vec<PathBuf>, OpenError> {
    let failed = |source: io::Error| OpenError::Host { path: folder.clone(), source };
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    entries.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>().map_err(failed)
}
