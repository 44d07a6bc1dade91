//! The facade: one method per verb.

use std::future::Future;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::available_parallelism;

use forkd_host::jail::Facts;
use forkd_protocol::guest::{Evaluated, Executed, Health, PATH_EVAL, PATH_EXEC, PATH_HEALTH};
use forkd_protocol::names::{ImageName, KernelName, SandboxId, Tag};
use forkd_protocol::rest::{
    BranchRequest, CreateSandboxes, CreateSnapshot, EvalRequest, EvalResponse, EventKind, ExecRequest,
    ExecResponse, ImageInfo, JailReport, KernelInfo, MAX_TIMEOUT_SECS, NetworkPolicy, PingResponse,
    SandboxInfo, SnapshotInfo,
};
use forkd_store::Store;
use http::{Request, Response};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::warn;

use crate::artifacts::{take_image, take_kernel};
use crate::config::EngineConfig;
use crate::error::{EngineError, OpenError, RequestError, in_range};
use crate::events::Events;
use crate::figures::Figures;
use crate::guest::{self, Body, GuestError, Limits, Streamed};
use crate::ids::Ids;
use crate::monitor::{Launcher, NOTICE_END_WITHIN, check_root};
use crate::network::Networks;
use crate::refill::keep_filled;
use crate::sandbox::{Command, Handle, Registry, SandboxError, Surroundings};
use crate::settings::{Alarm, keep_lifetimes};
use crate::{adopt, branch, fork, jail, snapshot};

/// Sandboxes, snapshots, images and kernels of one store. Cheap to clone. Dropping the last clone lets go of the
/// sandboxes, which run on; the next engine that opens the store finds them again.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

/// What all clones of an engine share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: EngineConfig,
    pub(crate) store: Store,
    pub(crate) launcher: Arc<Launcher>,
    pub(crate) networks: Arc<Networks>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) ids: Ids,
    /// Held from when a request is found to fit until its children are listed.
    pub(crate) admitting: Mutex<()>,
    /// How many children may be on their way at once, over all requests.
    pub(crate) permits: Arc<Semaphore>,
    /// How many sandboxes may be branched at once.
    pub(crate) branching: Arc<Semaphore>,
    /// Rung when the time of a sandbox was changed.
    pub(crate) alarm: Alarm,
    /// Branches that nobody waits for.
    pub(crate) branches: branch::Progress,
    /// What happens.
    pub(crate) events: Events,
    /// What is counted and measured.
    pub(crate) figures: Arc<Figures>,
    cores: usize,
    /// Ends what goes on beside requests when the last clone is dropped.
    _ended: DropGuard,
}

impl Shared {
    /// Whether fewer children are on their way than there are cores.
    pub(crate) fn has_idle_core(&self) -> bool {
        self.permits.available_permits() > self.cores
    }

    pub(crate) fn surroundings(&self) -> Surroundings {
        Surroundings {
            store: self.store.clone(),
            bounds: self.config.bounds,
            registry: Arc::downgrade(&self.registry),
            figures: Arc::clone(&self.figures),
            events: self.events.clone(),
        }
    }
}

impl Engine {
    /// Opens the store, adopts the sandboxes that run, removes what is left of those that do not.
    pub async fn open(config: EngineConfig) -> Result<Self, EngineError> {
        short_enough(&config.root)?;
        raise_descriptor_limit();
        let root = config.root.clone();
        let store = blocking(move || Store::open(&root)).await??;
        // Once more: it may have been named by a short link.
        short_enough(store.root())?;
        let launcher = Launcher::new(&config, store.clone());
        let networks = Networks::new(config.network.as_ref(), config.waiting, &store);
        let cores = available_parallelism().map_or(1, |n| n.get());
        let ended = CancellationToken::new();
        let events = Events::open(store.clone());
        let shared = Arc::new(Shared {
            config,
            store,
            launcher: Arc::new(launcher),
            networks: Arc::new(networks),
            registry: Arc::default(),
            ids: Ids::new(),
            admitting: Mutex::default(),
            permits: Arc::new(Semaphore::new(2 * cores)),
            branching: Arc::new(Semaphore::new(branch::MAX_AT_ONCE)),
            alarm: Alarm::default(),
            branches: branch::Progress::default(),
            events,
            figures: Arc::default(),
            cores,
            _ended: ended.clone().drop_guard(),
        });
        adopt::adopt_all(&shared).await?;
        prepare_networks(&shared).await?;
        tokio::spawn(keep_lifetimes(Arc::downgrade(&shared), shared.alarm.clone(), ended.clone()));
        tokio::spawn(keep_filled(Arc::downgrade(&shared), ended));
        Ok(Self { shared })
    }

