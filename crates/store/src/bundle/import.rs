//! A bundle on its way in. It is called by the hash of its document, so whoever sends the same bundle again goes on
//! where it broke off, also after the controller was started anew.
//!
//! ```text
//!   imports/<digest>/bundle.json           the document, checked
//!   imports/<digest>/objects/<hash>.zst    objects that came, each checked
//! ```

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use forkd_protocol::digest::Digest;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{
    BundleFile, Contents, Fate, ImportStatus, ImportedSnapshot, MAX_BUNDLE_BYTES, longest_object,
};

use super::document::Checked;
use super::{BundleError, WINDOW_LOG};
use crate::disk;
use crate::error::StoreError;
use crate::fault;
use crate::store::Store;

/// How many imports may wait for objects.
const MAX_IMPORTS: usize = 64;
/// An import that was left by a store of long ago goes when the store opens.
const KEPT_CLOSED: Duration = Duration::from_secs(7 * 24 * 3600);
/// An import that nobody went on with for so long is garbage.
const KEPT_IDLE: Duration = Duration::from_secs(600);

const FOLDER: &str = "imports";
const DOCUMENT: &str = "bundle.json";
const OBJECTS: &str = "objects";

/// The imports that somebody went on with since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Imports(Mutex<HashMap<Digest, Arc<Import>>>);

/// One import.
#[derive(Debug)]
pub(super) struct Import {
    pub(super) checked: Checked,
    folder: PathBuf,
    touched: Mutex<Instant>,
    /// Held while it is committed or removed.
    pub(super) turn: Mutex<()>,
}

impl Import {
    pub(super) fn object_path(&self, hash: &Digest) -> PathBuf {
        self.folder.join(OBJECTS).join(format!("{hash}.zst"))
    }

    fn touch(&self) {
        *self.touched.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn is_idle(&self, since: Duration) -> bool {
        let touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        touched.elapsed() > since && self.turn.try_lock().is_ok()
    }

    pub(super) fn remove(&self) -> Result<(), StoreError> {
        disk::remove_folder(&self.folder)
    }
}

impl Imports {
    fn lock(&self) -> MutexGuard<'_, HashMap<Digest, Arc<Import>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn forget(&self, id: &Digest) {
        self.lock().remove(id);
    }
}

impl Store {
    /// Begins an import, or goes on with one. `tag` is what the snapshot is to be called, where not as it was; `vendor`
    /// is the maker of this host's processor, where that is known.
    ///
    /// # Errors
    /// The document is refused, its snapshots are of no use here, or the tag is taken: before anything is written.
    pub fn begin_import(
        &self,
        document: &[u8],
        tag: Option<&Tag>,
        vendor: Option<&str>,
    ) -> Result<ImportStatus, StoreError> {
        let checked = Checked::read(document)?;
        super::publish::check_vendor(&checked.bundle.snapshots, vendor)?;
        self.check_tag(&checked, tag)?;
        let id = checked.digest;
        let snapshots = self.fates(&checked, tag)?;
        if is_done(&snapshots) {
            return Ok(ImportStatus { id, snapshots, done: true, missing: Vec::new() });
        }
        self.check_thin(&checked)?;
        let import = match self.import(&id) {
            Ok(import) => import,
            Err(StoreError::Bundle(BundleError::NoImport { .. })) => {
                self.check_room(&checked, &snapshots)?;
                self.stage(checked, document)?
            }
            Err(e) => return Err(e),
        };
        self.status(&import, tag)
    }

    /// How far an import is.
    pub fn import_status(&self, id: &Digest, tag: Option<&Tag>) -> Result<ImportStatus, StoreError> {
        let import = self.import(id)?;
        self.check_tag(&import.checked, tag)?;
        self.status(&import, tag)
    }

    /// Takes in one object of an import, compressed as it travels. One that came already is left alone.
    pub fn put_object(&self, id: &Digest, hash: &Digest, compressed: &[u8]) -> Result<(), StoreError> {
        let import = self.import(id)?;
        let bytes = *import.checked.objects.get(hash).ok_or_else(|| BundleError::Object {
            hash: *hash,
            reason: "the bundle names no such object".to_owned(),
        })?;
        let path = import.object_path(hash);
        if path.exists() {
            return Ok(());
        }
        check_object(hash, bytes, compressed)?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let failed = |e| StoreError::io("write", &path, e);
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        file.write_all(compressed).and_then(|()| file.as_file().sync_data()).map_err(failed)?;
        fault::at!("store::import::object_written");
        file.persist(&path).map_err(|e| failed(e.error))?;
        fault::at!("store::import::object_kept");
        Ok(())
    }

