//! Unpacking a root file system from an archive that nobody vouches for.
//!
//! Every path is walked from the target folder with `openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)`, so no
//! entry can be written through a link that an earlier entry made, whatever its name says. Owners, modes
//! (setuid too: they are the guest's business), links and extended attributes are kept as they are.
//!
//! A layer of a container image is unpacked over what lower layers left. There links of lower layers may be walked
//! through, as far as the kernel finds that they stay beneath the target (`/bin` is one in most images).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use tar::EntryType;

use super::MakeError;
use crate::tarball::{ExtensionError, Extensions};

const MAX_ENTRIES: u64 = 2_000_000;
const MAX_PATH: usize = 4096;
const MAX_DEPTH: usize = 200;

/// What an archive held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    pub(super) entries: u64,
    pub(super) bytes: u64,
}

/// One entry, with its extensions applied.
struct Item {
    path: PathBuf,
    link: Option<PathBuf>,
    kind: EntryType,
    mode: u32,
    owner: (u32, u32),
    mtime: u64,
    size: u64,
    xattrs: Vec<(String, Vec<u8>)>,
}

/// Unpacks at most `max_bytes` of content into the empty folder `root`.
pub(super) fn unpack(archive: impl Read, root: &Path, max_bytes: u64) -> Result<Unpacked, MakeError> {
    fill(archive, root, Target::open(root, max_bytes, None)?)
}

/// Unpacks a layer of a container image over the layers below it, which `root` holds: what it has takes the place
/// of what is there, and what it whites out goes (OCI image specification, "Image Layer Filesystem Changeset").
pub(super) fn unpack_layer(archive: impl Read, root: &Path, max_bytes: u64) -> Result<Unpacked, MakeError> {
    fill(archive, root, Target::open(root, max_bytes, Some(Layer::default()))?)
}

fn fill(archive: impl Read, root: &Path, mut target: Target) -> Result<Unpacked, MakeError> {
    let failed = |e: io::Error| MakeError::io("unpack into", root, e);
    let max_bytes = target.max_bytes;
    // Headers and padding come on top of the content; a bomb of empty entries ends at their count.
    let bounded = archive.take(max_bytes.saturating_mul(2).saturating_add(64 << 20));
    let mut archive = tar::Archive::new(bounded);
    let mut extensions = Extensions::default();
    let mut seen_headers = 0u64;
    for entry in archive.entries().map_err(failed)?.raw(true) {
        let mut entry = entry.map_err(|e| broken("", e))?;
        seen_headers += 1;
        if seen_headers > MAX_ENTRIES {
            return Err(refused(Path::new(""), "is one of more than two million"));
        }
        if !extensions.take(&mut entry).map_err(of_extension)? {
            let item = Item::of(&entry, std::mem::take(&mut extensions))?;
            target.place(&item, &mut entry)?;
        }
    }
    target.finish()
}

fn refused(path: &Path, reason: &'static str) -> MakeError {
    MakeError::HostileArchive { entry: path.display().to_string().chars().take(200).collect(), reason }
}

fn broken(entry: &str, error: io::Error) -> MakeError {
    MakeError::Caller(format!(
        "the archive cannot be read {}{entry}: {error}",
        if entry.is_empty() { "" } else { "at " }
    ))
}

/// What is wrong with an extension header.
fn of_extension(error: ExtensionError) -> MakeError {
    match error {
        ExtensionError::Refused(reason) => refused(Path::new("extension header"), reason),
        ExtensionError::Broken(e) => broken("extension header", e),
    }
}

impl Item {
    fn of<R: Read>(entry: &tar::Entry<'_, R>, extensions: Extensions) -> Result<Self, MakeError> {
        let header = entry.header();
        let name = extensions.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let name = PathBuf::from(OsString::from_vec(name));
        let number = |value: io::Result<u64>| value.map_err(|e| broken(&name.display().to_string(), e));
        let link = extensions.link.or_else(|| header.link_name_bytes().map(|l| l.into_owned()));
        let owner = |given: Option<u32>, value: io::Result<u64>| match given {
            Some(id) => Ok(id),
            None => u32::try_from(number(value)?).map_err(|_| refused(&name, "has an impossible owner")),
        };
        Ok(Self {
            path: checked_path(&name)?,
            link: link.map(|l| PathBuf::from(OsString::from_vec(l))),
            kind: header.entry_type(),
            mode: header.mode().unwrap_or(0o644) & 0o7777,
            owner: (owner(extensions.uid, header.uid())?, owner(extensions.gid, header.gid())?),
            mtime: header.mtime().unwrap_or(0).min(i64::MAX as u64),
            size: number(header.entry_size())?,
            xattrs: extensions.xattrs,
        })
    }

    fn refused(&self, reason: &'static str) -> MakeError {
        refused(&self.path, reason)
    }
}

