//! One interpreter's process: started, asked, interrupted, ended.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::pipe2;
use tokio::sync::mpsc;

use super::language::Language;
use super::run::Event;
use super::wire::{Answer, Answers, Kind, Request, encode};
use crate::cgroup::Branch;
use crate::process::{Child, Command, Spawner, StartError, Stream, Tree, Wiring};

const MEMFD_NAME: &CStr = c"forkd-kernel";
/// Most bytes kept of each of stdout and stderr.
const OUTPUT_MAX: usize = 16 * 1024 * 1024;
/// The first start of python3 in a cold emulated guest takes seconds.
const START_BOUND: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
enum Printed {
    Stdout,
    Stderr,
}

/// What code printed.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) stdout: Captured,
    pub(super) stderr: Captured,
}

#[derive(Debug, Default)]
pub(super) struct Captured {
    bytes: Vec<u8>,
    truncated: bool,
}

/// A running interpreter.
#[derive(Debug)]
pub(super) struct Python {
    language: Language,
    child: Child,
    stderr: Stream,
    requests: Stream,
    answers: Answers,
    output: Output,
    /// Where what is printed and shown goes at once, where somebody watches.
    pub(super) watcher: Option<mpsc::Sender<Event>>,
    pub(super) numpy_version: Option<String>,
}