    /// Gives an import up.
    pub fn remove_import(&self, id: &Digest) -> Result<(), StoreError> {
        let import = self.import(id)?;
        let _turn = import.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.imports.forget(id);
        import.remove()
    }

    /// Finds an import, also one that was begun before the store was opened.
    pub(super) fn import(&self, id: &Digest) -> Result<Arc<Import>, StoreError> {
        let mut imports = self.shared.imports.lock();
        if let Some(import) = imports.get(id) {
            import.touch();
            return Ok(import.clone());
        }
        let folder = self.import_folder(id);
        let none = || BundleError::NoImport { id: *id };
        let document = disk::open(&folder.join(DOCUMENT)).map_err(|_| none())?;
        let mut text = Vec::new();
        let read = document.take(MAX_BUNDLE_BYTES as u64).read_to_end(&mut text);
        read.map_err(|e| StoreError::io("read", &folder, e))?;
        let checked = Checked::read(&text).ok().filter(|checked| checked.digest == *id).ok_or_else(none)?;
        let import = Arc::new(new_import(checked, folder));
        imports.insert(*id, import.clone());
        Ok(import)
    }

    fn stage(&self, checked: Checked, document: &[u8]) -> Result<Arc<Import>, StoreError> {
        let id = checked.digest;
        let mut imports = self.shared.imports.lock();
        if let Some(other) = imports.get(&id) {
            return Ok(other.clone());
        }
        if imports.len() >= MAX_IMPORTS {
            // Those that nobody goes on with make room; what came of them stays, and is found by whoever does.
            imports.retain(|_, import| !import.is_idle(KEPT_IDLE));
        }
        if imports.len() >= MAX_IMPORTS {
            return Err(BundleError::TooMany { max: MAX_IMPORTS }.into());
        }
        let staging = self.staging()?;
        let path = staging.path().join(DOCUMENT);
        disk::create_folder(&staging.path().join(OBJECTS))?;
        fs::write(&path, document).map_err(|e| StoreError::io("write", &path, e))?;
        disk::seal(&path)?;
        let folder = self.import_folder(&id);
        // What cannot be gone on with.
        disk::remove_folder(&folder)?;
        disk::rename(&staging.keep(), &folder)?;
        fault::at!("store::import::staged");
        let import = Arc::new(new_import(checked, folder));
        imports.insert(id, import.clone());
        Ok(import)
    }

    fn import_folder(&self, id: &Digest) -> PathBuf {
        self.folder(FOLDER).join(id.to_string())
    }

    /// Hands out the imports that nobody goes on with: name, folder, and the bytes that it takes. Nobody begins to go
    /// on with one meanwhile, so it can be removed.
    pub(crate) fn each_idle_import(
        &self,
        mut found: impl FnMut(&str, &Path, u64) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut imports = self.shared.imports.lock();
        imports.retain(|_, import| !import.is_idle(KEPT_IDLE));
        let folder = self.folder(FOLDER);
        for entry in fs::read_dir(&folder).map_err(|e| StoreError::io("list", &folder, e))? {
            let path = entry.map_err(|e| StoreError::io("list", &folder, e))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            let busy = name.parse().is_ok_and(|id: Digest| imports.contains_key(&id));
            if !busy {
                let bytes = disk::folder_bytes(&path) + disk::folder_bytes(&path.join(OBJECTS));
                found(&name, &path, bytes)?;
            }
        }
        Ok(())
    }

    /// Removes imports of long ago, and what is none. Nothing has begun yet.
    pub(crate) fn sweep_imports(&self) -> Result<(), StoreError> {
        self.each_idle_import(|name, path, _| {
            let modified = fs::metadata(path.join(OBJECTS)).and_then(|m| m.modified());
            let age = modified.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            if name.parse::<Digest>().is_err() || age.is_none_or(|age| age > KEPT_CLOSED) {
                disk::remove_folder(path)?;
            }
            Ok(())
        })
    }

