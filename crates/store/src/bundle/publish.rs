//! Making what arrived visible: all that is missing becomes files, then one transaction names the snapshot and those
//! of its ancestors whose tags are free.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use forkd_protocol::digest::Digest;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{BundleSnapshot, Fate, ImportedSnapshot};
use rusqlite::Transaction;

use super::BundleError;
use super::assemble::{Assembler, write_small};
use super::document::Snapshot;
use super::import::{Import, is_done};
use crate::chain::NewLayer;
use crate::chain::{Stack, view};
use crate::content::Content;
use crate::disk;
use crate::draft::ReservedTag;
use crate::error::StoreError;
use crate::extents;
use crate::fault;
use crate::kernels::{KernelDraft, ReadyKernel};
use crate::manifest::{ImageRef, LayerRef};
use crate::records::SnapshotRecord;
use crate::store::Store;

/// A snapshot that becomes visible.
#[derive(Debug)]
struct Arrival<'a> {
    snapshot: &'a Snapshot,
    text: &'a str,
    reserved: ReservedTag,
    /// What becomes its folder.
    folder: PathBuf,
}

/// Everything that an import brings, as files aside.
#[derive(Debug, Default)]
struct Arrived<'a> {
    snapshots: Vec<Arrival<'a>>,
    layers: HashMap<String, NewLayer>,
    images: Vec<(&'a ImageRef, PathBuf)>,
    kernels: Vec<(KernelDraft, ReadyKernel)>,
}

impl Store {
    /// Checks everything that arrived and makes the snapshot visible, called `tag` where not as it was. Nothing is
    /// left of the import then; where it fails, all that came stays for another try.
    pub fn commit_import(
        &self,
        id: &Digest,
        tag: Option<&Tag>,
    ) -> Result<(SnapshotRecord, Vec<ImportedSnapshot>), StoreError> {
        let import = self.import(id)?;
        let _turn = import.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_tag(&import.checked, tag)?;
        let fates = self.fates(&import.checked, tag)?;
        if !is_done(&fates) {
            self.publish(&import, &fates)?;
        }
        fault::at!("store::import::named");
        self.shared.imports.forget(id);
        // It is published; what an object that came late leaves of the import is garbage.
        let _ = import.remove();
        let head = fates.last().and_then(|head| head.tag.parse::<Tag>().ok());
        let head = head.unwrap_or_else(|| import.checked.head().tag.clone());
        Ok((self.snapshot(&head)?, fates))
    }

    fn publish(&self, import: &Import, fates: &[ImportedSnapshot]) -> Result<(), StoreError> {
        let missing = self.missing(import, fates)?.len();
        if missing > 0 {
            return Err(BundleError::Incomplete { missing }.into());
        }
        let staging = self.staging()?;
        let arrived = self.assemble(import, fates, staging.path())?;
        fault::at!("store::import::assembled");
        // Before the lock is taken: forks wait for it, and this waits for the disk.
        arrived.seal()?;
        fault::at!("store::import::sealed");
        let _guard = self.content_lock();
        arrived.check_base(self)?;
        let done = arrived.place(self).and_then(|()| self.shared.db.commit(|t| arrived.name(self, t)));
        if done.is_err() {
            // Opening the store sweeps what this leaves; the first error is the one to know.
            arrived.withdraw(self);
        }
        done
    }

