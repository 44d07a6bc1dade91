//! The task that owns one sandbox's life: the only place where its state changes.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};

use forkd_protocol::error::chain;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{EventKind, ForkTiming, SandboxInfo};
use forkd_store::{SandboxRow, Store};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::errand::{Answer, Errand, Waiting};
use super::registry::{Handle, Registry, View};
use super::state::{Event, Life, Step, decide};
use super::{SandboxError, Turns};
use crate::adopt::row_of;
use crate::config::Bounds;
use crate::error::EngineError;
use crate::events::Events;
use crate::figures::Figures;
use crate::guest::Guest;
use crate::monitor::{Monitor, RunDir, Watch};
use crate::settings::{Keeper, Settings};

/// What others can ask of a sandbox's task.
#[derive(Debug)]
pub(crate) enum Command {
    /// Its row is written. Unanswered where it is no longer there to run.
    Commit(oneshot::Sender<()>),
    /// A snapshot of it was made.
    Branched,
    /// Take it to the disk.
    Pause(Errand<()>),
    /// Continue it.
    Resume(Errand<Born>),
    /// End it and remove it. Unanswered where it was gone already.
    Kill(oneshot::Sender<Result<(), SandboxError>>),
}

/// What the task needs from the engine. Not the registry itself, which holds the task's mailbox: when the
/// engine is dropped, the mailboxes close and the tasks end.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    pub(crate) store: Store,
    pub(crate) bounds: Bounds,
    pub(crate) registry: Weak<Registry>,
    pub(crate) figures: Arc<Figures>,
    pub(crate) events: Events,
}

/// A child that answered.
#[derive(Debug)]
pub(crate) struct Born {
    pub(crate) monitor: Monitor,
    pub(crate) watch: Watch,
    pub(crate) timing: ForkTiming,
}

/// The process of a sandbox, and how its end is noticed. A paused one has none.
#[derive(Debug)]
pub(crate) struct Body {
    pub(crate) monitor: Monitor,
    pub(crate) watch: Watch,
}

/// Removes the row, which keeps the layers below the sandbox in the store. Branches that are not published yet need
/// them: then the row is removed when they are, and nobody waits for that.
async fn forget_row(store: Store, id: SandboxId, turns: &Turns) -> Result<(), String> {
    let removing = move || store.remove_sandbox(&id).map_err(|e| chain(&e));
    if let Ok(free) = Arc::clone(&turns.publishing).try_write_owned() {
        let removed = tokio::task::spawn_blocking(removing).await;
        drop(free);
        return removed.unwrap_or_else(|e| Err(chain(&e)));
    }
    let publishing = Arc::clone(&turns.publishing);
    tokio::spawn(async move {
        let free = publishing.write_owned().await;
        if let Ok(Err(e)) = tokio::task::spawn_blocking(removing).await {
            warn!(error = e, "the row of a removed sandbox stays until the next start");
        }
        drop(free);
    });
    Ok(())
}

/// A monitor of which nothing is left, or why something is.
type Removed = (Option<Body>, Result<(), String>);

/// What is logged on behalf of a sandbox says which one it is.
pub(crate) fn span(id: &SandboxId) -> tracing::Span {
    tracing::info_span!("sandbox", %id)
}

/// One sandbox.
#[derive(Debug)]
pub(crate) struct Task {
    pub(super) around: Surroundings,
    pub(super) id: SandboxId,
    pub(super) life: Life,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) view: watch::Sender<View>,
    pub(super) guest: Arc<Guest>,
    turns: Arc<Turns>,
    /// Who waits for its removal.
    pub(super) killers: Vec<oneshot::Sender<Result<(), SandboxError>>>,
    /// What it was just asked to do.
    pub(super) errand: Option<Waiting>,
    /// Who waits for what was done, and how that went.
    pub(super) after: Option<(Answer, Result<(), EngineError>)>,
    /// Who waits for it to be released.
    committer: Option<oneshot::Sender<()>>,
    /// Cancelled when the request that wants it is given up; means nothing once it runs.
    give_up: CancellationToken,
    /// Whether anybody was ever told of it.
    released: bool,
}

impl Task {
    /// A sandbox in `life`, and how others reach it. The caller registers the handle and spawns the task.
    pub(crate) fn new(
        around: Surroundings,
        id: SandboxId,
        life: Life,
        mut info: SandboxInfo,
        settings: Settings,
    ) -> (Self, Handle) {
        let (sender, commands) = mpsc::unbounded_channel();
        info.state = life.name().to_owned();
        let (view, seen) = watch::channel(View { life, info, policing: None });
        let dir = RunDir::new(around.store.run_dir(&id));
        let guest = Arc::new(Guest::new(dir.vsock()));
        let turns = Arc::<Turns>::default();
        let handle = Handle {
            id: id.clone(),
            commands: sender,
            view: seen,
            guest: Arc::clone(&guest),
            dir,
            turns: Arc::clone(&turns),
            settings: Arc::new(Keeper::new(settings)),
        };
        let task = Self {
            around,
            id,
            life,
            commands,
            view,
            guest,
            turns,
            killers: Vec::new(),
            errand: None,
            after: None,
            committer: None,
            give_up: CancellationToken::new(),
            released: life != Life::Starting,
        };
        (task, handle)
    }

