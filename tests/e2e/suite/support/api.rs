//! The API, one connection a request, as published clients use it. Nothing lies between a test and the bytes that
//! are sent, so that it can also send what no library would.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::world::{hangs, url};

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// The body.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        self.parsed()
    }

    /// The body, as what it stands for.
    #[track_caller]
    pub(crate) fn parsed<T: DeserializeOwned>(&self) -> T {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e} in {self:?}"))
    }

    /// It has to have this status.
    #[track_caller]
    pub(crate) fn with_status(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }
}

/// `GET`; has to be answered 200.
#[track_caller]
pub(crate) fn get(path: &str) -> Answer {
    send("GET", path, None).with_status(200)
}

/// `POST`, whatever is answered.
pub(crate) fn post(path: &str, body: Value) -> Answer {
    send("POST", path, Some(body))
}

/// `DELETE`, whatever is answered.
pub(crate) fn delete(path: &str) -> Answer {
    send("DELETE", path, None)
}

/// `POST` of something that may happen twice, as one of very many at once. Where the API is forwarded into a machine,
/// QEMU takes few connections at a time, and the kernel resets those that waited too long for it.
pub(crate) fn post_in_a_crowd(path: &str, body: Value) -> Answer {
    let request = request("POST", path, Some(body));
    loop {
        match exchange(request.as_bytes()) {
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
            answer => return read(answer),
        }
    }
}

/// One request.
pub(crate) fn send(method: &str, path: &str, body: Option<Value>) -> Answer {
    raw(request(method, path, body))
}

fn request(method: &str, path: &str, body: Option<Value>) -> String {
    let (kind, body) = match body {
        Some(json) => ("Content-Type: application/json\r\n", json.to_string()),
        None => ("", String::new()),
    };
    let host = address();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{kind}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// One request as it goes over the wire.
#[track_caller]
pub(crate) fn raw(request: impl AsRef<[u8]>) -> Answer {
    read(exchange(request.as_ref()))
}

#[track_caller]
fn read(answer: std::io::Result<Vec<u8>>) -> Answer {
    let answer = answer.unwrap_or_else(|e| panic!("no answer from {}: {e}", url()));
    let text = String::from_utf8_lossy(&answer);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "not read here: {head}");
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{head}"));
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

fn exchange(request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address())?;
    stream.set_read_timeout(Some(hangs()))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

fn address() -> &'static str {
    url().trim_start_matches("http://").trim_end_matches('/')
}
