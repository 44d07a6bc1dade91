//! Forking children of a snapshot: side by side, all or none.
//!
//! One child: run folder, monitor, one `Restore` message with the snapshot's open descriptors, then the new
//! identity. It counts once its agent has confirmed who it is. When all have, their rows are written in one go
//! and they are released; before that, whatever goes wrong (a child, a kill, the client going away, the engine
//! being dropped) removes all of them.

mod child;
mod error;
mod reached;

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use forkd_protocol::control::{OLDEST_STATE_VERSION, STATE_VERSION};
use forkd_protocol::guest::GUEST_VERSION;
use forkd_protocol::names::{SandboxId, Tag};
use forkd_protocol::rest::{
    BranchRequest, CreateSandboxes, ForkTiming, MAX_CHILDREN, SandboxInfo, ShownSettings,
};
use forkd_store::{OpenSnapshot, SandboxRow};
use futures::future::join_all;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

use child::{Request, bear};
pub(crate) use child::{discard, open_network, reach, tell};
pub use error::{ChildError, ForkError};

use crate::admission;
use crate::branch::branch;
use crate::engine::{Shared, blocking};
use crate::error::{EngineError, RequestError, in_range};
use crate::fault;
use crate::ids::unix_now;
use crate::limits::settle;
use crate::publish::{self, Bound};
use crate::sandbox::{Command, Handle, Life, SandboxError, Task, span};
use crate::secrets::{self, Secrets};
use crate::settings::{self, Access, Settings};

/// What callers of the API do not say of the children.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    /// How they are reached; each has tokens of its own.
    pub(crate) access: Access,
    /// The tag to show in the place of theirs.
    pub(crate) template: Option<String>,
    /// Secrets that they inherit, and of whom.
    pub(crate) carried: Option<(SandboxId, Secrets)>,
}

/// Forks; dropping the future gives all children up.
pub(crate) async fn fork(
    shared: &Arc<Shared>,
    asked: CreateSandboxes,
    wishes: Wishes,
) -> Result<Vec<SandboxInfo>, EngineError> {
    let children = shared.figures.timed("fork", fork_all(shared, asked, wishes)).await?;
    children.iter().for_each(|child| shared.figures.forked(child.timing));
    Ok(children)
}

async fn fork_all(
    shared: &Arc<Shared>,
    asked: CreateSandboxes,
    wishes: Wishes,
) -> Result<Vec<SandboxInfo>, EngineError> {
    let started = Instant::now();
    check(&asked)?;
    let carried = secrets::carried(shared, &asked)?.or(wishes.carried);
    let published = publish::bind(&asked.publish).await?;
    let asked = from_sandbox(shared, asked).await?;
    let tag: Tag = asked.snapshot_tag.parse()?;
    shared.branches.check_ready(tag.as_str())?;
    let store = shared.store.clone();
    let (launcher, networks, wish) =
        (Arc::clone(&shared.launcher), Arc::clone(&shared.networks), asked.network.clone());
    let opening = blocking(move || -> Result<_, EngineError> {
        let snapshot = store.open_snapshot(&tag)?;
        check_versions(&snapshot)?;
        snapshot.read_in_once(|| launcher.read_in(&snapshot));
        let inherited = snapshot.record.manifest.network.as_ref();
        let network = networks.settle(wish.as_ref(), (inherited, tag.as_str()))?;
        Ok((snapshot, network))
    });
    let (snapshot, network) = opening.await??;
    let inherited = snapshot.record.manifest.limits;
    let limits = settle(&asked, inherited, shared.config.limits, shared.launcher.cgroups())?;
    let manifest = &snapshot.record.manifest;
    let mut settings = Settings { template: wishes.template, ..Settings::of(&asked, manifest) };
    if let Some((source, of_source)) = carried {
        settings.secrets.inherit(&source, of_source);
    }
    settings.network.clone_from(&network);
    settings.published = published.iter().map(|bound| bound.port).collect();
    settings.secrets.check_agent(manifest, &asked.snapshot_tag)?;
    let request = Arc::new(Request {
        launcher: Arc::clone(&shared.launcher),
        networks: Arc::clone(&shared.networks),
        snapshot,
        permits: Arc::clone(&shared.permits),
        answer: shared.config.bounds.answer,
        started,
        env: asked.env.clone(),
        secrets: settings.secrets.for_guest(),
        limits,
        network,
    });
    let brood = admit(shared, &request, &asked, &settings, &wishes.access)?;
    let children = brood.raise(shared, asked.n, published).await;
    shared.alarm.ring();
    children
}