    /// Lives from the start. `birth` leaves nothing where it fails, and fails soon once `give_up` is
    /// cancelled. `ready` is told the row to write; then the sandbox waits for [`Command::Commit`].
    pub(crate) async fn live_from_birth<E>(
        mut self,
        birth: impl Future<Output = Result<Born, E>>,
        give_up: CancellationToken,
        ready: oneshot::Sender<Result<SandboxRow, E>>,
    ) {
        self.give_up = give_up;
        match self.attend(birth).await {
            Ok(born) => {
                self.view.send_modify(|view| {
                    view.embody(Some(&born.monitor));
                    view.info.timing = born.timing;
                });
                let row = row_of(&self.view.borrow().info, &self.id, &born.monitor);
                // Nobody waits any more: the request was given up between the answer and here.
                let wanted = ready.send(Ok(row)).is_ok() && self.killers.is_empty();
                let body = Body { monitor: born.monitor, watch: born.watch };
                self.live(Some(body), (!wanted).then_some(Event::KillAsked)).await;
            }
            Err(e) => {
                self.life = decide(self.life, Event::Failed).0;
                self.forget();
                let _ = ready.send(Err(e));
            }
        }
    }

    /// Lives on from before this controller.
    pub(crate) async fn live_on(mut self, body: Option<Body>) {
        self.live(body, None).await;
    }

    async fn attend<E>(&mut self, birth: impl Future<Output = Result<Born, E>>) -> Result<Born, E> {
        let mut birth = pin!(birth);
        loop {
            tokio::select! {
                born = &mut birth => return born,
                command = self.commands.recv(), if !self.give_up.is_cancelled() => {
                    if let Some(Command::Kill(answer)) = command {
                        self.killers.push(answer);
                    }
                    self.give_up.cancel();
                }
            }
        }
    }

    async fn live(&mut self, body: Option<Body>, first: Option<Event>) {
        if let Err(e) = self.obey(body, first).await {
            // A step panicked, or the runtime shuts down under it. What is left is found at the next start.
            warn!(sandbox = %self.id, error = %e, "a step of this sandbox was not completed");
        }
    }

    async fn obey(&mut self, mut body: Option<Body>, first: Option<Event>) -> Result<(), JoinError> {
        let mut pending = first;
        loop {
            let event = match pending.take() {
                Some(event) => event,
                None => match self.next_event(body.as_ref()).await {
                    Some(event) => event,
                    // The engine lets go. What was released runs on; what was not is removed by its guard.
                    None => return Ok(()),
                },
            };
            let (life, step) = decide(self.life, event);
            self.life = life;
            match step {
                Step::Release => self.release(body.as_mut()),
                Step::Bury => body = self.bury(body).await?,
                Step::Remove => {
                    let removed;
                    (body, removed) = self.remove(body).await?;
                    match removed {
                        Ok(()) => {
                            self.forget();
                            return Ok(());
                        }
                        Err(reason) => self.refuse_killers(&reason),
                    }
                    pending = Some(Event::NotRemoved);
                }
                Step::List => self.publish(None),
                Step::Park => pending = Some(self.park(&mut body).await?),
                Step::Wake => pending = Some(self.wake(&mut body).await?),
                Step::Show => self.show(),
                Step::Refuse => self.refuse(),
                Step::Nothing => self.committer = None,
            }
        }
    }

    async fn next_event(&mut self, body: Option<&Body>) -> Option<Event> {
        if !self.killers.is_empty() {
            // They came while it was paused or continued.
            return Some(Event::KillAsked);
        }
        let watched = body.filter(|_| self.life.is_watched());
        let ended = async {
            match watched {
                Some(body) => body.watch.ended().await,
                None => std::future::pending().await,
            }
        };
        let mut ended = pin!(ended);
        loop {
            tokio::select! {
                biased;
                command = self.commands.recv() => match command? {
                    // News for others, and no change of its life.
                    Command::Branched => self.count_branch(),
                    Command::Pause(errand) => return Some(self.wait(Waiting::Pause(errand))),
                    Command::Resume(errand) => return Some(self.wait(Waiting::Resume(errand))),
                    Command::Kill(answer) => {
                        self.killers.push(answer);
                        return Some(Event::KillAsked);
                    }
                    Command::Commit(answer) => {
                        self.committer = Some(answer);
                        return Some(Event::Committed);
                    }
                },
                () = &mut ended => return Some(Event::ProcessEnded),
                () = self.give_up.cancelled(), if self.life == Life::Starting => return Some(Event::KillAsked),
            }
        }
    }

