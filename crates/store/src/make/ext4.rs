//! A folder becomes an ext4 file.

use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};

use super::tool::Tool;
use super::{MakeError, Progress};

/// What a file system needs beside its content: tables, journal and room to write.
const SLACK: u64 = 192 << 20;
/// The largest image that a store takes.
const MAX_SIZE: u64 = crate::images::MAX_IMAGE_BYTES;
/// Folders nest at most this deep.
const MAX_DEPTH: usize = 256;

/// Writes the content of `folder` to `out` as a file system of `size` bytes, or more where the content
/// needs it. `identity` decides its UUID, so that making it again gives the same file as far as it can.
pub(super) fn make_ext4(
    folder: &Path,
    out: &Path,
    size: u64,
    identity: &str,
    progress: Progress<'_>,
) -> Result<(), MakeError> {
    let content = disk_usage(folder)?;
    let size = size.max(content + content / 8 + SLACK).next_multiple_of(1 << 20);
    if size > MAX_SIZE {
        return Err(MakeError::Caller(format!("{content} bytes of content do not fit an image (64 GiB)")));
    }
    progress(&format!("writing {} MiB into a file system of {} MiB", content >> 20, size >> 20));
    let file = super::file_beside(out)?;
    file.as_file().set_len(size).map_err(|e| MakeError::io("grow", file.path(), e))?;
    mke2fs(folder, file.path(), identity)?;
    super::put_in_place(file, out)
}

fn mke2fs(folder: &Path, out: &Path, identity: &str) -> Result<(), MakeError> {
    let hash = blake3::hash(identity.as_bytes());
    let uuid = uuid::Builder::from_random_bytes(hash.as_bytes()[..16].try_into().unwrap_or_default());
    let uuid = uuid.into_uuid().to_string();
    // Tables and journal are written now (as holes): a lazy kernel thread would otherwise write them in
    // every child, and every child would pay for the blocks.
    let options = format!("lazy_itable_init=0,lazy_journal_init=0,nodiscard,root_owner=0:0,hash_seed={uuid}");
    Tool::new("mke2fs", "e2fsprogs")
        .args(["-q", "-F", "-t", "ext4", "-m", "0", "-J", "size=16", "-L", "forkd-root", "-U", &uuid])
        .args(["-E", &options, "-d"])
        .args([folder, out])
        .env("E2FSPROGS_FAKE_TIME", "1600000000")
        .run(&mut |_| {})
}

/// Bytes that the files below `folder` occupy. Links are not followed.
fn disk_usage(folder: &Path) -> Result<u64, MakeError> {
    let failed = |e: rustix::io::Errno| MakeError::io("measure", folder, e);
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(folder, flags, Mode::empty()).map_err(failed)?;
    let mut total = 0;
    let mut folders = vec![(root, 0)];
    while let Some((dir, depth)) = folders.pop() {
        let entries = rustix::fs::Dir::read_from(&dir).map_err(failed)?;
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let stat =
                rustix::fs::statat(&dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
            // A small file still takes a block and an inode.
            total += u64::try_from(stat.st_blocks).unwrap_or(0) * 512 + 512;
            if FileType::from_raw_mode(stat.st_mode).is_dir() && depth < MAX_DEPTH {
                let below = rustix::fs::openat(&dir, name, flags, Mode::empty()).map_err(failed)?;
                folders.push((below, depth + 1));
            }
        }
    }
    Ok(total)
}
