//! From a running sandbox to one on the disk.

use std::sync::Arc;
use std::time::Duration;

use forkd_protocol::control::BRANCH_VERSION;
use forkd_protocol::guest::CONTINUE_VERSION;
use forkd_store::{Below, Floor, PauseDraft, SandboxRow, SnapshotMeta, Template};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::PauseError;
use crate::adopt::paused_row;
use crate::branch::{meta_over, reconcile_tops};
use crate::engine::{Shared, blocking};
use crate::error::EngineError;
use crate::fault;
use crate::limits::Unthrottled;
use crate::monitor::guards;
use crate::sandbox::Handle;

/// Everything that is known before anything is changed.
struct Plan {
    draft: PauseDraft,
    template: Template,
    row: SandboxRow,
    floor: Floor,
    /// Its monitor guards what is frozen.
    guarded: bool,
}

/// Writes the sandbox and commits that it is paused. Its monitor is then to be ended; where this fails it goes on.
pub(super) async fn park(
    shared: Arc<Shared>,
    handle: Handle,
    give_up: CancellationToken,
) -> Result<(), EngineError> {
    let turns = Arc::clone(&handle.turns);
    // No branch freezes the disk meanwhile, and those that did are published: they need what the row names now.
    let waiting = async {
        let turn = turns.disk.lock().await;
        (turn, Arc::clone(&turns.publishing).write_owned().await)
    };
    let _turns = tokio::select! {
        turns = waiting => turns,
        () = give_up.cancelled() => return Err(PauseError::GivenUp.into()),
    };
    let (planning, of) = (Arc::clone(&shared), handle.clone());
    let plan = blocking(move || Plan::make(&planning, &of)).await??;
    let guarded = plan.guarded;
    fault::at!("engine::pause::planned");
    let limits = handle.view.borrow().info.limits;
    let unthrottled = Unthrottled::lift(&handle.dir, &limits, shared.launcher.cgroups());
    handle.freeze(&shared.launcher, guarded).await?.map_err(PauseError::NotFrozen)?;
    let (writing, of) = (Arc::clone(&shared), handle.clone());
    let written = blocking(move || plan.carry_out(&writing, &of)).await;
    let written = written.and_then(|written| written);
    drop(unthrottled);
    if written.is_err() {
        go_on(&shared, &handle, guarded).await;
    }
    written
}

impl Plan {
    fn make(shared: &Shared, handle: &Handle) -> Result<Self, EngineError> {
        let (store, launcher, id) = (&shared.store, &shared.launcher, &handle.id);
        let version = launcher.status(&handle.dir)?.version;
        if version < BRANCH_VERSION {
            return Err(PauseError::OldMonitor.into());
        }
        reconcile_tops(shared, handle)?;
        let (template, row) = (store.template(id)?, store.sandbox(id)?);
        let (Some(template), Some(row)) = (template, row) else {
            return Err(PauseError::OriginUnknown.into());
        };
        let found = template.manifest.agent_protocol;
        if found < CONTINUE_VERSION {
            return Err(PauseError::OldAgent { found, tag: row.snapshot_tag }.into());
        }
        let (row, floor) = paused_row(row, &template);
        Ok(Self { draft: store.begin_pause(id)?, template, row, floor, guarded: guards(version) })
    }

    fn carry_out(self, shared: &Shared, handle: &Handle) -> Result<(), EngineError> {
        let Self { mut draft, template, row, floor, guarded } = self;
        fault::at!("engine::pause::frozen");
        let told = shared.launcher.write_paused(&handle.dir, draft.outputs(), guarded)?;
        fault::at!("engine::pause::written");
        draft.link_disk_top(&handle.dir.top())?;
        fault::at!("engine::pause::top_linked");
        let manifest = &template.manifest;
        let origin = handle.view.borrow().info.snapshot_id.clone();
        let meta = SnapshotMeta {
            branched_from: Some(handle.id.to_string()),
            pause_ms: Some(Duration::from_micros(told.pause_us).as_secs_f64() * 1000.0),
            below: Some(Below {
                parent: origin.unwrap_or_else(|| template.id.clone()),
                memory: manifest.memory.clone(),
                disk: manifest.disk.iter().chain(&template.frozen).cloned().collect(),
            }),
            ..meta_over(&shared.store, manifest)?
        };
        draft.park(meta, floor, &row)?;
        fault::at!("engine::pause::committed");
        Ok(())
    }
}

/// Machine and workload run as before.
async fn go_on(shared: &Arc<Shared>, handle: &Handle, guarded: bool) {
    let (launcher, dir) = (Arc::clone(&shared.launcher), handle.dir.clone());
    // A machine that was not stopped does not notice.
    if let Ok(Err(e)) = blocking(move || launcher.run_on(&dir)).await {
        warn!(sandbox = %handle.id, error = %e, "the machine of a sandbox that was not paused does not go on");
    }
    handle.thaw(&shared.config.bounds).await;
    if guarded {
        let (launcher, dir) = (Arc::clone(&shared.launcher), handle.dir.clone());
        // What goes on being guarded is thawed once more.
        let _ = blocking(move || launcher.unguard(&dir)).await;
    }
}
