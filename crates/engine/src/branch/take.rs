//! The part of a branch for which the sandbox stands still, and what is made of it afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_host::cgroup::Cgroup;
use forkd_protocol::control::{BRANCH_VERSION, MemoryMode, WriterEnd};
use forkd_protocol::error::chain;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{BranchMode, Limits, NetworkPolicy, SnapshotInfo, SnapshotTiming};
use forkd_store::{Below, LayerRef, SnapshotDraft, SnapshotMeta, Template};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::OwnedRwLockReadGuard;
use tracing::{debug, warn};

use super::plan::Plan;
use super::tops::{keep_top, reconcile_tops};
use super::{BranchError, meta_over};
use crate::engine::{Shared, blocking};
use crate::error::{EngineError, is_full};
use crate::fault;
use crate::limits::Unthrottled;
use crate::monitor::{MonitorError, guards};
use crate::sandbox::{Command, Handle};
use crate::snapshot::millis as millis_since;

/// Most bytes of what a writer says.
const MAX_STATUS: u64 = 4096;

/// A sandbox that was written, or is being written by its writer, and runs on.
#[derive(Debug)]
pub(super) struct Taken {
    draft: SnapshotDraft,
    template: Template,
    /// Layers of the disk, from base to head.
    disk: Vec<LayerRef>,
    writer: Option<pipe::Receiver>,
    mode: BranchMode,
    source: String,
    /// What the source was forked from: it may have been paused since, and lie on something that has no tag.
    parent: Option<String>,
    vm_pause: Duration,
    workload_pause: Duration,
    changed: Option<(Duration, u64)>,
    headroom: Option<Headroom>,
    /// Its children have the same.
    limits: Limits,
    /// Its children have the same.
    network: Option<NetworkPolicy>,
    /// Names of those that are or were in its memory.
    secrets: Vec<String>,
    /// The source's row, and the layers that it names, stay until this is published.
    _keeps_row: OwnedRwLockReadGuard<()>,
}

/// More memory for a limited sandbox while a writer holds the old copies of its pages.
#[derive(Debug)]
struct Headroom {
    leaf: Cgroup,
    limit: u64,
}

impl Headroom {
    /// The old and the new copy of a page that is written meanwhile are both charged to the sandbox.
    fn raise(shared: &Shared, handle: &Handle, limits: &Limits) -> Result<Option<Self>, MonitorError> {
        let leaf = handle.dir.noted_cgroup(shared.launcher.cgroups());
        let Some((limit, leaf)) = limits.memory_bytes().zip(leaf) else { return Ok(None) };
        leaf.limit_memory(Some(limit.saturating_add(leaf.memory_current()?)))?;
        Ok(Some(Self { leaf, limit }))
    }
}

impl Drop for Headroom {
    fn drop(&mut self) {
        // Gone where the sandbox is.
        if let Err(e) = self.leaf.limit_memory(Some(self.limit))
            && self.leaf.memory_current().is_ok()
        {
            warn!(leaf = self.leaf.name(), error = %chain(&e), "the memory limit could not be put back");
        }
    }
}

