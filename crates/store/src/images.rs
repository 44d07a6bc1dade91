//! Images: raw ext4 files, kept by content, named by rows.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use forkd_protocol::names::ImageName;
use forkd_protocol::rest::ImageInfo;
use rusqlite::{OptionalExtension, Row, Transaction, params};

use crate::content::Content;
use crate::db::{from_sql, to_sql};
use crate::disk;
use crate::error::StoreError;
use crate::extents::PAGE;
use crate::fault;
use crate::layers::RunHasher;
use crate::manifest::ImageRef;
use crate::records::ImageRecord;
use crate::sparse::{HEAD, MAGIC, Sink, SparseDecoder, number};
use crate::store::{Store, now};

mod of_snapshot;

/// The largest image.
pub(crate) const MAX_IMAGE_BYTES: u64 = 64 << 30;

const COLUMNS: &str = "SELECT name, hash, size_bytes, origin, created_at FROM images";

impl Store {
    /// All images, by name.
    pub fn images(&self) -> Result<Vec<ImageRecord>, StoreError> {
        self.shared.db.run(|c| {
            c.prepare_cached(&format!("{COLUMNS} ORDER BY name"))?
                .query_map([], |row| self.image_of(row))?
                .collect()
        })
    }

    /// One image.
    pub fn image(&self, name: &ImageName) -> Result<ImageRecord, StoreError> {
        let query = format!("{COLUMNS} WHERE name = ?1");
        self.shared
            .db
            .run(|c| c.query_row(&query, [name.as_str()], |row| self.image_of(row)).optional())?
            .ok_or_else(|| StoreError::NotFound { kind: "image", name: name.to_string() })
    }

    fn image_of(&self, row: &Row<'_>) -> rusqlite::Result<ImageRecord> {
        let hash: String = row.get(1)?;
        let path = self.image_path(&hash);
        let info = ImageInfo {
            name: row.get(0)?,
            size_bytes: from_sql(row.get(2)?),
            physical_bytes: disk::physical_bytes(&path),
            hash,
            origin: row.get(3)?,
            created_at_unix: from_sql(row.get(4)?),
        };
        Ok(ImageRecord { info, path })
    }

    /// Names an image that is there, unless its name is taken.
    pub(crate) fn name_image(&self, t: &Transaction<'_>, image: &ImageRef) -> rusqlite::Result<()> {
        let insert = "INSERT OR IGNORE INTO images (name, hash, size_bytes, origin, created_at)
            VALUES (?1, ?2, ?3, ?4, ?5)";
        let row = params![image.name, image.hash, to_sql(image.size_bytes), image.origin, to_sql(now())];
        t.execute(insert, row).map(drop)
    }

    pub(crate) fn image_path(&self, hash: &str) -> PathBuf {
        self.folder("images").join(format!("{hash}.ext4"))
    }

    /// Starts taking in an image. `origin` says how it was made.
    pub fn begin_image(&self, name: &ImageName, origin: &str) -> Result<ImageDraft, StoreError> {
        let staging = self.staging()?;
        let blocks = Blocks::create(staging.path().join("image"))?;
        Ok(ImageDraft {
            store: self.clone(),
            name: name.clone(),
            origin: origin.chars().take(4096).collect(),
            form: Form::Unknown(Vec::with_capacity(HEAD)),
            blocks,
            _staging: staging,
        })
    }

    /// Forgets an image. Its file stays as long as a snapshot needs it.
    pub fn remove_image(&self, name: &ImageName) -> Result<(), StoreError> {
        let _guard = self.content_lock();
        let hash = self.image(name)?.info.hash;
        let delete = "DELETE FROM images WHERE name = ?1";
        self.shared.db.commit_removal(|t| t.execute(delete, [name.as_str()]))?;
        fault::at!("store::image::forgotten");
        self.drop_content([Content::Image(hash)])
    }
}

