//! `/files`: reading and writing whole files.
//!
//! A file is written aside and renamed over the old one, so that no reader sees a half and a full disk leaves the old
//! one. Uploads in several parts, compressed ones and signed addresses are answered as unimplemented.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, RANGE,
};
use hyper::{Request, StatusCode};
use serde_json::json;
use tokio::sync::mpsc;

use super::filesystem::{clean, failed, give_to, make_parents};
use super::query::Query;
use super::user_named;
use crate::agent::blocking;
use crate::http::{Body, Response};
use crate::users::User;

const CHUNK: usize = 256 * 1024;
/// Most bytes of a file that does not say how many it has.
const UNSIZED_MAX: u64 = 16 << 20;
/// Chunks on their way between the disk and the network.
const IN_FLIGHT: usize = 4;

/// A refused request, as clients of these two routes read it.
struct Refused(StatusCode, String);

impl Refused {
    fn into_response(self) -> Response {
        let Self(status, message) = self;
        Body::json(status, &json!({ "code": status.as_u16(), "message": message }))
    }

    fn io(path: &Path, error: &io::Error) -> Self {
        let status = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StatusCode::INSUFFICIENT_STORAGE,
            io::ErrorKind::IsADirectory => StatusCode::BAD_REQUEST,
            _ => failed(path, error).code.status(),
        };
        Self(status, format!("{}: {error}", path.display()))
    }
}

/// Path and user of a request.
fn target(request: &Request<Incoming>) -> Result<(PathBuf, User), Refused> {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let user =
        user_named(query.get("username")).map_err(|e| Refused(StatusCode::UNAUTHORIZED, e.to_string()))?;
    let path = query.get("path").filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| Refused(StatusCode::BAD_REQUEST, "path is required".into()))?;
    let path = clean(path, &user).map_err(|e| Refused(StatusCode::BAD_REQUEST, e.to_string()))?;
    Ok((path, user))
}

/// `GET /files`.
pub(crate) async fn download(request: Request<Incoming>) -> Response {
    read_file(request).await.unwrap_or_else(Refused::into_response)
}

/// `POST /files`.
pub(crate) async fn upload(request: Request<Incoming>) -> Response {
    write_file(request).await.unwrap_or_else(Refused::into_response)
}

async fn read_file(request: Request<Incoming>) -> Result<Response, Refused> {
    let (path, _) = target(&request)?;
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

async fn write_file(request: Request<Incoming>) -> Result<Response, Refused> {
    let text = |name| {
        request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default()
    };
    if !text(CONTENT_TYPE).starts_with("application/octet-stream") {
        let message = "only application/octet-stream with a path is supported".to_owned();
        return Err(Refused(StatusCode::NOT_IMPLEMENTED, message));
    }
    if !matches!(text(CONTENT_ENCODING), "" | "identity") {
        return Err(Refused(StatusCode::NOT_IMPLEMENTED, "compressed uploads are not supported".to_owned()));
    }
    let (path, user) = target(&request)?;
    let (chunks, receiver) = mpsc::channel(IN_FLIGHT);
    let wanted = path.clone();
    let writer = tokio::task::spawn_blocking(move || write_aside(&wanted, &user, receiver));
    let complete = send_body(request.into_body(), &chunks).await;
    if complete {
        // An end that the writer does not see means that the client went away half-way.
        let _ = chunks.send(Piece::End).await;
    }
    drop(chunks);
    let written = writer.await.map_err(io::Error::other).and_then(|written| written);
    written.map_err(|e| Refused::io(&path, &e))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Body::json(StatusCode::OK, &json!([{ "name": name, "path": path.to_string_lossy(), "type": "file" }])))
}

enum Piece {
    Data(Bytes),
    End,
}

/// Whether the whole body came and was taken.
async fn send_body(mut body: Incoming, chunks: &mpsc::Sender<Piece>) -> bool {
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        let Ok(data) = frame.into_data() else { continue };
        if chunks.send(Piece::Data(data)).await.is_err() {
            return false;
        }
    }
    true
}

fn write_aside(path: &Path, user: &User, chunks: mpsc::Receiver<Piece>) -> io::Result<()> {
    // The file that a link leads to is the one that is written.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let old = fs::metadata(path).ok();
    if old.as_ref().is_some_and(fs::Metadata::is_dir) {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    make_parents(folder, user)?;
    if old.as_ref().is_some_and(|metadata| !metadata.is_file()) {
        return write_in_place(path, chunks);
    }
    let aside = Aside::create(folder)?;
    pour(chunks, &aside.file)?;
    match &old {
        Some(metadata) => {
            aside.file.set_permissions(fs::Permissions::from_mode(metadata.permissions().mode() & 0o7777))?
        }
        None => aside.file.set_permissions(fs::Permissions::from_mode(0o644))?,
    }
    give_to(&aside.path, user)?;
    aside.rename(path)
}

/// Devices and pipes cannot be replaced.
fn write_in_place(path: &Path, chunks: mpsc::Receiver<Piece>) -> io::Result<()> {
    pour(chunks, &OpenOptions::new().write(true).open(path)?)
}

fn pour(mut chunks: mpsc::Receiver<Piece>, mut file: &File) -> io::Result<()> {
    loop {
        match chunks.blocking_recv() {
            Some(Piece::Data(data)) => file.write_all(&data)?,
            Some(Piece::End) => return Ok(()),
            None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the upload broke off")),
        }
    }
}

/// A file under a name of its own, gone unless renamed.
struct Aside {
    path: PathBuf,
    file: File,
    renamed: bool,
}

impl Aside {
    fn create(folder: &Path) -> io::Result<Self> {
        let path = folder.join(format!(".forkd-{:016x}", rand::random::<u64>()));
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok(Self { path, file, renamed: false })
    }

    fn rename(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::remove_file(&self.path);
        }
    }
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