    /// The store, for what only concerns files.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// The root of the store.
    pub fn root(&self) -> &Path {
        self.shared.store.root()
    }

    /// Forks children of a snapshot: all of them, or none and an error that says which failed and why.
    /// Dropping the future gives them up.
    pub async fn fork(&self, asked: CreateSandboxes) -> Result<Vec<SandboxInfo>, EngineError> {
        fork::fork(&self.shared, asked, fork::Wishes::default()).await
    }

    /// Makes a snapshot of a running sandbox, which runs on. Where the request waits, until the snapshot is ready;
    /// otherwise it is listed as `writing` until it is ready or has failed. Dropping the future changes nothing.
    pub async fn branch(&self, id: &SandboxId, asked: BranchRequest) -> Result<SnapshotInfo, EngineError> {
        self.shared.figures.timed("branch", branch::branch(&self.shared, id, asked)).await
    }

    /// All sandboxes, oldest first; also those that are starting, and those that ended by themselves.
    pub fn sandboxes(&self) -> Vec<SandboxInfo> {
        self.shared.registry.infos()
    }

    /// How many sandboxes ended, since this engine was opened, because a filter of system calls killed their monitor.
    pub fn killed_by_filter(&self) -> u64 {
        self.shared.figures.killed_by_filter()
    }

    /// One sandbox.
    pub fn sandbox(&self, id: &SandboxId) -> Result<SandboxInfo, EngineError> {
        Ok(self.find(id)?.info())
    }

