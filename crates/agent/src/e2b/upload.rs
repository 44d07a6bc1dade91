//! `POST /files`: writing whole files, one as the body or several as parts of a form.
//!
//! A file is written aside and renamed over the old one, so that no reader sees a half and a full disk leaves the old
//! one. Of several, those before one that fails are written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use futures::{Stream, StreamExt};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Request, StatusCode};
use multer::{Field, Multipart};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::files::{IN_FLIGHT, Refused, cleaned, no_path, target};
use super::filesystem::{give_to, make_parents};
use crate::agent::Agent;
use crate::http::{Body, Response};
use crate::users::User;

/// The parts of a form that are files.
const FIELD: &str = "file";
/// Most files of one form.
const FILES_MAX: usize = 10_000;

/// `POST /files`.
pub(crate) async fn upload(agent: &Agent, request: Request<Incoming>) -> Response {
    match write_files(agent, request).await {
        Ok(written) => Body::json(StatusCode::OK, &written),
        Err(refused) => refused.into_response(),
    }
}

async fn write_files(agent: &Agent, request: Request<Incoming>) -> Result<Vec<Value>, Refused> {
    let text = |name: HeaderName| {
        request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default()
    };
    let kind = text(CONTENT_TYPE).to_owned();
    let compressed = match text(CONTENT_ENCODING) {
        "" | "identity" => false,
        "gzip" => true,
        other => {
            let message = format!("content-encoding {other:.40} is not supported; send gzip or none");
            return Err(Refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
    };
    let (path, user) = target(agent, &request)?;
    if kind.starts_with("application/octet-stream") {
        let path = path.ok_or_else(no_path)?;
        let data = data_of(request.into_body());
        return Ok(vec![write_one(path, user, compressed, data).await?]);
    }
    let boundary = multer::parse_boundary(&kind).ok().filter(|_| !compressed);
    let boundary = boundary.ok_or_else(|| {
        let message =
            "content-type is neither application/octet-stream nor multipart/form-data with a boundary";
        Refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, message.to_owned())
    })?;
    write_form(Multipart::new(data_of(request.into_body()), boundary), path, &user).await
}

/// Each part that is a file goes to the path of the request, or where that names none to the part's own name.
async fn write_form(
    mut form: Multipart<'static>,
    path: Option<PathBuf>,
    user: &User,
) -> Result<Vec<Value>, Refused> {
    let broken = |e: multer::Error| Refused(StatusCode::BAD_REQUEST, format!("the form cannot be read: {e}"));
    let mut written = Vec::new();
    while let Some(part) = form.next_field().await.map_err(broken)? {
        if part.name() != Some(FIELD) {
            continue;
        }
        if written.len() == FILES_MAX {
            return Err(Refused(StatusCode::PAYLOAD_TOO_LARGE, format!("more than {FILES_MAX} files")));
        }
        let to = match &path {
            Some(path) => path.clone(),
            None => cleaned(&name_of(&part).ok_or_else(no_path)?, user)?,
        };
        let data = part.map(|piece| piece.map_err(io::Error::other));
        written.push(write_one(to, user.clone(), false, data).await?);
    }
    if written.is_empty() {
        return Err(Refused(StatusCode::BAD_REQUEST, format!("the form has no part {FIELD:?}")));
    }
    Ok(written)
}

/// As clients write it: a quotation mark as `%22`.
fn name_of(part: &Field<'_>) -> Option<String> {
    part.file_name().filter(|name| !name.is_empty()).map(|name| name.replace("%22", "\""))
}

pub(super) fn data_of(body: Incoming) -> impl Stream<Item = io::Result<Bytes>> + Unpin + Send {
    body.into_data_stream().map(|piece| piece.map_err(io::Error::other))
}

/// Writes a file; how it is listed in the answer.
async fn write_one(
    path: PathBuf,
    user: User,
    compressed: bool,
    data: impl Stream<Item = io::Result<Bytes>> + Unpin,
) -> Result<Value, Refused> {
    let (chunks, receiver) = mpsc::channel(IN_FLIGHT);
    let wanted = path.clone();
    let writer = tokio::task::spawn_blocking(move || write_aside(&wanted, &user, receiver, compressed));
    if send(data, &chunks).await {
        // An end that the writer does not see means that the client went away half-way.
        let _ = chunks.send(Piece::End).await;
    }
    drop(chunks);
    let written = writer.await.map_err(io::Error::other).and_then(|written| written);
    written.map_err(|e| Refused::io(&path, &e))?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(json!({ "name": name, "path": path.to_string_lossy(), "type": "file" }))
}

pub(super) enum Piece {
    Data(Bytes),
    End,
}

/// Whether all of it came and was taken.
pub(super) async fn send(
    mut data: impl Stream<Item = io::Result<Bytes>> + Unpin,
    chunks: &mpsc::Sender<Piece>,
) -> bool {
    while let Some(piece) = data.next().await {
        let Ok(piece) = piece else { return false };
        if chunks.send(Piece::Data(piece)).await.is_err() {
            return false;
        }
    }
    true
}

fn write_aside(path: &Path, user: &User, chunks: mpsc::Receiver<Piece>, compressed: bool) -> io::Result<()> {
    let incoming = Chunks::new(chunks);
    let content: Box<dyn Read> =
        if compressed { Box::new(MultiGzDecoder::new(incoming)) } else { Box::new(incoming) };
    // The file that a link leads to is the one that is written.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let old = fs::metadata(path).ok();
    if old.as_ref().is_some_and(fs::Metadata::is_dir) {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    make_parents(folder, user)?;
    if old.as_ref().is_some_and(|metadata| !metadata.is_file()) {
        return write_in_place(path, content);
    }
    let aside = Aside::create(folder)?;
    pour(content, &aside.file)?;
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
fn write_in_place(path: &Path, content: Box<dyn Read>) -> io::Result<()> {
    pour(content, &OpenOptions::new().write(true).open(path)?)
}

fn pour(mut content: Box<dyn Read>, mut file: &File) -> io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match content.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => file.write_all(&buffer[..count])?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// What comes from the network, to be read where one may wait.
pub(super) struct Chunks {
    chunks: mpsc::Receiver<Piece>,
    piece: Bytes,
    ended: bool,
}

impl Chunks {
    pub(super) fn new(chunks: mpsc::Receiver<Piece>) -> Self {
        Self { chunks, piece: Bytes::new(), ended: false }
    }
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.ended {
            match self.chunks.blocking_recv() {
                Some(Piece::Data(data)) => self.piece = data,
                Some(Piece::End) => self.ended = true,
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the upload broke off")),
            }
        }
        let count = self.piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}

/// A file under a name of its own, gone unless renamed.
pub(super) struct Aside {
    pub(super) path: PathBuf,
    pub(super) file: File,
    renamed: bool,
}

impl Aside {
    pub(super) fn create(folder: &Path) -> io::Result<Self> {
        let path = folder.join(format!(".forkd-{:016x}", rand::random::<u64>()));
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok(Self { path, file, renamed: false })
    }

    pub(super) fn rename(mut self, target: &Path) -> io::Result<()> {
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