    /// Refuses a tag that names another snapshot, and a snapshot that has another tag.
    pub(super) fn check_tag(&self, checked: &Checked, tag: Option<&Tag>) -> Result<(), StoreError> {
        let tag = tag.unwrap_or(&checked.head().tag);
        let id = checked.head().id.to_string();
        match self.tag_of(&id)? {
            Some(own) if own == tag.as_str() => Ok(()),
            Some(own) => Err(BundleError::Here { tag: own }.into()),
            None if self.is_taken(tag)? => Err(StoreError::TagTaken { tag: tag.to_string() }),
            None => Ok(()),
        }
    }

    /// What a thin bundle leaves out has to be here.
    fn check_thin(&self, checked: &Checked) -> Result<(), StoreError> {
        for file in checked.bundle.images.iter().filter(|file| file.content.is_none()) {
            let hash = file.hash.to_string();
            if !self.image_path(&hash).exists() {
                let named = checked.snapshots.iter().map(|s| &s.manifest.image).find(|i| i.hash == hash);
                let name = named.map(|image| image.name.clone()).unwrap_or_default();
                return Err(BundleError::Thin { name, hash }.into());
            }
        }
        Ok(())
    }

    /// What is made of the objects has to find room; how much the objects take until then is known once they come.
    fn check_room(&self, checked: &Checked, fates: &[ImportedSnapshot]) -> Result<(), StoreError> {
        let wanted = self.wanted(checked, fates)?;
        let needed = wanted.iter().fold(0u64, |sum, contents| sum.saturating_add(contents.bytes));
        let room = self.room();
        if room.holds(needed) { Ok(()) } else { Err(BundleError::NoRoom { needed, room }.into()) }
    }

    fn status(&self, import: &Import, tag: Option<&Tag>) -> Result<ImportStatus, StoreError> {
        let checked = &import.checked;
        let snapshots = self.fates(checked, tag)?;
        let done = is_done(&snapshots);
        let missing = if done { Vec::new() } else { self.missing(import, &snapshots)? };
        Ok(ImportStatus { id: checked.digest, snapshots, done, missing })
    }

    /// What becomes of each snapshot.
    pub(super) fn fates(
        &self,
        checked: &Checked,
        tag: Option<&Tag>,
    ) -> Result<Vec<ImportedSnapshot>, StoreError> {
        let head = checked.head().id;
        checked
            .snapshots
            .iter()
            .map(|snapshot| {
                let own = tag.filter(|_| snapshot.id == head).unwrap_or(&snapshot.tag);
                let (tag, fate) = match self.tag_of(&snapshot.id.to_string())? {
                    Some(tag) => (tag, Fate::Present),
                    None if snapshot.id != head && self.is_taken(own)? => (own.to_string(), Fate::Unnamed),
                    None => (own.to_string(), Fate::New),
                };
                Ok(ImportedSnapshot { tag, id: snapshot.id, fate })
            })
            .collect()
    }

    /// The objects that have to come yet: of what is not in the store, what is not in the import.
    pub(super) fn missing(
        &self,
        import: &Import,
        fates: &[ImportedSnapshot],
    ) -> Result<Vec<Digest>, StoreError> {
        let mut seen = HashSet::new();
        let wanted = self.wanted(&import.checked, fates)?;
        let pieces = wanted.into_iter().flat_map(|contents| &contents.pieces);
        Ok(pieces.filter(|hash| seen.insert(**hash) && !import.object_path(hash).exists()).copied().collect())
    }

