//! Writing `newc` archives, the format of init ramdisks.
//!
//! The kernel makes no parent folders while it unpacks, so an archive names every folder before what is
//! in it; and it takes several archives in a row where each starts at a multiple of four bytes.

use std::io::{self, Read, Write};

const MAX_FILE: u64 = u32::MAX as u64;

/// An archive being written. [`CpioWriter::finish`] must be called, or the kernel sees no end.
#[derive(Debug)]
pub struct CpioWriter<W> {
    out: W,
    next_inode: u32,
}

impl<W: Write> CpioWriter<W> {
    /// Begins an archive. `out` stands at a multiple of four bytes.
    pub fn new(out: W) -> Self {
        Self { out, next_inode: 1 }
    }

    /// A folder, mode 0755, without a leading slash in its name.
    pub fn folder(&mut self, name: &str) -> io::Result<()> {
        self.header(name, 0o040_755, 2, 0)
    }

    /// A file whose content is at hand.
    pub fn file(&mut self, name: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.file_from(name, mode, content.len() as u64, content)
    }

    /// A file of `size` bytes read from `content`.
    pub fn file_from(&mut self, name: &str, mode: u32, size: u64, content: impl Read) -> io::Result<()> {
        self.header(name, 0o100_000 | mode, 1, size)?;
        let copied = io::copy(&mut content.take(size), &mut self.out)?;
        if copied != size {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "a file became shorter while it was read",
            ));
        }
        self.pad(size)
    }

    /// Ends the archive and hands the writer back.
    pub fn finish(mut self) -> io::Result<W> {
        self.next_inode = 0;
        self.header("TRAILER!!!", 0, 1, 0)?;
        Ok(self.out)
    }

    fn header(&mut self, name: &str, mode: u32, links: u32, size: u64) -> io::Result<()> {
        if size > MAX_FILE {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a newc archive holds files below 4 GiB",
            ));
        }
        let inode = self.next_inode;
        self.next_inode = self.next_inode.wrapping_add(1);
        let name_size = name.len() + 1;
        // Owner, times and devices are zero, so that equal content makes equal archives.
        write!(
            self.out,
            "070701{inode:08x}{mode:08x}{0:08x}{0:08x}{links:08x}{0:08x}{size:08x}{0:08x}{0:08x}{0:08x}{0:08x}{name_size:08x}{0:08x}",
            0
        )?;
        self.out.write_all(name.as_bytes())?;
        self.out.write_all(&[0])?;
        self.pad((110 + name_size) as u64)
    }

    fn pad(&mut self, written: u64) -> io::Result<()> {
        let rest = (4 - written % 4) % 4;
        self.out.write_all(&[0; 3][..rest as usize])
    }
}

/// Reads archives back, for tests: name, mode, content.
#[cfg(test)]
pub(crate) fn parse(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(&bytes[..6], b"070701", "at {} bytes before the end", bytes.len());
        let field = |n: usize| {
            let text = std::str::from_utf8(&bytes[6 + 8 * n..14 + 8 * n]).unwrap();
            usize::from_str_radix(text, 16).unwrap()
        };
        let (mode, size, name_size) = (field(1), field(6), field(11));
        let name = String::from_utf8(bytes[110..110 + name_size - 1].to_vec()).unwrap();
        let data = (110 + name_size).next_multiple_of(4);
        let content = bytes[data..data + size].to_vec();
        bytes = &bytes[(data + size).next_multiple_of(4)..];
        if name == "TRAILER!!!" {
            while bytes.first() == Some(&0) {
                bytes = &bytes[1..];
            }
        } else {
            found.push((name, u32::try_from(mode).unwrap(), content));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back_also_from_two_archives_in_a_row() {
        let mut bytes = Vec::new();
        for round in 0..2 {
            let mut archive = CpioWriter::new(&mut bytes);
            archive.folder("lib").unwrap();
            for length in 0..9usize {
                archive.file(&format!("lib/{round}-{length}"), 0o755, &vec![7; length]).unwrap();
            }
            archive.finish().unwrap();
        }
        let entries = parse(&bytes);
        assert_eq!(entries.len(), 20);
        assert_eq!(entries[0], ("lib".to_owned(), 0o040_755, Vec::new()));
        assert_eq!(entries[19], ("lib/1-8".to_owned(), 0o100_755, vec![7; 8]));
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn a_short_or_too_large_file_is_an_error() {
        let mut archive = CpioWriter::new(Vec::new());
        assert!(archive.file_from("a", 0o644, 5, &b"1234"[..]).is_err());
        assert!(archive.file_from("a", 0o644, 1 << 32, io::empty()).is_err());
    }
}
