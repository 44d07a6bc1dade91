//! From a sandbox on the disk to a running one.

use std::sync::Arc;

use forkd_protocol::guest::PATH_CONTINUE;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::PauseError;
use crate::admission;
use crate::adopt::resumed_row;
use crate::engine::{Shared, blocking};
use crate::error::EngineError;
use crate::fault;
use crate::fork::{ChildError, discard, open_network, tell};
use crate::guest::GuestError;
use crate::identity::new_continuation;
use crate::monitor::{Monitor, MonitorError, Watch};
use crate::network::{NetworkError, NetworkNote};
use crate::sandbox::{Born, Handle};

/// Restores the sandbox and commits that it runs. Where this fails nothing of the attempt is left.
pub(super) async fn wake(
    shared: Arc<Shared>,
    handle: Handle,
    give_up: CancellationToken,
) -> Result<Born, EngineError> {
    let permit = tokio::select! {
        permit = shared.permits.acquire() => permit.map_err(|_| PauseError::GivenUp)?,
        () = give_up.cancelled() => return Err(PauseError::GivenUp.into()),
    };
    // It counts already, as one that is being continued.
    shared.config.admission.check(&admission::room(&shared), 0, 0)?;
    let (restoring, of) = (Arc::clone(&shared), handle.clone());
    let mut monitor = blocking(move || restore(&restoring, &of)).await??;
    fault::at!("engine::resume::restored");
    shared.launcher.refill();
    let watch = match monitor.watch() {
        Ok(watch) => watch,
        Err(e) => return fail(&handle, monitor, e.into()).await,
    };
    handle.guest.open();
    let told = match go_on(&shared, &handle, &watch, &give_up).await {
        Ok(()) => open_network(&shared.launcher, &monitor).await,
        failed => failed,
    };
    if let Err(e) = told {
        return fail(&handle, monitor, e).await;
    }
    drop(permit);
    fault::at!("engine::resume::told");
    // From the commit on it outlives us, whenever we end.
    monitor.keep();
    let (committing, of) = (Arc::clone(&shared), handle.clone());
    let process = (monitor.process().pid(), monitor.process().start_ticks());
    let network = monitor.network_note();
    let committed = blocking(move || commit(&committing, &of, process, network)).await;
    if let Err(e) = committed.and_then(|committed| committed) {
        discard(handle.id.clone(), monitor, ChildError::GivenUp).await;
        handle.guest.close();
        return Err(e);
    }
    fault::at!("engine::resume::committed");
    handle.thaw(&shared.config.bounds).await;
    fault::at!("engine::resume::thawed");
    shared.alarm.ring();
    let timing = handle.view.borrow().info.timing;
    Ok(Born { monitor, watch, timing })
}

/// A process, and the machine in it.
fn restore(shared: &Shared, handle: &Handle) -> Result<Monitor, EngineError> {
    let (store, launcher, id) = (&shared.store, &shared.launcher, &handle.id);
    let snapshot = store.open_paused(id)?;
    GuestError::check_version(snapshot.record.manifest.agent_protocol)?;
    // Logs of the life before.
    store.remove_run_dir(id)?;
    let limits = handle.view.borrow().info.limits;
    let policy = handle.settings.look(|settings| settings.network.clone());
    let network = shared.networks.lease(policy.as_ref()).map_err(NetworkError::from)?;
    let mut monitor = launcher.start(id, &limits)?;
    monitor.set_network(network);
    match launcher.restore(&mut monitor, &snapshot) {
        Ok(()) => Ok(monitor),
        Err(e) => {
            monitor.discard();
            Err(PauseError::NotContinued(e.into()).into())
        }
    }
}

async fn go_on(
    shared: &Shared,
    handle: &Handle,
    watch: &Watch,
    give_up: &CancellationToken,
) -> Result<(), ChildError> {
    let bound = shared.config.bounds.answer;
    let telling = tell(&handle.guest, PATH_CONTINUE, bound, ChildError::Continuation, new_continuation);
    let told = tokio::select! {
        () = give_up.cancelled() => return Err(ChildError::GivenUp),
        () = watch.ended() => return Err(MonitorError::Ended(String::new()).into()),
        told = telling => told?,
    };
    debug!(sandbox = %handle.id, steps = ?told.steps, "continued");
    Ok(())
}

fn commit(
    shared: &Shared,
    handle: &Handle,
    process: (u32, u64),
    network: Option<NetworkNote>,
) -> Result<(), EngineError> {
    let row = shared.store.sandbox(&handle.id)?.ok_or(PauseError::GivenUp)?;
    Ok(shared.store.put_resumed(&resumed_row(row, process, network))?)
}

async fn fail(handle: &Handle, monitor: Monitor, e: ChildError) -> Result<Born, EngineError> {
    let e = discard(handle.id.clone(), monitor, e).await;
    handle.guest.close();
    Err(PauseError::NotContinued(e).into())
}
