//! `GET /files`: reading whole files, or parts of them.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use hyper::body::Incoming;
use hyper::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, HeaderValue, RANGE};
use hyper::{Request, StatusCode};
use serde_json::json;
use tokio::sync::mpsc;

use super::filesystem::{clean, failed};
use super::query::Query;
use super::user_named;
use crate::agent::{Agent, blocking};
use crate::http::{Body, Response};
use crate::users::{DEFAULT_USER, User};

const CHUNK: usize = 256 * 1024;
/// Most bytes of a file that does not say how many it has.
const UNSIZED_MAX: u64 = 16 << 20;
/// Chunks on their way between the disk and the network.
pub(super) const IN_FLIGHT: usize = 4;

/// A refused request, as clients of these two routes read it.
pub(super) struct Refused(pub(super) StatusCode, pub(super) String);

impl Refused {
    pub(super) fn into_response(self) -> Response {
        let Self(status, message) = self;
        Body::json(status, &json!({ "code": status.as_u16(), "message": message }))
    }

    pub(super) fn io(path: &Path, error: &io::Error) -> Self {
        let status = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
            io::ErrorKind::IsADirectory
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::InvalidData
            | io::ErrorKind::UnexpectedEof => StatusCode::BAD_REQUEST,
            _ => failed(path, error).code.status(),
        };
        Self(status, format!("{}: {error}", path.display()))
    }
}

/// The user of a request, and the path where it names one.
pub(super) fn target(agent: &Agent, request: &Request<Incoming>) -> Result<(Option<PathBuf>, User), Refused> {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let user = user_named(query.get("username"), agent.spawner.image(), DEFAULT_USER)
        .map_err(|e| Refused(StatusCode::UNAUTHORIZED, e.to_string()))?;
    let path = query.get("path").filter(|path| !path.is_empty());
    let path = path.map(|path| cleaned(path, &user)).transpose()?;
    Ok((path, user))
}

pub(super) fn cleaned(path: &str, user: &User) -> Result<PathBuf, Refused> {
    clean(path, user).map_err(|e| Refused(StatusCode::BAD_REQUEST, e.to_string()))
}

pub(super) fn no_path() -> Refused {
    Refused(StatusCode::BAD_REQUEST, "path is required".into())
}

/// `GET /files`.
pub(crate) async fn download(agent: &Agent, request: Request<Incoming>) -> Response {
    read_file(agent, request).await.unwrap_or_else(Refused::into_response)
}

async fn read_file(agent: &Agent, request: Request<Incoming>) -> Result<Response, Refused> {
    let path = target(agent, &request)?.0.ok_or_else(no_path)?;
    let range = request.headers().get(RANGE).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let opened = path.clone();
    let opened = blocking(move || open_regular(&opened)).await;
    let source = opened.map_err(|e| Refused::io(&path, &e))?;
    let length = source.length();
    let part = match range.as_deref().map(|range| parse_range(range, length)) {
        None | Some(Range::Ignored) => None,
        Some(Range::Part(start, end)) => Some((start, end)),
        Some(Range::Unsatisfiable) => {
            let mut response =
                Refused(StatusCode::RANGE_NOT_SATISFIABLE, "range not satisfiable".into()).into_response();
            insert(&mut response, CONTENT_RANGE, &format!("bytes */{length}"));
            return Ok(response);
        }
    };
    let (start, end) = part.unwrap_or((0, length));
    let status = if part.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let mut response = source.body(start, end).respond(status, "application/octet-stream");
    insert(&mut response, CONTENT_LENGTH, &(end - start).to_string());
    insert(&mut response, ACCEPT_RANGES, "bytes");
    if part.is_some() {
        insert(&mut response, CONTENT_RANGE, &format!("bytes {start}-{}/{length}", end - 1));
    }
    Ok(response)
}