/// Lists the children where they fit. Nobody else is let in meanwhile.
fn admit(
    shared: &Arc<Shared>,
    request: &Arc<Request>,
    asked: &CreateSandboxes,
    settings: &Settings,
    access: &Access,
) -> Result<Brood, EngineError> {
    let _turn = shared.admitting.lock().unwrap_or_else(PoisonError::into_inner);
    let each = info_of(&shared.ids.sandbox()?, asked, request);
    let room = admission::room(shared);
    shared.config.admission.check(&room, u64::from(asked.n), admission::promise(&each))?;
    Brood::start(shared, request, asked, settings, access)
}

/// Refuses a snapshot that is too old or too new for the programs of now.
fn check_versions(snapshot: &OpenSnapshot) -> Result<(), ForkError> {
    let agent = ("an agent", Some(snapshot.record.manifest.agent_protocol), 1..=GUEST_VERSION);
    let state = ("a machine state", snapshot.state_format, OLDEST_STATE_VERSION..=STATE_VERSION);
    for (what, found, known) in [agent, state] {
        // A state that does not even begin as one is refused by the monitor.
        if let Some(found) = found.filter(|found| !known.contains(found)) {
            let tag = snapshot.record.info.tag.clone();
            return Err(ForkError::Version { tag, what, found, known });
        }
    }
    Ok(())
}

/// Where children of a sandbox are asked for: branches it and asks for those of the new snapshot.
async fn from_sandbox(
    shared: &Arc<Shared>,
    mut asked: CreateSandboxes,
) -> Result<CreateSandboxes, EngineError> {
    let Some(source) = asked.from_sandbox.take() else { return Ok(asked) };
    let asked_of_it = BranchRequest { with_secrets: asked.with_secrets, ..BranchRequest::default() };
    let branched = branch(shared, &source.parse()?, asked_of_it).await?;
    asked.snapshot_tag = branched.tag;
    Ok(asked)
}

fn check(asked: &CreateSandboxes) -> Result<(), EngineError> {
    settings::check(&asked.settings)?;
    secrets::check(&asked.secrets)?;
    publish::check(&asked.publish, asked.n)?;
    match (asked.snapshot_tag.is_empty(), asked.from_sandbox.is_some()) {
        (true, false) => return Err(RequestError::Empty("snapshot_tag").into()),
        (false, true) => return Err(RequestError::Together("snapshot_tag", "from_sandbox").into()),
        (true, true) | (false, false) => {}
    }
    in_range::<u64>("n", u64::from(asked.n), 1, u64::from(MAX_CHILDREN))?;
    Ok(())
}

/// The children of one request until they are released.
#[derive(Debug)]
struct Brood {
    children: Vec<(Handle, oneshot::Receiver<Result<SandboxRow, ChildError>>)>,
    /// Holds the snapshot open: its content stays in the store until the rows name it.
    request: Arc<Request>,
    give_up: CancellationToken,
    /// Gives all of them up when the request's future is dropped.
    guard: DropGuard,
}

impl Brood {
    fn start(
        shared: &Arc<Shared>,
        request: &Arc<Request>,
        asked: &CreateSandboxes,
        settings: &Settings,
        access: &Access,
    ) -> Result<Self, EngineError> {
        let give_up = CancellationToken::new();
        let guard = give_up.clone().drop_guard();
        let mut brood = Self { children: Vec::new(), request: Arc::clone(request), guard, give_up };
        let around = shared.surroundings();
        for _ in 0..asked.n {
            let access = access.renewed().map_err(ForkError::Entropy)?;
            let settings = Settings { access, ..settings.clone() };
            let id = shared.ids.sandbox().map_err(EngineError::from)?;
            let info = info_of(&id, asked, request);
            brood.add(shared, Task::new(around.clone(), id, Life::Starting, info, settings));
        }
        Ok(brood)
    }

    fn add(&mut self, shared: &Arc<Shared>, (task, handle): (Task, Handle)) {
        shared.registry.insert(handle.clone());
        let give_up = self.give_up.clone();
        let request = Arc::clone(&self.request);
        let birth = bear(request, handle.id.clone(), Arc::clone(&handle.guest), give_up.clone());
        let (tell, ready) = oneshot::channel();
        tokio::spawn(task.live_from_birth(birth, give_up, tell).instrument(span(&handle.id)));
        self.children.push((handle, ready));
    }

