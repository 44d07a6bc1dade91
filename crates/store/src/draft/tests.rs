use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;

use forkd_protocol::control::{CpuModel, DiskPart, FdRole};
use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::SnapshotTiming;
use forkd_testkit::room::SmallDisk;

use super::*;
use crate::chain::Removal;
use crate::extents::{PAGE, table};
use crate::records::ImageRecord;

fn tag(text: &str) -> Tag {
    text.parse().unwrap()
}

fn image(store: &Store) -> ImageRecord {
    let mut draft = store.begin_image(&"py".parse().unwrap(), "a test").unwrap();
    draft.write_all(&[5; 64 * 4096]).unwrap();
    draft.publish().unwrap()
}

fn meta(image: &ImageRecord) -> SnapshotMeta {
    SnapshotMeta {
        image: image.clone(),
        kernel: "6.12".parse().unwrap(),
        vcpus: 1,
        memory_mib: 128,
        cpu: CpuModel::V3,
        warm: Some("import numpy".to_owned()),
        timing: SnapshotTiming::default(),
        pause_ms: Some(1.5),
        workload_pause_ms: None,
        limits: Default::default(),
        network: None,
        branched_from: None,
        agent_protocol: 1,
        secrets: Vec::new(),
        below: None,
    }
}

/// What a monitor would write: pages 1 and 2 of memory, block 3 of the disk.
fn written(store: &Store, name: &str, fill: u8) -> SnapshotDraft {
    let mut draft = store.begin_snapshot(&tag(name)).unwrap();
    let top = store.folder("run").join(format!("{name}-top"));
    let disk = File::create(&top).unwrap();
    disk.set_len(64 * PAGE).unwrap();
    disk.write_all_at(&[fill; 4096], 3 * PAGE).unwrap();
    let files = draft.outputs();
    (&files.state).write_all(b"machine state").unwrap();
    files.memory.set_len(128 << 20).unwrap();
    files.memory.write_all_at(&[fill; 8192], PAGE).unwrap();
    (&files.memory_extents).write_all(&table(&[(1, 2)])).unwrap();
    (&files.disk_extents).write_all(&table(&[(3, 1)])).unwrap();
    draft.adopt_disk_top(&top).unwrap();
    draft
}

/// Every file below the root, except for the registry and the lock.
fn tree(root: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().map(|e| e.unwrap()) {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if folder != root {
                found.insert(path, entry.metadata().unwrap().len());
            }
        }
    }
    found
}

#[test]
fn a_published_snapshot_is_found_again_and_opens_with_every_file_a_monitor_needs() {
    let folder = tempfile::tempdir().unwrap();
    let record = {
        let store = Store::open(folder.path()).unwrap();
        written(&store, "t", 7).publish(meta(&image(&store))).unwrap()
    };
    let before = tree(folder.path());
    let store = Store::open(folder.path()).unwrap();
    assert_eq!(tree(folder.path()), before, "the sweep must not touch what rows name");
    assert_eq!(store.snapshots().unwrap(), std::slice::from_ref(&record));
    assert_eq!((record.info.memory_mib, record.manifest.memory[0].data_bytes), (128, 2 * PAGE));
    assert!(record.info.memory_physical_bytes >= 2 * PAGE && record.info.memory_physical_bytes < 1 << 20);

    let open = store.open_snapshot(&tag("t")).unwrap();
    assert!(std::sync::Arc::ptr_eq(&open, &store.open_snapshot(&tag("t")).unwrap()));
    let roles: Vec<_> = open.files.iter().map(|(role, _)| *role).collect();
    let disk = |part| FdRole::Disk { disk: 0, part };
    let (layer, extents) = (disk(DiskPart::Layer(0)), disk(DiskPart::Extents(0)));
    assert_eq!(roles, [FdRole::State, FdRole::MemoryBase, disk(DiskPart::Base), layer, extents]);
    assert_eq!(open.disk_bytes, 64 * PAGE);
    store.verify_snapshot(&tag("t")).unwrap();
}

#[test]
fn of_many_who_want_one_tag_exactly_one_gets_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let start = Barrier::new(8);
    let drafts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    store.begin_snapshot(&tag("t"))
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(drafts.iter().filter(|d| d.is_ok()).count(), 1);
    for lost in drafts.iter().filter_map(|d| d.as_ref().err()) {
        assert!(
            matches!(lost, StoreError::TagTaken { .. }) && lost.class() == ErrorClass::Conflict,
            "{lost}"
        );
    }
    drop(drafts);
    written(&store, "t", 1).publish(meta(&image(&store))).unwrap();
    assert!(matches!(store.begin_snapshot(&tag("t")), Err(StoreError::TagTaken { .. })));
}

