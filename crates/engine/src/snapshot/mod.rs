//! Making a snapshot: boot an image, warm it up, freeze it, write it, publish it.
//!
//! The tag is reserved first, so two requests for one tag never both boot. Every step that takes long is told
//! to whoever listens. Where a step fails, or the request's future is dropped, the guards of the parent and of
//! the draft remove both. Publishing alone is not undone: it is the last step, runs to its end beside a future
//! that was dropped, and leaves the whole snapshot or nothing.

mod error;
mod parent;
mod refresh;

use std::sync::Arc;
use std::time::Instant;

use forkd_protocol::control::Snapshotted;
use forkd_protocol::names::{ImageName, KernelName, Tag};
use forkd_protocol::rest::{
    CreateSnapshot, Limits, MAX_WARM_TIMEOUT_SECS, NetworkPolicy, SnapshotInfo, SnapshotTiming,
};
use forkd_store::{ImageRecord, SnapshotDraft, SnapshotMeta};
use tokio::sync::mpsc;
use tracing::{debug, info};

pub use error::SnapshotError;
use parent::Parent;

use crate::engine::{Shared, blocking};
use crate::error::{EngineError, RequestError, in_range};
use crate::fault;
use crate::monitor::{Launcher, Monitor};

/// A request whose names and numbers are fine.
#[derive(Debug)]
struct Plan {
    tag: Tag,
    image: Source,
    kernel: Option<KernelName>,
    vcpus: u8,
    memory_mib: u32,
    /// What may leave it where nobody asks for anything else.
    network: NetworkPolicy,
    asked: CreateSnapshot,
}

/// What a parent boots.
#[derive(Debug, Clone)]
enum Source {
    /// The image that has this name now.
    Named(ImageName),
    /// One that a snapshot was made of, whatever has its name now.
    Recorded(ImageRecord),
}

/// Makes a snapshot; dropping the future undoes what was done, until publishing has begun.
pub(crate) async fn create(
    shared: &Arc<Shared>,
    asked: CreateSnapshot,
    progress: &mpsc::Sender<String>,
) -> Result<SnapshotInfo, EngineError> {
    let plan = check(asked)?;
    let (store, tag) = (shared.store.clone(), plan.tag.clone());
    let draft = blocking(move || store.begin_snapshot(&tag)).await??;
    make(shared, plan, draft, progress).await
}

/// Boots, warms up, freezes, writes and publishes.
async fn make(
    shared: &Arc<Shared>,
    plan: Plan,
    draft: SnapshotDraft,
    progress: &mpsc::Sender<String>,
) -> Result<SnapshotInfo, EngineError> {
    let tell = |line: String| {
        debug!(tag = %plan.tag, line, "snapshot");
        // Advice for whoever listens; a slow or absent listener does not hold the snapshot up.
        let _ = progress.try_send(line);
    };
    fault::at!("engine::snapshot::reserved");
    tell(format!("booting {} with {} vCPU and {} MiB", plan.asked.image, plan.vcpus, plan.memory_mib));
    let parent = Parent::boot(shared, &plan).await?;
    fault::at!("engine::snapshot::booted");
    let warmed = match parent.prepare(&plan, shared, &tell).await {
        Ok(warmed) => warmed,
        Err(e) => {
            parent.remove().await;
            return Err(e);
        }
    };
    fault::at!("engine::snapshot::frozen");
    tell("writing".to_owned());
    let Parent { monitor, image, kernel, .. } = parent;
    let (draft, written) = write(shared, draft, monitor).await?;
    fault::at!("engine::snapshot::parent_removed");
    tell(format!("{} MiB of memory are stored; publishing", written.memory.bytes >> 20));
    let meta = SnapshotMeta {
        image,
        kernel,
        vcpus: u32::from(plan.vcpus),
        memory_mib: u64::from(plan.memory_mib),
        cpu: plan.asked.cpu,
        warm: plan.asked.warm.clone(),
        timing: SnapshotTiming {
            boot_ms: warmed.boot_ms,
            warm_ms: warmed.warm_ms,
            write_ms: millis(warmed.writing_since),
        },
        pause_ms: None,
        workload_pause_ms: None,
        branched_from: None,
        limits: Limits::default(),
        network: Some(plan.asked.network.clone().unwrap_or_else(|| plan.network.clone())),
        agent_protocol: warmed.agent_protocol,
        secrets: Vec::new(),
        below: None,
    };
    let (store, events) = (shared.store.clone(), shared.events.clone());
    let publishing = blocking(move || -> Result<_, EngineError> {
        let info = draft.publish(meta)?.info;
        events.made(&store, &info.tag);
        Ok(info)
    });
    let info = publishing.await??;
    fault::at!("engine::snapshot::published");
    info!(tag = %plan.tag, timing = ?info.timing, "snapshot published");
    tell(format!("{} is ready", plan.tag));
    Ok(info)
}

fn check(asked: CreateSnapshot) -> Result<Plan, EngineError> {
    let vcpus = in_range("vcpus", u64::from(asked.vcpus), 1, 8)?;
    let memory_mib = in_range("memory_mib", asked.memory_mib, 128, 16_384)?;
    in_range::<u64>("warm_timeout_secs", asked.warm_timeout_secs, 0, MAX_WARM_TIMEOUT_SECS)?;
    if asked.image.is_empty() {
        return Err(RequestError::Empty("image").into());
    }
    Ok(Plan {
        tag: asked.tag.parse()?,
        image: Source::Named(asked.image.parse()?),
        kernel: asked.kernel.as_deref().map(str::parse).transpose()?,
        vcpus,
        memory_mib,
        network: NetworkPolicy::default(),
        asked,
    })
}

/// Has the machine written, ends it, and moves the frozen top of its disk in.
async fn write(
    shared: &Arc<Shared>,
    draft: SnapshotDraft,
    monitor: Monitor,
) -> Result<(SnapshotDraft, Snapshotted), EngineError> {
    let launcher = Arc::clone(&shared.launcher);
    blocking(move || {
        let mut draft = draft;
        let written = write_and_end(&launcher, &mut draft, &monitor);
        monitor.discard();
        Ok((draft, written?))
    })
    .await?
}

fn write_and_end(
    launcher: &Launcher,
    draft: &mut SnapshotDraft,
    monitor: &Monitor,
) -> Result<Snapshotted, EngineError> {
    let written = launcher.snapshot(monitor, draft.outputs())?;
    fault::at!("engine::snapshot::written");
    // Ended first: then nobody can write to the top any more.
    monitor.end()?;
    fault::at!("engine::snapshot::parent_ended");
    draft.adopt_disk_top(&monitor.dir().top())?;
    fault::at!("engine::snapshot::disk_moved");
    Ok(written)
}

/// Whole milliseconds since then.
pub(crate) fn millis(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
