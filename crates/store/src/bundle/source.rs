//! What leaves the store, as the bytes that are cut into pieces: a file as it is, or a layer packed, which is its
//! extent table followed by what the extents hold. Files stay open, so that nothing that is removed meanwhile is
//! missed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forkd_protocol::digest::Digest;
use forkd_protocol::rest::{Contents, PIECE_BYTES};

use crate::disk;
use crate::error::StoreError;
use crate::extents::{self, Extent};
use crate::layers;

/// Bytes to be sent.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    path: PathBuf,
    bytes: u64,
    packed: Option<Packed>,
}

/// The table of a layer, and where in the packed bytes each extent begins.
#[derive(Debug)]
struct Packed {
    table: Vec<u8>,
    extents: Vec<Extent>,
    starts: Vec<u64>,
}

impl Source {
    /// A whole file.
    pub(crate) fn file(path: &Path) -> Result<Self, StoreError> {
        let file = disk::open(path)?;
        let bytes = length(&file, path)?;
        Ok(Self { file, path: path.to_owned(), bytes, packed: None })
    }

    /// A layer of the store: its data and its table.
    pub(crate) fn layer(path: &Path, table: &Path) -> Result<Self, StoreError> {
        let file = disk::open(path)?;
        let extents = extents::read(&disk::open(table)?, table, length(&file, path)?)?;
        Ok(Self::packed(file, path, extents))
    }

    /// An open image, whose extents are its blocks that are not zero. They are looked for.
    pub(crate) fn image(file: File, path: &Path) -> Result<Self, StoreError> {
        let extents = layers::image_runs(&file, path)?;
        Ok(Self::packed(file, path, extents))
    }

    fn packed(file: File, path: &Path, extents: Vec<Extent>) -> Self {
        let table = extents::to_bytes(&extents);
        let mut bytes = table.len() as u64;
        let mut starts = Vec::with_capacity(extents.len());
        for extent in &extents {
            starts.push(bytes);
            bytes += extent.bytes();
        }
        let packed = Some(Packed { table, extents, starts });
        Self { file, path: path.to_owned(), bytes, packed }
    }

    /// Hashes all pieces.
    pub(crate) fn contents(&self) -> Result<Contents, StoreError> {
        let count = self.bytes.div_ceil(PIECE_BYTES);
        let mut buffer = Vec::new();
        let pieces = (0..count)
            .map(|n| {
                self.piece(n, &mut buffer)?;
                Ok(Digest::of(&buffer))
            })
            .collect::<Result<_, StoreError>>()?;
        Ok(Contents { bytes: self.bytes, pieces })
    }

    /// Everything at once; only for what is small.
    pub(crate) fn whole(&self) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; usize::try_from(self.bytes).unwrap_or(0)];
        self.read(0, &mut bytes).map_err(|e| StoreError::io("read", &self.path, e))?;
        Ok(bytes)
    }

    /// Reads one piece.
    pub(crate) fn piece(&self, n: u64, buffer: &mut Vec<u8>) -> Result<(), StoreError> {
        let from = n.saturating_mul(PIECE_BYTES).min(self.bytes);
        let bytes = (self.bytes - from).min(PIECE_BYTES);
        buffer.resize(usize::try_from(bytes).unwrap_or(0), 0);
        self.read(from, buffer).map_err(|e| StoreError::io("read", &self.path, e))
    }

    fn read(&self, from: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        let Some(Packed { table, extents, starts }) = &self.packed else {
            return self.file.read_exact_at(buffer, from);
        };
        let in_table = usize::try_from(from).map_or(&[][..], |from| table.get(from..).unwrap_or(&[]));
        let (head, mut rest) = buffer.split_at_mut(in_table.len().min(buffer.len()));
        head.copy_from_slice(&in_table[..head.len()]);
        let mut at = from + head.len() as u64;
        let mut n = starts.partition_point(|start| *start <= at).saturating_sub(1);
        while !rest.is_empty() {
            let (Some(extent), Some(start)) = (extents.get(n), starts.get(n)) else {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            };
            let inside = at - start;
            let length = usize::try_from(extent.bytes() - inside).unwrap_or(usize::MAX).min(rest.len());
            let (part, after) = rest.split_at_mut(length);
            self.file.read_exact_at(part, extent.start_byte() + inside)?;
            at += length as u64;
            rest = after;
            n += 1;
        }
        Ok(())
    }
}

fn length(file: &File, path: &Path) -> Result<u64, StoreError> {
    let bytes = file.metadata().map_err(|e| StoreError::io("read", path, e))?.len();
    Ok(bytes)
}
