//! Running a command in a sandbox with its streams attached: the agent's own process API, reached through
//! the controller.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::SandboxId;
use futures::{StreamExt, stream};
use http::{Method, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::client::{self, Client};
use crate::envelope::{self, Decoder, Envelope};
use crate::error::CliError;
use crate::signals;

/// What to run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spec {
    /// Program and arguments; none for what the image runs.
    pub(crate) args: Vec<String>,
    /// Added to the environment.
    pub(crate) env: BTreeMap<String, String>,
    /// Working directory.
    pub(crate) cwd: Option<String>,
    /// User name; the image's where absent, else root.
    pub(crate) user: Option<String>,
    /// Kill the whole tree after this long.
    pub(crate) timeout: Option<Duration>,
    /// Whether standard input will be sent.
    pub(crate) stdin: bool,
    /// A terminal of so many columns and rows in the place of pipes.
    pub(crate) terminal: Option<(u16, u16)>,
    /// It goes on where this side goes away.
    pub(crate) lasting: bool,
}

/// What a running command does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// It runs.
    Started { pid: u32 },
    /// It wrote to standard output.
    Stdout(Vec<u8>),
    /// It wrote to standard error.
    Stderr(Vec<u8>),
    /// It wrote to its terminal.
    Terminal(Vec<u8>),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By itself.
    Exited(u8),
    /// By a signal.
    Signalled(u8),
    /// At its timeout.
    TimedOut,
}

/// A command that was started.
#[derive(Debug)]
pub(crate) struct Process {
    body: Incoming,
    decoder: Decoder,
    ready: VecDeque<Event>,
    ending: Option<Ending>,
}

impl Process {
    /// Starts a command. It is killed where this side goes away, unless it is to last.
    pub(crate) async fn start(client: &Client, id: &SandboxId, spec: &Spec) -> Result<Self, CliError> {
        let mut words = spec.args.iter();
        let mut start = json!({
            "process": {
                "cmd": words.next().map_or("", String::as_str), "args": words.collect::<Vec<_>>(),
                "envs": spec.env, "cwd": spec.cwd,
            },
            "stdin": spec.stdin,
        });
        if let Some(size) = spec.terminal {
            start["pty"] = window(size);
        }
        let mut request = client
            .request(Method::POST, &agent_path(id, "Start"))
            .header(header::CONTENT_TYPE, "application/connect+json")
            .header("connect-protocol-version", "1")
            // Else it would be the default user of E2B's clients.
            .header("x-forkd-default-user", "root");
        if !spec.lasting {
            request = request.header("x-forkd-tie", "1");
        }
        if let Some(timeout) = spec.timeout {
            request = request.header("connect-timeout-ms", timeout.as_millis().to_string());
        }
        if let Some(user) = &spec.user {
            request = request.header("x-agent-authorization", basic(user));
        }
        Self::follow(client, request, &start).await
    }

    /// Attaches to one that runs: gets what nobody read yet, and what comes.
    pub(crate) async fn attach(client: &Client, id: &SandboxId, pid: u32) -> Result<Self, CliError> {
        let request = client
            .request(Method::POST, &agent_path(id, "Connect"))
            .header(header::CONTENT_TYPE, "application/connect+json");
        Self::follow(client, request, &json!({ "process": { "pid": pid } })).await
    }

    async fn follow(
        client: &Client,
        request: http::request::Builder,
        asked: &serde_json::Value,
    ) -> Result<Self, CliError> {
        let body = envelope::encode(asked.to_string().as_bytes());
        let answer = client.send(request.body(client::full(body))).await?;
        Ok(Self {
            body: answer.into_body(),
            decoder: Decoder::default(),
            ready: VecDeque::new(),
            ending: None,
        })
    }

