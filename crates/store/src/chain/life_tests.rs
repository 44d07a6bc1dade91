//! A store over its life: whatever is made, removed, collected and reopened in whatever order, everything that is
//! listed or runs has all of its content, and in the end nothing is left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::draft::Floor;
use crate::extents::PAGE;
use crate::manifest::Manifest;
use crate::open::OpenSnapshot;
use crate::records::{SnapshotMeta, SnapshotRecord};
use crate::testing::{draft, image, meta, pause, resume, sandbox, snapshot, tag, top};

/// One thing that happens. Numbers choose among what is there.
#[derive(Debug, Clone)]
enum Step {
    Whole(u8),
    Fork(usize),
    Branch(usize, u8),
    Freeze(usize, u8),
    Pause(usize, u8),
    Resume(usize),
    End(usize),
    Remove(usize, Removal),
    Hold(usize),
    LetGo,
    Compact(usize),
    Collect,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0..16usize;
    let how = prop_oneof![Just(Removal::Alone), Just(Removal::Cascade), Just(Removal::Force)];
    prop_oneof![
        2 => (1..4u8).prop_map(Step::Whole),
        4 => n.clone().prop_map(Step::Fork),
        6 => (n.clone(), 1..6u8).prop_map(|(n, byte)| Step::Branch(n, byte)),
        2 => (n.clone(), 1..4u8).prop_map(|(n, byte)| Step::Freeze(n, byte)),
        3 => (n.clone(), 1..6u8).prop_map(|(n, byte)| Step::Pause(n, byte)),
        3 => n.clone().prop_map(Step::Resume),
        2 => n.clone().prop_map(Step::End),
        4 => (n.clone(), how).prop_map(|(n, how)| Step::Remove(n, how)),
        1 => n.clone().prop_map(Step::Hold),
        1 => Just(Step::LetGo),
        1 => n.prop_map(Step::Compact),
        2 => Just(Step::Collect),
        1 => Just(Step::Reopen),
    ]
}

struct Life {
    folder: tempfile::TempDir,
    store: Option<Store>,
    made: usize,
    /// What each running sandbox was forked from.
    running: BTreeMap<String, SnapshotRecord>,
    /// Which of them are on the disk.
    paused: BTreeSet<String>,
    held: Vec<Arc<OpenSnapshot>>,
}

impl Life {
    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn name(&mut self) -> String {
        self.made += 1;
        format!("n{}", self.made)
    }

    fn one_of<T: Clone>(all: &[T], n: usize) -> Option<T> {
        all.get(n % all.len().max(1)).cloned()
    }

    fn sandbox(&self, n: usize) -> Option<String> {
        Self::one_of(&self.running.keys().cloned().collect::<Vec<_>>(), n)
    }

    fn take(&mut self, step: &Step) {
        let records = self.store().snapshots().unwrap();
        match step {
            Step::Whole(byte) => {
                let (image, name) = (image(self.store()), self.name());
                snapshot(self.store(), &image, &name, None, &[(1, *byte)]);
            }
            Step::Fork(n) => {
                let Some(record) = Self::one_of(&records, *n) else { return };
                let id = format!("sb-{}", self.name());
                self.store().put_sandbox(&sandbox(&id, &record)).unwrap();
                self.running.insert(id, record);
            }
            Step::Branch(n, byte) => self.branch(*n, *byte),
            Step::Freeze(n, byte) => self.freeze(*n, *byte),
            Step::Pause(n, byte) => self.pause(*n, *byte),
            Step::Resume(n) => {
                let Some(id) = self.sandbox(*n).filter(|id| self.paused.remove(id)) else { return };
                resume(self.store(), &id);
            }
            Step::End(n) => {
                let Some(id) = self.sandbox(*n) else { return };
                self.store().remove_sandbox(&id.parse().unwrap()).unwrap();
                self.running.remove(&id);
                self.paused.remove(&id);
            }
            Step::Remove(n, how) => {
                let Some(record) = Self::one_of(&records, *n) else { return };
                let removed = self.store().remove_snapshot(&tag(&record.info.tag), *how);
                assert!(matches!(removed, Ok(_) | Err(StoreError::HasDependents { .. })));
            }
            Step::Hold(n) => {
                let Some(record) = Self::one_of(&records, *n) else { return };
                self.held.push(self.store().open_snapshot(&tag(&record.info.tag)).unwrap());
            }
            Step::LetGo => self.held.clear(),
            Step::Compact(n) => {
                let Some(record) = Self::one_of(&records, *n) else { return };
                let name = self.name();
                self.store().compact_snapshot(&tag(&record.info.tag), &tag(&name)).unwrap();
            }
            Step::Collect => drop(self.store().gc(false).unwrap()),
            Step::Reopen => {
                self.held.clear();
                self.store = None;
                self.store = Some(Store::open(self.folder.path()).unwrap());
            }
        }
    }