impl Taken {
    /// Freezes, writes and thaws. Where anything fails the sandbox goes on and the tag is free.
    pub(super) async fn take(
        shared: &Arc<Shared>,
        handle: &Handle,
        plan: &Plan,
    ) -> Result<Self, EngineError> {
        let turn = handle.turns.disk.lock().await;
        handle.check_running()?;
        let secrets = handle
            .settings
            .look(|s| s.secrets.check_branch(&handle.id, plan.with_secrets).map(|()| s.secrets.names()))?;
        let keeps_row = Arc::clone(&handle.turns.publishing).read_owned().await;
        let (beginning, of, tag) = (Arc::clone(shared), handle.clone(), plan.tag.clone());
        let (mode, measure) = (memory_mode(plan.mode), plan.measure);
        let begun = blocking(move || -> Result<_, EngineError> {
            let Shared { store, launcher, .. } = &*beginning;
            // Asked while the workload runs: a monitor looks through all of its memory for its answer.
            let began = Instant::now();
            let status = launcher.status(&of.dir)?;
            let took = began.elapsed();
            if mode != MemoryMode::Flat && status.version < BRANCH_VERSION {
                return Err(BranchError::OldMonitor.into());
            }
            reconcile_tops(&beginning, &of)?;
            let template = store.template(&of.id)?.ok_or(BranchError::OriginUnknown)?;
            let changed = measure.then_some((took, status.changed_pages * 4096));
            Ok((template, store.begin_snapshot(&tag)?, changed, guards(status.version)))
        });
        let (template, draft, changed, guarded) = begun.await??;
        let limits = handle.view.borrow().info.limits;
        let headroom = match plan.mode {
            BranchMode::Live => Headroom::raise(shared, handle, &limits)?,
            BranchMode::Full | BranchMode::Diff => None,
        };

        fault::at!("engine::branch::reserved");
        let unthrottled = Unthrottled::lift(&handle.dir, &limits, shared.launcher.cgroups());
        let since = Instant::now();
        handle.freeze(&shared.launcher, guarded).await?.map_err(BranchError::NotFrozen)?;
        let froze = since.elapsed();
        let (launcher, dir, disk_bytes) =
            (Arc::clone(&shared.launcher), handle.dir.clone(), template.manifest.image.size_bytes);
        let writing = blocking(move || {
            fault::at!("engine::branch::frozen");
            let mut draft = draft;
            let branched = launcher.branch(&dir, draft.outputs(), mode, (disk_bytes, guarded));
            (draft, branched)
        });
        let written = writing.await;
        let wrote = since.elapsed();
        fault::at!("engine::branch::written");
        handle.thaw(&shared.config.bounds).await;
        fault::at!("engine::branch::thawed");
        drop(unthrottled);
        let workload_pause = since.elapsed();
        let (keeping, of) = (Arc::clone(shared), handle.clone());
        // Where this fails the next one tries again.
        let kept = blocking(move || -> Result<_, EngineError> {
            if guarded && let Err(e) = keeping.launcher.unguard(&of.dir) {
                debug!(sandbox = %of.id, error = %chain(&e), "its monitor goes on guarding it");
            }
            let (draft, branched) = written?;
            let mut branched = branched?;
            debug!(sandbox = %of.id, ?froze, ?wrote, ?workload_pause, pause_us = branched.told.pause_us, "branched");
            let writer = branched.writer();
            if let Some(pid) = branched.told.writer {
                move_writer(&keeping, &of.id, pid);
            }
            let frozen = branched.settle()?;
            fault::at!("engine::branch::tops_settled");
            let layer = keep_top(&keeping.store, &of, &frozen, disk_bytes)?;
            keeping.store.count_branch(&of.id)?;
            Ok((draft, Duration::from_micros(branched.told.pause_us), writer, layer))
        });
        let (draft, vm_pause, writer, new_top) = kept.await??;
        shared.figures.branched(plan.mode, vm_pause, workload_pause);
        shared.events.branched(&handle.info(), &plan.tag);
        fault::at!("engine::branch::top_kept");
        let below = template.manifest.disk.iter().chain(&template.frozen).cloned();
        let disk = below.chain(new_top).collect();
        drop(turn);
        let writer =
            writer.map(pipe::Receiver::from_owned_fd).transpose().map_err(BranchError::WriterFailed)?;
        let _ = handle.commands.send(Command::Branched);
        Ok(Self {
            draft,
            template,
            disk,
            writer,
            mode: plan.mode,
            source: handle.id.to_string(),
            parent: handle.view.borrow().info.snapshot_id.clone(),
            vm_pause,
            workload_pause,
            changed,
            headroom,
            limits,
            network: handle.settings.look(|settings| settings.network.clone()),
            secrets,
            _keeps_row: keeps_row,
        })
    }