/// A relative path without `..`, `.` left out. Empty for the root itself.
fn checked_path(name: &Path) -> Result<PathBuf, MakeError> {
    let bytes = name.as_os_str().as_bytes();
    if bytes.len() > MAX_PATH || bytes.contains(&0) {
        return Err(refused(name, "has a name that is too long or has a NUL in it"));
    }
    let mut path = PathBuf::new();
    for part in name.components() {
        match part {
            Component::Normal(part) if part.len() <= 255 => path.push(part),
            Component::Normal(_) => return Err(refused(name, "has a name longer than 255 bytes")),
            Component::CurDir => {}
            Component::ParentDir => return Err(refused(name, "has .. in its path")),
            Component::RootDir | Component::Prefix(_) => return Err(refused(name, "has an absolute path")),
        }
    }
    if path.components().count() > MAX_DEPTH {
        return Err(refused(name, "lies in more than 200 folders"));
    }
    Ok(path)
}

/// The folder that is filled.
struct Target {
    root: OwnedFd,
    /// Times of folders, set last: filling a folder changes them.
    folders: Vec<(PathBuf, u64)>,
    max_bytes: u64,
    /// Where what is there is of lower layers.
    layer: Option<Layer>,
    done: Unpacked,
}

impl Target {
    fn open(root: &Path, max_bytes: u64, layer: Option<Layer>) -> Result<Self, MakeError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, root, flags, Mode::empty())
            .map_err(|e| MakeError::io("open", root, e))?;
        Ok(Self { root: fd, folders: Vec::new(), max_bytes, layer, done: Unpacked::default() })
    }

    fn place(&mut self, item: &Item, content: &mut impl Read) -> Result<(), MakeError> {
        self.done.entries += 1;
        let failed = |e: rustix::io::Errno| match e {
            rustix::io::Errno::EXIST => item.refused("appears twice"),
            // Nothing there: a link to nowhere takes the place of a folder.
            rustix::io::Errno::LOOP
            | rustix::io::Errno::XDEV
            | rustix::io::Errno::NOTDIR
            | rustix::io::Errno::NOENT => item.refused("leads through something that is not a folder"),
            other => MakeError::io("unpack", &item.path, other),
        };
        let Some(name) = item.path.file_name() else {
            return match item.kind {
                EntryType::Directory => self.set_root(item).map_err(failed),
                _ => Err(item.refused("has no name")),
            };
        };
        if self.layer.is_some()
            && let Some(whiteout) = Whiteout::of(name).map_err(|reason| item.refused(reason))?
        {
            return self.white_out(&item.path, whiteout).map_err(failed);
        }
        let parent = self.parent(&item.path).map_err(failed)?;
        self.make_way(&parent, name, item).map_err(failed)?;
        match item.kind {
            EntryType::Directory => self.folder(&parent, name, item).map_err(failed),
            EntryType::Regular | EntryType::Continuous => {
                let file = create_file(&parent, name).map_err(failed)?;
                self.fill(item, file, content)
            }
            EntryType::Symlink => self.symlink(&parent, name, item),
            EntryType::Link => self.hard_link(&parent, name, item),
            EntryType::Fifo => {
                rustix::fs::mknodat(&parent, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
                    .map_err(failed)?;
                set_owner_and_mode(&parent, name, item).map_err(failed)
            }
            // Guests get their devices from devtmpfs.
            EntryType::Char | EntryType::Block if item.path.starts_with("dev") => Ok(()),
            EntryType::Char | EntryType::Block => Err(item.refused("is a device outside /dev")),
            EntryType::GNUSparse => Err(item.refused("is a sparse file")),
            _ => Err(item.refused("is of a kind that a root file system does not have")),
        }
    }

    /// The folder that holds `path`, made where the archive left it out.
    fn parent(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let parent = path.parent().unwrap_or(Path::new(""));
        match self.folder_at(parent) {
            Err(rustix::io::Errno::NOENT) => {}
            other => return other,
        }
        let mut at = PathBuf::new();
        for part in parent.components() {
            let above = self.folder_at(&at)?;
            at.push(part);
            match rustix::fs::mkdirat(&above, part.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(e),
            }
        }
        self.folder_at(parent)
    }

    fn folder_at(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let resolve = if self.layer.is_some() { beneath } else { beneath | ResolveFlags::NO_SYMLINKS };
        rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve)
    }

    fn set_root(&mut self, item: &Item) -> rustix::io::Result<()> {
        let root = self.folder_at(Path::new(""))?;
        set_all(&root, item)
    }

    fn folder(&mut self, parent: &OwnedFd, name: &OsStr, item: &Item) -> rustix::io::Result<()> {
        match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
            // A folder may be named again (layers of an archive do), but not take the place of a link.
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e),
        }
        let folder = self.folder_at(&item.path)?;
        self.folders.push((item.path.clone(), item.mtime));
        set_all(&folder, item)
    }

    fn fill(&mut self, item: &Item, mut file: File, content: &mut impl Read) -> Result<(), MakeError> {
        let failed = |e: io::Error| MakeError::io("unpack", &item.path, e);
        self.done.bytes = self.done.bytes.saturating_add(item.size);
        if self.done.bytes > self.max_bytes {
            return Err(item.refused("makes the content larger than the file system"));
        }
        let copied = io::copy(&mut content.take(item.size), &mut file).map_err(failed)?;
        if copied != item.size {
            return Err(item.refused("is cut off"));
        }
        set_all(&file, item).map_err(|e| failed(e.into()))?;
        rustix::fs::futimens(&file, &times(item.mtime)).map_err(|e| failed(e.into()))
    }

    fn symlink(&mut self, parent: &OwnedFd, name: &OsStr, item: &Item) -> Result<(), MakeError> {
        let failed = |e: rustix::io::Errno| match e {
            rustix::io::Errno::EXIST => item.refused("appears twice"),
            other => MakeError::io("unpack", &item.path, other),
        };
        // Where it points is the guest's business: nothing here ever follows it.
        let to = item.link.as_ref().filter(|l| !l.as_os_str().is_empty());
        let to = to.ok_or_else(|| item.refused("is a link to nothing"))?;
        if to.as_os_str().len() >= MAX_PATH || to.as_os_str().as_bytes().contains(&0) {
            return Err(item.refused("is a link with an impossible target"));
        }
        rustix::fs::symlinkat(to, parent, name).map_err(failed)?;
        let (uid, gid) = ids(item);
        rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        rustix::fs::utimensat(parent, name, &times(item.mtime), AtFlags::SYMLINK_NOFOLLOW).map_err(failed)
    }

    fn hard_link(&mut self, parent: &OwnedFd, name: &OsStr, item: &Item) -> Result<(), MakeError> {
        let to = item.link.as_deref().ok_or_else(|| item.refused("is a link to nothing"))?;
        let to = checked_path(to).map_err(|_| item.refused("is a hard link that leaves the archive"))?;
        let missing = || item.refused("is a hard link to what the archive did not hold before");
        let to_name = to.file_name().ok_or_else(missing)?;
        let to_parent = self.folder_at(to.parent().unwrap_or(Path::new(""))).map_err(|_| missing())?;
        let stat =
            rustix::fs::statat(&to_parent, to_name, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| missing())?;
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            return Err(item.refused("is a hard link to a folder"));
        }
        rustix::fs::linkat(&to_parent, to_name, parent, name, AtFlags::empty()).map_err(|e| match e {
            rustix::io::Errno::EXIST => item.refused("appears twice"),
            other => MakeError::io("unpack", &item.path, other),
        })
    }

    fn finish(self) -> Result<Unpacked, MakeError> {
        for (path, mtime) in self.folders.iter().rev() {
            let set = self.folder_at(path).and_then(|folder| rustix::fs::futimens(&folder, &times(*mtime)));
            match set {
                // A later entry of a layer took its place.
                Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) if self.layer.is_some() => {}
                other => other.map_err(|e| MakeError::io("unpack", path, e))?,
            }
        }
        Ok(self.done)
    }
}