    /// What it does next; `None` after its end.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, CliError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            match self.decoder.next().map_err(|e| nonsense("sent no envelopes", e))? {
                Some(Envelope::Message(message)) => self.message(&message)?,
                Some(Envelope::End(end)) => {
                    self.end_of_stream(&end)?;
                    return Ok(None);
                }
                None => self.read().await?,
            }
        }
    }

    /// How it ended; known once [`Process::next`] has nothing more.
    pub(crate) fn ending(&self) -> Result<Ending, CliError> {
        self.ending.ok_or_else(|| {
            CliError::local(
                ErrorClass::GuestFault,
                "the stream ended before the command did; is the sandbox gone?",
            )
        })
    }

    async fn read(&mut self) -> Result<(), CliError> {
        match self.body.frame().await {
            Some(Ok(frame)) => {
                if let Some(bytes) = frame.data_ref() {
                    self.decoder.push(bytes);
                }
                Ok(())
            }
            Some(Err(e)) => Err(nonsense("broke the connection off; is the sandbox gone?", e)),
            None => Err(CliError::local(
                ErrorClass::GuestFault,
                "the connection ended before the command did; is the sandbox gone?",
            )),
        }
    }

    fn message(&mut self, message: &[u8]) -> Result<(), CliError> {
        let message: Message = serde_json::from_slice(message).map_err(|e| nonsense("sent no event", e))?;
        let event = message.event;
        if let Some(start) = event.start {
            self.ready.push_back(Event::Started { pid: start.pid });
        }
        if let Some(data) = event.data {
            let decoded = |text: Option<String>| {
                text.map(|t| STANDARD.decode(t)).transpose().map_err(|e| nonsense("sent no base64", e))
            };
            self.ready.extend(decoded(data.stdout)?.map(Event::Stdout));
            self.ready.extend(decoded(data.stderr)?.map(Event::Stderr));
            self.ready.extend(decoded(data.pty)?.map(Event::Terminal));
        }
        if let Some(end) = event.end {
            self.ending = Some(end.ending());
        }
        Ok(())
    }

    fn end_of_stream(&mut self, end: &[u8]) -> Result<(), CliError> {
        let end: EndOfStream = serde_json::from_slice(end).map_err(|e| nonsense("sent no end", e))?;
        match end.error {
            None => Ok(()),
            Some(e) if e.code == "deadline_exceeded" => {
                self.ending = Some(Ending::TimedOut);
                Ok(())
            }
            Some(e) => Err(CliError::local(class_of(&e.code), e.message)),
        }
    }
}

/// Bytes of standard input sent at a time.
const INPUT_PIECE: usize = 64 << 10;

/// A process that runs in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Running {
    /// In the sandbox.
    pub(crate) pid: u32,
    /// What it was called when it was started.
    #[serde(default)]
    pub(crate) tag: Option<String>,
    /// Whether it has a terminal.
    #[serde(default)]
    pub(crate) terminal: bool,
    /// How it was started.
    pub(crate) config: Config,
}

/// How a process was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Config {
    /// Program.
    pub(crate) cmd: String,
    /// Arguments.
    #[serde(default)]
    pub(crate) args: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct List {
    processes: Vec<Running>,
}

/// What was started in a sandbox and runs.
pub(crate) async fn list(client: &Client, id: &SandboxId) -> Result<Vec<Running>, CliError> {
    let list: List = client.post(&agent_path(id, "List"), &json!({})).await?;
    Ok(list.processes)
}

/// Tells a process a signal, by its number.
pub(crate) async fn signal(client: &Client, id: &SandboxId, pid: u32, number: i32) -> Result<(), CliError> {
    let asked = json!({ "process": { "pid": pid }, "signal": number });
    client.post::<_, serde_json::Value>(&agent_path(id, "SendSignal"), &asked).await.map(drop)
}

/// Gives its terminal another size.
pub(crate) async fn resize(
    client: &Client,
    id: &SandboxId,
    pid: u32,
    size: (u16, u16),
) -> Result<(), CliError> {
    let asked = json!({ "process": { "pid": pid }, "pty": window(size) });
    client.post::<_, serde_json::Value>(&agent_path(id, "Update"), &asked).await.map(drop)
}

fn window((columns, rows): (u16, u16)) -> serde_json::Value {
    json!({ "size": { "cols": columns, "rows": rows } })
}

