//! A process of a sandbox and this process, connected: output, input, signals, and the terminal where both have one.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Poller, Poll};

use forkd_protocol::names::SandboxId;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

use crate::client::Client;
use crate::error::CliError;
use crate::process::{self, Ending, Event, Process};
use crate::terminal::{self, Raw};
use crate::ui::Ui;

/// Ctrl-]: leaves a process that goes on.
const LEAVE: u8 = 0x1d;

/// What is connected.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wiring {
    /// Standard input is passed on.
    pub(crate) stdin: bool,
    /// The process has a terminal.
    pub(crate) terminal: bool,
    /// It goes on without this process, which may be left by a key.
    pub(crate) lasting: bool,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// The process ended.
    Ended(Ending),
    /// It goes on.
    Running,
    /// This process was told twice to end.
    Interrupted,
}

/// Connects until the process ends or is left.
pub(crate) async fn connect(
    client: &Client,
    ui: &Ui,
    id: &SandboxId,
    mut process: Process,
    wiring: Wiring,
) -> Result<Left, CliError> {
    let raw = if wiring.terminal && wiring.stdin { Raw::enter()? } else { None };
    let mut signals = Signals::listen()?;
    let mut resizes = terminal::resizes()?;
    let mut pid = None;
    let mut feeding = None;
    let left = Arc::new(Notify::new());
    loop {
        let event = tokio::select! {
            event = process.next() => event?,
            number = signals.next() => {
                let Some(pid) = pid.filter(|_| signals.told < 2) else { return Ok(Left::Interrupted) };
                // One that has just ended is told nothing.
                let _ = process::signal(client, id, pid, number).await;
                continue;
            }
            _ = resizes.recv(), if wiring.terminal => {
                if let Some(pid) = pid {
                    let _ = process::resize(client, id, pid, terminal::size()).await;
                }
                continue;
            }
            () = left.notified() => return Ok(Left::Running),
        };
        let written = match event {
            Some(Event::Started { pid: started }) => {
                pid = Some(started);
                if wiring.stdin {
                    let leave = (wiring.lasting && raw.is_some()).then(|| Arc::clone(&left));
                    feeding = Some(feed(client.clone(), id.clone(), started, wiring.terminal, leave));
                }
                Ok(())
            }
            Some(Event::Stdout(bytes) | Event::Terminal(bytes)) => ui.raw_out(&bytes),
            Some(Event::Stderr(bytes)) => ui.raw_err(&bytes),
            None => break,
        };
        // Nobody reads any more: leaving ends the command, as a broken pipe would.
        written.map_err(|e| CliError::io("writing the command's output", e))?;
    }
    // Input that the command did not want is no failure.
    if let Some(task) = feeding {
        task.abort();
    }
    Ok(Left::Ended(process.ending()?))
}

fn feed(
    client: Client,
    id: SandboxId,
    pid: u32,
    terminal: bool,
    leave: Option<Arc<Notify>>,
) -> tokio::task::JoinHandle<Result<(), CliError>> {
    tokio::spawn(async move {
        let input = Keys { input: tokio::io::stdin(), leave };
        process::feed(&client, &id, pid, terminal, input).await
    })
}

/// Standard input up to the key that leaves, where there is one.
struct Keys<R> {
    input: R,
    leave: Option<Arc<Notify>>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Keys<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Poller<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.input).poll_read(context, buffer);
        let typed = &buffer.filled()[before..];
        if let Some(leave) = self.leave.as_ref().filter(|_| typed.contains(&LEAVE)) {
            // The connection goes with the one who is told; nothing more is sent, and the input is not ended.
            leave.notify_one();
            buffer.set_filled(before);
            return Poll::Pending;
        }
        read
    }
}

/// What a person or a supervisor tells this process, which is meant for the one at the other end.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    told: u32,
}

impl Signals {
    fn listen() -> Result<Self, CliError> {
        let listen = |kind| signal(kind).map_err(|e| CliError::io("listening for signals", e));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            told: 0,
        })
    }

    /// The number of the next one.
    async fn next(&mut self) -> i32 {
        let number = tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hangup.recv() => SignalKind::hangup(),
        };
        self.told += 1;
        number.as_raw_value()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn the_key_that_leaves_is_not_passed_on() {
        let left = Arc::new(Notify::new());
        let mut keys = Keys { input: &b"ab\x1dc"[..], leave: Some(Arc::clone(&left)) };
        let mut buffer = [0; 16];
        let read = keys.read(&mut buffer);
        tokio::select! {
            biased;
            _ = read => panic!("it was read on"),
            () = left.notified() => {}
        }
        let mut plain = Keys { input: &b"a\x1d"[..], leave: None };
        assert_eq!(plain.read(&mut buffer).await.unwrap(), 2);
    }
}
