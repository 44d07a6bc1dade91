//! The task that owns an interpreter's process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forkd_protocol::guest::{Evaluated, PythonError};
use nix::sys::signal::Signal;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::language::Language;
use super::python::{Output, Python, PythonStartError};
use super::wire::{Answer, Done, Failure, Kind, Request, Richly};
use super::{Control, EvalError, Job, Outcome, Reseed, Status};
use crate::process::{Spawner, Tree};

/// Between one interrupt and the next.
const INTERRUPT_AGAIN: Duration = Duration::from_secs(1);
/// From the first interrupt until the process is given up.
const GIVE_UP: Duration = Duration::from_secs(5);
/// `RESEED_SIGNAL` of the kernel; a number, since C libraries differ in where their real-time signals begin.
const RESEED_SIGNAL: i32 = 44;

pub(super) struct Owner {
    spawner: Spawner,
    /// What it speaks, and where it works.
    kind: (Language, Option<String>),
    jobs: mpsc::Receiver<Job>,
    controls: mpsc::Receiver<Control>,
    python: Option<Python>,
    status: Arc<Mutex<Status>>,
}

/// How a run was cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    Timeout,
    CallerLeft,
}

impl Owner {
    pub(super) fn new(
        spawner: Spawner,
        kind: (Language, Option<String>),
        jobs: mpsc::Receiver<Job>,
        controls: mpsc::Receiver<Control>,
        status: Arc<Mutex<Status>>,
    ) -> Self {
        Self { spawner, kind, jobs, controls, python: None, status }
    }

    pub(super) async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                control = self.controls.recv() => match control {
                    Some(control) => self.control_idle(control).await,
                    None => return,
                },
                answer = next_answer(&mut self.python) => {
                    // Nothing was asked: only its end is news, as when it was killed for want of memory.
                    if answer.is_none() {
                        self.set_python(None);
                    }
                }
                job = self.jobs.recv() => match job {
                    Some(job) => self.job(job).await,
                    None => return,
                },
            }
        }
    }

    fn set_python(&mut self, python: Option<Python>) {
        self.python = python;
        self.note_status();
    }

    fn note_status(&self) {
        let python = self.python.as_ref();
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) =
            Status { running: python.is_some(), numpy_version: python.and_then(|p| p.numpy_version.clone()) };
    }

    async fn job(&mut self, mut job: Job) {
        if !self.wait_until_thawed(&mut job).await {
            return;
        }
        if self.python.is_none()
            && let Err(error) = self.start().await
        {
            // The caller may have left.
            let _ = job.reply.send(Err(error.into()));
            return;
        }
        let evaluated = self.evaluate(&mut job).await;
        self.note_status();
        let _ = job.reply.send(evaluated);
    }

    /// A job that waited in the queue while the guest was frozen begins afterwards. False where its caller left.
    async fn wait_until_thawed(&mut self, job: &mut Job) -> bool {
        while self.spawner.is_frozen() {
            tokio::select! {
                () = job.reply.closed() => return false,
                () = self.spawner.thawed() => {}
                Some(control) = self.controls.recv() => self.control_idle(control).await,
            }
        }
        !job.reply.is_closed()
    }

    async fn start(&mut self) -> Result<(), PythonStartError> {
        let spawner = self.spawner.clone();
        let (language, cwd) = self.kind.clone();
        let mut start = std::pin::pin!(Python::start(&spawner, language, cwd));
        let python = loop {
            tokio::select! {
                python = &mut start => break python?,
                // It has run no code yet, so it has no state, random or other.
                Some(control) = self.controls.recv() => nothing_to_do(control),
            }
        };
        self.set_python(Some(python));
        Ok(())
    }

    async fn evaluate(&mut self, job: &mut Job) -> Result<Outcome, EvalError> {
        let Some(python) = self.python.as_mut() else { return Err(EvalError::Gone) };
        let tree = python.tree();
        let rich = job.watch.as_ref().map(|watch| Richly { module: self.kind.0.rich(), env: &watch.env });
        let request = Request::Run { code: &job.code, settle: job.warm_up, rich };
        python.watcher = job.watch.as_ref().map(|watch| watch.events.clone());
        let mut limit = Limit::new(job.timeout);
        // Only Python can be told in the middle of a run.
        let mut reseed_afterwards = false;
        let answer = {
            let mut asked = std::pin::pin!(python.ask(&request));
            loop {
                tokio::select! {
                    answer = &mut asked => break answer,
                    Some(control) = self.controls.recv() => match control {
                        Control::Reseed(reseed) => {
                            reseed_afterwards = self.kind.0 != Language::Python;
                            reseed_while_running(reseed, &tree, self.kind.0);
                        }
                        Control::Restart => break None,
                    },
                    () = job.reply.closed(), if limit.cut.is_none() => limit.cut_now(Cut::CallerLeft),
                    () = limit.wait() => match limit.step() {
                        Step::Interrupt => tree.signal_group(Signal::SIGINT),
                        Step::GiveUp => break None,
                    },
                }
            }
        };
        python.watcher = None;
        if reseed_afterwards && answer.is_some() {
            let _ = python.ask(&Request::Reseed).await;
        }
        match answer {
            Some(Answer { kind: Kind::Done(mut done), .. }) => {
                let bundle = done.bundle.take();
                Ok(Outcome { evaluated: evaluated(done, python.take_output(), limit.cut), bundle })
            }
            _ => Ok(Outcome { evaluated: self.lost(limit.cut).await, bundle: None }),
        }
    }

    /// The process has ended or does not come back; the next evaluation starts a new one.
    async fn lost(&mut self, cut: Option<Cut>) -> Evaluated {
        let Some(mut python) = self.python.take() else { return Evaluated::default() };
        let output = python.take_output();
        let how = python.end().await;
        let (name, value) = match cut {
            Some(_) => (
                "TimeoutError",
                "the code did not react to interrupts, so the interpreter was restarted; its state is lost"
                    .to_owned(),
            ),
            None => ("InterpreterEnded", format!("the interpreter ended ({how}); its state is lost")),
        };
        crate::log::warn(format_args!("{} interpreter: {value}", self.kind.0.name()));
        let done = Done { error: Some(Failure::plain(name, value)), ..Done::default() };
        evaluated(done, output, cut)
    }

    async fn control_idle(&mut self, control: Control) {
        let Some(python) = self.python.as_mut() else { return nothing_to_do(control) };
        let Control::Reseed(Reseed { queued, mut done }) = control else { return self.set_python(None) };
        let sent = python.request(&Request::Reseed).await;
        let _ = queued.send(());
        let result = tokio::select! {
            answer = python.answer_to(&Request::Reseed), if sent.is_ok() => reseeded(answer),
            () = done.closed() => return,
            else => Err("the interpreter has ended".to_owned()),
        };
        let _ = done.send(result);
    }
}

