//! Folders as archives on their way to a sandbox and back.
//!
//! What comes from a sandbox is hostile: it is unpacked in a folder of its own, through no link, and only then put where
//! it is wanted. So a copy that breaks off leaves nothing, and nothing is written beside the destination.

use std::fs;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use forkd_protocol::error::ErrorClass;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tar::EntryType;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::client::{self, Body};
use crate::error::{BoxError, CliError};
use crate::upload::blocking;

/// Bytes handed on at a time, and how many such pieces wait at most.
const PIECE: usize = 256 << 10;
const WAITING: usize = 8;
/// Most entries that are taken from a sandbox.
const MAX_ENTRIES: u64 = 2_000_000;

/// The body that carries what lies at `from`, called `name`, and how reading it ended. `done` counts bytes.
pub(crate) fn pack(from: PathBuf, name: String, done: Arc<AtomicU64>) -> (Body, JoinHandle<io::Result<()>>) {
    let (sender, receiver) = mpsc::channel(WAITING);
    let packing = tokio::task::spawn_blocking(move || {
        let abort = sender.clone();
        let packed = write(&from, &name, BufWriter::with_capacity(PIECE, Pieces { sender, done }));
        if let Err(e) = &packed {
            // Without this the far end would take what came so far for the whole.
            let _ = abort.blocking_send(Err(e.to_string().into()));
        }
        packed
    });
    let pieces = futures::stream::unfold(receiver, |mut r| async move { Some((r.recv().await?, r)) });
    (client::streamed(pieces), packing)
}

fn write(from: &Path, name: &str, out: impl Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    if fs::metadata(from)?.is_dir() {
        archive.follow_symlinks(false);
        archive.append_dir_all(name, from)?;
    } else {
        archive.append_path_with_name(from, name)?;
    }
    archive.into_inner()?.flush()
}