    /// What the snapshots that become visible need and the store lacks. An ancestor that will have no name needs nothing.
    fn wanted<'a>(
        &self,
        checked: &'a Checked,
        fates: &[ImportedSnapshot],
    ) -> Result<Vec<&'a Contents>, StoreError> {
        let (bundle, mut wanted) = (&checked.bundle, Vec::new());
        let (mut layers, mut images) = (HashSet::new(), HashSet::new());
        let given = checked.snapshots.iter().zip(&bundle.snapshots).zip(fates);
        for ((snapshot, given), _) in given.filter(|(_, fate)| fate.fate == Fate::New) {
            wanted.push(&given.state);
            layers.extend(snapshot.manifest.layers().map(|layer| layer.hash.clone()));
            images.insert(snapshot.manifest.image.hash.clone());
        }
        let lacks_layer = |file: &&BundleFile| {
            let hash = file.hash.to_string();
            layers.contains(&hash) && !self.has_layer(&hash)
        };
        let lacks_image = |file: &&BundleFile| {
            let hash = file.hash.to_string();
            images.contains(&hash) && !self.image_path(&hash).exists()
        };
        let files = bundle.layers.iter().filter(lacks_layer).chain(bundle.images.iter().filter(lacks_image));
        wanted.extend(files.filter_map(|file| file.content.as_ref()));
        for kernel in &bundle.kernels {
            if let Some(content) = &kernel.content
                && !self.has_kernel(&kernel.name)?
            {
                wanted.extend([&content.vmlinuz, &content.modules]);
            }
        }
        Ok(wanted)
    }
}

/// Whether the snapshot that is imported is here.
pub(super) fn is_done(snapshots: &[ImportedSnapshot]) -> bool {
    snapshots.last().is_some_and(|head| head.fate == Fate::Present)
}

fn new_import(checked: Checked, folder: PathBuf) -> Import {
    Import { checked, folder, touched: Mutex::new(Instant::now()), turn: Mutex::new(()) }
}

/// Whether this is the object of that name: as long as the document says, and not a byte more is unpacked.
fn check_object(hash: &Digest, bytes: u64, compressed: &[u8]) -> Result<(), BundleError> {
    let refused = |reason: String| BundleError::Object { hash: *hash, reason };
    if compressed.len() as u64 > longest_object(bytes) {
        return Err(refused(format!("{} bytes are too many for {bytes}", compressed.len())));
    }
    let unreadable = |e: std::io::Error| refused(format!("it cannot be unpacked: {e}"));
    let mut decoder = zstd::Decoder::with_buffer(compressed).map_err(unreadable)?;
    decoder.window_log_max(WINDOW_LOG).map_err(unreadable)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(decoder.take(bytes + 1)).map_err(unreadable)?;
    if hasher.count() != bytes {
        return Err(refused(format!("it does not unpack to {bytes} bytes")));
    }
    if Digest::from(hasher.finalize()) != *hash {
        return Err(refused("it hashes to something else".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn imports_that_nobody_goes_on_with_make_room_and_can_be_gone_on_with() {
        let ((_here, from), (_there, to)) = (samples::store(), samples::store());
        samples::chain(&from);
        let (_, mut bundle) = samples::document(&from, "c");
        let mut begin = |n: usize| {
            bundle.made_by = format!("maker {n}");
            to.begin_import(&serde_json::to_vec(&bundle).unwrap(), None, None)
        };
        let ids: Vec<Digest> = (0..MAX_IMPORTS).map(|n| begin(n).unwrap().id).collect();
        let refused = begin(MAX_IMPORTS).unwrap_err();
        assert!(matches!(refused, StoreError::Bundle(BundleError::TooMany { .. })), "{refused}");
        to.shared.imports.lock().retain(|_, import| !import.is_idle(Duration::ZERO));
        begin(MAX_IMPORTS).unwrap();
        assert!(!to.import_status(&ids[0], None).unwrap().missing.is_empty());
    }

    #[test]
    fn of_an_ancestor_without_a_name_nothing_is_wanted() {
        let ((_here, from), (_there, to)) = (samples::store(), samples::store());
        let [a, b, c] = samples::chain(&from);
        let (text, bundle) = samples::document(&from, "c");
        let all = to.begin_import(&text, None, None).unwrap();
        to.remove_import(&all.id).unwrap();
        // Its tag is another snapshot's here.
        let image = crate::testing::image(&to);
        crate::testing::snapshot(&to, &image, "b", None, &[(1, 3)]);
        let some = to.begin_import(&text, None, None).unwrap();
        let fates: Vec<Fate> = some.snapshots.iter().map(|snapshot| snapshot.fate).collect();
        assert_eq!(fates, [Fate::New, Fate::Unnamed, Fate::New]);
        let state = bundle.snapshots[1].state.pieces[0];
        assert!(all.missing.contains(&state) && !some.missing.contains(&state));
        assert_ne!(
            (a.manifest.state_hash, c.manifest.state_hash),
            (b.manifest.state_hash.clone(), b.manifest.state_hash)
        );
    }
}