/// An image on its way in: write the file system, raw or as [`write_sparse`](crate::write_sparse) sends it,
/// then publish. Dropping it leaves nothing.
///
/// The errors of its [`Write`] carry a [`StoreError`] and keep the kind (`StorageFull` where the disk is
/// full); [`ImageDraft::append`] is the same with the error as it is.
#[derive(Debug)]
pub struct ImageDraft {
    store: Store,
    name: ImageName,
    origin: String,
    form: Form,
    blocks: Blocks,
    _staging: tempfile::TempDir,
}

/// How the image comes in.
#[derive(Debug)]
enum Form {
    /// The first bytes decide.
    Unknown(Vec<u8>),
    Raw,
    Sparse(SparseDecoder),
}

impl ImageDraft {
    /// Takes in the next bytes.
    pub fn append(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        if let Form::Unknown(start) = &mut self.form {
            let (head, rest) = bytes.split_at(bytes.len().min(HEAD - start.len()));
            start.extend_from_slice(head);
            bytes = rest;
            if start.len() == HEAD {
                self.decide()?;
            }
        }
        match &mut self.form {
            Form::Unknown(_) => Ok(()),
            Form::Raw => self.blocks.append(bytes),
            Form::Sparse(decoder) => decoder.push(bytes, &mut self.blocks),
        }
    }

    fn decide(&mut self) -> Result<(), StoreError> {
        let Form::Unknown(start) = &mut self.form else { return Ok(()) };
        let start = std::mem::take(start);
        self.form = Form::Raw;
        match start.strip_prefix(&MAGIC) {
            Some(size) => {
                let size = number(size);
                if size > MAX_IMAGE_BYTES {
                    return Err(StoreError::Size { what: "an image", bytes: size, max: MAX_IMAGE_BYTES });
                }
                self.form = Form::Sparse(SparseDecoder::new(size));
                Ok(())
            }
            None => self.blocks.append(&start),
        }
    }

    /// Makes the image visible under its name, replacing what had it. A last block that is not whole is
    /// filled with zeroes.
    pub fn publish(mut self) -> Result<ImageRecord, StoreError> {
        self.decide()?;
        if let Form::Sparse(decoder) = &self.form {
            decoder.finish()?;
        }
        let (size, hash) = self.blocks.finish()?;
        disk::seal(&self.blocks.path)?;
        fault::at!("store::image::sealed");
        let store = &self.store;
        let _guard = store.content_lock();
        let old = store.image(&self.name).ok().map(|image| image.info.hash);
        let home = store.image_path(&hash);
        if !home.exists() {
            disk::rename(&self.blocks.path, &home)?;
            fault::at!("store::image::renamed");
            disk::sync_folder(&store.folder("images"))?;
        }
        let db = &store.shared.db;
        let row = params![self.name.as_str(), hash, to_sql(size), self.origin, to_sql(now())];
        let insert = "INSERT OR REPLACE INTO images (name, hash, size_bytes, origin, created_at)
            VALUES (?1, ?2, ?3, ?4, ?5)";
        let inserted = db.commit(|t| t.execute(insert, row).map_err(|e| db.failed(e)));
        fault::at!("store::image::named");
        // Either the row was replaced, or it was not made: one of the two files may have no name now.
        store.drop_content(old.into_iter().chain([hash.clone()]).map(Content::Image))?;
        inserted?;
        store.image(&self.name)
    }
}

