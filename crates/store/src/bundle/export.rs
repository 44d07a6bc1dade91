//! A snapshot on its way out: its document, and each object when it is asked for.
//!
//! Making the document reads and hashes all content once. What was made is kept for the requests that follow, with
//! its files open, until the snapshot is removed or others are asked for.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_protocol::digest::Digest;
use forkd_protocol::names::{KernelName, Tag};
use forkd_protocol::rest::{
    BUNDLE_KIND, BUNDLE_VERSION, Bundle, BundleFile, BundleKernel, BundleSnapshot, Contents, KernelContents,
};

use super::source::Source;
use super::state::StateHead;
use super::{BundleError, LEVEL};
use crate::disk;
use crate::error::StoreError;
use crate::records::{KernelRecord, SnapshotRecord};
use crate::store::Store;

/// How many exports are kept.
const KEPT: usize = 4;

/// The exports that are kept, most recently used last.
#[derive(Debug, Default)]
pub(crate) struct Exports(Mutex<Vec<Arc<Export>>>);

/// A snapshot that can be sent.
#[derive(Debug)]
pub struct Export {
    id: String,
    thin: bool,
    text: String,
    sources: Vec<Source>,
    /// Which piece of which source an object is.
    pieces: HashMap<Digest, (usize, u64)>,
}

impl Export {
    /// The document ([`Bundle`]), byte for byte the same as long as the snapshot is there.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// One object, compressed; `None` where the document names no such object.
    pub fn object(&self, hash: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        let Some((source, piece)) = self.pieces.get(hash) else { return Ok(None) };
        let mut bytes = Vec::new();
        self.sources[*source].piece(*piece, &mut bytes)?;
        let failed = |e| StoreError::io("compress", "an object", e);
        zstd::bulk::compress(&bytes, LEVEL).map(Some).map_err(failed)
    }
}

impl Exports {
    fn get(&self, id: &str, thin: bool) -> Option<Arc<Export>> {
        let mut kept = self.lock();
        let at = kept.iter().position(|export| export.id == id && export.thin == thin)?;
        let found = kept.remove(at);
        kept.push(found.clone());
        Some(found)
    }

    fn put(&self, export: &Arc<Export>) {
        let mut kept = self.lock();
        kept.retain(|other| other.id != export.id || other.thin != export.thin);
        kept.push(export.clone());
        if kept.len() > KEPT {
            kept.remove(0);
        }
    }

