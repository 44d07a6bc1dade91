//! Bundles of tests: a chain with a disk and a kernel, packed and unpacked as the command does it.

use std::io::Write;

use forkd_protocol::digest::Digest;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{Bundle, ImportStatus, ImportedSnapshot};

use super::{BundleWriter, Part, read_bundle};
use crate::disk;
use crate::error::StoreError;
use crate::records::{SnapshotMeta, SnapshotRecord};
use crate::store::Store;
use crate::testing::{below, draft, fill, image, meta, snapshot, tag};

/// A store of its own.
pub(crate) fn store() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    (folder, store)
}

/// `a`, over it `b` with a zero page, over it `c` with a disk layer; image `py`, kernel `6.12`.
pub(crate) fn chain(store: &Store) -> [SnapshotRecord; 3] {
    let image = image(store);
    let mut kernel = store.begin_kernel(&"6.12".parse().unwrap()).unwrap();
    kernel.write_vmlinuz(&b"a kernel"[..]).unwrap();
    kernel.write_modules(&b"its modules"[..]).unwrap();
    kernel.publish().unwrap();
    let a = snapshot(store, &image, "a", None, &[(1, 1), (2, 1), (9, 9)]);
    let b = snapshot(store, &image, "b", Some(&a), &[(2, 2), (9, 0)]);
    let mut c = draft(store, "c", &[(3, 3), (4, 4)]);
    let top = store.root().join("run/top");
    let data = disk::create_new(&top).unwrap();
    fill(&data, &c.outputs().disk_extents, &[(5, 5), (7, 7)], 64);
    c.adopt_disk_top(&top).unwrap();
    let branched_from = Some("sb-1".to_owned());
    let c = c.publish(SnapshotMeta { below: Some(below(&b)), branched_from, ..meta(&image) }).unwrap();
    [a, b, c]
}

/// The document of a snapshot.
pub(super) fn document(store: &Store, name: &str) -> (Vec<u8>, Bundle) {
    let text = store.export(&tag(name), false).unwrap().text().as_bytes().to_vec();
    let bundle = serde_json::from_slice(&text).unwrap();
    (text, bundle)
}

/// A document and its objects.
pub(super) fn objects(store: &Store, name: &str, thin: bool) -> (Vec<u8>, Vec<(Digest, Vec<u8>)>) {
    let export = store.export(&tag(name), thin).unwrap();
    let bundle: Bundle = serde_json::from_str(export.text()).unwrap();
    let of = |hash| (hash, export.object(&hash).unwrap().unwrap());
    (export.text().as_bytes().to_vec(), bundle.objects().into_iter().map(|(hash, _)| of(hash)).collect())
}

/// A bundle file.
pub(crate) fn pack(store: &Store, name: &str, thin: bool) -> Vec<u8> {
    let (document, objects) = objects(store, name, thin);
    let mut writer = BundleWriter::new(Vec::new(), &document).unwrap();
    objects.iter().for_each(|(hash, object)| writer.object(hash, object).unwrap());
    writer.finish().unwrap()
}

/// What was unpacked, and how many objects were taken in.
pub(crate) type Unpacked = (SnapshotRecord, Vec<ImportedSnapshot>, usize);

/// Unpacks as the command does.
pub(crate) fn unpack(store: &Store, file: &[u8], name: Option<&str>) -> Result<Unpacked, StoreError> {
    let name: Option<Tag> = name.map(tag);
    let mut status: Option<ImportStatus> = None;
    let mut taken = 0;
    read_bundle(file, |part| match part {
        Part::Document(text, _) => {
            status = Some(store.begin_import(&text, name.as_ref(), None)?);
            Ok::<_, StoreError>(())
        }
        Part::Object(hash, object) => {
            let status = status.as_ref().unwrap();
            if status.missing.contains(&hash) {
                taken += 1;
                store.put_object(&status.id, &hash, &object)?;
            }
            Ok(())
        }
    })?;
    let status = status.unwrap();
    if status.done {
        let there = tag(&status.snapshots.last().unwrap().tag);
        return Ok((store.snapshot(&there)?, status.snapshots, taken));
    }
    let (record, fates) = store.commit_import(&status.id, name.as_ref())?;
    Ok((record, fates, taken))
}

/// Begins to unpack, and leaves it at the first object.
pub(crate) fn begin(store: &Store, file: &[u8]) {
    let mut begun: Option<ImportStatus> = None;
    let stopped = read_bundle(file, |part| match (part, &begun) {
        (Part::Document(text, _), _) => {
            begun = Some(store.begin_import(&text, None, None)?);
            Ok(())
        }
        (Part::Object(hash, object), Some(status)) => {
            store.put_object(&status.id, &hash, &object)?;
            Err(StoreError::not_found("object", "the next"))
        }
        (Part::Object(..), None) => panic!("an object before the document"),
    });
    assert!(stopped.is_err());
}

/// Every file below a store's folder but the registry's own.
pub(super) fn files(store: &Store) -> Vec<String> {
    fn below(folder: &std::path::Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                below(&path, found);
            } else if !path.file_name().unwrap().to_string_lossy().starts_with("forkd.") {
                found.push(path.display().to_string());
            }
        }
    }
    let mut found = Vec::new();
    below(store.root(), &mut found);
    found.sort();
    found
}

/// A tar of any entries.
pub(super) struct Tar(pub(super) tar::Builder<Vec<u8>>);

impl Tar {
    pub(super) fn new() -> Self {
        Self(tar::Builder::new(Vec::new()))
    }

    /// An entry whose header says whatever it likes.
    pub(super) fn entry(mut self, kind: tar::EntryType, name: &[u8], size: u64, content: &[u8]) -> Self {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(size);
        header.set_cksum();
        let out = self.0.get_mut();
        out.write_all(header.as_bytes()).unwrap();
        out.write_all(content).unwrap();
        out.resize(out.len().next_multiple_of(512), 0);
        self
    }

    pub(super) fn file(self, name: &[u8], content: &[u8]) -> Self {
        self.entry(tar::EntryType::Regular, name, content.len() as u64, content)
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0.into_inner().unwrap()
    }
}

/// The name of an object in a bundle file.
pub(super) fn object_name(hash: &Digest) -> Vec<u8> {
    format!("objects/{hash}.zst").into_bytes()
}
