//! Killed at every step: whatever an operation was at, who opens the store next finds each tag absent or whole, and on
//! the disk what was there before the operation or what is there after it, to the file.

mod operations;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use forkd_testkit::fault::{self, Errand, Passage};

use self::operations::{OPERATIONS, Operation};
use crate::store::Store;
use crate::testing::tag;

const TEST: &str = "crash_tests::a_process_that_is_killed_at_any_step_leaves_the_store_whole";
const POINTS: &str = "points";

/// What a store holds, without what differs from one run to the next.
#[derive(Debug, PartialEq)]
struct Seen {
    tags: Vec<(String, u32)>,
    sandboxes: Vec<(String, usize)>,
    images: Vec<(String, String)>,
    kernels: Vec<(String, String)>,
    /// Files and bytes on the disk, by folder.
    used: BTreeMap<&'static str, (usize, u64)>,
}

impl Seen {
    fn of(store: &Store) -> Self {
        let folders = ["images", "kernels", "layers", "snapshots", "staging"];
        Self {
            tags: store.snapshots().unwrap().into_iter().map(|s| (s.info.tag, s.info.chain_depth)).collect(),
            sandboxes: store.sandboxes().unwrap().iter().map(|row| whole_sandbox(store, row)).collect(),
            images: store.images().unwrap().into_iter().map(|i| (i.info.name, i.info.hash)).collect(),
            kernels: store.kernels().unwrap().into_iter().map(|k| (k.info.name, k.id)).collect(),
            used: folders.into_iter().map(|name| (name, used(&store.folder(name)))).collect(),
        }
    }
}

/// A sandbox and how many tops it keeps; all that it lies on is there.
fn whole_sandbox(store: &Store, row: &crate::SandboxRow) -> (String, usize) {
    let template = store.template(&row.id).unwrap().unwrap();
    assert!(store.image_path(&template.manifest.image.hash).exists());
    for layer in template.manifest.layers().chain(&template.frozen) {
        store.open_layer(layer).unwrap();
    }
    (row.id.to_string(), template.frozen.len())
}

fn used(folder: &Path) -> (usize, u64) {
    let (mut files, mut bytes) = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap()) {
        let (more, below) = match entry.file_type().unwrap().is_dir() {
            true => used(&entry.path()),
            false => (0, crate::disk::physical_bytes(&entry.path())),
        };
        files += 1 + more;
        bytes += below;
    }
    (files, bytes)
}

#[test]
fn a_process_that_is_killed_at_any_step_leaves_the_store_whole() {
    if let Some(errand) = fault::errand() {
        return carry_out(errand);
    }
    let mut passed = BTreeSet::new();
    for operation in OPERATIONS {
        let steps = steps_of(operation);
        assert!(!steps.passages.is_empty(), "{} passes no point", operation.name);
        for passage in &steps.passages {
            killed(operation, passage, &steps);
        }
        passed.extend(steps.passages.into_iter().map(|passage| passage.point));
    }
    let all = fault::points_of(env!("CARGO_MANIFEST_DIR").as_ref()).unwrap();
    assert_eq!(
        all.difference(&passed).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "no operation passes these"
    );
}

/// In the copy of this program.
fn carry_out(errand: Errand) {
    let operation = OPERATIONS.iter().find(|operation| operation.name == errand.operation).unwrap();
    let arm = || match errand.harm.clone() {
        Some(passage) => passage.then_die(),
        None => fault::note(&errand.folder.join(POINTS)).unwrap(),
    };
    let root = errand.folder.join("root");
    if operation.is_opening() {
        arm();
        drop(Store::open(&root).unwrap());
    } else {
        let store = Store::open(&root).unwrap();
        arm();
        (operation.run)(&store);
    }
}

struct Steps {
    passages: Vec<Passage>,
    before: Seen,
    after: Seen,
}

/// An operation that nothing happens to.
fn steps_of(operation: &Operation) -> Steps {
    let folder = tempfile::tempdir().unwrap();
    let before = prepare(operation, folder.path());
    let errand =
        Errand { operation: operation.name.to_owned(), folder: folder.path().to_owned(), harm: None };
    let output = fault::send(TEST, &errand).unwrap();
    assert!(output.status.success(), "{}: {}", operation.name, String::from_utf8_lossy(&output.stdout));
    let store = Store::open(&folder.path().join("root")).unwrap();
    let passages = fault::noted(&folder.path().join(POINTS)).unwrap();
    Steps { passages, before, after: Seen::of(&store) }
}

/// What the operation finds.
fn prepare(operation: &Operation, folder: &Path) -> Seen {
    let store = Store::open(&folder.join("root")).unwrap();
    operations::furnish(&store);
    (operation.prepare)(&store);
    let seen = Seen::of(&store);
    if operation.is_opening() {
        operations::leave_garbage(&store);
    }
    seen
}

fn killed(operation: &Operation, passage: &Passage, steps: &Steps) {
    let at = format!("{} killed at {passage}", operation.name);
    let folder = tempfile::tempdir().unwrap();
    prepare(operation, folder.path());
    let (name, harm) = (operation.name.to_owned(), Some(passage.clone()));
    let errand = Errand { operation: name, folder: folder.path().to_owned(), harm };
    let status = fault::send(TEST, &errand).unwrap().status;
    assert_eq!(status.signal(), Some(9), "{at}: {status}");

    let store = Store::open(&folder.path().join("root")).unwrap();
    assert_whole(&store, &at);
    let seen = Seen::of(&store);
    assert!(seen == steps.before || seen == steps.after, "{at}: {seen:#?} is not {:#?}", steps.before);
    if seen != steps.after {
        (operation.run)(&store);
        assert_eq!(Seen::of(&store), steps.after, "{at}, then done again");
    }
    assert_whole(&store, &at);
    store.gc(false).unwrap();
    assert_eq!(used(&store.folder("imports")), (0, 0), "{at}: a bundle that nobody goes on with");
}

fn assert_whole(store: &Store, at: &str) {
    let found = store.verify(None, false).unwrap();
    assert!(found.damage.is_empty(), "{at}: {found:?}");
    // A bundle on its way in stays for who goes on with it; everything else is looked after when a store opens.
    let left: Vec<_> = store.gc(true).unwrap().items.into_iter().filter(|i| i.kind != "import").collect();
    assert!(left.is_empty(), "{at}: {left:?}");
    let half = "SELECT count(*) FROM snapshots WHERE status <> 'ready'";
    let half: u32 = store.shared.db.run(|c| c.query_row(half, [], |row| row.get(0))).unwrap();
    assert_eq!(half, 0, "{at}: tags that are reserved for nobody");
    let ramdisks = std::fs::read_dir(store.folder("initrd")).unwrap().count();
    assert!(ramdisks <= store.kernels().unwrap().len(), "{at}: {ramdisks} ramdisks");
    for record in store.snapshots().unwrap() {
        store.open_snapshot(&tag(&record.info.tag)).unwrap();
    }
}
