//! What a run does, as lines of JSON.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::Stream;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::interpreter::{EvalError, Event, Outcome};

/// One run as its watcher sees it.
#[derive(Debug)]
pub(super) struct Lines {
    run: u64,
    events: mpsc::Receiver<Event>,
    ended: Option<oneshot::Receiver<Result<Outcome, EvalError>>>,
    stdout: Text,
    stderr: Text,
    begun: bool,
}

impl Lines {
    pub(super) fn new(
        run: u64,
        events: mpsc::Receiver<Event>,
        ended: oneshot::Receiver<Result<Outcome, EvalError>>,
    ) -> Self {
        let (stdout, stderr) = (Text::default(), Text::default());
        Self { run, events, ended: Some(ended), stdout, stderr, begun: false }
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> {
        futures::stream::unfold(self, |mut lines| async {
            let piece = lines.next().await?;
            Some((Ok(piece), lines))
        })
    }

    /// One or several lines, each with its end; never an empty one, which clients cannot read.
    async fn next(&mut self) -> Option<Bytes> {
        if !std::mem::replace(&mut self.begun, true) {
            let count = json!({ "type": "number_of_executions", "execution_count": self.run });
            return Some(line(&count).into());
        }
        while let Some(event) = self.events.recv().await {
            let told = match event {
                Event::Stdout(bytes) => printed("stdout", &self.stdout.add(&bytes)),
                Event::Stderr(bytes) => printed("stderr", &self.stderr.add(&bytes)),
                Event::Display(bundle) => Some(result(bundle, false)),
            };
            if let Some(told) = told {
                return Some(told.into());
            }
        }
        let outcome = self.ended.take()?.await;
        Some(self.last(outcome.unwrap_or(Err(EvalError::Gone))).into())
    }

    fn last(&mut self, outcome: Result<Outcome, EvalError>) -> String {
        let rest = [printed("stdout", &self.stdout.end()), printed("stderr", &self.stderr.end())];
        let mut told: String = rest.into_iter().flatten().collect();
        match outcome {
            Ok(Outcome { evaluated, bundle }) => {
                if let Some(bundle) = bundle {
                    told += &result(bundle, true);
                }
                if let Some(e) = evaluated.error {
                    told += &failure(&e.name, &e.value, &e.traceback);
                }
            }
            Err(e) => told += &failure("InterpreterError", &e.to_string(), &e.to_string()),
        }
        told + &line(&json!({ "type": "end_of_execution" }))
    }
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}

fn printed(kind: &str, text: &str) -> Option<String> {
    let stamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let stamp = format!("{}.{:06}", stamp.as_secs(), stamp.subsec_micros());
    (!text.is_empty()).then(|| line(&json!({ "type": kind, "text": text, "timestamp": stamp })))
}

fn result(mut bundle: Map<String, Value>, is_main: bool) -> String {
    bundle.insert("type".to_owned(), "result".into());
    bundle.insert("is_main_result".to_owned(), is_main.into());
    line(&Value::Object(bundle))
}

fn failure(name: &str, value: &str, traceback: &str) -> String {
    line(&json!({ "type": "error", "name": name, "value": value, "traceback": traceback }))
}

/// Bytes that become text piece by piece: a character that is not whole yet waits for its rest.
#[derive(Debug, Default)]
struct Text(Vec<u8>);

impl Text {
    fn add(&mut self, bytes: &[u8]) -> String {
        self.0.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.0) {
            Err(e) if e.error_len().is_none() => e.valid_up_to(),
            // Bytes that are no text at all become marks, wherever they stand.
            _ => self.0.len() - unfinished(&self.0),
        };
        let rest = self.0.split_off(whole);
        String::from_utf8_lossy(&std::mem::replace(&mut self.0, rest)).into_owned()
    }

    fn end(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.0)).into_owned()
    }
}

/// How many bytes at the end may be the beginning of a character.
fn unfinished(bytes: &[u8]) -> usize {
    let tail = &bytes[bytes.len().saturating_sub(3)..];
    let begins = |n: &usize| {
        let part = &tail[tail.len() - n..];
        std::str::from_utf8(part).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
    };
    (1..=tail.len()).find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_never_split_wherever_the_bytes_are() {
        let text = "aä€😀z";
        for cut in 0..=text.len() {
            let mut parts = Text::default();
            let joined =
                parts.add(&text.as_bytes()[..cut]) + &parts.add(&text.as_bytes()[cut..]) + &parts.end();
            assert_eq!(joined, text, "{cut}");
        }
        let mut odd = Text::default();
        assert_eq!(odd.add(b"a\xff\xe2\x82"), "a\u{fffd}");
        assert_eq!(odd.add(b"\xac"), "€");
        assert_eq!(odd.add(b"\xe2"), "");
        assert_eq!(odd.end(), "\u{fffd}");
    }
}