    /// Ends a sandbox and removes everything of it. Returns once nothing is left. One that has ended, or was
    /// killed before, is no error.
    pub async fn kill(&self, id: &SandboxId) -> Result<(), EngineError> {
        let registry = &self.shared.registry;
        let gone = || registry.was_removed(id);
        let handle = match registry.get(id) {
            Ok(handle) => handle,
            Err(_) if gone() => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        let (answer, removed) = oneshot::channel();
        let sent = handle.commands.send(Command::Kill(answer)).is_ok();
        match if sent { removed.await.ok() } else { None } {
            Some(result) => Ok(result?),
            None if gone() => Ok(()),
            None => Err(EngineError::Broken),
        }
    }

    /// Runs a command to its end.
    pub async fn exec(&self, id: &SandboxId, asked: ExecRequest) -> Result<ExecResponse, EngineError> {
        if asked.args.is_empty() {
            return Err(RequestError::Empty("args").into());
        }
        in_range::<u64>("timeout_secs", asked.timeout_secs, 0, MAX_TIMEOUT_SECS)?;
        let limits = guest::exec_bounds(asked.timeout_secs, self.shared.config.bounds.guest_grace);
        let question = guest::exec_request(asked);
        let (handle, _busy) = self.reached(id).await?;
        let asking = ask(&handle, handle.guest.post(PATH_EXEC, &question, limits));
        let told: Executed = self.shared.figures.timed("exec", asking).await?;
        Ok(guest::exec_response(told)?)
    }

    /// Evaluates in the warm interpreter.
    pub async fn eval(&self, id: &SandboxId, asked: EvalRequest) -> Result<EvalResponse, EngineError> {
        in_range::<u64>("timeout_secs", asked.timeout_secs, 0, MAX_TIMEOUT_SECS)?;
        let (question, limits) = guest::eval_request(asked, self.shared.config.bounds.guest_grace);
        let (handle, _busy) = self.reached(id).await?;
        let asking = ask(&handle, handle.guest.post(PATH_EVAL, &question, limits));
        let told: Evaluated = self.shared.figures.timed("eval", asking).await?;
        Ok(guest::eval_response(told))
    }

    /// Asks the agent whether it is there.
    pub async fn ping(&self, id: &SandboxId) -> Result<PingResponse, EngineError> {
        let handle = self.running(id)?;
        let limits = Limits::small(self.shared.config.bounds.guest_grace);
        let asking = ask(&handle, handle.guest.get(PATH_HEALTH, limits));
        let told: Health = self.shared.figures.timed("ping", asking).await?;
        Ok(guest::ping_response(told))
    }

    /// Passes a request on to the agent as it is, streaming both ways. Host and hop-by-hop headers are
    /// replaced. Whoever reads the answer bounds it.
    pub async fn agent_request(
        &self,
        id: &SandboxId,
        request: Request<Body>,
    ) -> Result<Response<Streamed>, EngineError> {
        let (handle, busy) = self.reached(id).await?;
        let answer = ask(&handle, handle.guest.pass(request, self.shared.config.bounds.guest_grace)).await?;
        Ok(answer.map(|body| Streamed::new(body, busy)))
    }

    /// What its serial console printed; the monitor keeps the first MiB.
    pub async fn console(&self, id: &SandboxId) -> Result<Vec<u8>, EngineError> {
        let dir = self.find(id)?.dir;
        Ok(blocking(move || dir.read_console()).await?.map_err(|e| unreadable(id, "console", &e))?)
    }

    /// What its monitor logged, the newest 4 MiB.
    pub async fn monitor_log(&self, id: &SandboxId) -> Result<Vec<u8>, EngineError> {
        let dir = self.find(id)?.dir;
        Ok(blocking(move || dir.read_monitor_log()).await?.map_err(|e| unreadable(id, "monitor log", &e))?)
    }

    /// How its monitor is jailed right now.
    pub async fn jail(&self, id: &SandboxId) -> Result<JailReport, EngineError> {
        let handle = self.running(id)?;
        let dir = handle.dir.clone();
        let looking = blocking(move || {
            let process = dir.noted_process().ok_or(io::ErrorKind::NotFound)?;
            let facts = Facts::of(process.pid())?;
            // Its number was its own while it was looked at, since it is now.
            if process.is_alive() { Ok((process.pid(), facts)) } else { Err(io::ErrorKind::NotFound.into()) }
        });
        let seen: io::Result<_> = looking.await?;
        handle.check_running()?;
        let (pid, facts) = seen.map_err(|e| unreadable(id, "jail", &e))?;
        Ok(jail::judge(id.as_str(), pid, &facts))
    }

    /// Boots an image, warms it up, freezes it under a tag. `progress` is told what is being done. Dropping the
    /// future undoes what was done, until all is written and is being published: then it is published to the end,
    /// and the snapshot is there and listed (or, where that fails, nothing of it is).
    pub async fn create_snapshot(
        &self,
        asked: CreateSnapshot,
        progress: mpsc::Sender<String>,
    ) -> Result<SnapshotInfo, EngineError> {
        let making = snapshot::create(&self.shared, asked, &progress);
        self.shared.figures.timed("snapshot", making).await
    }

    /// All snapshots.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotInfo>, EngineError> {
        // Asked first, and first in the list: what is published in between is `writing` until it can be used.
        let mut infos = self.shared.branches.all();
        let records = self.in_store(|store| store.snapshots()).await?;
        infos.extend(records.into_iter().map(|record| record.info));
        infos.sort_by(|a, b| a.tag.cmp(&b.tag));
        infos.dedup_by(|a, b| a.tag == b.tag);
        Ok(infos)
    }

    /// One snapshot.
    pub async fn snapshot(&self, tag: Tag) -> Result<SnapshotInfo, EngineError> {
        if let Some(unfinished) = self.shared.branches.get(tag.as_str()) {
            return Ok(unfinished);
        }
        Ok(self.in_store(move |store| store.snapshot(&tag)).await?.info)
    }

    /// All images.
    pub async fn images(&self) -> Result<Vec<ImageInfo>, EngineError> {
        let records = self.in_store(|store| store.images()).await?;
        Ok(records.into_iter().map(|record| record.info).collect())
    }

    /// One image.
    pub async fn image(&self, name: ImageName) -> Result<ImageInfo, EngineError> {
        Ok(self.in_store(move |store| store.image(&name)).await?.info)
    }

    /// Takes in a raw ext4 file system. `from` is read on a thread where it may block; an error of it leaves
    /// nothing.
    pub async fn put_image(
        &self,
        name: ImageName,
        origin: String,
        from: impl Read + Send + 'static,
    ) -> Result<ImageInfo, EngineError> {
        let (store, events) = (self.shared.store.clone(), self.shared.events.clone());
        let taking = blocking(move || {
            let taken = take_image(&store, &name, &origin, from)?;
            events.artifact(EventKind::ImageMade, name.as_str());
            Ok(taken)
        });
        taking.await?
    }

    /// Makes an image of what the disk of a snapshot holds.
    pub async fn image_of_snapshot(
        &self,
        tag: Tag,
        name: ImageName,
        origin: String,
    ) -> Result<ImageInfo, EngineError> {
        self.shared.branches.check_ready(tag.as_str())?;
        Ok(self.in_store(move |store| store.image_of_snapshot(&tag, &name, &origin)).await?.info)
    }

