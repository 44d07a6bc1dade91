//! Branching: a running sandbox becomes a new snapshot and runs on.
//!
//! ```text
//!   freeze workload ─▶ pause, save state, fork a writer (or write), freeze disk tops, go on ─▶ thaw workload
//!                                                  └─▶ writer ends ─▶ publish
//! ```
//!
//! Branches of one sandbox take their turns until the workload runs again; what follows goes on side by side. All of it
//! happens beside the request: a client that leaves changes nothing. Where a step fails the sandbox runs on and
//! nothing else is left.

mod error;
mod plan;
mod progress;
mod take;
mod tops;

use std::sync::Arc;

use forkd_protocol::error::chain;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{BranchRequest, EventKind, SnapshotInfo, SnapshotTiming};
use forkd_store::{Manifest, SnapshotMeta, Store};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::{info, warn};

pub use error::BranchError;
use plan::Plan;
pub(crate) use progress::Progress;
use take::Taken;
pub(crate) use tops::reconcile_tops;

use crate::engine::Shared;
use crate::error::EngineError;
use crate::sandbox::Handle;

/// Branches at once, over all sandboxes.
pub(crate) const MAX_AT_ONCE: usize = 4;

/// Branches a sandbox. Returns when the snapshot is ready, or, where the request does not wait, when the sandbox runs
/// on: then the snapshot is listed as `writing` until it is ready or has failed.
pub(crate) async fn branch(
    shared: &Arc<Shared>,
    id: &SandboxId,
    asked: BranchRequest,
) -> Result<SnapshotInfo, EngineError> {
    let handle = shared.registry.get(id)?;
    handle.check_running()?;
    let plan = Plan::check(id, asked, &handle.view.borrow().info.snapshot_tag)?;
    let permit = Arc::clone(&shared.branching).try_acquire_owned();
    let permit = permit.map_err(|_| BranchError::TooMany(MAX_AT_ONCE))?;
    let (tell, told) = oneshot::channel();
    tokio::spawn(work(Arc::clone(shared), handle, plan, permit, tell));
    told.await.map_err(|_| EngineError::Broken)?
}

async fn work(
    shared: Arc<Shared>,
    handle: Handle,
    plan: Plan,
    permit: OwnedSemaphorePermit,
    tell: oneshot::Sender<Result<SnapshotInfo, EngineError>>,
) {
    shared.branches.forget_failed(plan.tag.as_str());
    let taken = match Taken::take(&shared, &handle, &plan).await {
        Ok(taken) => taken,
        Err(e) => return drop(tell.send(Err(e))),
    };
    if plan.wait {
        let _ = tell.send(taken.publish(&shared, &plan).await);
        return drop(permit);
    }
    let info = taken.provisional(&shared, &plan);
    shared.branches.begin(info.clone());
    let _ = tell.send(Ok(info));
    match taken.publish(&shared, &plan).await {
        Ok(_) => shared.branches.done(plan.tag.as_str()),
        Err(e) => {
            warn!(tag = %plan.tag, error = %chain(&e), "a branch failed after its sandbox ran on");
            shared.branches.failed(plan.tag.as_str(), chain(&e));
            let tenant = handle.info().tenant;
            shared.events.snapshot(EventKind::SnapshotFailed, plan.tag.as_str(), tenant, Some(&chain(&e)));
        }
    }
    info!(tag = %plan.tag, "the writer of a branch has ended");
    drop(permit);
}

/// What a snapshot of a restored machine has in common with the one that it was restored from.
pub(crate) fn meta_over(store: &Store, manifest: &Manifest) -> Result<SnapshotMeta, EngineError> {
    Ok(SnapshotMeta {
        image: store.image_below(&manifest.image),
        kernel: manifest.kernel.parse()?,
        vcpus: manifest.vcpus,
        memory_mib: manifest.memory_mib,
        cpu: manifest.cpu,
        limits: manifest.limits,
        network: manifest.network.clone(),
        warm: manifest.warm.clone(),
        timing: SnapshotTiming::default(),
        pause_ms: None,
        workload_pause_ms: None,
        branched_from: None,
        agent_protocol: manifest.agent_protocol,
        secrets: manifest.secrets.clone(),
        below: None,
    })
}
