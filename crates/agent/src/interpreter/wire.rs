//! Messages between the agent and an interpreter: four bytes of length, little endian, then JSON. Shells are asked in
//! fields that end with a NUL, which they can read.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::language::Language;
use crate::process::Stream;

/// Longest answer believed: result, JSON and traceback at their caps, escaped.
const ANSWER_MAX: usize = 256 * 1024 * 1024;
const READ: usize = 64 * 1024;

/// To the interpreter.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(super) enum Request<'a> {
    /// Evaluate; `settle` where it is the warm-up, `rich` where results are to be shown.
    Run { code: &'a str, settle: bool, rich: Option<Richly<'a>> },
    /// Take new random state and call the hooks.
    Reseed,
}

/// How results are shown, and what is only for this run.
#[derive(Debug, Serialize)]
pub(super) struct Richly<'a> {
    pub(super) module: &'static str,
    pub(super) env: &'a BTreeMap<String, String>,
}

/// From the interpreter.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    #[serde(flatten)]
    pub(super) kind: Kind,
    /// Version of numpy, where it is loaded.
    pub(super) numpy_version: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Kind {
    Ready {
        python: String,
    },
    Done(Done),
    /// Something to show while the code runs on.
    Display {
        bundle: Map<String, Value>,
    },
    Reseeded {
        error: Option<Failure>,
    },
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Done {
    pub(super) result: Option<String>,
    pub(super) result_json: Option<String>,
    pub(super) error: Option<Failure>,
    /// The result in its forms, by name, where results are shown.
    #[serde(default)]
    pub(super) bundle: Option<Map<String, Value>>,
    pub(super) truncated: bool,
    pub(super) micros: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Failure {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) traceback: String,
}

impl Failure {
    /// One that did not come from Python.
    pub(super) fn plain(name: &str, value: String) -> Self {
        let traceback = format!("{name}: {value}\n");
        Self { name: name.to_owned(), value, traceback }
    }
}

/// A request as it goes over the pipe.
pub(super) fn encode(language: Language, request: &Request<'_>) -> io::Result<Vec<u8>> {
    if language == Language::Bash {
        return fields(request);
    }
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, request)?;
    let length = u32::try_from(frame.len() - 4).map_err(io::Error::other)?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// A request as `guest/kernel.sh` reads it.
fn fields(request: &Request<'_>) -> io::Result<Vec<u8>> {
    let fields = match request {
        Request::Reseed => vec!["reseed".to_owned(), rand::random::<u16>().to_string()],
        Request::Run { code, rich, .. } => {
            let env: Vec<_> = rich
                .iter()
                .flat_map(|rich| rich.env)
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            let head = ["run".to_owned(), env.len().to_string()];
            head.into_iter().chain(env).chain([(*code).to_owned()]).collect()
        }
    };
    if fields.iter().any(|field| field.contains('\0')) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a shell cannot read a NUL"));
    }
    Ok(fields.iter().flat_map(|field| [field.as_bytes(), b"\0"].concat()).collect())
}

/// Puts answers together. A wait may be abandoned at any time without losing bytes.
#[derive(Debug)]
pub(super) struct Answers {
    stream: Stream,
    buffer: Vec<u8>,
}

impl Answers {
    pub(super) fn new(stream: Stream) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// None where the interpreter has ended or speaks nonsense.
    pub(super) async fn next(&mut self) -> Option<Answer> {
        let mut part = vec![0; READ];
        loop {
            if let Some(length) = self.buffer.first_chunk::<4>() {
                let length =
                    usize::try_from(u32::from_le_bytes(*length)).ok().filter(|n| *n <= ANSWER_MAX)?;
                if let Some(body) = self.buffer.get(4..4 + length) {
                    let answer = serde_json::from_slice(body).ok();
                    self.buffer.drain(..4 + length);
                    return answer;
                }
            }
            let count = self.stream.read(&mut part).await.ok().filter(|count| *count > 0)?;
            self.buffer.extend_from_slice(&part[..count]);
        }
    }
}
