//! `filesystem.Filesystem`: look at, make, move and remove files.

use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use hyper::Request;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};

use super::connect::{Code, ConnectError, Empty, read_unary, unary};
use super::entry::{Entry, Names};
use super::process::path_of;
use super::{user_of, watch};
use crate::agent::Agent;
use crate::http::Response;
use crate::users::User;

/// Most entries of one listing.
const ENTRIES_MAX: usize = 100_000;

#[derive(Debug, Deserialize)]
struct PathRequest {
    #[serde(default)]
    path: String,
}

#[derive(Debug, Deserialize)]
struct ListRequest {
    #[serde(default)]
    path: String,
    #[serde(default)]
    depth: u32,
}

#[derive(Debug, Deserialize)]
struct MoveRequest {
    source: String,
    destination: String,
}

#[derive(Debug, Serialize)]
struct OneEntry {
    entry: Entry,
}

#[derive(Debug, Serialize)]
struct Entries {
    entries: Vec<Entry>,
}

/// Answers a method of the service.
pub(crate) async fn call(agent: Rc<Agent>, method: &str, request: Request<Incoming>) -> Response {
    let user = match user_of(request.headers(), agent.spawner.image()) {
        Ok(user) => user,
        Err(error) => return error.into_response(),
    };
    match method {
        "Stat" => unary(on_disk(request, user, stat).await),
        "ListDir" => unary(on_disk(request, user, list_dir).await),
        "MakeDir" => unary(on_disk(request, user, make_dir).await),
        "Move" => unary(on_disk(request, user, rename).await),
        "Remove" => unary(on_disk(request, user, remove).await),
        "WatchDir" | "CreateWatcher" | "GetWatcherEvents" | "RemoveWatcher" => {
            watch::call(agent, method, request, user).await
        }
        _ => {
            let message = format!("filesystem.Filesystem has no {method} in this agent");
            ConnectError::new(Code::Unimplemented, message).into_response()
        }
    }
}

/// Disks make wait, so another thread does the work.
async fn on_disk<Q, A>(
    request: Request<Incoming>,
    user: User,
    work: fn(Q, &User) -> Result<A, ConnectError>,
) -> Result<A, ConnectError>
where
    Q: for<'de> Deserialize<'de> + Send + 'static,
    A: Send + 'static,
{
    let question: Q = read_unary(request).await?;
    let done = tokio::task::spawn_blocking(move || work(question, &user)).await;
    done.map_err(|e| ConnectError::new(Code::Internal, e.to_string()))?
}

fn stat(request: PathRequest, user: &User) -> Result<OneEntry, ConnectError> {
    let path = clean(&request.path, user)?;
    entry(&path)
}

fn entry(path: &Path) -> Result<OneEntry, ConnectError> {
    Ok(OneEntry { entry: Entry::of(path, &Names::read()).map_err(|e| failed(path, &e))? })
}

fn list_dir(request: ListRequest, user: &User) -> Result<Entries, ConnectError> {
    let path = clean(&request.path, user)?;
    let metadata = fs::metadata(&path).map_err(|e| failed(&path, &e))?;
    if !metadata.is_dir() {
        return Err(ConnectError::invalid(format!("path is not a directory: {}", path.display())));
    }
    let names = Names::read();
    let mut entries = Vec::new();
    let mut folders = vec![(path, 1)];
    while let Some((folder, depth)) = folders.pop() {
        let read = fs::read_dir(&folder).map_err(|e| failed(&folder, &e))?;
        for child in read {
            let child = child.map_err(|e| failed(&folder, &e))?.path();
            // Gone since it was listed.
            let Ok(entry) = Entry::of(&child, &names) else { continue };
            if entries.len() == ENTRIES_MAX {
                let message = format!("more than {ENTRIES_MAX} entries; list with less depth");
                return Err(ConnectError::new(Code::ResourceExhausted, message));
            }
            entries.push(entry);
            if depth < request.depth && child.symlink_metadata().is_ok_and(|m| m.is_dir()) {
                folders.push((child, depth + 1));
            }
        }
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Entries { entries })
}

fn make_dir(request: PathRequest, user: &User) -> Result<OneEntry, ConnectError> {
    let path = clean(&request.path, user)?;
    match fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => {
            let message = format!("directory already exists: {}", path.display());
            return Err(ConnectError::new(Code::AlreadyExists, message));
        }
        Ok(_) => {
            let message = format!("path already exists but it is not a directory: {}", path.display());
            return Err(ConnectError::invalid(message));
        }
        Err(_) => {}
    }
    make_parents(&path, user).map_err(|e| failed(&path, &e))?;
    entry(&path)
}

fn rename(request: MoveRequest, user: &User) -> Result<OneEntry, ConnectError> {
    let source = clean(&request.source, user)?;
    let destination = clean(&request.destination, user)?;
    source.symlink_metadata().map_err(|e| failed(&source, &e))?;
    if let Some(parent) = destination.parent() {
        make_parents(parent, user).map_err(|e| failed(parent, &e))?;
    }
    fs::rename(&source, &destination).map_err(|e| failed(&source, &e))?;
    entry(&destination)
}

fn remove(request: PathRequest, user: &User) -> Result<Empty, ConnectError> {
    let path = clean(&request.path, user)?;
    if path == Path::new("/") {
        return Err(ConnectError::invalid("the root cannot be removed"));
    }
    let removed = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(&path),
        Ok(_) => fs::remove_file(&path),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(&path, &e)),
        _ => Ok(Empty {}),
    }
}

/// Makes a folder with its parents; what is new belongs to the user.
pub(super) fn make_parents(path: &Path, user: &User) -> io::Result<()> {
    let mut missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    missing.reverse();
    for folder in missing {
        match fs::create_dir(folder) {
            // Another call was faster.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        }
        give_to(folder, user)?;
    }
    Ok(())
}

/// An agent that is not root has its own files only.
pub(super) fn give_to(path: &Path, user: &User) -> io::Result<()> {
    if nix::unistd::geteuid().is_root() {
        chown(path, Some(user.uid), Some(user.gid))?;
    }
    Ok(())
}

/// Absolute and without `.`, `..` and doubled slashes, as the API shows paths. `..` is taken by its letters, not
/// through links: the path a client sees again is the one it gave.
pub(super) fn clean(path: &str, user: &User) -> Result<PathBuf, ConnectError> {
    let mut cleaned = PathBuf::from("/");
    for part in path_of(path, &user.home)?.components() {
        match part {
            Component::ParentDir => drop(cleaned.pop()),
            Component::Normal(name) => cleaned.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(cleaned)
}

/// An error of the file system in the API's codes.
pub(super) fn failed(path: &Path, error: &io::Error) -> ConnectError {
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Code::PermissionDenied,
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => Code::AlreadyExists,
        io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory | io::ErrorKind::InvalidFilename => {
            Code::InvalidArgument
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::ResourceExhausted,
        _ if error.raw_os_error() == Some(libc::ELOOP) => Code::FailedPrecondition,
        _ => Code::Internal,
    };
    ConnectError::new(code, format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::users;

    #[test]
    fn paths_are_cleaned() {
        let root = users::find("root").unwrap();
        let cleaned = |path: &str| clean(path, &root).unwrap();
        assert_eq!(cleaned("/a/./b//../c/"), Path::new("/a/c"));
        assert_eq!(cleaned("/../../etc"), Path::new("/etc"));
        assert_eq!(cleaned("x"), Path::new(&root.home).join("x"));
        assert!(clean("/a\0b", &root).is_err());
    }
}
