//! A process's events as a stream of envelopes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{BufMut, Bytes, BytesMut};
use futures::Stream;
use serde_json::json;
use tokio::time::Instant;

use super::connect::{self, Code, ConnectError, envelope};
use crate::process::{Exit, Next, Reader, Session, Source};

/// One client's view of a process. Where it goes away early, the process goes on, unless it is tied to it.
#[derive(Debug)]
pub(super) struct EventStream {
    session: Arc<Session>,
    reader: Reader,
    keepalive: Duration,
    until: Option<Instant>,
    tied: bool,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Start,
    Output,
    /// The end event was sent, the last envelope not yet.
    Ended,
    Over,
}

impl EventStream {
    /// Takes its place in the output now, so that nothing is missed before the first poll.
    pub(super) fn new(session: Arc<Session>, keepalive: Duration) -> Self {
        let reader = session.frames.attach();
        Self { session, reader, keepalive, until: None, tied: false, stage: Stage::Start }
    }

    pub(super) fn tied(mut self, tied: bool) -> Self {
        self.tied = tied;
        self
    }

    /// Ends this view, not the process, after a while.
    pub(super) fn until(mut self, after: Option<Duration>) -> Self {
        self.until = after.map(|after| Instant::now() + after);
        self
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> {
        futures::stream::unfold(self, |mut events| async {
            let frame = events.next().await?;
            Some((Ok(frame), events))
        })
    }

    async fn next(&mut self) -> Option<Bytes> {
        match self.stage {
            Stage::Start => {
                self.stage = Stage::Output;
                Some(event(&json!({ "start": { "pid": self.session.pid } })))
            }
            Stage::Output => Some(self.output().await),
            Stage::Ended => {
                self.stage = Stage::Over;
                let late =
                    ConnectError::new(Code::DeadlineExceeded, "the process was killed at its time limit");
                Some(connect::end(self.session.was_late().then_some(&late)))
            }
            Stage::Over => None,
        }
    }

    async fn output(&mut self) -> Bytes {
        let silent = Instant::now() + self.keepalive;
        let wake = self.until.map_or(silent, |until| until.min(silent));
        match tokio::time::timeout_at(wake, self.reader.next()).await {
            Ok(Next::Frame(frame)) => frame,
            Ok(Next::Ended(exit)) => {
                self.stage = Stage::Ended;
                end_event(exit)
            }
            Ok(Next::Lagged) => {
                self.give_up(Code::DataLoss, "this reader was too slow and has missed output")
            }
            Err(_) if self.until.is_some_and(|until| until <= Instant::now()) => {
                self.give_up(Code::DeadlineExceeded, "the time limit of this call was reached")
            }
            Err(_) => event(&json!({ "keepalive": {} })),
        }
    }

    fn give_up(&mut self, code: Code, message: &'static str) -> Bytes {
        self.stage = Stage::Over;
        connect::end(Some(&ConnectError::new(code, message)))
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if self.tied && matches!(self.stage, Stage::Start | Stage::Output) {
            self.session.kill_tree();
        }
    }
}

/// Output as the event that carries it, encoded once for all readers.
pub(super) fn encode_output(source: Source, bytes: &[u8]) -> Bytes {
    let name = match source {
        Source::Stdout => "stdout",
        Source::Stderr => "stderr",
        Source::Terminal => "pty",
    };
    const AROUND: usize = 64;
    envelope(bytes.len().div_ceil(3) * 4 + AROUND, |frame| {
        frame.put_slice(br#"{"event":{"data":{""#);
        frame.put_slice(name.as_bytes());
        frame.put_slice(br#"":""#);
        put_base64(frame, bytes);
        frame.put_slice(br#""}}}"#);
    })
}

fn put_base64(frame: &mut BytesMut, bytes: &[u8]) {
    let start = frame.len();
    frame.resize(start + bytes.len().div_ceil(3) * 4, 0);
    // The room is exactly what the encoding takes, so this cannot fail; a shorter text would show in any test.
    let written = BASE64.encode_slice(bytes, &mut frame[start..]).unwrap_or(0);
    frame.truncate(start + written);
}

fn event(event: &serde_json::Value) -> Bytes {
    connect::message(&json!({ "event": event }))
}

fn end_event(exit: Exit) -> Bytes {
    let words = exit.describe();
    let exited = matches!(exit, Exit::Code(_));
    let mut end = json!({ "exitCode": exit.code(), "exited": exited, "status": words });
    if exit != Exit::Code(0) {
        end["error"] = words.into();
    }
    event(&json!({ "end": end }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_exact() {
        for length in 0..300_usize {
            let bytes: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let frame = encode_output(Source::Stderr, &bytes);
            assert_eq!(u32::from_be_bytes(frame[1..5].try_into().unwrap()) as usize, frame.len() - 5);
            let value: serde_json::Value = serde_json::from_slice(&frame[5..]).unwrap();
            assert_eq!(BASE64.decode(value["event"]["data"]["stderr"].as_str().unwrap()).unwrap(), bytes);
        }
    }

    #[test]
    fn ends() {
        let value = |exit| serde_json::from_slice::<serde_json::Value>(&end_event(exit)[5..]).unwrap();
        assert_eq!(
            value(Exit::Code(0)),
            json!({"event": {"end": {"exitCode": 0, "exited": true, "status": "exit status 0"}}})
        );
        let killed = value(Exit::Signal(9));
        assert_eq!(killed["event"]["end"]["error"], "signal: killed");
        assert_eq!(killed["event"]["end"]["exited"], false);
    }
}