#[test]
fn an_abandoned_draft_leaves_nothing_and_frees_its_tag() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let image = image(&store);
    let before = tree(folder.path());
    drop(written(&store, "t", 1));
    assert_eq!(tree(folder.path()), before);
    let mut refused = written(&store, "t", 1);
    refused.outputs().memory_extents.set_len(17).unwrap();
    assert_eq!(refused.publish(meta(&image)).unwrap_err().class(), ErrorClass::Corrupt);
    assert_eq!(tree(folder.path()), before);
    let mut too_much = meta(&image);
    too_much.memory_mib = u64::MAX;
    assert_eq!(written(&store, "t", 1).publish(too_much).unwrap_err().class(), ErrorClass::Caller);
    let mut stateless = written(&store, "t", 1);
    stateless.outputs().state.set_len(0).unwrap();
    assert!(stateless.publish(meta(&image)).is_err());
    assert_eq!(tree(folder.path()), before);
    assert!(store.snapshots().unwrap().is_empty());
}

#[test]
fn what_a_crash_leaves_is_swept_and_its_tag_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let image = image(&store);
    written(&store, "kept", 1).publish(meta(&image)).unwrap();
    let before = tree(folder.path());

    // Killed while writing, and killed after everything was renamed but before the row.
    std::mem::forget(written(&store, "t", 2));
    let placed = written(&store, "u", 3);
    let examined = placed.draft.examine(meta(&image)).unwrap();
    placed.draft.write_folder(&examined, "{}").unwrap();
    placed.draft.place("some-id", &examined).unwrap();
    std::mem::forget(placed);
    for (name, text) in [("images/x.ext4", "x"), ("layers/odd", "x"), ("initrd/k-a.cpio", "x")] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    fs::create_dir(folder.path().join("kernels/k")).unwrap();
    assert!(tree(folder.path()).len() > before.len() + 8);
    drop(store.begin_snapshot(&tag("t")).unwrap_err());
    // The forgotten drafts hold the store and with it the lock, as a killed process would not.
    let crashed = folder.path().join("lock");
    fs::rename(&crashed, folder.path().join("lock.old")).unwrap();

    let reopened = Store::open(folder.path()).unwrap();
    assert_eq!(tree(folder.path()), before);
    reopened.verify_snapshot(&tag("kept")).unwrap();
    written(&reopened, "t", 2).publish(meta(&image)).unwrap();
}

#[test]
fn a_store_is_open_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let second = Store::open(folder.path()).unwrap_err();
    assert_eq!(second.class(), ErrorClass::Conflict);
    assert!(second.to_string().contains(&format!("pid {}", std::process::id())), "{second}");
    let clone = store.clone();
    drop(store);
    assert!(Store::open(folder.path()).is_err());
    drop(clone);
    Store::open(folder.path()).unwrap();
}

#[test]
fn removing_takes_what_only_this_snapshot_needs_and_breaks_nobody_who_has_it_open() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let py = image(&store);
    let empty = tree(folder.path());
    // Equal content twice: the layers are shared.
    let one = written(&store, "one", 7).publish(meta(&py)).unwrap();
    let two = written(&store, "two", 7).publish(meta(&py)).unwrap();
    assert_ne!(one.id, two.id);
    assert_eq!(one.manifest.memory, two.manifest.memory);
    let open = store.open_snapshot(&tag("one")).unwrap();
    store.remove_snapshot(&tag("one"), Removal::Alone).unwrap();
    store.verify_snapshot(&tag("two")).unwrap();
    assert!(matches!(store.open_snapshot(&tag("one")), Err(StoreError::NotFound { .. })));

    // The image keeps its file while a snapshot names it, also without a name of its own.
    store.remove_image(&"py".parse().unwrap()).unwrap();
    assert!(py.path.exists());
    store.verify_snapshot(&tag("two")).unwrap();
    store.remove_snapshot(&tag("two"), Removal::Alone).unwrap();
    // Whoever has it open may be forking children of it, whose rows are still to come.
    assert_eq!((tree(folder.path()).len(), empty.len()), (5, 1));

    let memory = open.files.iter().find(|(role, _)| *role == FdRole::MemoryBase).unwrap();
    let mut page = [0; 4096];
    File::from(memory.1.try_clone().unwrap()).read_exact_at(&mut page, PAGE).unwrap();
    assert_eq!(page, [7; 4096]);
    drop(open);
    store.drop_content([]).unwrap();
    assert!(tree(folder.path()).is_empty(), "{:?}", tree(folder.path()));
    assert_eq!(store.remove_snapshot(&tag("two"), Removal::Alone).unwrap_err().class(), ErrorClass::NotFound);
}

#[test]
fn an_image_that_is_removed_meanwhile_fails_the_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let image = image(&store);
    let draft = written(&store, "t", 1);
    store.remove_image(&"py".parse().unwrap()).unwrap();
    assert!(matches!(draft.publish(meta(&image)), Err(StoreError::Vanished { .. })));
    assert!(tree(folder.path()).is_empty());
}