    /// Removes an image; snapshots made of it keep what they need.
    pub async fn remove_image(&self, name: ImageName) -> Result<(), EngineError> {
        let events = self.shared.events.clone();
        self.in_store(move |store| {
            store.remove_image(&name)?;
            events.artifact(EventKind::ImageRemoved, name.as_str());
            Ok(())
        })
        .await
    }

    /// All kernels, newest first.
    pub async fn kernels(&self) -> Result<Vec<KernelInfo>, EngineError> {
        let records = self.in_store(|store| store.kernels()).await?;
        Ok(records.into_iter().map(|record| record.info).collect())
    }

    /// Takes in a tar of `vmlinuz` and `modules.cpio`. `from` is read on a thread where it may block; an error
    /// of it leaves nothing.
    pub async fn put_kernel(
        &self,
        name: KernelName,
        from: impl Read + Send + 'static,
    ) -> Result<KernelInfo, EngineError> {
        let (store, events) = (self.shared.store.clone(), self.shared.events.clone());
        let taking = blocking(move || {
            let taken = take_kernel(&store, &name, from)?;
            events.artifact(EventKind::KernelMade, name.as_str());
            Ok(taken)
        });
        taking.await?
    }

    /// Removes a kernel; snapshots made with it do not need it.
    pub async fn remove_kernel(&self, name: KernelName) -> Result<(), EngineError> {
        let events = self.shared.events.clone();
        self.in_store(move |store| {
            store.remove_kernel(&name)?;
            events.artifact(EventKind::KernelRemoved, name.as_str());
            Ok(())
        })
        .await
    }

    /// Lets go of all sandboxes, which run on, and ends the monitors that wait. Nothing can be done with this engine
    /// afterwards.
    pub fn shutdown(&self) {
        self.shared.permits.close();
        self.shared.launcher.end_waiting();
        self.shared.networks.close();
        self.shared.registry.clear();
    }

    pub(crate) fn find(&self, id: &SandboxId) -> Result<Handle, SandboxError> {
        self.shared.registry.get(id)
    }

    pub(crate) fn running(&self, id: &SandboxId) -> Result<Handle, SandboxError> {
        let handle = self.find(id)?;
        handle.check_running()?;
        Ok(handle)
    }

    pub(crate) async fn in_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, forkd_store::StoreError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let store = self.shared.store.clone();
        Ok(blocking(move || work(&store)).await??)
    }
}

/// Where there are snapshots whose children have networks, some wait before the first fork. Elsewhere the host's own
/// network is left alone until somebody asks.
async fn prepare_networks(shared: &Arc<Shared>) -> Result<(), EngineError> {
    let store = shared.store.clone();
    let snapshots = blocking(move || store.snapshots()).await??;
    let has_traffic = |policy: &NetworkPolicy| policy.has_traffic();
    if snapshots.iter().any(|snapshot| snapshot.manifest.network.as_ref().is_some_and(has_traffic)) {
        shared.networks.want();
    }
    Ok(())
}

/// An answer of a sandbox's agent, or that the sandbox is over, which is why there is none.
pub(crate) async fn ask<T>(
    handle: &Handle,
    asking: impl Future<Output = Result<T, GuestError>>,
) -> Result<T, EngineError> {
    let broken = tokio::select! {
        answer = asking => match answer {
            Ok(answer) => return Ok(answer),
            Err(e) if e.is_broken_connection() => e,
            Err(e) => return Err(e.into()),
        },
        over = handle.over() => return Err(over.into()),
    };
    match tokio::time::timeout(NOTICE_END_WITHIN, handle.over()).await {
        Ok(over) => Err(over.into()),
        Err(_) => Err(broken.into()),
    }
}

/// Work that blocks, on a thread where it may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, EngineError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| EngineError::Broken)
}

fn unreadable(id: &SandboxId, what: &'static str, e: &std::io::Error) -> SandboxError {
    SandboxError::Unreadable { what, id: id.to_string(), reason: e.to_string() }
}

fn short_enough(root: &Path) -> Result<(), OpenError> {
    check_root(root).map_err(|(needed, max)| OpenError::RootTooLong { root: root.to_owned(), needed, max })
}

/// Each sandbox takes a few descriptors, and the usual soft limit is 1024.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(e) = setrlimit(Resource::Nofile, raised) {
        warn!(error = %e, "the limit of open files could not be raised");
    }
}