    /// What is told of it before it is published.
    pub(super) fn provisional(&self, shared: &Shared, plan: &Plan) -> SnapshotInfo {
        let mut info = shared.store.provisional(&plan.tag, &self.template.manifest);
        info.branched_from = Some(self.source.clone());
        info.secrets.clone_from(&self.secrets);
        info.pause_ms = Some(millis(self.vm_pause));
        info.workload_pause_ms = Some(millis(self.workload_pause));
        info
    }

    /// Waits for the writer and publishes.
    pub(super) async fn publish(
        mut self,
        shared: &Arc<Shared>,
        plan: &Plan,
    ) -> Result<SnapshotInfo, EngineError> {
        let began = Instant::now();
        if let Some(writer) = self.writer.take() {
            written(writer, shared).await?;
        }
        fault::at!("engine::branch::writer_ended");
        drop(self.headroom.take());
        let manifest = &self.template.manifest;
        let flat = self.mode == BranchMode::Full;
        let meta = SnapshotMeta {
            timing: SnapshotTiming { write_ms: millis_since(began), ..SnapshotTiming::default() },
            pause_ms: Some(millis(self.vm_pause)),
            workload_pause_ms: Some(millis(self.workload_pause)),
            branched_from: Some(self.source.clone()),
            limits: self.limits,
            network: self.network.take(),
            secrets: self.secrets.clone(),
            below: Some(Below {
                parent: self.parent.take().unwrap_or_else(|| self.template.id.clone()),
                memory: if flat { Vec::new() } else { manifest.memory.clone() },
                disk: self.disk.clone(),
            }),
            ..meta_over(&shared.store, manifest)?
        };
        let draft = self.draft;
        let writer_took = began.elapsed();
        let (store, events) = (shared.store.clone(), shared.events.clone());
        let publishing = blocking(move || -> Result<_, EngineError> {
            let info = draft.publish(meta)?.info;
            events.made(&store, &info.tag);
            Ok(info)
        });
        let mut info = publishing.await??;
        fault::at!("engine::branch::published");
        info.diff_ms = self.changed.map(|(took, _)| millis(took));
        info.diff_logical_bytes = self.changed.map(|(_, bytes)| bytes).or(info.diff_logical_bytes);
        debug!(tag = %plan.tag, ?writer_took, took = ?began.elapsed(), "branch published");
        Ok(info)
    }
}

/// So that a source that is killed does not take its writer with it.
fn move_writer(shared: &Shared, source: &SandboxId, pid: u32) {
    let writers = shared.launcher.cgroups().writers();
    let moved = writers.and_then(|writers| writers.map_or(Ok(()), |writers| writers.add(pid)));
    if let Err(e) = moved {
        debug!(sandbox = %source, error = %chain(&e), "the writer stays with its source");
    }
}

fn memory_mode(mode: BranchMode) -> MemoryMode {
    match mode {
        BranchMode::Full => MemoryMode::Flat,
        BranchMode::Diff => MemoryMode::Changed,
        BranchMode::Live => MemoryMode::Live,
    }
}

/// Waits until the writer has ended, and says how.
async fn written(mut status: pipe::Receiver, shared: &Shared) -> Result<(), BranchError> {
    let mut said = String::new();
    let mut reader = (&mut status).take(MAX_STATUS);
    let read = tokio::time::timeout(shared.config.bounds.write, reader.read_to_string(&mut said)).await;
    match (read, serde_json::from_str(&said)) {
        (Ok(Ok(_)), Ok(WriterEnd::Written { .. })) => Ok(()),
        (_, Ok(WriterEnd::Failed { errno })) => match std::io::Error::from_raw_os_error(errno) {
            full if is_full(&full) => Err(BranchError::WriterNoRoom(shared.store.room())),
            other => Err(BranchError::WriterFailed(other)),
        },
        _ => Err(BranchError::WriterKilled),
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