    fn wait(&mut self, errand: Waiting) -> Event {
        let event = errand.event();
        self.errand = Some(errand);
        event
    }

    pub(super) fn count_branch(&self) {
        self.view.send_modify(|view| {
            view.info.branch_count += 1;
            view.info.has_branched = true;
        });
    }

    fn release(&mut self, body: Option<&mut Body>) {
        if let Some(body) = body {
            body.monitor.keep();
        }
        self.publish(None);
        self.released = true;
        self.tell(EventKind::Forked, None);
        info!(sandbox = %self.id, "running");
        if let Some(committer) = self.committer.take() {
            let _ = committer.send(());
        }
    }

    /// The process has ended by itself: tell why, free everything but the logs.
    async fn bury(&mut self, body: Option<Body>) -> Result<Option<Body>, JoinError> {
        let Some(Body { monitor, watch }) = body else { return Ok(None) };
        self.guest.close();
        let (store, id) = (self.around.store.clone(), self.id.clone());
        let burying = tokio::task::spawn_blocking(move || {
            let mut monitor = monitor;
            let reason = monitor.post_mortem();
            let freed = monitor.bury().map_err(|e| chain(&e));
            let freed = freed.and_then(|()| store.remove_sandbox(&id).map_err(|e| chain(&e)));
            (monitor, reason, freed)
        });
        let (monitor, reason, freed) = burying.await?;
        info!(sandbox = %self.id, reason, "ended by itself");
        self.around.figures.ended(&reason);
        self.tell(EventKind::Ended, Some(&reason));
        if let Err(e) = freed {
            warn!(sandbox = %self.id, error = e, "leftovers of an ended sandbox could not be removed");
        }
        self.publish(Some(reason));
        Ok(Some(Body { monitor, watch }))
    }

    async fn remove(&mut self, body: Option<Body>) -> Result<Removed, JoinError> {
        self.publish(None);
        self.guest.close();
        let (store, id) = (self.around.store.clone(), self.id.clone());
        let (body, removed) = match body {
            Some(body) => self.remove_monitor(body).await?,
            // On the disk it has logs only.
            None => {
                let (store, id) = (store.clone(), id.clone());
                let removing = move || store.remove_run_dir(&id).map_err(|e| chain(&e));
                (None, tokio::task::spawn_blocking(removing).await?)
            }
        };
        let removed = match removed {
            Ok(()) => forget_row(store, id, &self.turns).await,
            failed => failed,
        };
        Ok((body, removed))
    }

    async fn remove_monitor(&mut self, Body { monitor, watch }: Body) -> Result<Removed, JoinError> {
        if let Err(e) = monitor.kill() {
            return Ok((Some(Body { monitor, watch }), Err(chain(&e))));
        }
        // Waited for here, so that a thousand kills at once do not hold a thousand threads.
        watch.ended_within(self.around.bounds.end).await;
        // A writer that was just forked off leaves the source's cgroup first.
        let turn = self.turns.disk.lock().await;
        let removing = tokio::task::spawn_blocking(move || {
            let mut monitor = monitor;
            let removed = monitor.remove().map_err(|e| chain(&e));
            (monitor, removed)
        });
        let (monitor, removed) = removing.await?;
        drop(turn);
        Ok((Some(Body { monitor, watch }), removed))
    }

    fn refuse_killers(&mut self, reason: &str) {
        warn!(sandbox = %self.id, reason, "could not be removed");
        self.publish(Some(format!("it could not be removed: {reason}")));
        for killer in self.killers.drain(..) {
            let _ = killer
                .send(Err(SandboxError::NotRemoved { id: self.id.to_string(), reason: reason.to_owned() }));
        }
    }

    /// Nothing of it is left.
    fn forget(&mut self) {
        self.guest.close();
        self.publish(None);
        if let Some(registry) = self.around.registry.upgrade() {
            registry.remove(&self.id);
        }
        if self.released {
            let ended = self.view.borrow().info.ended.is_some();
            self.tell(if ended { EventKind::Removed } else { EventKind::Killed }, None);
        }
        info!(sandbox = %self.id, "removed");
        for killer in self.killers.drain(..) {
            let _ = killer.send(Ok(()));
        }
    }

    /// Shows which process it is, and which network it has.
    pub(crate) fn show_body(&self, body: Option<&Body>) {
        self.view.send_modify(|view| view.embody(body.map(|body| &body.monitor)));
    }

    /// Tells whoever wants to know.
    pub(super) fn tell(&self, kind: EventKind, detail: Option<&str>) {
        self.around.events.sandbox(kind, &self.view.borrow().info, detail);
    }

    /// Shows the state to others; `ended` says why it is over, where that is news.
    pub(super) fn publish(&self, ended: Option<String>) {
        self.view.send_modify(|view| {
            view.life = self.life;
            view.info.state = self.life.name().to_owned();
            if ended.is_some() {
                view.info.ended = ended;
                view.embody(None);
            }
        });
    }
}
