//! A store on a small file system: whatever finds no room says so with figures and leaves what was there before, and
//! is done once there is room.

use std::fs::File;
use std::io::Write;

use forkd_protocol::error::ErrorClass;
use forkd_testkit::room::SmallDisk;

use crate::bundle::samples;
use crate::chain::{Below, Removal};
use crate::draft::Floor;
use crate::error::StoreError;
use crate::extents::PAGE;
use crate::records::{SandboxRow, SnapshotMeta, SnapshotRecord};
use crate::store::Store;
use crate::testing::{below, fill, image, meta, snapshot, tag, try_fill};

const MIB: u64 = 1 << 20;

type Attempt = fn(&Store) -> Result<(), StoreError>;

/// What takes 5 MiB or more.
const ATTEMPTS: [(&str, Attempt); 8] = [
    ("snapshot", |store| large(store, None)),
    ("branch, full", |store| large(store, Some(Vec::new()))),
    ("branch", |store| large(store, Some(store.snapshot(&tag("b")).unwrap().manifest.memory))),
    ("compact", |store| store.compact_snapshot(&tag("b"), &tag("new")).map(drop)),
    ("image", import),
    ("frozen top", freeze),
    ("bundle", unpack),
    ("pause", pause),
];

/// A snapshot whose memory differs in 5 MiB from what is below.
fn large(store: &Store, memory: Option<Vec<crate::LayerRef>>) -> Result<(), StoreError> {
    let pages: Vec<(u64, u8)> = (0..5 * MIB / PAGE).map(|page| (page, 9)).collect();
    let image = store.image(&"py".parse().unwrap()).unwrap();
    let mut draft = store.begin_snapshot(&tag("new"))?;
    let files = draft.outputs();
    let written = (&files.state).write_all(b"state").map_err(|e| StoreError::io("write", store.root(), e));
    written.and_then(|()| {
        try_fill(&files.memory, &files.memory_extents, &pages, 2048)
            .map_err(|e| StoreError::io("write", store.root(), e))
    })?;
    let below = memory.map(|memory| crate::Below { memory, ..below(&store.snapshot(&tag("b")).unwrap()) });
    let branched_from = below.is_some().then(|| "sb-1".to_owned());
    draft.publish(SnapshotMeta { below, branched_from, ..meta(&image) }).map(drop)
}

fn import(store: &Store) -> Result<(), StoreError> {
    let mut draft = store.begin_image(&"new".parse().unwrap(), "a test")?;
    draft.append(&vec![7; (5 * MIB) as usize])?;
    draft.publish().map(drop)
}

/// A bundle of another store, whose memory is of 5 MiB.
fn unpack(store: &Store) -> Result<(), StoreError> {
    let (_folder, other) = samples::store();
    let pages: Vec<(u64, u8)> = (0..5 * MIB / PAGE).map(|page| (page, 1 + (page % 250) as u8)).collect();
    snapshot(&other, &image(&other), "new", None, &pages);
    samples::unpack(store, &samples::pack(&other, "new", false), None).map(drop)
}

fn pause(store: &Store) -> Result<(), StoreError> {
    let failed = |e| StoreError::io("write", store.root(), e);
    let pages: Vec<(u64, u8)> = (0..5 * MIB / PAGE).map(|page| (page, 4)).collect();
    let id = "sb-1".parse().unwrap();
    let template = store.template(&id)?.unwrap();
    let mut draft = store.begin_pause(&id)?;
    let files = draft.outputs();
    (&files.state).write_all(b"state").map_err(failed)?;
    try_fill(&files.memory, &files.memory_extents, &pages, 2048).map_err(failed)?;
    let below = Below {
        parent: template.id,
        memory: template.manifest.memory.clone(),
        disk: template.frozen.clone(),
    };
    let meta = SnapshotMeta {
        below: Some(below),
        branched_from: Some("sb-1".to_owned()),
        ..meta(&store.image_below(&template.manifest.image))
    };
    let row = SandboxRow { state: "paused".to_owned(), ..store.sandbox(&id)?.unwrap() };
    draft.park(meta, Floor { memory: 2, disk: 0 }, &row)
}

