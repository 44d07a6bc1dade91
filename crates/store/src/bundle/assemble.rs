//! From the objects of an import back to the files of the store. Every file is checked against the name that the
//! manifests give it, whatever the objects were checked against before.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use forkd_protocol::digest::Digest;
use forkd_protocol::names::KernelName;
use forkd_protocol::rest::{BundleFile, BundleKernel, BundleSnapshot, Contents, KernelContents};

use super::import::Import;
use super::state::StateHead;
use super::{BundleError, WINDOW_LOG};
use crate::chain::LayerWriter;
use crate::chain::NewLayer;
use crate::disk;
use crate::error::StoreError;
use crate::extents::{self, ENTRY, Extent, HEADER, PAGE};
use crate::images::Blocks;
use crate::kernels::{KernelDraft, ReadyKernel};
use crate::manifest::{LayerRef, Manifest};
use crate::sparse::Sink;
use crate::store::Store;

/// Read at once.
const STEP: usize = 1 << 20;

/// Makes files of an import's objects, in a folder that is removed where it is not published.
#[derive(Debug)]
pub(super) struct Assembler<'a, 'f> {
    pub(super) import: &'a Import,
    pub(super) folder: &'f Path,
}

impl Assembler<'_, '_> {
    fn read<'b>(&'b self, contents: &'b Contents) -> Joined<'b> {
        Joined { import: self.import, left: contents.pieces.iter(), open: None }
    }

    /// The machine state of a snapshot, checked as far as it can be without a monitor.
    pub(super) fn state(&self, given: &BundleSnapshot, manifest: &Manifest) -> Result<Vec<u8>, StoreError> {
        let mut state = vec![0; usize::try_from(given.state.bytes).unwrap_or(0)];
        let mut from = self.read(&given.state);
        exactly(&mut from, &mut state, "a machine state")?;
        at_end(&mut from, "a machine state")?;
        if blake3::hash(&state).to_hex().as_str() != manifest.state_hash {
            return Err(mismatch("a machine state", &manifest.state_hash));
        }
        let head = StateHead::read(&state)?;
        if head.vendor != given.cpu_vendor
            || head.format != given.state_format
            || head.vcpus != manifest.vcpus
        {
            return Err(BundleError::refused("a machine state is not what its document says").into());
        }
        Ok(state)
    }

    /// A layer of memory or of a disk.
    pub(super) fn layer(&self, file: &BundleFile, layer: &LayerRef) -> Result<NewLayer, StoreError> {
        let data = self.folder.join(&layer.hash);
        let table = data.with_extension("extents");
        let mut writer = LayerWriter::create(&data, &table)?;
        if let Some(contents) = &file.content {
            let mut from = self.read(contents);
            let extents = read_table(&mut from, layer.size_bytes)?;
            each_step(&extents, &mut from, |at, bytes| writer.pages(at / PAGE, bytes))?;
        }
        let made = writer.finish(layer.size_bytes)?;
        if made.layer == *layer { Ok(made) } else { Err(mismatch("a layer", &layer.hash)) }
    }

    /// An image; where it is now.
    pub(super) fn image(&self, hash: &str, contents: &Contents, size: u64) -> Result<PathBuf, StoreError> {
        let path = self.folder.join(format!("{hash}.ext4"));
        let mut blocks = Blocks::create(path.clone())?;
        let mut from = self.read(contents);
        let extents = read_table(&mut from, size)?;
        let displaced = || StoreError::from(BundleError::refused("the table of an image is out of order"));
        each_step(&extents, &mut from, |at, bytes| {
            if !blocks.skip_to(at)? {
                return Err(displaced());
            }
            blocks.append(bytes)
        })?;
        if !blocks.skip_to(size)? {
            return Err(displaced());
        }
        match blocks.finish()? {
            (found, name) if found == size && name == hash => Ok(path),
            _ => Err(mismatch("an image", hash)),
        }
    }

    /// A kernel with its modules.
    pub(super) fn kernel(
        &self,
        store: &Store,
        kernel: &BundleKernel,
        contents: &KernelContents,
    ) -> Result<(KernelDraft, ReadyKernel), StoreError> {
        let name: KernelName = kernel.name.parse().map_err(|e| BundleError::refused(format!("{e}")))?;
        let mut draft = store.begin_kernel(&name)?;
        draft.write_vmlinuz(self.read(&contents.vmlinuz))?;
        draft.write_modules(self.read(&contents.modules))?;
        let ready = draft.seal()?;
        if ready.id != kernel.id.to_string() {
            return Err(mismatch("a kernel", name.as_str()));
        }
        Ok((draft, ready))
    }
}

/// The pieces of a content, one after the other, unpacked.
struct Joined<'a> {
    import: &'a Import,
    left: std::slice::Iter<'a, Digest>,
    open: Option<zstd::Decoder<'static, BufReader<File>>>,
}

impl Read for Joined<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(open) = &mut self.open {
                match open.read(buffer)? {
                    0 if !buffer.is_empty() => self.open = None,
                    length => return Ok(length),
                }
            }
            let Some(hash) = self.left.next() else { return Ok(0) };
            let mut decoder = zstd::Decoder::new(File::open(self.import.object_path(hash))?)?;
            decoder.window_log_max(WINDOW_LOG)?;
            self.open = Some(decoder);
        }
    }
}

fn exactly(from: &mut impl Read, buffer: &mut [u8], what: &str) -> Result<(), StoreError> {
    from.read_exact(buffer).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => {
            BundleError::refused(format!("{what} is shorter than it says")).into()
        }
        _ => StoreError::io("read", what, e),
    })
}

fn at_end(from: &mut impl Read, what: &str) -> Result<(), StoreError> {
    match from.read(&mut [0]) {
        Ok(0) => Ok(()),
        Ok(_) => Err(BundleError::refused(format!("{what} is longer than it says")).into()),
        Err(e) => Err(StoreError::io("read", what, e)),
    }
}

fn mismatch(what: &str, name: &str) -> StoreError {
    BundleError::refused(format!("{what} is not what its name {name} says")).into()
}

/// A table, which has no more entries than what it is a table of can need.
fn read_table(from: &mut impl Read, size: u64) -> Result<Vec<Extent>, StoreError> {
    let mut table = vec![0; HEADER as usize];
    exactly(from, &mut table, "a table")?;
    let entries = crate::sparse::number(&table[8..]);
    if entries > size / PAGE / 2 + 1 {
        return Err(BundleError::refused("a table is longer than what it is part of").into());
    }
    table.resize(usize::try_from(HEADER + ENTRY * entries).unwrap_or(0), 0);
    exactly(from, &mut table[HEADER as usize..], "a table")?;
    let refused = |reason| BundleError::refused(format!("a layer is refused: {reason}")).into();
    extents::parse(&table, size / PAGE).map_err(refused)
}

/// Reads what the extents hold, piece by piece with its offset, and then the end.
fn each_step(
    extents: &[Extent],
    from: &mut impl Read,
    mut step: impl FnMut(u64, &[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut buffer = vec![0; STEP];
    for extent in extents {
        for at in (extent.start_byte()..extent.end_byte()).step_by(STEP) {
            let bytes = usize::try_from(extent.end_byte() - at).unwrap_or(STEP).min(STEP);
            exactly(from, &mut buffer[..bytes], "a layer")?;
            step(at, &buffer[..bytes])?;
        }
    }
    at_end(from, "a layer")
}

/// Writes a small file that is made last and read-only.
pub(super) fn write_small(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    std::fs::write(path, bytes).map_err(|e| StoreError::io("write", path, e))?;
    disk::seal(path)
}
