//! Interpreters: each one process that keeps its state between evaluations and across forks. The warm one is Python.
//!
//! One task owns it. Evaluations queue; a caller that leaves has its evaluation interrupted. What a fork needs
//! ([`Interpreter::reseed`]) goes past the queue.

mod language;
mod owner;
mod python;
mod run;
mod wire;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forkd_protocol::guest::Evaluated;
use tokio::sync::{mpsc, oneshot};

use crate::process::Spawner;
pub(crate) use language::Language;
pub(crate) use python::PythonStartError;
pub(crate) use run::{Event, Watch};

/// Evaluations that may wait.
const QUEUE: usize = 1024;

/// Handle to the interpreter. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Interpreter {
    jobs: mpsc::Sender<Job>,
    controls: mpsc::Sender<Control>,
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
    watch: Option<Watch>,
    reply: oneshot::Sender<Result<Outcome, EvalError>>,
}

/// How an evaluation ended.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Without what it printed, where that was watched.
    pub(crate) evaluated: Evaluated,
    /// The result in its forms, by name, where it was watched.
    pub(crate) bundle: Option<serde_json::Map<String, serde_json::Value>>,
}

/// Past the queue.
#[derive(Debug)]
enum Control {
    Reseed(Reseed),
    /// End the process; the next evaluation starts a new one.
    Restart,
}

/// To take new random state. `queued` is told once the request lies before the interpreter, `done` once it was carried
/// out.
#[derive(Debug)]
struct Reseed {
    queued: oneshot::Sender<()>,
    done: oneshot::Sender<Result<(), String>>,
}

impl Interpreter {
    /// The handle, and the task to be run beside everything else, which ends with the last handle. The process is
    /// started when first needed, in the folder `cwd`, else in root's own.
    pub(crate) fn new(
        spawner: Spawner,
        language: Language,
        cwd: Option<String>,
    ) -> (Self, impl Future<Output = ()>) {
        let (jobs, jobs_queue) = mpsc::channel(QUEUE);
        let (controls, controls_queue) = mpsc::channel(8);
        let status = Arc::default();
        let owner =
            owner::Owner::new(spawner, (language, cwd), jobs_queue, controls_queue, Arc::clone(&status));
        (Self { jobs, controls, status }, owner.run())
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
        self.queue(Job { code, timeout, warm_up, watch: None, reply })?;
        Ok(answer.await.map_err(|_| EvalError::Gone)??.evaluated)
    }

    /// Evaluates after all that waits already, telling what it prints and shows as it does. Dropping the receiver
    /// interrupts the code.
    pub(crate) fn run(
        &self,
        code: String,
        watch: Watch,
    ) -> Result<oneshot::Receiver<Result<Outcome, EvalError>>, EvalError> {
        let (reply, answer) = oneshot::channel();
        self.queue(Job { code, timeout: None, warm_up: false, watch: Some(watch), reply })?;
        Ok(answer)
    }

    fn queue(&self, job: Job) -> Result<(), EvalError> {
        self.jobs.try_send(job).map_err(|e| match e {
            mpsc::error::TrySendError::Full(_) => EvalError::Busy,
            mpsc::error::TrySendError::Closed(_) => EvalError::Gone,
        })
    }

    /// Ends the process with all its state; what runs in it ends, what waits goes on in a new one.
    pub(crate) async fn restart(&self) {
        // An owner that is gone has no process.
        let _ = self.controls.send(Control::Restart).await;
    }

    /// Puts the request to take new random state before the interpreter, which may be frozen. The receiver is
    /// told when it was done; where code is running, that is before its next instruction, and not waited for.
    pub(crate) async fn reseed(&self) -> Option<oneshot::Receiver<Result<(), String>>> {
        let (queued, is_queued) = oneshot::channel();
        let (done, is_done) = oneshot::channel();
        self.controls.send(Control::Reseed(Reseed { queued, done })).await.ok()?;
        is_queued.await.ok()?;
        Some(is_done)
    }
}