fn freeze(store: &Store) -> Result<(), StoreError> {
    let pages: Vec<(u64, u8)> = (0..5 * MIB / PAGE).map(|page| (page, 3)).collect();
    let folder = tempfile::tempdir().unwrap();
    let (data, table) = (folder.path().join("top"), folder.path().join("table"));
    fill(&File::create(&data).unwrap(), &File::create(&table).unwrap(), &pages, 2048);
    store.adopt_layer(&"sb-1".parse().unwrap(), &data, &table, 2048 * PAGE).map(drop)
}

/// A chain whose layers together have 6 MiB, on 64 MiB.
fn furnished(disk: &SmallDisk) -> Store {
    let store = Store::open(&disk.path().join("store")).unwrap();
    let image = image(&store);
    let pages =
        |from: u64, byte: u8| (from..from + 3 * MIB / PAGE).map(|page| (page, byte)).collect::<Vec<_>>();
    let a: SnapshotRecord = snapshot(&store, &image, "a", None, &pages(0, 1));
    let b = snapshot(&store, &image, "b", Some(&a), &pages(1024, 2));
    store.put_sandbox(&crate::testing::sandbox("sb-1", &b)).unwrap();
    store
}

fn files(store: &Store) -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["images", "imports", "layers", "snapshots", "staging"] {
        let entries = std::fs::read_dir(store.folder(folder)).unwrap();
        found.extend(entries.map(|e| e.unwrap().path().display().to_string()));
    }
    found.sort();
    found
}

#[test]
fn what_finds_no_room_says_so_leaves_nothing_and_works_once_there_is_some() {
    let Some(disk) = SmallDisk::mount(64) else { return };
    let store = furnished(&disk);
    // No room for the first byte, for the data, for what is derived from it.
    for (what, attempt) in ATTEMPTS {
        let before = files(&store);
        for kib in [0, 64, 3 << 10] {
            let ballast = disk.fill_but(kib).unwrap();
            let error = attempt(&store).err().unwrap_or_else(|| panic!("{what}: fits into {kib} KiB"));
            assert_eq!(error.class(), ErrorClass::Exhausted, "{what}, {kib} KiB: {error:?}");
            let said = error.to_string();
            assert!(said.contains("ENOSPC") && said.contains("of 64 MiB are free"), "{what}: {said}");
            drop(ballast);
            assert_eq!(files(&store), before, "{what}, {kib} KiB");
            assert!(store.snapshot(&tag("new")).is_err(), "{what}, {kib} KiB");
            assert!(store.verify(None, false).unwrap().damage.is_empty(), "{what}, {kib} KiB");
        }
        attempt(&store).unwrap_or_else(|e| panic!("{what}, with room: {e}"));
        assert!(store.gc(true).unwrap().items.is_empty(), "{what}");
        if store.snapshot(&tag("new")).is_ok() {
            store.verify_snapshot(&tag("new")).unwrap();
            store.remove_snapshot(&tag("new"), Removal::Alone).unwrap();
        }
    }
}

#[test]
fn a_view_that_finds_no_room_costs_its_snapshot_and_nothing_else() {
    let Some(disk) = SmallDisk::mount(64) else { return };
    let store = furnished(&disk);
    let before = files(&store);
    // The layer of 5 MiB, taken in once, leaves no room for the view of 8.
    let ballast = disk.fill_but(12 << 10).unwrap();
    let error = ATTEMPTS[2].1(&store).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Exhausted, "{error:?}");
    drop(ballast);
    assert_eq!(files(&store), before);
    ATTEMPTS[2].1(&store).unwrap();
    store.verify_snapshot(&tag("new")).unwrap();
}
