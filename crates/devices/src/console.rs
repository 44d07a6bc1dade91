//! Where a guest's console output goes: a file with a bound.

use std::fs::File;
use std::io::{self, Write};

/// Bytes that are kept of a console unless told otherwise.
pub const DEFAULT_CAP: u64 = 1 << 20;

/// A log of console output that stops growing at a bound. What comes later is dropped and counted, so a
/// guest that prints forever can fill no disk and is not slowed down or stopped either.
#[derive(Debug)]
pub struct ConsoleLog {
    file: Option<File>,
    remaining: u64,
    dropped: u64,
}

impl ConsoleLog {
    /// Writes to `file`, at most `cap` bytes.
    #[must_use]
    pub fn new(file: File, cap: u64) -> Self {
        Self { file: Some(file), remaining: cap, dropped: 0 }
    }

    /// Drops (and counts) everything.
    #[must_use]
    pub fn sink() -> Self {
        Self { file: None, remaining: 0, dropped: 0 }
    }

    /// Bytes that were not kept.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl Write for ConsoleLog {
    /// Never fails: the guest's console has no place where an error of ours could go.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let keep = usize::try_from(self.remaining.min(len)).unwrap_or(bytes.len());
        let wrote = match (&mut self.file, bytes.get(..keep)) {
            // Unbuffered, so that what a guest printed before it died is there.
            (Some(file), Some(head)) => file.write_all(head).is_ok(),
            _ => false,
        };
        let kept = if wrote { self.remaining.min(len) } else { 0 };
        self.remaining -= kept;
        self.dropped = self.dropped.saturating_add(len - kept);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    #[test]
    fn output_past_the_cap_is_counted_and_not_kept() {
        let mut file = tempfile::tempfile().unwrap();
        let mut log = ConsoleLog::new(file.try_clone().unwrap(), 10);
        log.write_all(b"0123456").unwrap();
        assert_eq!(log.dropped(), 0);
        log.write_all(b"789abcd").unwrap();
        log.write_all(b"more").unwrap();
        assert_eq!(log.dropped(), 8);
        let mut kept = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut kept).unwrap();
        assert_eq!(kept, "0123456789");
    }

    #[test]
    fn a_file_that_cannot_be_written_only_counts() {
        let mut log = ConsoleLog::new(File::open("/dev/null").unwrap(), 10);
        log.write_all(b"abc").unwrap();
        assert_eq!(log.dropped(), 3);
        let mut sink = ConsoleLog::sink();
        sink.write_all(b"abc").unwrap();
        assert_eq!(sink.dropped(), 3);
    }
}
