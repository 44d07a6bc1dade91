//! `/tar`: folders as archives, both ways, without any program of the image.
//!
//! Files, folders and links; what is none of them (sockets, devices) is left out on the way out and refused on the way in.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use serde_json::json;
use tar::EntryType;
use tokio::sync::mpsc;

use super::files::{IN_FLIGHT, Refused, no_path, target};
use super::filesystem::{give_to, make_parents};
use super::upload::{Aside, Chunks, Piece, data_of, send};
use crate::agent::{Agent, blocking};
use crate::http::{Body, Response};
use crate::users::User;

/// Bytes of an archive that are sent at a time.
const PIECE: usize = 256 * 1024;

/// `GET`: an archive of what lies at a path; its first entry is called as that is.
pub(crate) async fn pack(agent: &Agent, request: Request<Incoming>) -> Response {
    begin_packing(agent, &request).await.unwrap_or_else(Refused::into_response)
}

async fn begin_packing(agent: &Agent, request: &Request<Incoming>) -> Result<Response, Refused> {
    let path = target(agent, request)?.0.ok_or_else(no_path)?;
    let looked = path.clone();
    blocking(move || fs::symlink_metadata(looked)).await.map_err(|e| Refused::io(&path, &e))?;
    let (pieces, receiver) = mpsc::channel(IN_FLIGHT);
    tokio::task::spawn_blocking(move || {
        let mut out = io::BufWriter::with_capacity(PIECE, Pieces(pieces.clone()));
        let packed = write_archive(&path, &mut out).and_then(|()| out.flush());
        if let Err(e) = packed {
            // Without this the client would take what came so far for the whole.
            let _ = pieces.blocking_send(Err(e));
        }
    });
    let stream =
        futures::stream::unfold(receiver, |mut pieces| async { Some((pieces.recv().await?, pieces)) });
    Ok(Body::pieces(stream).respond(StatusCode::OK, "application/x-tar"))
}

fn write_archive(path: &Path, out: &mut dyn Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    let name = path.file_name().map_or_else(|| PathBuf::from("root"), PathBuf::from);
    let mut left = vec![(path.to_owned(), name)];
    while let Some((path, name)) = left.pop() {
        // Gone since its folder was read.
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let kind = metadata.file_type();
        if kind.is_dir() {
            archive.append_dir(&name, &path)?;
            for entry in fs::read_dir(&path)? {
                let entry = entry?;
                left.push((entry.path(), name.join(entry.file_name())));
            }
        } else if kind.is_file() || kind.is_symlink() {
            archive.append_path_with_name(&path, &name)?;
        }
    }
    archive.finish()
}

/// Hands what is written to the answer.
struct Pieces(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        // A client that left needs no more.
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `POST`: unpacks an archive below a folder, which is made where it is missing. All belongs to the user.
pub(crate) async fn unpack(agent: &Agent, request: Request<Incoming>) -> Response {
    match take_in(agent, request).await {
        Ok(entries) => Body::json(StatusCode::OK, &json!({ "entries": entries })),
        Err(refused) => refused.into_response(),
    }
}

async fn take_in(agent: &Agent, request: Request<Incoming>) -> Result<u64, Refused> {
    let (path, user) = target(agent, &request)?;
    let folder = path.ok_or_else(no_path)?;
    let (chunks, receiver) = mpsc::channel(IN_FLIGHT);
    let into = folder.clone();
    let work = tokio::task::spawn_blocking(move || read_archive(Chunks::new(receiver), &into, &user));
    if send(data_of(request.into_body()), &chunks).await {
        let _ = chunks.send(Piece::End).await;
    }
    drop(chunks);
    let done = work.await.map_err(io::Error::other).and_then(|done| done);
    done.map_err(|e| Refused::io(&folder, &e))
}

fn read_archive(content: impl Read, folder: &Path, user: &User) -> io::Result<u64> {
    make_parents(folder, user)?;
    let mut entries = 0;
    for entry in tar::Archive::new(content).entries()? {
        place(&mut entry?, folder, user)?;
        entries += 1;
    }
    Ok(entries)
}

fn place(entry: &mut tar::Entry<'_, impl Read>, folder: &Path, user: &User) -> io::Result<()> {
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why.to_owned()));
    let name = entry.path()?.into_owned();
    if !name.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return refused("an entry leads out of the folder");
    }
    let path = folder.join(name);
    let mode = entry.header().mode().unwrap_or(0o644) & 0o7777;
    match entry.header().entry_type() {
        EntryType::Directory => {
            make_parents(&path, user)?;
            give_to(&path, user)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
        }
        EntryType::Regular | EntryType::Continuous => {
            let parent = path.parent().unwrap_or(folder);
            make_parents(parent, user)?;
            let aside = Aside::create(parent)?;
            copy(entry, &aside.file)?;
            give_to(&aside.path, user)?;
            aside.file.set_permissions(fs::Permissions::from_mode(mode))?;
            aside.rename(&path)
        }
        EntryType::Symlink => {
            let Some(to) = entry.link_name()? else { return refused("an entry is a link to nothing") };
            make_parents(path.parent().unwrap_or(folder), user)?;
            if fs::symlink_metadata(&path).is_ok_and(|there| !there.is_dir()) {
                fs::remove_file(&path)?;
            }
            symlink(to, &path)?;
            if nix::unistd::geteuid().is_root() {
                lchown(&path, Some(user.uid), Some(user.gid))?;
            }
            Ok(())
        }
        _ => refused("an entry is neither file nor folder nor symbolic link"),
    }
}

/// All of an entry, or an error.
fn copy(entry: &mut tar::Entry<'_, impl Read>, mut file: &File) -> io::Result<()> {
    let size = entry.size();
    if io::copy(entry, &mut file)? != size {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the upload broke off"));
    }
    Ok(())
}