    /// A snapshot of a running sandbox, as the engine makes it.
    fn branch(&mut self, n: usize, byte: u8) {
        let Some(id) = self.sandbox(n).filter(|id| !self.paused.contains(id)) else { return };
        let template = self.store().template(&id.parse().unwrap()).unwrap().unwrap();
        let manifest = template.manifest;
        let disk = manifest.disk.into_iter().chain(template.frozen).collect();
        let below = Below { parent: template.id, memory: manifest.memory, disk };
        let mut image = crate::testing::image(self.store());
        image.info.hash = manifest.image.hash;
        let meta = SnapshotMeta { below: Some(below), branched_from: Some(id), ..meta(&image) };
        let name = self.name();
        let draft = draft(self.store(), &name, &[(u64::from(byte), byte), (9, byte % 2)]);
        draft.publish(meta).unwrap();
    }

    fn pause(&mut self, n: usize, byte: u8) {
        let Some(id) = self.sandbox(n).filter(|id| !self.paused.contains(id)) else { return };
        let manifest = &self.running[&id].manifest;
        let floor = Floor { memory: manifest.memory.len(), disk: manifest.disk.len() };
        pause(self.store(), &id, floor, (&[(u64::from(byte), byte), (7, byte % 2)], &[(2, byte)])).unwrap();
        let own = self.store().template(&id.parse().unwrap()).unwrap().unwrap().manifest;
        assert!(own.memory.len() <= floor.memory + 1 && own.disk.len() <= floor.disk + 1);
        self.paused.insert(id);
    }

    fn freeze(&mut self, n: usize, byte: u8) {
        let Some(id) = self.sandbox(n).filter(|id| !self.paused.contains(id)) else { return };
        let (data, table) = top(self.store(), &[(3, byte)]);
        self.store().adopt_layer(&id.parse().unwrap(), &data, &table, 64 * PAGE).unwrap();
    }

    /// All that is listed, running or held has its content.
    fn check(&self) {
        let store = self.store();
        for record in store.snapshots().unwrap() {
            store.verify_snapshot(&tag(&record.info.tag)).unwrap();
        }
        for id in &self.paused {
            assert!(store.open_paused(&id.parse().unwrap()).is_ok());
        }
        let templates = self.running.keys().map(|id| store.template(&id.parse().unwrap()).unwrap().unwrap());
        let mut needed: Vec<Manifest> = self.held.iter().map(|open| open.record.manifest.clone()).collect();
        for template in templates {
            assert!(template.frozen.iter().all(|layer| store.open_layer(layer).is_ok()));
            needed.push(template.manifest);
        }
        for manifest in needed {
            assert!(store.image_path(&manifest.image.hash).exists());
            assert!(manifest.layers().all(|layer| store.open_layer(layer).is_ok()));
        }
    }

    fn end(mut self) {
        self.held.clear();
        let store = self.store();
        for id in self.running.keys() {
            store.remove_sandbox(&id.parse().unwrap()).unwrap();
        }
        for record in store.snapshots().unwrap() {
            store.remove_snapshot(&tag(&record.info.tag), Removal::Force).unwrap();
        }
        let _ = store.remove_image(&"py".parse().unwrap());
        store.gc(false).unwrap();
        for folder in ["layers", "images", "snapshots", "staging"] {
            assert_eq!(std::fs::read_dir(store.folder(folder)).unwrap().count(), 0, "{folder}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::with_cases(8) })]
    #[test]
    fn what_is_needed_is_there_and_what_is_not_goes(steps in prop::collection::vec(step(), 1..25)) {
        let folder = tempfile::tempdir().unwrap();
        let store = Some(Store::open(folder.path()).unwrap());
        let (running, paused, held) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        let mut life = Life { folder, store, made: 0, running, paused, held };
        life.take(&Step::Whole(1));
        life.take(&Step::Fork(0));
        for step in &steps {
            life.take(step);
            life.check();
        }
        life.end();
    }
}