#[test]
fn damage_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let record = written(&store, "t", 1).publish(meta(&image(&store))).unwrap();
    let manifest = &record.manifest;
    for (path, at) in [
        (store.layer_path(&manifest.memory[0].hash), PAGE + 5),
        (store.layer_path(&manifest.disk[0].hash), 3 * PAGE),
        (store.image_path(&manifest.image.hash), 0),
        (store.state_path(&record.id), 0),
        (store.snapshot_folder(&record.id).join("manifest.json"), 9),
    ] {
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        let found = store.verify_snapshot(&tag("t")).unwrap_err();
        assert_eq!(found.class(), ErrorClass::Corrupt);
        assert!(found.to_string().contains(path.to_str().unwrap()), "{found}");
        file.write_all_at(&byte, at).unwrap();
        store.verify_snapshot(&tag("t")).unwrap();
    }
}

#[test]
fn a_disk_that_nothing_was_written_to_is_no_layer() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let mut draft = written(&store, "t", 1);
    let files = draft.outputs();
    files.disk_extents.set_len(0).unwrap();
    files.disk_extents.write_all_at(&table(&[]), 0).unwrap();
    let untouched = File::create(draft.draft.path(DISK)).unwrap();
    untouched.set_len(64 * PAGE).unwrap();
    let record = draft.publish(meta(&image(&store))).unwrap();
    assert!(record.manifest.disk.is_empty());
    assert_eq!(store.open_snapshot(&tag("t")).unwrap().files.len(), 3);
}

#[test]
fn a_full_disk_is_said_leaves_nothing_and_works_again_once_there_is_room() {
    let Some(disk) = SmallDisk::mount(8) else { return };
    let root = disk.path().join("store");
    let store = Store::open(&root).unwrap();
    let small = image(&store);
    let before = tree(&root);

    let mut large = store.begin_image(&"large".parse().unwrap(), "").unwrap();
    let full = (0..16).find_map(|_| large.append(&[1; 1 << 20]).err()).unwrap();
    assert_eq!(full.class(), ErrorClass::Exhausted);
    assert!(
        full.to_string().contains("ENOSPC") && full.to_string().contains(root.to_str().unwrap()),
        "{full}"
    );
    drop(large);
    assert_eq!(tree(&root), before);

    // Full at the moment of publishing: the manifest and the row have no room.
    let draft = written(&store, "t", 1);
    let ballast = disk.fill_but(0).unwrap();
    let error = draft.publish(meta(&small)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Exhausted, "{error:?}");
    assert_eq!(tree(&root), before);
    assert!(store.snapshots().unwrap().is_empty());
    // Removing still works, and makes room itself.
    store.remove_image(&"py".parse().unwrap()).unwrap();
    assert!(tree(&root).is_empty());
    drop(ballast);
    let small = image(&store);
    written(&store, "t", 1).publish(meta(&small)).unwrap();
    store.verify_snapshot(&tag("t")).unwrap();
}

#[test]
fn hot_pages_are_kept_beside_the_snapshot_and_checked_when_read() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(root.path()).unwrap();
    let image = image(&store);
    let id = written(&store, "t", 1).publish(meta(&image)).unwrap().id;
    let told = |bytes: &[u8]| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    };
    let open = store.open_snapshot(&tag("t")).unwrap();
    assert!(open.hot().is_none() && open.claim_hot() && !open.claim_hot(), "one is to find out");
    for lie in [&b"nonsense"[..], &table(&[(1 << 40, 1)]), &table(&[(0, 9000)]), &table(&[(5, 1), (1, 1)])] {
        store.put_hot(&open, &told(lie)).unwrap_err();
    }
    open.disclaim_hot();
    assert!(open.hot().is_none() && open.claim_hot());
    store.put_hot(&open, &told(&table(&[(1, 2), (9, 1)]))).unwrap();
    assert!(open.hot().is_some() && !open.claim_hot());
    let home = store.snapshot_folder(&id).join("hot");
    assert_eq!(fs::read(&home).unwrap(), table(&[(1, 2), (9, 1)]));
    store.verify_snapshot(&tag("t")).unwrap();
    drop((open, store));

    let reopen = || Store::open(root.path()).unwrap().open_snapshot(&tag("t")).unwrap();
    assert!(reopen().hot().is_some());
    fs::remove_file(&home).unwrap();
    fs::write(&home, b"damaged").unwrap();
    let open = reopen();
    assert!(open.hot().is_none() && open.claim_hot(), "found out again");
    let store = Store::open(root.path()).unwrap();
    store.remove_snapshot(&tag("t"), Removal::Alone).unwrap();
    store.put_hot(&open, &told(&table(&[(1, 1)]))).unwrap_err();
    assert!(!home.exists());
}
