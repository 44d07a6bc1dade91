//! Server-sent events, as the controller sends progress.

use bytes::Bytes;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::{ErrorBody, ErrorEvent};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use crate::error::CliError;
use crate::ui::Step;

/// Longest event that is read.
const MAX_EVENT: usize = 8 << 20;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Event {
    name: String,
    data: String,
}

/// Takes a byte stream apart into events.
#[derive(Debug, Default)]
struct Parser {
    pending: Vec<u8>,
    event: Event,
}

impl Parser {
    /// Takes more bytes; returns the events that are whole now, or `None` where one grows too long.
    fn push(&mut self, bytes: &[u8]) -> Option<Vec<Event>> {
        self.pending.extend_from_slice(bytes);
        let mut events = Vec::new();
        let mut start = 0;
        while let Some(length) = self.pending[start..].iter().position(|b| *b == b'\n') {
            let line = String::from_utf8_lossy(&self.pending[start..start + length]).into_owned();
            start += length + 1;
            self.line(line.trim_end_matches('\r'), &mut events);
        }
        self.pending.drain(..start);
        (self.pending.len() + self.event.data.len() <= MAX_EVENT).then_some(events)
    }

    fn line(&mut self, line: &str, events: &mut Vec<Event>) {
        if line.is_empty() {
            if self.event != Event::default() {
                events.push(std::mem::take(&mut self.event));
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            _ => {}
        }
    }
}

/// Shows `progress` events as they come and returns what `done` carries.
pub(crate) async fn follow<T: DeserializeOwned>(mut body: Incoming, step: &Step) -> Result<T, CliError> {
    let mut parser = Parser::default();
    while let Some(events) = next(&mut body, &mut parser).await? {
        for event in events {
            if let Some(outcome) = outcome(&event, step) {
                return outcome;
            }
        }
    }
    Err(CliError::local(ErrorClass::Internal, "the controller ended before the work was done"))
}

/// Gives what each event carries to `take`, until the controller ends.
pub(crate) async fn each<T: DeserializeOwned>(mut body: Incoming, take: impl Fn(&T)) -> Result<(), CliError> {
    let mut parser = Parser::default();
    while let Some(events) = next(&mut body, &mut parser).await? {
        for event in events {
            take(&read(&event.data)?);
        }
    }
    Err(CliError::local(ErrorClass::Internal, "the controller ended"))
}

/// What came since the last time; `None` at the end.
async fn next(body: &mut Incoming, parser: &mut Parser) -> Result<Option<Vec<Event>>, CliError> {
    let Some(frame) = body.frame().await else { return Ok(None) };
    let frame = frame.map_err(|e| CliError::caused(ErrorClass::Internal, "the controller broke off", e))?;
    let bytes = frame.into_data().unwrap_or_else(|_| Bytes::new());
    let endless = || CliError::local(ErrorClass::Internal, "the controller sent an event without an end");
    parser.push(&bytes).map(Some).ok_or_else(endless)
}

fn read<T: DeserializeOwned>(data: &str) -> Result<T, CliError> {
    serde_json::from_str(data)
        .map_err(|e| CliError::caused(ErrorClass::Internal, "reading the controller's answer", e))
}

fn outcome<T: DeserializeOwned>(event: &Event, step: &Step) -> Option<Result<T, CliError>> {
    match event.name.as_str() {
        "progress" => {
            step.note(&crate::ui::plain(&event.data));
            None
        }
        "done" => Some(read(&event.data)),
        "error" => Some(Err(failure(&event.data))),
        _ => None,
    }
}

fn failure(data: &str) -> CliError {
    let event = serde_json::from_str(data).unwrap_or_else(|_| ErrorEvent {
        status: 500,
        body: ErrorBody { error: data.to_owned(), code: "unknown".to_owned(), failures: Vec::new() },
    });
    CliError::Api { status: event.status, body: event.body }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, data: &str) -> Event {
        Event { name: name.into(), data: data.into() }
    }

    #[test]
    fn events_are_found_wherever_the_stream_is_cut() {
        let text = b": hello\n\nevent: progress\r\ndata: a\ndata: b\r\n\r\nevent: done\ndata:{}\n\n";
        let all = vec![event("progress", "a\nb"), event("done", "{}")];
        for cut in 0..text.len() {
            let mut parser = Parser::default();
            let mut got = parser.push(&text[..cut]).unwrap();
            got.extend(parser.push(&text[cut..]).unwrap());
            assert_eq!(got, all, "cut at {cut}");
        }
    }

    #[test]
    fn an_event_without_an_end_is_given_up() {
        let mut parser = Parser::default();
        assert!(parser.push(&vec![b'x'; MAX_EVENT + 1]).is_none());
        let mut parser = Parser::default();
        let line = [b"data: ".as_slice(), &vec![b'x'; MAX_EVENT / 2], b"\n"].concat();
        assert!(parser.push(&line).is_some());
        assert!(parser.push(&line).is_none());
    }

    #[test]
    fn an_error_event_keeps_its_status() {
        let e = failure(r#"{"status":409,"error":"taken","code":"tag_taken"}"#);
        assert_eq!(e.exit_code(), 4);
        assert_eq!(failure("what").exit_code(), 10);
    }
}