fn insert(response: &mut Response, name: hyper::header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

/// What a download takes its bytes from.
enum Source {
    File(File, u64),
    /// The file says that it is empty, as those of /proc do, and may hold something else each time it is read.
    Read(Bytes),
}

impl Source {
    fn length(&self) -> u64 {
        match self {
            Self::File(_, length) => *length,
            Self::Read(bytes) => bytes.len() as u64,
        }
    }

    /// The bytes from `start` up to, not including, `end`.
    fn body(self, start: u64, end: u64) -> Body {
        match self {
            _ if start == end => Body::empty(),
            Self::File(file, _) => Body::pieces(stream_of(file, start, end)),
            // Both lie within what was read, which fits memory.
            Self::Read(bytes) => Body::whole(bytes.slice(start as usize..end as usize)),
        }
    }
}

/// Without waiting for the writer of a pipe.
fn open_regular(path: &Path) -> io::Result<Source> {
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidFilename, "not a regular file"));
    }
    let file = File::open(path)?;
    if metadata.len() > 0 {
        return Ok(Source::File(file, metadata.len()));
    }
    let mut bytes = Vec::new();
    (&file).take(UNSIZED_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > UNSIZED_MAX {
        let why = format!("it does not say how long it is and holds more than {UNSIZED_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
    }
    Ok(Source::Read(bytes.into()))
}

#[derive(Debug, PartialEq, Eq)]
enum Range {
    /// From the first number up to, not including, the second.
    Part(u64, u64),
    Unsatisfiable,
    /// Of a kind not supported, which a server may answer with the whole.
    Ignored,
}

fn parse_range(text: &str, length: u64) -> Range {
    let Some((first, last)) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')) else {
        return Range::Ignored;
    };
    let (start, end) = match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => (first, last.saturating_add(1).min(length)),
        (Ok(first), Err(_)) if last.trim().is_empty() => (first, length),
        (Err(_), Ok(count)) if first.trim().is_empty() => (length.saturating_sub(count), length),
        _ => return Range::Ignored,
    };
    if start < end { Range::Part(start, end) } else { Range::Unsatisfiable }
}

fn stream_of(mut file: File, start: u64, end: u64) -> impl futures::Stream<Item = io::Result<Bytes>> {
    let (chunks, receiver) = mpsc::channel(IN_FLIGHT);
    tokio::task::spawn_blocking(move || {
        let mut left = end - start;
        let mut seek = file.seek(SeekFrom::Start(start)).map(drop);
        while left > 0 {
            let size = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            let mut chunk = BytesMut::zeroed(size);
            let read =
                std::mem::replace(&mut seek, Ok(())).and_then(|()| file.read(&mut chunk)).and_then(|count| {
                    // Cut short while it was read: the client must not take what it got for the whole.
                    if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(count) }
                });
            let failed = read.is_err();
            let piece = read.map(|count| {
                left -= count as u64;
                chunk.truncate(count);
                chunk.freeze()
            });
            // A client that left needs no more.
            if chunks.blocking_send(piece).is_err() || failed {
                return;
            }
        }
    });
    futures::stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        assert_eq!(parse_range("bytes=0-9", 100), Range::Part(0, 10));
        assert_eq!(parse_range("bytes=90-", 100), Range::Part(90, 100));
        assert_eq!(parse_range("bytes=-10", 100), Range::Part(90, 100));
        assert_eq!(parse_range("bytes=-1000", 100), Range::Part(0, 100));
        assert_eq!(parse_range("bytes=50-1000", 100), Range::Part(50, 100));
        assert_eq!(parse_range("bytes=100-", 100), Range::Unsatisfiable);
        assert_eq!(parse_range("bytes=0-18446744073709551615", 100), Range::Part(0, 100));
        assert_eq!(parse_range("bytes=-0", 100), Range::Unsatisfiable);
        for odd in ["bytes=5-4", "lines=1-2", "bytes=1-2,4-5", "bytes=x", ""] {
            assert_eq!(parse_range(odd, 100), Range::Ignored, "{odd}");
        }
    }
}