/// Why no interpreter runs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PythonStartError {
    /// The image has no python3 in its PATH.
    #[error("the image has no python3, which warm code and eval need")]
    NoPython,
    /// The image lacks the interpreter of another language.
    #[error("the image has no {0}, which code of its language needs")]
    NoProgram(&'static str),
    /// It was started and ended again, or was not ready within a minute; with what it printed.
    #[error("{0} did not start: {1}")]
    NotReady(&'static str, String),
    #[error(transparent)]
    Start(StartError),
}

impl From<std::io::Error> for PythonStartError {
    fn from(error: std::io::Error) -> Self {
        Self::Start(error.into())
    }
}

impl Python {
    pub(super) async fn start(
        spawner: &Spawner,
        language: Language,
        cwd: Option<String>,
    ) -> Result<Self, PythonStartError> {
        let (request_read, request_write) = pipe2(OFlag::O_CLOEXEC).map_err(std::io::Error::from)?;
        let (answer_read, answer_write) = pipe2(OFlag::O_CLOEXEC).map_err(std::io::Error::from)?;
        let wiring = Wiring {
            extra: vec![request_read, answer_write, in_memory(language.kernel())?],
            ..Wiring::default()
        };
        let (program, args) = (language.program().to_owned(), language.args());
        let user = Some("root".to_owned());
        let command = Command { program, args, cwd, user, ..Command::default() };
        let mut child = match spawner.spawn(Branch::Workload, &command, wiring).await {
            Ok(child) => child,
            Err(StartError::NotFound(_)) if language == Language::Python => {
                return Err(PythonStartError::NoPython);
            }
            Err(StartError::NotFound(_)) => return Err(PythonStartError::NoProgram(language.program())),
            Err(other) => return Err(PythonStartError::Start(other)),
        };
        let stderr =
            child.stderr.take().ok_or_else(|| std::io::Error::from(std::io::ErrorKind::BrokenPipe))?;
        let mut python = Self {
            language,
            child,
            stderr,
            requests: Stream::new(request_write)?,
            answers: Answers::new(Stream::new(answer_read)?),
            output: Output::default(),
            watcher: None,
            numpy_version: None,
        };
        let ready = tokio::time::timeout(START_BOUND, python.answer()).await;
        match ready {
            Ok(Some(Answer { kind: Kind::Ready { python: version }, .. })) => {
                crate::log::info(format_args!("{} interpreter: {version}", language.name()));
                Ok(python)
            }
            _ => {
                let said = python.take_output().stderr.into_text().0;
                Err(PythonStartError::NotReady(language.program(), said))
            }
        }
    }

    /// Writes a request into the pipe; it is there for the interpreter even if it does not run now.
    pub(super) async fn request(&self, request: &Request<'_>) -> std::io::Result<()> {
        self.requests.write_all(&encode(self.language, request)?).await
    }

    /// Takes in output until an answer comes. None where the interpreter ended. May be abandoned and called again.
    pub(super) async fn answer(&mut self) -> Option<Answer> {
        let mut out = [0; 16 * 1024];
        let mut err = [0; 16 * 1024];
        let (mut out_open, mut err_open) = (true, true);
        let answer = loop {
            tokio::select! {
                answer = self.answers.next() => break answer,
                read = self.child.stdout.read(&mut out), if out_open =>
                    out_open = self.took(Printed::Stdout, &out, read).await,
                read = self.stderr.read(&mut err), if err_open =>
                    err_open = self.took(Printed::Stderr, &err, read).await,
            }
        };
        // All that was printed before the answer is in the pipes now, and exactly that belongs to it.
        self.take_pending(Printed::Stdout, &mut out).await;
        self.take_pending(Printed::Stderr, &mut err).await;
        let answer = answer?;
        self.numpy_version.clone_from(&answer.numpy_version);
        Some(answer)
    }

    /// Keeps what was printed, or hands it on. False at the end of the stream.
    async fn took(&mut self, from: Printed, buffer: &[u8], read: std::io::Result<usize>) -> bool {
        let Some(bytes) = read.ok().filter(|count| *count > 0).and_then(|count| buffer.get(..count)) else {
            return false;
        };
        match (&self.watcher, from) {
            // One who has left is told nothing.
            (Some(watcher), Printed::Stdout) => drop(watcher.send(Event::Stdout(bytes.to_vec())).await),
            (Some(watcher), Printed::Stderr) => drop(watcher.send(Event::Stderr(bytes.to_vec())).await),
            (None, Printed::Stdout) => self.output.stdout.add(bytes),
            (None, Printed::Stderr) => self.output.stderr.add(bytes),
        }
        true
    }

    async fn take_pending(&mut self, from: Printed, buffer: &mut [u8]) {
        let stream = match from {
            Printed::Stdout => self.child.stdout.clone(),
            Printed::Stderr => self.stderr.clone(),
        };
        let mut left = stream.pending();
        while left > 0 {
            let want = left.min(buffer.len());
            let read = stream.read(&mut buffer[..want]).await;
            let count = *read.as_ref().unwrap_or(&0);
            if !self.took(from, buffer, read).await {
                return;
            }
            left = left.saturating_sub(count);
        }
    }

    pub(super) fn take_output(&mut self) -> Output {
        std::mem::take(&mut self.output)
    }

    /// Asks and waits for the answer.
    pub(super) async fn ask(&mut self, request: &Request<'_>) -> Option<Answer> {
        self.request(request).await.ok()?;
        self.answer_to(request).await
    }

    /// Waits for the answer to this request; what was asked before and given up meanwhile is passed over.
    pub(super) async fn answer_to(&mut self, request: &Request<'_>) -> Option<Answer> {
        loop {
            let answer = self.answer().await?;
            match (request, &answer.kind) {
                (Request::Run { .. }, Kind::Done(_)) | (Request::Reseed, Kind::Reseeded { .. }) => {
                    return Some(answer);
                }
                (_, Kind::Display { bundle }) => {
                    if let Some(watcher) = &self.watcher {
                        let _ = watcher.send(Event::Display(bundle.clone())).await;
                    }
                }
                (_, Kind::Reseeded { error: Some(error) }) => {
                    crate::log::warn(format_args!(
                        "after-fork hook in a running evaluation: {}",
                        error.value
                    ));
                }
                _ => {}
            }
        }
    }

    /// The process, to be signalled while an answer is waited for.
    pub(super) fn tree(&self) -> Arc<Tree> {
        self.child.tree.clone()
    }

    /// How it ended, in words; killed where it has not.
    pub(super) async fn end(mut self) -> String {
        self.child.tree.kill();
        match self.child.ended.wait_for(Option::is_some).await.ok().and_then(|ended| *ended) {
            Some(ended) => ended.exit.describe(),
            None => "unknown".to_owned(),
        }
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        self.child.tree.kill();
    }
}

/// A kernel's source in memory, to be read from its beginning: no file in the image.
fn in_memory(source: &str) -> std::io::Result<OwnedFd> {
    let mut file = std::fs::File::from(memfd_create(MEMFD_NAME, MFdFlags::MFD_CLOEXEC)?);
    file.write_all(source.as_bytes())?;
    std::io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

impl Captured {
    fn add(&mut self, bytes: &[u8]) {
        let room = OUTPUT_MAX.saturating_sub(self.bytes.len());
        self.truncated |= bytes.len() > room;
        self.bytes.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }

    /// The text, and whether any was dropped. A character cut at the cap is dropped whole.
    pub(super) fn into_text(mut self) -> (String, bool) {
        if self.truncated
            && let Err(e) = std::str::from_utf8(&self.bytes)
            && e.error_len().is_none()
        {
            self.bytes.truncate(e.valid_up_to());
        }
        let text = String::from_utf8(self.bytes)
            .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
        (text, self.truncated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_half_character_at_the_cap() {
        let cut = Captured { bytes: "aä".as_bytes()[..2].to_vec(), truncated: true };
        assert_eq!(cut.into_text(), ("a".into(), true));
        let odd = Captured { bytes: vec![b'a', 0xff], truncated: false };
        assert_eq!(odd.into_text(), ("a\u{fffd}".into(), false));
    }
}