    /// Makes files of what the store lacks.
    fn assemble<'a>(
        &self,
        import: &'a Import,
        fates: &[ImportedSnapshot],
        staging: &Path,
    ) -> Result<Arrived<'a>, StoreError> {
        let assembler = Assembler { import, folder: staging };
        let (checked, mut arrived) = (&import.checked, Arrived::default());
        let mut files: HashMap<String, _> =
            checked.bundle.layers.iter().map(|file| (file.hash.to_string(), file)).collect();
        let given = checked.snapshots.iter().zip(&checked.bundle.snapshots).zip(fates);
        for ((snapshot, given), fate) in given.filter(|(_, fate)| fate.fate == Fate::New) {
            let tag: Tag = fate.tag.parse().map_err(|e| BundleError::refused(format!("{e}")))?;
            let reserved = ReservedTag::new(self, &tag)?;
            for layer in snapshot.manifest.layers().filter(|layer| !self.has_layer(&layer.hash)) {
                if let Some(file) = files.remove(&layer.hash) {
                    arrived.layers.insert(layer.hash.clone(), assembler.layer(file, layer)?);
                }
            }
            self.assemble_image(&assembler, &snapshot.manifest.image, &mut arrived)?;
            let folder = staging.join(snapshot.id.to_string());
            disk::create_folder(&folder)?;
            let state = assembler.state(given, &snapshot.manifest)?;
            write_small(&folder.join("state"), &state)?;
            write_small(&folder.join("manifest.json"), given.manifest.as_bytes())?;
            arrived.write_view(self, snapshot, &folder)?;
            disk::sync_folder(&folder)?;
            arrived.snapshots.push(Arrival { snapshot, text: &given.manifest, reserved, folder });
        }
        for kernel in &checked.bundle.kernels {
            if let Some(contents) = &kernel.content
                && !self.has_kernel(&kernel.name)?
            {
                arrived.kernels.push(assembler.kernel(self, kernel, contents)?);
            }
        }
        Ok(arrived)
    }

    fn assemble_image<'a>(
        &self,
        assembler: &Assembler<'a, '_>,
        image: &'a ImageRef,
        arrived: &mut Arrived<'a>,
    ) -> Result<(), StoreError> {
        let there = self.image_path(&image.hash).exists();
        if there || arrived.images.iter().any(|(other, _)| other.hash == image.hash) {
            return Ok(());
        }
        let files = &assembler.import.checked.bundle.images;
        let file = files.iter().find(|file| file.hash.to_string() == image.hash);
        match file.and_then(|file| file.content.as_ref()) {
            Some(contents) => {
                let path = assembler.image(&image.hash, contents, image.size_bytes)?;
                arrived.images.push((image, path));
                Ok(())
            }
            None => {
                let (name, hash) = (image.name.clone(), image.hash.clone());
                Err(BundleError::Thin { name, hash }.into())
            }
        }
    }
}

