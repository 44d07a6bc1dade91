//! File operations that survive a crash: written aside, fsynced, renamed, the folder fsynced.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::error::StoreError;

/// Opens an existing file for reading.
pub(crate) fn open(path: &Path) -> Result<File, StoreError> {
    File::open(path).map_err(|e| StoreError::io("open", path, e))
}

/// Creates a file that must not exist yet, for reading and writing.
pub(crate) fn create_new(path: &Path) -> Result<File, StoreError> {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|e| StoreError::io("create", path, e))
}

/// Creates a folder and what is above it.
pub(crate) fn create_folder(path: &Path) -> Result<(), StoreError> {
    fs::create_dir_all(path).map_err(|e| StoreError::io("create", path, e))
}

/// Makes the content of a finished file last, and read-only.
pub(crate) fn seal(path: &Path) -> Result<(), StoreError> {
    let file = open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o400))
        .and_then(|()| file.sync_all())
        .map_err(|e| StoreError::io("sync", path, e))
}

/// Makes the names in a folder last.
pub(crate) fn sync_folder(path: &Path) -> Result<(), StoreError> {
    open(path)?.sync_all().map_err(|e| StoreError::io("sync", path, e))
}

/// Renames; both must lie on one file system.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<(), StoreError> {
    fs::rename(from, to).map_err(|e| StoreError::io("rename", from, e))
}

/// Removes a file; one that is not there is fine.
pub(crate) fn remove_file(path: &Path) -> Result<(), StoreError> {
    not_found_is_fine(fs::remove_file(path)).map_err(|e| StoreError::io("remove", path, e))
}

/// Removes a folder with all that is in it; one that is not there is fine.
pub(crate) fn remove_folder(path: &Path) -> Result<(), StoreError> {
    not_found_is_fine(fs::remove_dir_all(path)).map_err(|e| StoreError::io("remove", path, e))
}

fn not_found_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes a stretch of a file zero, as a hole where the file system can have one.
pub(crate) fn punch(file: &File, at: u64, length: u64) -> io::Result<()> {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, hole, at, length) {
        Err(Errno::OPNOTSUPP) => {}
        done => return Ok(done?),
    }
    let zeroes = [0; 4096];
    let mut left = length;
    while left > 0 {
        let part = left.min(zeroes.len() as u64);
        file.write_all_at(&zeroes[..part as usize], at + (length - left))?;
        left -= part;
    }
    Ok(())
}

/// Bytes that a file occupies: holes cost nothing.
pub(crate) fn physical_bytes(path: &Path) -> u64 {
    fs::metadata(path).map(|m| m.blocks().saturating_mul(512)).unwrap_or(0)
}

/// Bytes that the files in a folder occupy; not those in folders below it.
pub(crate) fn folder_bytes(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| physical_bytes(&entry.path())).sum()
}

/// Copies at most `max` bytes into a new file; more is an error. Returns length and BLAKE3.
pub(crate) fn take_in(
    what: &'static str,
    from: impl Read,
    path: &Path,
    max: u64,
) -> Result<(u64, blake3::Hash), StoreError> {
    let mut file = create_new(path)?;
    let mut from = from.take(max.saturating_add(1));
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0u64;
    loop {
        let length = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(StoreError::io("receive", path, e)),
        };
        bytes += length as u64;
        if bytes > max {
            return Err(StoreError::Size { what, bytes, max });
        }
        hasher.update(&buffer[..length]);
        file.write_all(&buffer[..length]).map_err(|e| StoreError::io("write", path, e))?;
    }
    if bytes == 0 {
        return Err(StoreError::Size { what, bytes, max });
    }
    Ok((bytes, hasher.finalize()))
}

/// BLAKE3 of a whole file that has at most `max` bytes, and its length.
pub(crate) fn hash_file(
    what: &'static str,
    path: &Path,
    max: u64,
) -> Result<(u64, blake3::Hash), StoreError> {
    let file = open(path)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader((&file).take(max.saturating_add(1))).map_err(|e| StoreError::io("read", path, e))?;
    let bytes = hasher.count();
    if bytes == 0 || bytes > max {
        return Err(StoreError::Size { what, bytes, max });
    }
    Ok((bytes, hasher.finalize()))
}
