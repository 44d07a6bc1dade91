//! The warm interpreter: one Python process that keeps its state between evaluations and across forks.
//!
//! One task owns it. Evaluations queue; a caller that leaves has its evaluation interrupted. What a fork needs
//! ([`Interpreter::reseed`]) goes past the queue.

mod owner;
mod python;
mod wire;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forkd_protocol::guest::Evaluated;
use tokio::sync::{mpsc, oneshot};

use crate::process::Spawner;
pub(crate) use python::PythonStartError;

/// Evaluations that may wait.
const QUEUE: usize = 1024;

/// Handle to the interpreter. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Interpreter {
    jobs: mpsc::Sender<Job>,
    reseeds: mpsc::Sender<Reseed>,
    status: Arc<Mutex<Status>>,
}

/// What can be told without asking it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Status {
    pub(crate) running: bool,
    pub(crate) numpy_version: Option<String>,
}

/// Why nothing was evaluated.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EvalError {
    #[error(transparent)]
    Start(#[from] PythonStartError),
    /// More evaluations wait than the queue holds.
    #[error("too many evaluations are waiting")]
    Busy,
    /// The agent is shutting down.
    #[error("the interpreter is gone")]
    Gone,
}

#[derive(Debug)]
struct Job {
    code: String,
    timeout: Option<Duration>,
    warm_up: bool,
    reply: oneshot::Sender<Result<Evaluated, EvalError>>,
}

/// To take new random state. `queued` is told once the request lies before the interpreter, `done` once it was carried
/// out.
#[derive(Debug)]
struct Reseed {
    queued: oneshot::Sender<()>,
    done: oneshot::Sender<Result<(), String>>,
}

impl Interpreter {
    /// The handle, and the task to be run beside everything else. Python is started when first needed.
    pub(crate) fn new(spawner: Spawner) -> (Self, impl Future<Output = ()>) {
        let (jobs, jobs_queue) = mpsc::channel(QUEUE);
        let (reseeds, reseeds_queue) = mpsc::channel(8);
        let status = Arc::default();
        let owner = owner::Owner::new(spawner, jobs_queue, reseeds_queue, Arc::clone(&status));
        (Self { jobs, reseeds, status }, owner.run())
    }

    pub(crate) fn status(&self) -> Status {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Evaluates after all that waits already. Dropping the future interrupts the code.
    pub(crate) async fn eval(
        &self,
        code: String,
        timeout: Option<Duration>,
        warm_up: bool,
    ) -> Result<Evaluated, EvalError> {
        let (reply, answer) = oneshot::channel();
        self.jobs.try_send(Job { code, timeout, warm_up, reply }).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => EvalError::Busy,
            mpsc::error::TrySendError::Closed(_) => EvalError::Gone,
        })?;
        answer.await.map_err(|_| EvalError::Gone)?
    }

    /// Puts the request to take new random state before the interpreter, which may be frozen. The receiver is
    /// told when it was done; where code is running, that is before its next instruction, and not waited for.
    pub(crate) async fn reseed(&self) -> Option<oneshot::Receiver<Result<(), String>>> {
        let (queued, is_queued) = oneshot::channel();
        let (done, is_done) = oneshot::channel();
        self.reseeds.send(Reseed { queued, done }).await.ok()?;
        is_queued.await.ok()?;
        Some(is_done)
    }
}
