//! What unpacking over lower layers does beside: making way, and whiteouts.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use tar::EntryType;

use super::{Item, MAX_DEPTH, Target};

/// The names in a layer that stand for the absence of others.
const PREFIX: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// What the layer that is being unpacked put there itself: it whites out only what is below it.
#[derive(Debug, Default)]
pub(super) struct Layer {
    placed: HashSet<PathBuf>,
}

/// An entry that takes away.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Whiteout {
    /// What lower layers have under this name, beside the entry.
    Name(OsString),
    /// All that lower layers have in the folder of the entry.
    Opaque,
}

impl Whiteout {
    /// Whether a name is one; a reason where it is an impossible one.
    pub(super) fn of(name: &OsStr) -> Result<Option<Self>, &'static str> {
        let bytes = name.as_bytes();
        let Some(gone) = bytes.strip_prefix(PREFIX) else { return Ok(None) };
        match gone {
            _ if bytes == OPAQUE => Ok(Some(Self::Opaque)),
            b"" | b"." | b".." => Err("is a whiteout of nothing"),
            // Links and metadata of the old aufs, which mean nothing in an archive.
            _ if gone.starts_with(PREFIX) => Err("is a whiteout of a whiteout"),
            _ => Ok(Some(Self::Name(OsStr::from_bytes(gone).to_owned()))),
        }
    }
}

impl Target {
    /// Removes what is in the way of an entry, where lower layers may have put it there.
    pub(super) fn make_way(&mut self, parent: &OwnedFd, name: &OsStr, item: &Item) -> rustix::io::Result<()> {
        let Some(layer) = &mut self.layer else { return Ok(()) };
        layer.placed.insert(item.path.clone());
        match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e),
            // Folders are united.
            Ok(stat)
                if item.kind == EntryType::Directory && FileType::from_raw_mode(stat.st_mode).is_dir() =>
            {
                Ok(())
            }
            Ok(_) => remove(parent, name, 0),
        }
    }

    /// Takes away what lower layers have.
    pub(super) fn white_out(&mut self, entry: &Path, whiteout: Whiteout) -> rustix::io::Result<()> {
        let folder = entry.parent().unwrap_or(Path::new(""));
        let parent = match self.folder_at(folder) {
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        match whiteout {
            Whiteout::Name(name) => self.take_away(&parent, folder, &name, 0),
            Whiteout::Opaque => self.clear(&parent, folder, 0),
        }
    }

    /// Clears a folder of what is below this layer.
    fn clear(&self, folder: &OwnedFd, path: &Path, depth: usize) -> rustix::io::Result<()> {
        for name in names(folder)? {
            self.take_away(folder, path, &name, depth)?;
        }
        Ok(())
    }

    /// Removes one name, but for what this layer itself put there.
    fn take_away(&self, folder: &OwnedFd, path: &Path, name: &OsStr, depth: usize) -> rustix::io::Result<()> {
        let path = path.join(name);
        let ours = self.layer.as_ref().is_some_and(|layer| layer.placed.contains(&path));
        match (ours, open_folder(folder, name)) {
            (false, _) => remove(folder, name, depth),
            (true, Ok(below)) if depth < MAX_DEPTH => self.clear(&below, &path, depth + 1),
            (true, _) => Ok(()),
        }
    }
}

fn open_folder(parent: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

fn names(folder: &OwnedFd) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(&name).to_owned());
        }
    }
    Ok(names)
}

/// Removes a name with all that is below it, through no link.
fn remove(parent: &OwnedFd, name: &OsStr, depth: usize) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(Errno::NOENT) => return Ok(()),
        other => return other,
    }
    // Entries lie at most MAX_DEPTH folders deep, wherever a link of a lower layer put them.
    if depth > 2 * MAX_DEPTH {
        return Err(Errno::NAMETOOLONG);
    }
    let folder = open_folder(parent, name)?;
    for below in names(&folder)? {
        remove(&folder, &below, depth + 1)?;
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}