/// When a run is interrupted, and how hard.
struct Limit {
    next: Option<Instant>,
    give_up: Option<Instant>,
    cut: Option<Cut>,
}

enum Step {
    Interrupt,
    GiveUp,
}

impl Limit {
    fn new(timeout: Option<Duration>) -> Self {
        Self { next: timeout.map(|timeout| Instant::now() + timeout), give_up: None, cut: None }
    }

    fn cut_now(&mut self, cut: Cut) {
        self.cut = Some(cut);
        // An interrupt for the timeout may be under way already; then its rhythm goes on.
        if self.give_up.is_none() {
            self.next = Some(Instant::now());
        }
    }

    async fn wait(&self) {
        match self.next {
            Some(next) => tokio::time::sleep_until(next).await,
            None => std::future::pending().await,
        }
    }

    fn step(&mut self) -> Step {
        let now = Instant::now();
        self.cut.get_or_insert(Cut::Timeout);
        let give_up = *self.give_up.get_or_insert(now + GIVE_UP);
        if now >= give_up {
            return Step::GiveUp;
        }
        self.next = Some(give_up.min(now + INTERRUPT_AGAIN));
        Step::Interrupt
    }
}

async fn next_answer(python: &mut Option<Python>) -> Option<Answer> {
    match python {
        Some(python) => python.answer().await,
        None => std::future::pending().await,
    }
}

/// No interpreter, or one that has not run anything: nothing to reseed, nothing to end.
fn nothing_to_do(control: Control) {
    if let Control::Reseed(Reseed { queued, done }) = control {
        let _ = queued.send(());
        let _ = done.send(Ok(()));
    }
}

/// Code is running, perhaps for hours, and stands still just now. The pending signal is handled by the interpreter's
/// main thread before it executes anything more, which is all that matters; the end of it is not waited for.
fn reseed_while_running(Reseed { queued, done }: Reseed, tree: &Tree, language: Language) {
    if language == Language::Python {
        tree.signal_number(RESEED_SIGNAL);
    }
    let _ = queued.send(());
    let _ = done.send(Ok(()));
}

fn reseeded(answer: Option<Answer>) -> Result<(), String> {
    match answer.map(|answer| answer.kind) {
        Some(Kind::Reseeded { error: None }) => Ok(()),
        Some(Kind::Reseeded { error: Some(error) }) => Err(format!("{}: {}", error.name, error.value)),
        _ => Err("the interpreter has ended".to_owned()),
    }
}

fn evaluated(done: Done, output: Output, cut: Option<Cut>) -> Evaluated {
    let timed_out = cut == Some(Cut::Timeout);
    // Code may swallow the interrupt, or only what it waited for was interrupted: the limit was reached all the same.
    let error = done.error.or_else(|| {
        timed_out.then(|| Failure::plain("TimeoutError", "the time limit was reached".to_owned()))
    });
    let (stdout, stdout_cut) = output.stdout.into_text();
    let (stderr, stderr_cut) = output.stderr.into_text();
    Evaluated {
        result: done.result,
        result_json: done.result_json,
        stdout,
        stderr,
        error: error.map(|e| PythonError { name: e.name, value: e.value, traceback: e.traceback }),
        timed_out,
        truncated: done.truncated || stdout_cut || stderr_cut,
        micros: done.micros,
    }
}