impl Write for ImageDraft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(|e| {
            let kind = match &e {
                StoreError::Full { .. } => io::ErrorKind::StorageFull,
                StoreError::Size { .. } => io::ErrorKind::FileTooLarge,
                StoreError::BadUpload { .. } => io::ErrorKind::InvalidData,
                _ => io::ErrorKind::Other,
            };
            io::Error::new(kind, e)
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file written in whole blocks, of which zero ones become holes.
#[derive(Debug)]
pub(crate) struct Blocks {
    file: File,
    path: PathBuf,
    /// Bytes in whole blocks so far.
    size: u64,
    /// The start of a block that is not whole yet.
    partial: Vec<u8>,
    runs: RunHasher,
}

impl Sink for Blocks {
    fn skip_to(&mut self, offset: u64) -> Result<bool, StoreError> {
        let forward = self.partial.is_empty() && offset >= self.size;
        if forward {
            self.size = offset;
        }
        Ok(forward)
    }

    fn append(&mut self, mut bytes: &[u8]) -> Result<(), StoreError> {
        let page = PAGE as usize;
        let total = self.size + (self.partial.len() + bytes.len()) as u64;
        if total > MAX_IMAGE_BYTES {
            return Err(StoreError::Size { what: "an image", bytes: total, max: MAX_IMAGE_BYTES });
        }
        if !self.partial.is_empty() {
            let (head, rest) = bytes.split_at(bytes.len().min(page - self.partial.len()));
            self.partial.extend_from_slice(head);
            bytes = rest;
            if self.partial.len() < page {
                return Ok(());
            }
            let block = std::mem::take(&mut self.partial);
            self.whole(&block)?;
        }
        let (whole, rest) = bytes.split_at(bytes.len() / page * page);
        self.whole(whole)?;
        self.partial.extend_from_slice(rest);
        Ok(())
    }
}

impl Blocks {
    /// Begins a new file.
    pub(crate) fn create(path: PathBuf) -> Result<Self, StoreError> {
        let file = disk::create_new(&path)?;
        Ok(Self { file, path, size: 0, partial: Vec::new(), runs: RunHasher::default() })
    }

    /// Stores whole blocks; neighbours that are not zero go out in one write.
    fn whole(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let page = PAGE as usize;
        let base = self.size;
        let mut pending = 0..0;
        for (n, block) in bytes.chunks(page).enumerate() {
            let keep = self.runs.block(base / PAGE + n as u64, block);
            if keep && pending.end == n * page {
                pending.end += page;
            } else if keep {
                self.store(bytes, &pending)?;
                pending = n * page..(n + 1) * page;
            }
        }
        self.store(bytes, &pending)?;
        self.size += bytes.len() as u64;
        Ok(())
    }

    fn store(&self, bytes: &[u8], range: &std::ops::Range<usize>) -> Result<(), StoreError> {
        self.file
            .write_all_at(&bytes[range.clone()], self.size + range.start as u64)
            .map_err(|e| StoreError::io("write", &self.path, e))
    }

    /// Ends the file; its size and its name as an image.
    pub(crate) fn finish(&mut self) -> Result<(u64, String), StoreError> {
        if !self.partial.is_empty() {
            let mut block = std::mem::take(&mut self.partial);
            block.resize(PAGE as usize, 0);
            self.whole(&block)?;
        }
        if self.size == 0 {
            return Err(StoreError::Size { what: "an image", bytes: 0, max: MAX_IMAGE_BYTES });
        }
        self.file.set_len(self.size).map_err(|e| StoreError::io("grow", &self.path, e))?;
        Ok((self.size, std::mem::take(&mut self.runs).finish(self.size)))
    }
}

#[cfg(test)]
mod tests {
    use forkd_protocol::error::ErrorClass;

    use super::*;
    use crate::layers::hash_image;

    fn put(store: &Store, name: &str, bytes: &[u8], step: usize) -> ImageRecord {
        let mut draft = store.begin_image(&name.parse().unwrap(), "test").unwrap();
        for piece in bytes.chunks(step) {
            draft.write_all(piece).unwrap();
        }
        draft.publish().unwrap()
    }

    fn files(store: &Store, folder: &str) -> usize {
        std::fs::read_dir(store.folder(folder)).unwrap().count()
    }

    fn content() -> Vec<u8> {
        let mut bytes = vec![0; 4 << 20];
        for at in [0, 4096, 700_000, 700_001, (4 << 20) - 1] {
            bytes[at] = 9;
        }
        bytes
    }

    #[test]
    fn an_image_comes_back_whole_with_its_zeroes_as_holes() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let image = put(&store, "a", &content(), 1000);
        assert_eq!(std::fs::read(&image.path).unwrap(), content());
        assert_eq!(image.info.size_bytes, 4 << 20);
        assert!(image.info.physical_bytes < 256 << 10, "{}", image.info.physical_bytes);
        assert_eq!(hash_image(&image.path).unwrap(), image.info.hash);
        for step in [4096, 4097, 1 << 20, 8 << 20] {
            assert_eq!(put(&store, "b", &content(), step).info.hash, image.info.hash, "{step}");
        }
        assert_eq!((files(&store, "images"), files(&store, "staging")), (1, 0));
    }

    #[test]
    fn an_image_sent_without_its_holes_is_the_same_image() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        let raw = put(&store, "raw", &content(), 1 << 20);
        let mut sent = Vec::new();
        crate::write_sparse(&raw.path, &mut sent).unwrap();
        assert!(sent.len() < 256 << 10, "{}", sent.len());
        for step in [1, 15, 16, 17, 4096, 1 << 20] {
            assert_eq!(put(&store, "sparse", &sent, step).info.hash, raw.info.hash, "{step}");
        }
        let odd = folder.path().join("odd");
        std::fs::write(&odd, [3; 5000]).unwrap();
        let mut sent = Vec::new();
        crate::write_sparse(&odd, &mut sent).unwrap();
        assert_eq!(sent, [3; 5000]);
    }

    #[test]
    fn a_sparse_stream_that_lies_or_is_cut_off_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let stream = |size: u64, heads: &[(u64, u64)]| {
            let mut bytes = [&MAGIC[..], &size.to_le_bytes()].concat();
            for (offset, length) in heads {
                bytes.extend_from_slice(&offset.to_le_bytes());
                bytes.extend_from_slice(&length.to_le_bytes());
                bytes.resize(bytes.len() + usize::try_from(*length).unwrap_or(0).min(8192), 7);
            }
            bytes
        };
        let good = stream(16384, &[(4096, 4096), (16384, 0)]);
        assert_eq!(put(&store, "good", &good, 100).info.size_bytes, 16384);
        for (what, bytes) in [
            ("cut in data", good[..100].to_vec()),
            ("cut before the end", good[..good.len() - 16].to_vec()),
            ("cut in a head", good[..good.len() - 1].to_vec()),
            ("cut in the start", good[..9].to_vec()),
            ("after the end", [&good[..], &good[16..]].concat()),
            ("back", stream(16384, &[(4096, 4096), (0, 4096), (16384, 0)])),
            ("beyond", stream(4096, &[(4096, 4096), (4096, 0)])),
            ("overflow", stream(4096, &[(u64::MAX - 4095, 8192)])),
            ("not whole", stream(16384, &[(1, 4096)])),
            ("early end", stream(16384, &[(8192, 0)])),
            ("too large", stream(u64::MAX - 4095, &[(u64::MAX - 4095, 0)])),
        ] {
            let mut draft = store.begin_image(&"bad".parse().unwrap(), "").unwrap();
            let refused = draft.append(&bytes).err().or_else(|| draft.publish().err());
            assert_eq!(refused.map(|e| e.class()), Some(ErrorClass::Caller), "{what}");
        }
    }

    #[test]
    fn replacing_and_removing_leave_no_file_that_nothing_names() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let (a, b) = ("a".parse().unwrap(), "b".parse().unwrap());
        put(&store, "a", b"one", 9);
        put(&store, "b", b"one", 9);
        let two = put(&store, "a", b"two", 9);
        assert_eq!((files(&store, "images"), two.info.size_bytes), (2, 4096));
        store.remove_image(&b).unwrap();
        assert_eq!(files(&store, "images"), 1);
        drop(store.begin_image(&a, "dropped").unwrap());
        assert!(store.begin_image(&a, "empty").unwrap().publish().is_err());
        assert_eq!((store.image(&a).unwrap(), files(&store, "staging")), (two, 0));
        store.remove_image(&a).unwrap();
        assert!(matches!(store.remove_image(&a), Err(StoreError::NotFound { .. })));
        assert_eq!(files(&store, "images"), 0);
    }

    #[test]
    fn an_image_that_is_too_large_is_refused_before_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let mut draft = store.begin_image(&"a".parse().unwrap(), "").unwrap();
        draft.blocks.size = MAX_IMAGE_BYTES - PAGE;
        draft.append(&[0; 4096]).unwrap();
        let refused = draft.write(&[0]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::FileTooLarge);
    }
}