    /// Lets go of the files of a snapshot that is removed.
    pub(crate) fn forget(&self, id: &str) {
        self.lock().retain(|export| export.id != id);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Export>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// What is needed to send a snapshot: with every ancestor that still has a tag, image and kernel. A `thin` one only
    /// names the latter two.
    pub fn export(&self, tag: &Tag, thin: bool) -> Result<Arc<Export>, StoreError> {
        let id = self.snapshot(tag)?.id;
        if let Some(kept) = self.shared.exports.get(&id, thin) {
            return Ok(kept);
        }
        let (id, opened) = self.open_for_export(tag, thin)?;
        let export = Arc::new(opened.finish(id.clone(), thin)?);
        // One that was removed meanwhile must not keep its files.
        let _guard = self.content_lock();
        if self.has_snapshot(&id)? {
            self.shared.exports.put(&export);
        }
        Ok(export)
    }

    /// One object of a snapshot, compressed.
    pub fn exported_object(&self, tag: &Tag, hash: &Digest) -> Result<Vec<u8>, StoreError> {
        let id = self.snapshot(tag)?.id;
        // A thin one has no object that the other lacks, and most of them.
        let kept = [true, false].into_iter().filter_map(|thin| self.shared.exports.get(&id, thin));
        for export in kept {
            if let Some(object) = export.object(hash)? {
                return Ok(object);
            }
        }
        match self.export(tag, false)?.object(hash)? {
            Some(object) => Ok(object),
            None => Err(BundleError::NoObject { tag: tag.to_string(), hash: *hash }.into()),
        }
    }

    /// Opens all files of a snapshot. None of them can go away while the lock is held.
    fn open_for_export(&self, tag: &Tag, thin: bool) -> Result<(String, Opened), StoreError> {
        let _guard = self.content_lock();
        let lineage = self.lineage(self.snapshot(tag)?)?;
        let id = lineage.last().map(|record| record.id.clone()).unwrap_or_default();
        let mut opened = Opened::default();
        let (mut layers, mut images, mut kernels) = (HashSet::new(), HashSet::new(), HashSet::new());
        for record in lineage {
            let manifest = &record.manifest;
            for layer in manifest.layers().filter(|layer| layers.insert(layer.hash.clone())) {
                let (path, table) = (self.layer_path(&layer.hash), self.layer_table_path(&layer.hash));
                opened.layers.push((layer.hash.clone(), Source::layer(&path, &table)?));
            }
            if images.insert(manifest.image.hash.clone()) {
                let path = self.image_path(&manifest.image.hash);
                opened.images.push((manifest.image.hash.clone(), disk::open(&path)?, path));
            }
            if kernels.insert(manifest.kernel.clone()) {
                opened.kernels.extend(self.kernel_for_export(&manifest.kernel, thin)?);
            }
            let state = Source::file(&self.state_path(&record.id))?;
            let path = self.snapshot_folder(&record.id).join("manifest.json");
            opened.snapshots.push(OpenedSnapshot { manifest: (disk::open(&path)?, path), state, record });
        }
        Ok((id, opened))
    }

    /// A snapshot after those that it descends from, as far as they still have tags.
    fn lineage(&self, head: SnapshotRecord) -> Result<Vec<SnapshotRecord>, StoreError> {
        let mut by_id: HashMap<String, SnapshotRecord> =
            self.snapshots()?.into_iter().map(|record| (record.id.clone(), record)).collect();
        by_id.remove(&head.id);
        let mut lineage = vec![head];
        while let Some(parent) =
            lineage.last().and_then(|record| by_id.remove(record.manifest.parent.as_ref()?))
        {
            lineage.push(parent);
        }
        lineage.reverse();
        Ok(lineage)
    }

    /// A kernel of this name may be another one by now, or gone; no snapshot needs it.
    fn kernel_for_export(&self, name: &str, thin: bool) -> Result<Option<OpenKernel>, StoreError> {
        let Ok(name) = name.parse::<KernelName>() else { return Ok(None) };
        let record = match self.kernel(Some(&name)) {
            Ok(record) => record,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(e),
        };
        let files =
            if thin { None } else { Some((Source::file(&record.vmlinuz)?, Source::file(&record.modules)?)) };
        Ok(Some(OpenKernel { record, files }))
    }
}

/// What is sent, open and not hashed yet.
#[derive(Debug, Default)]
struct Opened {
    snapshots: Vec<OpenedSnapshot>,
    layers: Vec<(String, Source)>,
    images: Vec<(String, File, PathBuf)>,
    kernels: Vec<OpenKernel>,
}

#[derive(Debug)]
struct OpenedSnapshot {
    record: SnapshotRecord,
    manifest: (File, PathBuf),
    state: Source,
}

impl OpenedSnapshot {
    fn finish(self, hashed: &mut Hashed) -> Result<BundleSnapshot, StoreError> {
        let (file, path) = self.manifest;
        let manifest = std::io::read_to_string(file).map_err(|e| StoreError::io("read", &path, e))?;
        if Digest::of(manifest.as_bytes()).to_string() != self.record.id {
            return Err(StoreError::Damaged { path, found: "something else".to_owned() });
        }
        let head = StateHead::read(&self.state.whole()?)?;
        Ok(BundleSnapshot {
            tag: self.record.info.tag,
            manifest,
            state: hashed.add(self.state)?,
            state_format: head.format,
            cpu_vendor: head.vendor,
        })
    }
}

#[derive(Debug)]
struct OpenKernel {
    record: KernelRecord,
    files: Option<(Source, Source)>,
}

impl Opened {
    /// Hashes everything.
    fn finish(self, id: String, thin: bool) -> Result<Export, StoreError> {
        let mut hashed = Hashed::default();
        let mut bundle = Bundle {
            kind: BUNDLE_KIND.to_owned(),
            version: BUNDLE_VERSION,
            made_by: concat!("forkd ", env!("CARGO_PKG_VERSION")).to_owned(),
            snapshots: Vec::new(),
            layers: Vec::new(),
            images: Vec::new(),
            kernels: Vec::new(),
        };
        for snapshot in self.snapshots {
            bundle.snapshots.push(snapshot.finish(&mut hashed)?);
        }
        for (hash, source) in self.layers {
            bundle.layers.push(BundleFile { hash: digest(&hash)?, content: Some(hashed.add(source)?) });
        }
        for (hash, file, path) in self.images {
            let content = if thin { None } else { Some(hashed.add(Source::image(file, &path)?)?) };
            bundle.images.push(BundleFile { hash: digest(&hash)?, content });
        }
        for OpenKernel { record, files } in self.kernels {
            let content = match files {
                Some((vmlinuz, modules)) => {
                    Some(KernelContents { vmlinuz: hashed.add(vmlinuz)?, modules: hashed.add(modules)? })
                }
                None => None,
            };
            bundle.kernels.push(BundleKernel { name: record.info.name, id: digest(&record.id)?, content });
        }
        let text = serde_json::to_string(&bundle).map_err(|e| StoreError::io("write", "a bundle", e))?;
        Ok(Export { id, thin, text, sources: hashed.sources, pieces: hashed.pieces })
    }
}

#[derive(Debug, Default)]
struct Hashed {
    sources: Vec<Source>,
    pieces: HashMap<Digest, (usize, u64)>,
}

impl Hashed {
    fn add(&mut self, source: Source) -> Result<Contents, StoreError> {
        let contents = source.contents()?;
        for (n, hash) in (0u64..).zip(&contents.pieces) {
            self.pieces.entry(*hash).or_insert((self.sources.len(), n));
        }
        self.sources.push(source);
        Ok(contents)
    }
}

/// What the registry calls content by.
fn digest(hash: &str) -> Result<Digest, StoreError> {
    hash.parse().map_err(|_| BundleError::refused(format!("{hash:?} is no hash")).into())
}
