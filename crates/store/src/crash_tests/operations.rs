//! Everything that changes a store, each once.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use crate::bundle::samples;
use crate::chain::{Below, Removal};
use crate::draft::Floor;
use crate::extents::PAGE;
use crate::records::{SnapshotMeta, SnapshotRecord};
use crate::store::Store;
use crate::testing::{below, draft, fill, image, meta, pause, resume, sandbox, snapshot, tag};

/// One operation on a store that [`furnish`] and `prepare` made.
pub(super) struct Operation {
    pub(super) name: &'static str,
    pub(super) prepare: fn(&Store),
    pub(super) run: fn(&Store),
}

const OPENING: &str = "opening";

impl Operation {
    /// Whether it is done by opening the store.
    pub(super) fn is_opening(&self) -> bool {
        self.name == OPENING
    }
}

const fn operation(name: &'static str, run: fn(&Store)) -> Operation {
    Operation { name, prepare: nothing, run }
}

pub(super) const OPERATIONS: &[Operation] = &[
    operation(OPENING, nothing),
    operation("snapshot", snapshot_with_disk),
    operation("branch of a whole snapshot", |store| branch(store, "a")),
    operation("branch of a chain", |store| branch(store, "c")),
    operation("frozen top", freeze_top),
    Operation { name: "compact", prepare: freeze_and_branch, run: compact },
    operation("rmi", |store| remove(store, "c", Removal::Alone)),
    operation("rmi --cascade", |store| remove(store, "a", Removal::Cascade)),
    operation("fork", fork),
    Operation { name: "end of a sandbox", prepare: forget_tags, run: end_sandbox },
    operation("gc", collect),
    Operation { name: "image", prepare: |store| put_image(store, 6), run: |store| put_image(store, 7) },
    Operation { name: "image rm", prepare: |store| put_image(store, 6), run: remove_image },
    operation("kernel", |store| put_kernel(store, b"newer")),
    operation("kernel rm", remove_kernel),
    Operation { name: "ramdisk", prepare: |store| initrd(store, "one"), run: |store| initrd(store, "other") },
    operation("hot pages", put_hot),
    operation("verify --rebuild-views", rebuild_views),
    operation("refresh", replace),
    Operation { name: "unpack", prepare: pack_another, run: unpack_it },
    Operation {
        name: "gc of an import",
        prepare: abandon_import,
        run: |store| drop(store.gc(false).unwrap()),
    },
    operation("pause", pause_it),
    Operation { name: "pause again", prepare: pause_and_resume, run: pause_it },
    Operation { name: "resume", prepare: pause_it, run: |store| resume(store, "sb-1") },
    Operation { name: "end of a paused sandbox", prepare: pause_and_forget, run: end_sandbox },
];

fn nothing(_: &Store) {}

/// An image, a kernel, a chain of three, and a sandbox on its second level.
pub(super) fn furnish(store: &Store) {
    let image = image(store);
    put_kernel(store, b"old");
    let a = snapshot(store, &image, "a", None, &[(1, 1), (2, 1)]);
    let b = snapshot(store, &image, "b", Some(&a), &[(2, 2), (9, 2)]);
    snapshot(store, &image, "c", Some(&b), &[(3, 3)]);
    store.put_sandbox(&sandbox("sb-1", &b)).unwrap();
}

/// What a process leaves that was killed in the middle of everything.
pub(super) fn leave_garbage(store: &Store) {
    let reserve = "INSERT INTO snapshots (tag, draft, status, created_at) VALUES ('half', 'd', 'writing', 1)";
    store.shared.db.run(|c| c.execute(reserve, [])).unwrap();
    for folder in ["staging/d", "snapshots/0", "kernels/0"] {
        fs::create_dir(store.root().join(folder)).unwrap();
        fs::write(store.root().join(folder).join("left"), [1; 9000]).unwrap();
    }
    for file in ["layers/0", "layers/0.extents", "images/0.ext4", "initrd/0-0.cpio", "staging/left"] {
        fs::write(store.root().join(file), [1; 9000]).unwrap();
    }
}

fn record(store: &Store, name: &str) -> SnapshotRecord {
    store.snapshot(&tag(name)).unwrap()
}

/// A file of a run folder, which the store does not sweep.
fn run_file(store: &Store, name: &str, pages: &[(u64, u8)]) -> (PathBuf, PathBuf) {
    let (data, table) = (store.folder("run").join(name), store.folder("run").join(format!("{name}.extents")));
    fill(&File::create(&data).unwrap(), &File::create(&table).unwrap(), pages, 64);
    (data, table)
}

fn snapshot_with_disk(store: &Store) {
    let image = store.image(&"py".parse().unwrap()).unwrap();
    let mut draft = draft(store, "new", &[(5, 5), (6, 6)]);
    let (data, table) = run_file(store, "top", &[(4, 4)]);
    (&draft.outputs().disk_extents).write_all(&fs::read(table).unwrap()).unwrap();
    draft.adopt_disk_top(&data).unwrap();
    draft.publish(meta(&image)).unwrap();
}

fn branch(store: &Store, parent: &str) {
    let image = store.image(&"py".parse().unwrap()).unwrap();
    snapshot(store, &image, "new", Some(&record(store, parent)), &[(2, 7), (40, 7)]);
}

fn freeze_top(store: &Store) {
    let (data, table) = run_file(store, "top", &[(3, 1), (4, 1)]);
    store.adopt_layer(&"sb-1".parse().unwrap(), &data, &table, 64 * PAGE).unwrap();
}

