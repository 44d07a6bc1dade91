//! Reading a template in, on behalf of the cgroup that holds it.
//!
//! A page of a file is charged to whoever reads it first. Were that a sandbox, the first one of a snapshot would pay for
//! what all of them use.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{Advice, FileType, SeekFrom, fadvise, fstat, seek};
use rustix::io::Errno;

/// What the kernel reads ahead for one call, at most: more would be cut off silently.
const PIECE: u64 = 1 << 20;

/// Has all data of a file read into memory, hole by hole left out. What is there already costs nothing.
///
/// # Errors
/// It is no file.
pub fn read_in(file: BorrowedFd<'_>) -> io::Result<()> {
    let stat = fstat(file)?;
    if !FileType::from_raw_mode(stat.st_mode).is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let end = u64::try_from(stat.st_size).unwrap_or(0);
    let mut at = 0;
    while at < end {
        let (from, to) = match data(file, at)? {
            Some(piece) => piece,
            None => break,
        };
        let mut piece = from;
        while piece < to {
            let length = (to - piece).min(PIECE);
            fadvise(file, piece, std::num::NonZeroU64::new(length), Advice::WillNeed)?;
            piece += length;
        }
        at = to;
    }
    Ok(())
}

/// The next stretch of data at or behind `at`.
fn data(file: BorrowedFd<'_>, at: u64) -> io::Result<Option<(u64, u64)>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(from) => Ok(Some((from, seek(file, SeekFrom::Hole(from))?))),
        Err(Errno::NXIO) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn data_is_found_between_holes_and_read() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        for at in [0, 8 << 20, 63 << 20] {
            file.write_all_at(&[1; 4096], at).unwrap();
        }
        assert_eq!(data(file.as_fd(), 4096).unwrap(), Some((8 << 20, (8 << 20) + 4096)));
        assert_eq!(data(file.as_fd(), (63 << 20) + 4096).unwrap(), None);
        read_in(file.as_fd()).unwrap();
        assert!(read_in(std::io::pipe().unwrap().0.as_fd()).is_err());
    }
}