impl Arrived<'_> {
    /// Where the two files of a layer are.
    fn files(&self, store: &Store, hash: &str) -> (PathBuf, PathBuf) {
        match self.layers.get(hash) {
            Some(new) => (new.data.clone(), new.table.clone()),
            None => (store.layer_path(hash), store.layer_table_path(hash)),
        }
    }

    /// The view is derived here, never taken from outside.
    fn write_view(&self, store: &Store, snapshot: &Snapshot, folder: &Path) -> Result<(), StoreError> {
        let manifest = &snapshot.manifest;
        match &*manifest.memory {
            [_, only] if view::can_be(only) => {
                let (data, table) = self.files(store, &only.hash);
                view::link(only, (&data, &table), folder)
            }
            memory if view::wanted(memory) => {
                view::write(&self.memory(store, memory)?, manifest.memory_bytes(), folder)
            }
            _ => Ok(()),
        }
    }

    fn memory(&self, store: &Store, layers: &[LayerRef]) -> Result<Stack, StoreError> {
        let Some((base, upper)) = layers.split_first() else { return Ok(Stack::default()) };
        let (data, _) = self.files(store, &base.hash);
        let mut stack = Stack::over(disk::open(&data)?, data);
        for layer in upper {
            let (data, table) = self.files(store, &layer.hash);
            let runs = extents::read(&disk::open(&table)?, &table, layer.size_bytes)?;
            stack.push(disk::open(&data)?, data, &runs);
        }
        Ok(stack)
    }

    fn seal(&self) -> Result<(), StoreError> {
        for new in self.layers.values() {
            disk::seal(&new.table)?;
            disk::seal(&new.data)?;
        }
        self.images.iter().try_for_each(|(_, path)| disk::seal(path))
    }

    /// What the snapshots name and the import does not bring may be gone by now. The content lock must be held.
    fn check_base(&self, store: &Store) -> Result<(), StoreError> {
        let brought: HashSet<&str> = self.images.iter().map(|(image, _)| image.hash.as_str()).collect();
        for Snapshot { id, manifest, .. } in self.snapshots.iter().map(|arrival| arrival.snapshot) {
            if let Some(tag) = store.tag_of(&id.to_string())? {
                return Err(BundleError::Here { tag }.into());
            }
            let there =
                |layer: &LayerRef| self.layers.contains_key(&layer.hash) || store.has_layer(&layer.hash);
            if let Some(gone) = manifest.layers().find(|layer| !there(layer)) {
                return Err(StoreError::Vanished { kind: "layer", name: gone.hash.clone() });
            }
            let image = &manifest.image;
            if !brought.contains(image.hash.as_str()) && !store.image_path(&image.hash).exists() {
                return Err(StoreError::Vanished { kind: "image", name: image.name.clone() });
            }
        }
        Ok(())
    }

    /// Moves everything to where its name says it is. The content lock must be held.
    fn place(&self, store: &Store) -> Result<(), StoreError> {
        for new in self.layers.values() {
            store.place_layer(&new.layer.hash, &new.data, &new.table)?;
            fault::at!("store::import::layer_placed");
        }
        for (image, path) in &self.images {
            let home = store.image_path(&image.hash);
            if !home.exists() {
                disk::rename(path, &home)?;
                fault::at!("store::import::image_placed");
            }
        }
        for (draft, ready) in &self.kernels {
            draft.place(ready)?;
            fault::at!("store::import::kernel_placed");
        }
        for arrival in &self.snapshots {
            disk::rename(&arrival.folder, &store.snapshot_folder(&arrival.snapshot.id.to_string()))?;
            fault::at!("store::import::snapshot_placed");
        }
        ["layers", "images", "snapshots"].iter().try_for_each(|name| disk::sync_folder(&store.folder(name)))
    }

    /// The commit point: from here on everything exists. Names that are taken stay what they are.
    fn name(&self, store: &Store, t: &Transaction<'_>) -> Result<(), StoreError> {
        for Arrival { snapshot, text, reserved, .. } in &self.snapshots {
            reserved.fulfil(t, &snapshot.id.to_string(), text, &snapshot.manifest)?;
        }
        let failed = |e| store.shared.db.failed(e);
        for (image, _) in &self.images {
            store.name_image(t, image).map_err(failed)?;
        }
        self.kernels.iter().try_for_each(|(draft, ready)| draft.name_as_oldest(t, ready).map_err(failed))
    }

    /// Removes what was placed and has no name. The content lock must be held.
    fn withdraw(&self, store: &Store) {
        for arrival in &self.snapshots {
            let _ = disk::remove_folder(&store.snapshot_folder(&arrival.snapshot.id.to_string()));
            let _ = store.drop_content(Content::of(&arrival.snapshot.manifest));
        }
        for (_, ready) in &self.kernels {
            let _ = store.drop_kernel_content(&ready.id);
        }
    }
}

/// Whether guests of the snapshots can go on with this host's processor.
pub(super) fn check_vendor(snapshots: &[BundleSnapshot], vendor: Option<&str>) -> Result<(), BundleError> {
    let Some(here) = vendor else { return Ok(()) };
    match snapshots.iter().find(|snapshot| snapshot.cpu_vendor != here) {
        None => Ok(()),
        Some(BundleSnapshot { tag, cpu_vendor, .. }) => {
            let made = cpu_vendor.chars().filter(|c| !c.is_control()).take(24).collect();
            Err(BundleError::Unfit { tag: tag.clone(), made, here: here.to_owned() })
        }
    }
}