/// Hands what is written to a request body.
struct Pieces {
    sender: mpsc::Sender<Result<Bytes, BoxError>>,
    done: Arc<AtomicU64>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.sender.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        self.done.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Unpacks what comes, and puts it at `to`, or into it where that is a folder; where it lies then.
pub(crate) async fn unpack(body: Incoming, to: PathBuf, done: Arc<AtomicU64>) -> Result<PathBuf, CliError> {
    let (sender, receiver) = mpsc::channel(WAITING);
    let receiving = tokio::spawn(receive(body, sender));
    let what = format!("copying to {}", to.display());
    let placed = blocking(move || take(Received { receiver, piece: Bytes::new(), done }, &to)).await?;
    receiving.abort();
    placed.map_err(|e| match e.kind() {
        io::ErrorKind::InvalidData => {
            CliError::caused(ErrorClass::GuestFault, "the sandbox sent no good archive", e)
        }
        _ => CliError::io(what, e),
    })
}

async fn receive(mut body: Incoming, sender: mpsc::Sender<io::Result<Bytes>>) {
    while let Some(frame) = body.frame().await {
        let piece = match frame {
            Ok(frame) => frame.into_data().map_err(|_| io::ErrorKind::InvalidData.into()),
            Err(e) => Err(io::Error::other(e)),
        };
        if sender.send(piece).await.is_err() {
            return;
        }
    }
}

/// What comes, to be read where one may wait.
struct Received {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
    done: Arc<AtomicU64>,
}

impl Read for Received {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let count = self.piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        self.done.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

fn take(content: impl Read, to: &Path) -> io::Result<PathBuf> {
    let (parent, inside) = match fs::metadata(to) {
        Ok(there) if there.is_dir() => (to.to_owned(), true),
        _ => (to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned(), false),
    };
    // On the same file system, so that putting it in place is a rename.
    let aside = tempfile::Builder::new().prefix(".forkd-cp-").tempdir_in(&parent)?;
    let root = spread(content, aside.path())?;
    let to = if inside { parent.join(&root) } else { to.to_owned() };
    unite(&aside.path().join(&root), &to)?;
    Ok(to)
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Unpacks into an empty folder; the one name that all of it lies under.
fn spread(content: impl Read, folder: &Path) -> io::Result<PathBuf> {
    let mut archive = tar::Archive::new(content);
    archive.set_preserve_permissions(false);
    archive.set_overwrite(false);
    let mut root: Option<PathBuf> = None;
    for (n, entry) in (0..).zip(archive.entries()?) {
        let mut entry = entry.map_err(|e| bad(&e.to_string()))?;
        if n >= MAX_ENTRIES {
            return Err(bad("it has more than two million entries"));
        }
        let path = entry.path()?.into_owned();
        let Some(Component::Normal(first)) = path.components().next() else {
            return Err(bad("an entry has an impossible name"));
        };
        if root.get_or_insert_with(|| first.into()).as_path() != Path::new(first) {
            return Err(bad("its entries do not lie under one name"));
        }
        let known = [EntryType::Regular, EntryType::Directory, EntryType::Symlink];
        // False where the entry would lead out, through `..` or a link.
        if !known.contains(&entry.header().entry_type()) || !entry.unpack_in(folder)? {
            return Err(bad("an entry is of a kind or at a place that is not taken"));
        }
    }
    root.ok_or_else(|| bad("it is empty"))
}

/// Puts something in place; folders are united, and what is in the way otherwise is replaced.
fn unite(from: &Path, to: &Path) -> io::Result<()> {
    let is_folder = |path: &Path| fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
    if !(is_folder(from) && is_folder(to)) {
        return fs::rename(from, to);
    }
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        unite(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kind, name, and content or target.
    type Told = (EntryType, &'static str, &'static str);

    fn archive(entries: &[Told]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (kind, name, content) in entries {
            let mut header = tar::Header::new_ustar();
            let raw = header.as_ustar_mut().unwrap();
            raw.name[..name.len()].copy_from_slice(name.as_bytes());
            let link = if *kind == EntryType::Symlink { *content } else { "" };
            raw.linkname[..link.len()].copy_from_slice(link.as_bytes());
            let data = if link.is_empty() { content.as_bytes() } else { b"" };
            header.set_entry_type(*kind);
            header.set_size(data.len() as u64);
            header.set_mode(0o755);
            header.set_cksum();
            archive.append(&header, data).unwrap();
        }
        archive.into_inner().unwrap()
    }

    const TREE: [Told; 3] = [
        (EntryType::Directory, "d/", ""),
        (EntryType::Regular, "d/f", "new"),
        (EntryType::Symlink, "d/l", "/etc"),
    ];

    #[test]
    fn it_lies_in_a_folder_that_is_there_or_is_called_as_asked() {
        let tmp = tempfile::tempdir().unwrap();
        let named = take(&archive(&TREE)[..], &tmp.path().join("name")).unwrap();
        assert_eq!(named, tmp.path().join("name"));
        assert_eq!(fs::read(named.join("f")).unwrap(), b"new");
        assert_eq!(fs::read_link(named.join("l")).unwrap(), Path::new("/etc"));
        fs::create_dir_all(tmp.path().join("there/d")).unwrap();
        fs::write(tmp.path().join("there/d/f"), "old").unwrap();
        fs::write(tmp.path().join("there/d/own"), "kept").unwrap();
        let inside = take(&archive(&TREE)[..], &tmp.path().join("there")).unwrap();
        assert_eq!(inside, tmp.path().join("there/d"));
        assert_eq!(fs::read(inside.join("f")).unwrap(), b"new");
        assert_eq!(fs::read(inside.join("own")).unwrap(), b"kept");
        let one = archive(&[(EntryType::Regular, "one", "1")]);
        fs::write(tmp.path().join("file"), "old").unwrap();
        take(&one[..], &tmp.path().join("file")).unwrap();
        assert_eq!(fs::read(tmp.path().join("file")).unwrap(), b"1");
    }

    #[test]
    fn hostile_archives_leave_nothing_anywhere() {
        let cases: &[(&str, &[Told])] = &[
            ("dots", &[(EntryType::Regular, "d/../../evil", "x")]),
            ("absolute", &[(EntryType::Regular, "/tmp/forkd-cp-evil", "x")]),
            ("two roots", &[(EntryType::Regular, "a", "x"), (EntryType::Regular, "b", "x")]),
            (
                "through a link",
                &[(EntryType::Symlink, "d", "/tmp"), (EntryType::Regular, "d/forkd-cp-evil", "x")],
            ),
            ("a device", &[(EntryType::Char, "d", "")]),
            ("a hard link", &[(EntryType::Link, "d", "/etc/passwd")]),
            ("nothing", &[]),
        ];
        for (what, entries) in cases {
            let tmp = tempfile::tempdir().unwrap();
            assert!(take(&archive(entries)[..], &tmp.path().join("to")).is_err(), "{what}");
            assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0, "{what}");
        }
        assert!(!Path::new("/tmp/forkd-cp-evil").exists());
        let whole = archive(&[(EntryType::Regular, "f", "a file that is cut off")]);
        let tmp = tempfile::tempdir().unwrap();
        assert!(take(&whole[..520], &tmp.path().join("to")).is_err());
        assert_eq!(fs::read_dir(tmp.path()).unwrap().count(), 0);
    }
}
