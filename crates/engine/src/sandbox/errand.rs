//! Pausing and continuing: long work that is asked of a sandbox's task, which attends to it and to nothing else.

use futures::future::BoxFuture;
use tokio::sync::oneshot;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use forkd_protocol::error::chain;
use forkd_protocol::rest::EventKind;

use super::state::{Event, Life};
use super::task::{Body, Born, Command, Task};
use crate::error::EngineError;
use crate::fault;
use crate::monitor::MonitorError;

/// Who waits for it to be done.
pub(crate) type Answer = oneshot::Sender<Result<(), EngineError>>;

/// What is to be done, and by what it can be given up as long as that changes nothing.
pub(crate) struct Errand<T> {
    pub(crate) work: BoxFuture<'static, Result<T, EngineError>>,
    pub(crate) give_up: CancellationToken,
    pub(crate) answer: Answer,
}

impl<T> std::fmt::Debug for Errand<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Errand").finish_non_exhaustive()
    }
}

/// One that waits for its turn, which comes at once or never.
#[derive(Debug)]
pub(super) enum Waiting {
    Pause(Errand<()>),
    Resume(Errand<Born>),
}

impl Waiting {
    pub(super) fn event(&self) -> Event {
        match self {
            Self::Pause(_) => Event::PauseAsked,
            Self::Resume(_) => Event::ResumeAsked,
        }
    }
}

impl Task {
    /// Says that what was asked is not possible now.
    pub(super) fn refuse(&mut self) {
        let view = self.view.borrow();
        let (refused, answer) = match self.errand.take() {
            Some(Waiting::Pause(errand)) => (view.check_running(), errand.answer),
            Some(Waiting::Resume(errand)) => (view.check_paused(), errand.answer),
            None => return,
        };
        let _ = answer.send(refused.map_err(Into::into));
    }

    /// Takes it to the disk and ends its monitor.
    pub(super) async fn park(&mut self, body: &mut Option<Body>) -> Result<Event, JoinError> {
        let Some(Waiting::Pause(errand)) = self.errand.take() else { return Ok(Event::NotDone) };
        self.publish(None);
        let done = self.attend_to(errand.work, &errand.give_up).await;
        if done.is_ok() {
            // From here on it is paused, whatever becomes of its monitor.
            self.guest.close();
            if let Err(e) = self.end_monitor(body).await? {
                warn!(sandbox = %self.id, error = %chain(&e), "the monitor of a paused sandbox is still there");
            }
            fault::at!("engine::pause::monitor_ended");
            self.show_body(None);
        }
        self.after = Some((errand.answer, done));
        Ok(self.outcome())
    }

    /// Continues it with another monitor.
    pub(super) async fn wake(&mut self, body: &mut Option<Body>) -> Result<Event, JoinError> {
        let Some(Waiting::Resume(errand)) = self.errand.take() else { return Ok(Event::NotDone) };
        self.publish(None);
        // One that did not go when it was paused.
        let done = match self.end_monitor(body).await? {
            Ok(()) => self.attend_to(errand.work, &errand.give_up).await,
            Err(e) => Err(e.into()),
        };
        let done = done.map(|born| {
            *body = Some(Body { monitor: born.monitor, watch: born.watch });
            self.show_body(body.as_ref());
        });
        self.after = Some((errand.answer, done));
        Ok(self.outcome())
    }

    fn outcome(&self) -> Event {
        if matches!(self.after, Some((_, Ok(())))) { Event::Done } else { Event::NotDone }
    }

    /// Shows what it has come to, and tells whoever waits.
    pub(super) fn show(&mut self) {
        self.publish(None);
        let Some((answer, done)) = self.after.take() else { return };
        match &done {
            Ok(()) => {
                let paused = self.life == Life::Paused;
                self.tell(if paused { EventKind::Paused } else { EventKind::Resumed }, None);
                info!(sandbox = %self.id, state = self.life.name(), "now");
            }
            Err(e) => {
                warn!(sandbox = %self.id, state = self.life.name(), error = %chain(e), "stays as it was");
            }
        }
        let _ = answer.send(done);
    }

    /// Ends a monitor whose sandbox is on the disk; its logs stay. One that does not go is kept, to try again later.
    async fn end_monitor(&mut self, body: &mut Option<Body>) -> Result<Result<(), MonitorError>, JoinError> {
        let Some(Body { monitor, watch }) = body.take() else { return Ok(Ok(())) };
        // A failure is that of waiting for its end, below.
        let _ = monitor.kill();
        watch.ended_within(self.around.bounds.end).await;
        let ending = tokio::task::spawn_blocking(move || {
            let mut monitor = monitor;
            let ended = monitor.bury();
            (monitor, ended)
        });
        let (monitor, ended) = ending.await?;
        if ended.is_err() {
            *body = Some(Body { monitor, watch });
        }
        Ok(ended)
    }

    /// Waits for the work. Whoever wants the sandbox gone has it given up, where that is still possible, and waits, too.
    async fn attend_to<T>(
        &mut self,
        mut work: BoxFuture<'static, Result<T, EngineError>>,
        give_up: &CancellationToken,
    ) -> Result<T, EngineError> {
        let mut let_go = false;
        loop {
            tokio::select! {
                done = &mut work => return done,
                command = self.commands.recv(), if !let_go => match command {
                    None => let_go = true,
                    Some(Command::Kill(answer)) => {
                        self.killers.push(answer);
                        give_up.cancel();
                    }
                    Some(Command::Pause(errand)) => {
                        self.errand = Some(Waiting::Pause(errand));
                        self.refuse();
                    }
                    Some(Command::Resume(errand)) => {
                        self.errand = Some(Waiting::Resume(errand));
                        self.refuse();
                    }
                    Some(Command::Branched) => self.count_branch(),
                    Some(Command::Commit(_)) => {}
                },
            }
        }
    }
}
