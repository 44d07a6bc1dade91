//! Whether anybody can still write to a file that a monitor was handed.
//!
//! A monitor may have been captured by its guest, keep what it was handed, and write to it long after it has said that
//! it is done. What the store names must not change, so a file becomes part of it as it is only where the kernel
//! vouches that nobody can write to it: it grants a *read lease* only while no open file description, of any process,
//! in a table of descriptors, under way in a socket or behind a mapping, can write. To get a new one the file would have
//! to be opened by its name, and that takes the user that the store belongs to: folders of drafts are that user's alone, and
//! so are the files. Where the lease is refused, the store takes a copy.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::disk;
use crate::error::StoreError;

/// A process that has just ended, or was just started by this one, holds its copies a moment longer.
const TRIES: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(5);
/// From `asm-generic/fcntl.h`: which signal tells of a lease that is broken.
const F_SETSIG: i32 = 10;

/// Whether from now on nobody can write to the file. A moment is waited for whoever is about to close it.
pub(crate) fn nobody_writes(path: &Path) -> Result<bool, StoreError> {
    let file = disk::open(path)?;
    for left in (0..TRIES).rev() {
        match lease(&file) {
            Ok(()) => return Ok(true),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && left > 0 => thread::sleep(BETWEEN),
            // Some file systems grant none.
            Err(_) => break,
        }
    }
    Ok(false)
}

/// Takes a read lease, and gives it back at once: that it was granted is all that counts.
fn lease(file: &File) -> io::Result<()> {
    // Whoever opened the file for writing meanwhile would have a signal sent here: one that does nothing.
    fcntl(file.as_fd(), F_SETSIG, libc::SIGURG)?;
    fcntl(file.as_fd(), libc::F_SETLEASE, libc::F_RDLCK)?;
    fcntl(file.as_fd(), libc::F_SETLEASE, libc::F_UNLCK)
}

#[expect(unsafe_code, reason = "no crate wraps leases")]
fn fcntl(file: BorrowedFd<'_>, command: i32, argument: i32) -> io::Result<()> {
    // SAFETY: these commands take a number and touch no memory; the descriptor is open for the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    #[test]
    fn a_file_is_sealed_once_no_writer_is_left_wherever_it_hides() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("layer");
        let mut writer = File::create(&path).unwrap();
        writer.write_all(b"x").unwrap();
        let reader = File::open(&path).unwrap();
        assert!(!nobody_writes(&path).unwrap());

        // Under way to another process.
        let (here, there) = UnixStream::pair().unwrap();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut passed = SendAncillaryBuffer::new(&mut space);
        let fds = [writer.as_fd()];
        assert!(passed.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&here, &[io::IoSlice::new(b"!")], &mut passed, SendFlags::empty()).unwrap();
        drop(writer);
        assert!(!nobody_writes(&path).unwrap());

        drop(there);
        assert!(nobody_writes(&path).unwrap());
        assert!(nobody_writes(&path).unwrap(), "asking changes nothing");
        drop(reader);
    }
}
