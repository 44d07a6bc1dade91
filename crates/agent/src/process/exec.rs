//! Runs a command to its end and collects its output.
//!
//! The answer comes when the main process ended and its output is complete (see [`super::drain`]). What it left
//! in the background ends with it: a caller who wants a process to stay starts a session.

use std::convert::Infallible as Never;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use super::command::{Command, StartError};
use super::drain::drain;
use super::exit::Exit;
use super::spawner::{Child, Ended, Spawner, Wiring};
use super::stream::Stream;
use super::tree::Tree;
use crate::cgroup::Branch;

/// What a command may use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExecLimits {
    /// The whole tree is killed after this long.
    pub(crate) timeout: Option<Duration>,
    /// Most bytes kept of each of stdout and stderr; more is read and dropped, so that the process does not block.
    pub(crate) max_output: usize,
}

/// A command that ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) exit: Exit,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) truncated: bool,
    pub(crate) timed_out: bool,
}

#[derive(Default)]
struct Collected {
    bytes: Vec<u8>,
    truncated: bool,
}

/// Ends the tree however the caller leaves: nobody else can reach the processes.
struct KillOnDrop(Arc<Tree>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// Runs to the end. Dropping the future kills the whole tree.
pub(crate) async fn execute(
    spawner: &Spawner,
    branch: Branch,
    command: &Command,
    stdin: Option<Vec<u8>>,
    limits: ExecLimits,
) -> Result<Finished, StartError> {
    let wiring = Wiring { stdin: stdin.is_some(), ..Wiring::default() };
    let child = spawner.spawn(branch, command, wiring).await?;
    let _guard = KillOnDrop(child.tree.clone());
    Ok(finish(child, stdin.unwrap_or_default(), limits).await?)
}

async fn finish(child: Child, input: Vec<u8>, limits: ExecLimits) -> std::io::Result<Finished> {
    let Child { tree, stdin, stdout, stderr, mut ended, .. } = child;
    let feed = async {
        if let Some(stdin) = stdin {
            // A process need not read its input; what is left then is nobody's loss.
            let _ = stdin.write_all(&input).await;
        }
        std::future::pending::<Never>().await
    };
    let collect = async |stream: &Stream| -> std::io::Result<Collected> {
        let mut kept = Collected::default();
        drain(stream, ended.clone(), async |bytes: &[u8]| kept.add(bytes, limits.max_output)).await?;
        Ok(kept)
    };
    let errors = async {
        match &stderr {
            Some(stream) => collect(stream).await,
            None => Ok(Collected::default()),
        }
    };
    let expired = OnceLock::new();
    let watchdog = async {
        if let Some(limit) = limits.timeout {
            tokio::time::sleep(limit).await;
            let _ = expired.set(Instant::now());
            tree.kill();
        }
        // What was printed until then still counts, so only the output's end ends the wait below.
        std::future::pending::<Never>().await
    };
    let output = async { tokio::try_join!(collect(&stdout), errors) };
    let (out, err) = tokio::select! {
        output = output => output?,
        never = feed => match never {},
        never = watchdog => match never {},
    };
    let ended = ended.wait_for(Option::is_some).await.ok().and_then(|ended| *ended);
    let Ended { exit, at } = ended.ok_or(std::io::ErrorKind::BrokenPipe)?;
    let truncated = out.truncated || err.truncated;
    let timed_out = expired.get().is_some_and(|expired| at >= *expired);
    Ok(Finished { exit, stdout: out.bytes, stderr: err.bytes, truncated, timed_out })
}

impl Collected {
    fn add(&mut self, bytes: &[u8], limit: usize) {
        let room = limit.saturating_sub(self.bytes.len());
        self.truncated |= bytes.len() > room;
        self.bytes.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
    }
}