/// A branch with two layers of disk.
fn freeze_and_branch(store: &Store) {
    freeze_top(store);
    let (data, table) = run_file(store, "top", &[(4, 0), (9, 2)]);
    store.adopt_layer(&"sb-1".parse().unwrap(), &data, &table, 64 * PAGE).unwrap();
    let disk = store.template(&"sb-1".parse().unwrap()).unwrap().unwrap().frozen;
    let image = store.image(&"py".parse().unwrap()).unwrap();
    let over = Below { disk, ..below(&record(store, "b")) };
    let meta = SnapshotMeta { below: Some(over), branched_from: Some("sb-1".into()), ..meta(&image) };
    draft(store, "d", &[(2, 0), (3, 3)]).publish(meta).unwrap();
}

fn compact(store: &Store) {
    store.compact_snapshot(&tag("d"), &tag("flat")).unwrap();
}

fn remove(store: &Store, name: &str, how: Removal) {
    store.remove_snapshot(&tag(name), how).unwrap();
}

fn fork(store: &Store) {
    let c = record(store, "c");
    store.put_sandboxes(&[sandbox("sb-2", &c), sandbox("sb-3", &c)]).unwrap();
}

fn forget_tags(store: &Store) {
    remove(store, "a", Removal::Cascade);
}

fn end_sandbox(store: &Store) {
    store.remove_sandbox(&"sb-1".parse().unwrap()).unwrap();
}

/// What was open while it lost its last name stays until then.
fn collect(store: &Store) {
    let open = store.open_snapshot(&tag("c")).unwrap();
    remove(store, "c", Removal::Alone);
    drop(open);
    fs::create_dir(store.snapshot_folder("0")).unwrap();
    let collected = store.gc(false).unwrap();
    assert_eq!(collected.items.len(), 2);
}

fn put_image(store: &Store, byte: u8) {
    let mut draft = store.begin_image(&"other".parse().unwrap(), "a test").unwrap();
    draft.write_all(&[byte; 16 * PAGE as usize]).unwrap();
    draft.publish().unwrap();
}

fn remove_image(store: &Store) {
    store.remove_image(&"other".parse().unwrap()).unwrap();
}

fn put_kernel(store: &Store, vmlinuz: &[u8]) {
    let mut draft = store.begin_kernel(&"6.12".parse().unwrap()).unwrap();
    draft.write_vmlinuz(vmlinuz).unwrap();
    draft.write_modules(&b"modules"[..]).unwrap();
    draft.publish().unwrap();
}

fn remove_kernel(store: &Store) {
    store.remove_kernel(&"6.12".parse().unwrap()).unwrap();
}

fn initrd(store: &Store, agent: &str) {
    let path = store.folder("run").join("agent");
    fs::write(&path, agent).unwrap();
    store.initrd(&store.kernel(None).unwrap(), &path).unwrap();
}

fn put_hot(store: &Store) {
    let mut told = tempfile::tempfile().unwrap();
    told.write_all(&crate::extents::table(&[(1, 2)])).unwrap();
    store.put_hot(&store.open_snapshot(&tag("c")).unwrap(), &told).unwrap();
}

/// The head of a chain gets another content; the old one's own layer goes.
fn replace(store: &Store) {
    let image = store.image(&"py".parse().unwrap()).unwrap();
    let mut draft = store.begin_replacement(&record(store, "c")).unwrap();
    let files = draft.outputs();
    (&files.state).write_all(b"another state").unwrap();
    fill(&files.memory, &files.memory_extents, &[(8, 8)], 2048);
    draft.publish(meta(&image)).unwrap();
}

/// A chain of another store, with an image, a kernel and layers that this one lacks.
fn pack_another(store: &Store) {
    let (_folder, other) = samples::store();
    let mut kernel = other.begin_kernel(&"7.0".parse().unwrap()).unwrap();
    kernel.write_vmlinuz(&b"a kernel"[..]).unwrap();
    kernel.write_modules(&b"its modules"[..]).unwrap();
    kernel.publish().unwrap();
    let mut image = other.begin_image(&"elsewhere".parse().unwrap(), "a test").unwrap();
    image.write_all(&[3; 64 * PAGE as usize]).unwrap();
    let image = image.publish().unwrap();
    let of_it = SnapshotMeta { kernel: "7.0".parse().unwrap(), ..meta(&image) };
    let base = draft(&other, "e", &[(1, 9), (7, 9)]).publish(of_it.clone()).unwrap();
    let over = SnapshotMeta { below: Some(below(&base)), branched_from: Some("sb-1".into()), ..of_it };
    draft(&other, "f", &[(2, 9)]).publish(over).unwrap();
    fs::write(store.folder("run").join("f.forkd"), samples::pack(&other, "f", false)).unwrap();
}

fn unpack_it(store: &Store) {
    samples::unpack(store, &fs::read(store.folder("run").join("f.forkd")).unwrap(), None).unwrap();
}

/// A bundle of which half has come, and that nobody goes on with.
fn abandon_import(store: &Store) {
    pack_another(store);
    samples::begin(store, &fs::read(store.folder("run").join("f.forkd")).unwrap());
}

fn pause_it(store: &Store) {
    pause(store, "sb-1", Floor { memory: 2, disk: 0 }, (&[(2, 5), (9, 6)], &[(3, 2)])).unwrap();
}

fn pause_and_resume(store: &Store) {
    freeze_top(store);
    pause_it(store);
    resume(store, "sb-1");
}

fn pause_and_forget(store: &Store) {
    pause_it(store);
    forget_tags(store);
}

fn rebuild_views(store: &Store) {
    assert_eq!(store.verify(None, true).unwrap().views_rebuilt, 2);
}