fn create_file(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?))
}

/// The owner goes first: changing it takes setuid bits and capabilities away.
fn set_all(file: impl AsFd, item: &Item) -> rustix::io::Result<()> {
    let (uid, gid) = ids(item);
    rustix::fs::fchown(&file, uid, gid)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(item.mode))?;
    for (name, value) in &item.xattrs {
        match rustix::fs::fsetxattr(&file, name.as_str(), value, XattrFlags::empty()) {
            // Labels of a security module that this machine does not run.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => {}
            other => other?,
        }
    }
    Ok(())
}

fn set_owner_and_mode(parent: &OwnedFd, name: &OsStr, item: &Item) -> rustix::io::Result<()> {
    let (uid, gid) = ids(item);
    rustix::fs::chownat(parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    // Made exclusively in a folder that only root can write: it is still what was made.
    rustix::fs::chmodat(parent, name, Mode::from_raw_mode(item.mode), AtFlags::empty())
}

fn ids(item: &Item) -> (Option<Uid>, Option<Gid>) {
    // -1 means "leave it" to chown; a file owned by it cannot exist.
    let known = |id: u32| (id != u32::MAX).then_some(id);
    (known(item.owner.0).map(Uid::from_raw), known(item.owner.1).map(Gid::from_raw))
}

fn times(mtime: u64) -> Timestamps {
    let time = Timespec { tv_sec: i64::try_from(mtime).unwrap_or(0), tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

mod layer;
use layer::{Layer, Whiteout};

#[cfg(test)]
mod tests;