    /// Waits for all, writes their rows, releases them.
    async fn raise(
        self,
        shared: &Arc<Shared>,
        asked: u32,
        published: Vec<Bound>,
    ) -> Result<Vec<SandboxInfo>, EngineError> {
        let (handles, answers): (Vec<_>, Vec<_>) = self.children.into_iter().unzip();
        let give_up = &self.give_up;
        let waiting = answers.into_iter().map(|ready| async move {
            let answer = ready.await.unwrap_or(Err(ChildError::Broken));
            if answer.is_err() {
                give_up.cancel();
            }
            answer
        });
        let mut rows = Vec::new();
        let mut failed = Vec::new();
        let mut given_up = false;
        for (handle, answer) in handles.iter().zip(join_all(waiting).await) {
            match answer {
                Ok(row) => rows.push(row),
                Err(ChildError::GivenUp) => given_up = true,
                Err(e) => failed.push((handle.id.clone(), e)),
            }
        }
        if !failed.is_empty() || given_up {
            remove_all(&handles).await;
            let e =
                if failed.is_empty() { ForkError::GivenUp } else { ForkError::Children { asked, failed } };
            return Err(e.into());
        }
        // Beside this future, which may be dropped any time: released are all of them or none.
        let (shared, guard, request) = (Arc::clone(shared), self.guard, self.request);
        tokio::spawn(async move {
            let released = release(&shared, &handles, rows, published).await;
            drop(request);
            guard.disarm();
            released
        })
        .await
        .map_err(|_| EngineError::Broken)?
    }
}

/// Writes the rows, so that a controller which is killed finds these children again, then lets them live.
async fn release(
    shared: &Arc<Shared>,
    handles: &[Handle],
    rows: Vec<SandboxRow>,
    published: Vec<Bound>,
) -> Result<Vec<SandboxInfo>, EngineError> {
    let store = shared.store.clone();
    let written = store.clone();
    let settings: Vec<_> = handles.iter().map(|h| (h.id.clone(), h.settings.look(Settings::text))).collect();
    // The rows last: they are what says that the children are there.
    let writing =
        blocking(move || written.put_settings(&settings).and_then(|()| written.put_sandboxes(&rows))).await;
    fault::at!("engine::fork::rows_written");
    let result = match writing {
        Ok(Ok(())) => commit(handles).await.map_err(EngineError::from),
        Ok(Err(e)) => Err(e.into()),
        Err(e) => Err(e),
    };
    if result.is_err() {
        remove_all(handles).await;
        let ids: Vec<SandboxId> = handles.iter().map(|handle| handle.id.clone()).collect();
        blocking(move || ids.iter().try_for_each(|id| store.remove_sandbox(id))).await??;
    }
    result?;
    fault::at!("engine::fork::released");
    if let Some(handle) = handles.first() {
        publish::serve(shared, handle, published);
    }
    Ok(handles.iter().map(Handle::info).collect())
}

async fn commit(handles: &[Handle]) -> Result<(), ForkError> {
    for handle in handles {
        let (answer, released) = oneshot::channel();
        let sent = handle.commands.send(Command::Commit(answer)).is_ok();
        if !sent || released.await.is_err() {
            return Err(ForkError::GivenUp);
        }
    }
    Ok(())
}

async fn remove_all(handles: &[Handle]) {
    let removals = handles.iter().map(|handle| async move {
        let (answer, removed) = oneshot::channel();
        if handle.commands.send(Command::Kill(answer)).is_ok() {
            // Unanswered where it was gone already; a failure was logged by the task and stays listed.
            let _: Result<Result<(), SandboxError>, _> = removed.await;
        }
    });
    join_all(removals).await;
}

fn info_of(id: &SandboxId, asked: &CreateSandboxes, request: &Request) -> SandboxInfo {
    let snapshot = &request.snapshot.record;
    SandboxInfo {
        id: id.to_string(),
        snapshot_tag: asked.snapshot_tag.clone(),
        snapshot_id: Some(snapshot.id.clone()),
        netns: None,
        guest_addr: String::new(),
        created_at_unix: unix_now(),
        pid: None,
        memory_limit_mib: request.limits.memory_mib,
        limits: request.limits,
        guest_memory_mib: snapshot.manifest.memory_mib,
        has_branched: false,
        last_branch_memory_path: None,
        branch_count: 0,
        state: Life::Starting.name().to_owned(),
        ended: None,
        timing: ForkTiming::default(),
        network: None,
        tenant: asked.tenant.clone(),
        settings: ShownSettings::default(),
    }
}
