//! A call that is being attended to, until its line is written.

use std::time::Instant;

use http::StatusCode;
use tokio::sync::oneshot;

use super::{Line, Log};
use crate::access::Caller;
use crate::clock::unix_now_ms;

/// Longest path that is noted.
const LONGEST_PATH: usize = 256;
/// Most things that are noted as made.
const MOST_MADE: usize = 1000;
/// Routes whose lines are safe before they are answered.
const SYNCED: [&str; 2] = ["/v1/tokens", "/v1/tenants"];

/// What came of a call: an extension of the answer.
#[derive(Debug, Clone)]
pub(crate) struct Made(pub(crate) Vec<String>);

/// The answer has begun, and how it ends is told later: an extension of the answer.
#[derive(Debug, Clone)]
pub(crate) struct Deferred(std::sync::Arc<std::sync::Mutex<Option<oneshot::Receiver<Told>>>>);

/// Status, and ids and tags of what came of it.
type Told = (StatusCode, Vec<String>);

impl Deferred {
    /// And where to tell it.
    pub(crate) fn new() -> (oneshot::Sender<Told>, Self) {
        let (tell, told) = oneshot::channel();
        (tell, Self(std::sync::Arc::new(std::sync::Mutex::new(Some(told)))))
    }

    /// Writes the line when it is told, or when nobody can tell it any more.
    pub(crate) fn finish_later(self, mut ticket: Ticket) {
        let told = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        tokio::spawn(async move {
            let Some(told) = told else { return };
            if let Ok((status, made)) = told.await {
                ticket.made(made);
                ticket.finish(status).await;
            }
        });
    }
}

/// A call. Where it is dropped before it is finished the client has left.
#[derive(Debug)]
pub(crate) struct Ticket {
    log: Log,
    line: Option<Line>,
    began: Instant,
    sync: bool,
}

impl Ticket {
    pub(crate) fn new(log: Log, what: String, path: &str, from: String, began: Instant) -> Self {
        let sync = SYNCED.iter().any(|route| path.starts_with(route));
        let to = path.chars().take(LONGEST_PATH).collect();
        let (at_ms, who) = (unix_now_ms(), "nobody".to_owned());
        let line = Line { at_ms, who, from, what, to, ..Line::default() };
        Self { log, line: Some(line), began, sync }
    }

    /// Who asked.
    pub(crate) fn by(&mut self, caller: &Caller) {
        if let Some(line) = &mut self.line {
            line.who.clone_from(&caller.name);
            line.tenant = caller.tenant.clone().filter(|tenant| !tenant.is_empty());
        }
    }

    /// What came of it.
    pub(crate) fn made(&mut self, mut made: Vec<String>) {
        made.truncate(MOST_MADE);
        if let Some(line) = &mut self.line {
            line.made = made;
        }
    }

    /// It was answered.
    pub(crate) async fn finish(mut self, status: StatusCode) {
        let outcome = match status.as_u16() {
            ..400 => "done",
            400..500 => "refused",
            _ => "failed",
        };
        if let Some(line) = self.complete(outcome, status.as_u16()) {
            self.log.add(line, self.sync).await;
        }
    }

    fn complete(&mut self, outcome: &str, status: u16) -> Option<Line> {
        let micros = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.line.take().map(|line| Line { outcome: outcome.to_owned(), status, micros, ..line })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(line) = self.complete("abandoned", 0) {
            self.log.add_later(line);
        }
    }
}
