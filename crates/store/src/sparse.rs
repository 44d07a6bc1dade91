//! An image on its way from one machine to another, without its holes.
//!
//! ```text
//! "FKDI"  1 (u32)  size (u64)   then for each stretch:  offset (u64)  length (u64)  data
//!                               and at the end:         size          0
//! ```
//!
//! Little endian, whole blocks of 4096 bytes, in order. Most of an image is hole; sending it as zeroes would
//! have both sides look at every one. A raw image cannot be taken for this: an ext4 file starts with a
//! kilobyte that the file system leaves to boot loaders.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use rustix::fs::SeekFrom as Sparse;
use rustix::io::Errno;

use crate::error::StoreError;
use crate::extents::PAGE;

/// Start of the stream: name and version.
pub(crate) const MAGIC: [u8; 8] = *b"FKDI\x01\0\0\0";
/// Length of the start and of the head of each stretch.
pub(crate) const HEAD: usize = 16;

/// Writes an image for [`ImageDraft`](crate::ImageDraft): without its holes, or as it is where its size is
/// not in whole blocks.
pub fn write_sparse(image: &Path, out: &mut dyn Write) -> io::Result<()> {
    let mut file = File::open(image)?;
    let size = file.metadata()?.len();
    if !size.is_multiple_of(PAGE) {
        io::copy(&mut file, out)?;
        return Ok(());
    }
    out.write_all(&MAGIC)?;
    out.write_all(&size.to_le_bytes())?;
    let mut at = 0;
    while let Some((start, end)) = stretch(&file, at, size)? {
        file.seek(SeekFrom::Start(start))?;
        out.write_all(&start.to_le_bytes())?;
        out.write_all(&(end - start).to_le_bytes())?;
        if copy(&mut (&file).take(end - start), out)? != end - start {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the image became shorter"));
        }
        at = end;
    }
    out.write_all(&size.to_le_bytes())?;
    out.write_all(&0u64.to_le_bytes())
}

/// The next stretch of data, in whole blocks.
pub(crate) fn stretch(file: &File, at: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, Sparse::Data(at)) {
        Ok(start) => start / PAGE * PAGE,
        Err(Errno::NXIO) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let end = rustix::fs::seek(file, Sparse::Hole(start.max(at)))?;
    Ok(Some((start.max(at), end.next_multiple_of(PAGE).min(size))))
}

fn copy(from: &mut impl Read, out: &mut dyn Write) -> io::Result<u64> {
    let mut buffer = vec![0; 256 << 10];
    let mut copied = 0;
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            return Ok(copied);
        }
        out.write_all(&buffer[..length])?;
        copied += length as u64;
    }
}

/// Where the decoder puts what it finds.
pub(crate) trait Sink {
    /// Next bytes.
    fn append(&mut self, bytes: &[u8]) -> Result<(), StoreError>;
    /// Zeroes up to `offset`, which is a multiple of the block size; `false` where that lies behind.
    fn skip_to(&mut self, offset: u64) -> Result<bool, StoreError>;
}

/// Reads the stream as its pieces come.
#[derive(Debug)]
pub(crate) struct SparseDecoder {
    size: u64,
    head: Vec<u8>,
    left: u64,
    ended: bool,
}

impl SparseDecoder {
    /// For what follows the start of a stream.
    pub(crate) fn new(size: u64) -> Self {
        Self { size, head: Vec::with_capacity(HEAD), left: 0, ended: false }
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8], sink: &mut impl Sink) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            if self.left > 0 {
                let length = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                let (data, rest) = bytes.split_at(length);
                sink.append(data)?;
                self.left -= length as u64;
                bytes = rest;
                continue;
            }
            let (head, rest) = bytes.split_at(bytes.len().min(HEAD - self.head.len()));
            self.head.extend_from_slice(head);
            bytes = rest;
            if self.head.len() == HEAD {
                let (offset, length) = (number(&self.head[..8]), number(&self.head[8..]));
                self.head.clear();
                self.begin(offset, length, sink)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, offset: u64, length: u64, sink: &mut impl Sink) -> Result<(), StoreError> {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.size);
        let whole = offset.is_multiple_of(PAGE) && length.is_multiple_of(PAGE);
        let last = length == 0;
        if self.ended || !inside || !whole || (last && offset != self.size) || !sink.skip_to(offset)? {
            let reason = format!("a stretch of {length} bytes at {offset} is out of place");
            return Err(StoreError::BadUpload { reason });
        }
        self.left = length;
        self.ended = last;
        Ok(())
    }

    /// Whether the end was there.
    pub(crate) fn finish(&self) -> Result<(), StoreError> {
        if self.ended {
            return Ok(());
        }
        Err(StoreError::BadUpload { reason: "it ends early; send it again".to_owned() })
    }
}

/// A little-endian number of up to eight bytes.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