/// Sends standard input to a running command until `input` ends, then ends its input too.
pub(crate) async fn feed<R>(
    client: &Client,
    id: &SandboxId,
    pid: u32,
    to_terminal: bool,
    input: R,
) -> Result<(), CliError>
where
    R: AsyncRead + Send + Unpin + 'static,
{
    let kind = if to_terminal { "pty" } else { "stdin" };
    let selector = json!({ "pid": pid });
    let start = json!({ "start": { "process": selector } });
    let pieces = stream::unfold(input, move |mut input| async move {
        let mut piece = vec![0; INPUT_PIECE];
        let n = input.read(&mut piece).await.unwrap_or(0);
        let data = json!({ "data": { "input": { kind: STANDARD.encode(&piece[..n]) } } });
        (n > 0).then(|| (message(&data), input))
    });
    let body = client::streamed(stream::iter([message(&start)]).chain(pieces).map(Ok));
    let sending = client
        .request(Method::POST, &agent_path(id, "StreamInput"))
        .header(header::CONTENT_TYPE, "application/connect+json");
    client.send(sending.body(body)).await?;
    let closing = json!({ "process": selector });
    client.post::<_, serde_json::Value>(&agent_path(id, "CloseStdin"), &closing).await.map(drop)
}

fn message(value: &serde_json::Value) -> Bytes {
    envelope::encode(value.to_string().as_bytes()).into()
}

fn agent_path(id: &SandboxId, method: &str) -> String {
    format!("/v1/sandboxes/{id}/agent/process.Process/{method}")
}

/// The agent takes the user from a basic authorization without a password, as E2B's clients send it. The
/// controller hands `x-agent-authorization` on as `authorization`, which it keeps for itself.
fn basic(user: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:")))
}

fn nonsense(what: &str, source: impl Into<crate::error::BoxError>) -> CliError {
    CliError::caused(ErrorClass::GuestFault, format!("the agent {what}"), source)
}

fn class_of(code: &str) -> ErrorClass {
    match code {
        "not_found" => ErrorClass::NotFound,
        "invalid_argument" | "failed_precondition" | "unauthenticated" | "out_of_range" => ErrorClass::Caller,
        "resource_exhausted" => ErrorClass::Exhausted,
        _ => ErrorClass::GuestFault,
    }
}

#[derive(Debug, Deserialize)]
struct Message {
    event: EventMessage,
}

#[derive(Debug, Deserialize)]
struct EventMessage {
    start: Option<Start>,
    data: Option<Data>,
    end: Option<End>,
}

#[derive(Debug, Deserialize)]
struct Start {
    pid: u32,
}

#[derive(Debug, Deserialize)]
struct Data {
    stdout: Option<String>,
    stderr: Option<String>,
    pty: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct End {
    #[serde(default)]
    exit_code: i32,
    #[serde(default)]
    status: String,
}

impl End {
    fn ending(&self) -> Ending {
        match self.status.strip_prefix("signal: ") {
            Some(name) => Ending::Signalled(signals::number(name)),
            // Only the low byte of an exit code exists.
            None => Ending::Exited(self.exit_code.to_le_bytes()[0]),
        }
    }
}

#[derive(Debug, Deserialize)]
struct EndOfStream {
    error: Option<StreamError>,
}

#[derive(Debug, Deserialize)]
struct StreamError {
    code: String,
    #[serde(default)]
    message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_command_is_understood() {
        let end = |json: &str| serde_json::from_str::<End>(json).unwrap().ending();
        assert_eq!(end("{}"), Ending::Exited(0));
        assert_eq!(end(r#"{"exitCode":7,"exited":true,"status":"exit status 7"}"#), Ending::Exited(7));
        assert_eq!(end(r#"{"exitCode":-1,"exited":false,"status":"signal: killed"}"#), Ending::Signalled(9));
        assert_eq!(end(r#"{"exitCode":-1,"status":"signal: what"}"#), Ending::Signalled(0));
    }

    #[test]
    fn events_may_be_empty_or_unknown() {
        let event: Message = serde_json::from_str(r#"{"event":{"keepalive":{}}}"#).unwrap();
        assert!(event.event.start.is_none() && event.event.data.is_none() && event.event.end.is_none());
    }

    #[test]
    fn a_user_is_sent_as_e2b_clients_do() {
        assert_eq!(basic("root"), "Basic cm9vdDo=");
    }
}
