//! Processes that callers attach to, write to and leave, and that go on without them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use nix::sys::signal::Signal;
use tokio::sync::watch;

use super::command::{Command, StartError};
use super::drain::{discard, drain};
use super::hub::Frames;
use super::spawner::{Child, Ended, Spawner, Wiring};
use super::stream::Stream;
use super::tree::Tree;
use crate::cgroup::Branch;
use crate::sys;

/// Ended sessions whose output nobody has read yet; the oldest are forgotten first.
const ENDED_KEPT: usize = 32;

/// What a session is started with.
#[derive(Debug, Default)]
pub(crate) struct SessionSpec {
    pub(crate) command: Command,
    pub(crate) tag: Option<String>,
    pub(crate) stdin: bool,
    pub(crate) terminal: Option<(u16, u16)>,
}

/// Which of a process's streams bytes came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Stdout,
    Stderr,
    Terminal,
}

/// A running or just ended process.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) pid: i32,
    pub(crate) spec: SessionSpec,
    pub(crate) frames: Frames,
    tree: Arc<Tree>,
    /// None once closed. One writer at a time, so that two callers' bytes do not mix.
    stdin: tokio::sync::Mutex<Option<Stream>>,
    terminal: Option<Stream>,
    ended: watch::Receiver<Option<Ended>>,
    /// Killed at its time limit.
    late: AtomicBool,
}

/// Why a session could not be written to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    /// It was started without input, or its input was closed.
    #[error("the process has no open input")]
    Closed,
    /// Terminal input for a process without one, or the reverse.
    #[error("the process {0}")]
    WrongKind(&'static str),
    /// The process has ended or closed its end.
    #[error("the process does not read its input")]
    Write(#[from] std::io::Error),
}

/// All sessions, by pid. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sessions(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    running: BTreeMap<i32, Arc<Session>>,
    ended: VecDeque<Arc<Session>>,
}

impl Sessions {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a session; `encode` makes the frames that its readers will get.
    pub(crate) async fn start(
        &self,
        spawner: &Spawner,
        spec: SessionSpec,
        encode: fn(Source, &[u8]) -> Bytes,
    ) -> Result<Arc<Session>, StartError> {
        let wiring = Wiring { stdin: spec.stdin, terminal: spec.terminal, extra: Vec::new() };
        let mut child = spawner.spawn(Branch::Workload, &spec.command, wiring).await?;
        let terminal = spec.terminal.is_some().then(|| child.stdout.clone());
        let session = Arc::new(Session {
            pid: child.pid,
            spec,
            frames: Frames::default(),
            tree: child.tree.clone(),
            stdin: tokio::sync::Mutex::new(child.stdin.take()),
            terminal,
            ended: child.ended.clone(),
            late: AtomicBool::new(false),
        });
        self.table().running.insert(session.pid, session.clone());
        tokio::task::spawn_local(run(self.clone(), session.clone(), child, encode));
        Ok(session)
    }

    pub(crate) fn running(&self) -> Vec<Arc<Session>> {
        self.table().running.values().cloned().collect()
    }

    /// A running session.
    pub(crate) fn find(&self, matches: impl Fn(&Session) -> bool) -> Option<Arc<Session>> {
        self.table().running.values().find(|session| matches(session)).cloned()
    }

    /// A running session, or an ended one whose end nobody has been told of.
    pub(crate) fn find_unread(&self, matches: impl Fn(&Session) -> bool) -> Option<Arc<Session>> {
        let mut table = self.table();
        if let Some(session) = table.running.values().find(|session| matches(session)) {
            return Some(session.clone());
        }
        let position = table.ended.iter().rposition(|session| matches(session))?;
        table.ended.remove(position)
    }

    fn ended(&self, session: &Arc<Session>) {
        let mut table = self.table();
        // The pid may be that of a new session already.
        if table.running.get(&session.pid).is_some_and(|found| Arc::ptr_eq(found, session)) {
            table.running.remove(&session.pid);
        }
        if !session.frames.has_readers() {
            table.ended.push_back(session.clone());
            if table.ended.len() > ENDED_KEPT {
                table.ended.pop_front();
            }
        }
    }
}

/// Carries the output until its end, then tells the exit.
async fn run(sessions: Sessions, session: Arc<Session>, child: Child, encode: fn(Source, &[u8]) -> Bytes) {
    let Child { stdout, stderr, mut ended, .. } = child;
    let first = if session.terminal.is_some() { Source::Terminal } else { Source::Stdout };
    let carry = async |stream: &Stream, source: Source| {
        let sink = async |bytes: &[u8]| session.frames.put(encode(source, bytes)).await;
        match drain(stream, ended.clone(), sink).await {
            Ok(true) => {}
            Ok(false) => drop(tokio::task::spawn_local(discard(stream.clone()))),
            Err(e) => crate::log::warn(format_args!("output of process {}: {e}", session.pid)),
        }
    };
    let errors = async {
        if let Some(stream) = &stderr {
            carry(stream, Source::Stderr).await;
        }
    };
    tokio::join!(carry(&stdout, first), errors);
    if let Some(ended) = ended.wait_for(Option::is_some).await.ok().and_then(|ended| *ended) {
        session.frames.end(ended.exit);
        sessions.ended(&session);
    }
}

impl Session {
    /// SIGKILL to the process and all it has started.
    pub(crate) fn kill_tree(&self) {
        self.tree.kill();
    }

    /// Kills all of it at a time limit, whoever is attached, unless it ends before.
    pub(crate) async fn kill_after(self: Arc<Self>, limit: Duration) {
        let mut ended = self.ended.clone();
        if tokio::time::timeout(limit, ended.wait_for(Option::is_some)).await.is_err() {
            self.late.store(true, Ordering::Relaxed);
            self.kill_tree();
        }
    }

    /// Whether it was killed at its time limit.
    pub(crate) fn was_late(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.tree.signal(signal);
    }

    /// Writes to its input; waits while it does not read.
    pub(crate) async fn write(&self, bytes: &[u8], to_terminal: bool) -> Result<(), InputError> {
        match (to_terminal, self.terminal.is_some()) {
            (true, false) => return Err(InputError::WrongKind("has no terminal")),
            (false, true) => return Err(InputError::WrongKind("has a terminal in place of a plain input")),
            _ => {}
        }
        let stdin = self.stdin.lock().await;
        Ok(stdin.as_ref().ok_or(InputError::Closed)?.write_all(bytes).await?)
    }

    /// Ends its input. For a terminal that is the end-of-file character.
    pub(crate) async fn close_stdin(&self) -> Result<(), InputError> {
        let mut stdin = self.stdin.lock().await;
        match &self.terminal {
            Some(terminal) => Ok(terminal.write_all(&[4]).await?),
            None => stdin.take().map(drop).ok_or(InputError::Closed),
        }
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16) -> Result<(), InputError> {
        let terminal = self.terminal.as_ref().ok_or(InputError::WrongKind("has no terminal"))?;
        Ok(sys::set_window_size(terminal, columns, rows)?)
    }
}
