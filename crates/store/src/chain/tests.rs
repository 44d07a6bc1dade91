use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};

use forkd_protocol::control::FdRole;
use proptest::prelude::*;

use super::*;
use crate::extents::PAGE;
use crate::layers::is_zero;
use crate::records::SnapshotMeta;
use crate::testing::{below, draft, extents_of, fill, image, meta, sandbox, snapshot, tag};

/// What a child of a snapshot sees: page by page, as the monitor maps base and view.
fn seen(store: &Store, name: &str) -> Vec<u8> {
    let open = store.open_snapshot(&tag(name)).unwrap();
    let file = |role| {
        let found = open.files.iter().find(|(r, _)| *r == role);
        found.map(|(_, fd)| File::from(fd.try_clone().unwrap()))
    };
    let base = file(FdRole::MemoryBase).unwrap();
    let upper = file(FdRole::MemoryUpper).zip(file(FdRole::MemoryUpperExtents));
    let pages = base.metadata().unwrap().len() / PAGE;
    let extents = upper.as_ref().map(|(_, table)| extents_of(table, pages * PAGE)).unwrap_or_default();
    assert!(extents.len() <= 256);
    let page = |n: u64| {
        let in_view = extents.iter().any(|e| (e.first..e.end()).contains(&n));
        let file = if in_view { &upper.as_ref().unwrap().0 } else { &base };
        let mut bytes = [0; PAGE as usize];
        file.read_exact_at(&mut bytes, n * PAGE).unwrap();
        assert!(bytes.iter().all(|b| *b == bytes[0]));
        bytes[0]
    };
    (0..pages).map(page).collect()
}

fn opened() -> (tempfile::TempDir, Store) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    (folder, store)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn a_child_sees_what_the_layers_say_page_by_page(
        layers in prop::collection::vec(prop::collection::btree_map(0..40u64, 0..3u8, 0..30), 1..6)
    ) {
        let (_folder, store) = opened();
        let image = image(&store);
        let mut model = vec![0; 2048];
        let mut parent = None;
        for (n, layer) in layers.iter().enumerate() {
            let pages: Vec<_> = layer.iter().map(|(page, byte)| (*page, *byte)).collect();
            let differ = pages.iter().filter(|(page, byte)| model[*page as usize] != *byte).count() as u64;
            pages.iter().for_each(|(page, byte)| model[*page as usize] = *byte);
            let name = format!("t{n}");
            let made = snapshot(&store, &image, &name, parent.as_ref(), &pages);
            if parent.is_some() {
                let before = made.manifest.memory.len() - usize::from(differ > 0);
                let stored: u64 = made.manifest.memory[before..].iter().map(|l| l.data_bytes).sum();
                assert_eq!(stored, differ * PAGE, "what equals the page below is not stored");
            }
            assert_eq!(seen(&store, &name), model);
            store.verify_snapshot(&tag(&name)).unwrap();
            parent = Some(made);
        }
    }
}

#[test]
fn a_scattered_guest_has_a_view_of_few_extents_whose_gaps_are_filled_from_below() {
    let (_folder, store) = opened();
    let image = image(&store);
    let base: Vec<_> = (0..2048).map(|n| (n, 1)).collect();
    let first = snapshot(&store, &image, "base", None, &base);
    let odd: Vec<_> = (0..1024).map(|n| (n * 2, 2)).collect();
    let second = snapshot(&store, &image, "odd", Some(&first), &odd);
    assert_eq!(second.manifest.memory[1].extents, 1024);
    let expected: Vec<u8> = (0..2048).map(|n| if n % 2 == 0 { 2 } else { 1 }).collect();
    assert_eq!(seen(&store, "odd"), expected);
    let view = store.snapshot_folder(&second.id).join("view.extents");
    assert_eq!(extents_of(&File::open(view).unwrap(), 2048 * PAGE).len(), 256);
}

#[test]
fn one_layer_of_few_extents_is_its_own_view() {
    let (_folder, store) = opened();
    let image = image(&store);
    let first = snapshot(&store, &image, "a", None, &[(1, 7)]);
    let second = snapshot(&store, &image, "b", Some(&first), &[(2, 8)]);
    let inode = |path: std::path::PathBuf| fs::metadata(path).unwrap().ino();
    let view = store.snapshot_folder(&second.id).join("view");
    let layer = &second.manifest.memory[1];
    assert_eq!(inode(view.clone()), inode(store.layer_path(&layer.hash)));
    // The same content again is another file; the layer is the first one's.
    let third = snapshot(&store, &image, "c", Some(&first), &[(2, 8)]);
    assert_eq!(third.manifest.memory[1], *layer);
    assert_eq!(seen(&store, "c"), seen(&store, "b"));
    fs::remove_file(&view).unwrap();
    store.shared.open.forget(&second.id);
    assert_eq!(seen(&store, "b")[..3], [0, 7, 8]);
    assert_ne!(inode(view), inode(store.layer_path(&layer.hash)));
    store.verify_snapshot(&tag("b")).unwrap();
}

#[test]
fn a_page_that_became_zero_is_zero_and_costs_nothing() {
    let (_folder, store) = opened();
    let image = image(&store);
    let first = snapshot(&store, &image, "a", None, &[(1, 7), (2, 7), (3, 7)]);
    let second = snapshot(&store, &image, "b", Some(&first), &[(2, 0), (3, 7), (5, 0)]);
    let layer = &second.manifest.memory[1];
    assert_eq!((layer.data_bytes, layer.extents, layer.size_bytes), (PAGE, 1, 2048 * PAGE));
    assert_eq!(crate::disk::physical_bytes(&store.layer_path(&layer.hash)), 0);
    assert_eq!(seen(&store, "b")[..6], [0, 7, 0, 7, 0, 0]);
    assert_eq!((second.manifest.parent.as_ref(), second.manifest.memory.len()), (Some(&first.id), 2));
    let info = store.snapshot(&tag("b")).unwrap().info;
    assert_eq!(
        (info.parent_id, info.parent_tag.as_deref(), info.chain_depth),
        (Some(first.id), Some("a"), 2)
    );
}

#[test]
fn a_guest_that_changed_nothing_adds_no_layer() {
    let (_folder, store) = opened();
    let image = image(&store);
    let first = snapshot(&store, &image, "a", None, &[(1, 7)]);
    let second = snapshot(&store, &image, "b", Some(&first), &[(1, 7), (9, 0)]);
    assert_eq!(second.manifest.memory, first.manifest.memory);
    assert_eq!(second.manifest.parent, Some(first.id));
    assert_eq!(seen(&store, "b")[..3], [0, 7, 0]);
}

#[test]
fn without_memory_below_a_branch_is_whole_and_has_no_parent() {
    let (_folder, store) = opened();
    let image = image(&store);
    let first = snapshot(&store, &image, "a", None, &[(1, 7)]);
    let below = Below { memory: Vec::new(), ..below(&first) };
    let meta = SnapshotMeta { below: Some(below), branched_from: Some("sb-1".into()), ..meta(&image) };
    let whole = draft(&store, "b", &[(1, 7), (2, 0), (3, 4)]).publish(meta).unwrap();
    assert_eq!((whole.manifest.memory.len(), whole.manifest.parent.as_ref()), (1, None));
    assert_eq!(whole.manifest.memory[0].data_bytes, 2 * PAGE, "zero pages are left out");
    assert_eq!(seen(&store, "b")[..4], [0, 7, 0, 4]);
}

#[test]
fn what_nobody_can_write_to_any_more_is_not_copied_and_loses_what_is_below() {
    let (folder, store) = opened();
    let image = image(&store);
    let a = snapshot(&store, &image, "a", None, &[(1, 1), (2, 1), (3, 1)]);
    let mut ended = draft(&store, "b", &[(1, 8), (2, 1), (3, 0)]);
    let written = ended.outputs().memory.metadata().unwrap().ino();
    let meta = SnapshotMeta { below: Some(below(&a)), branched_from: Some("sb-1".into()), ..meta(&image) };
    let b = ended.publish(meta).unwrap();
    let layer = &b.manifest.memory[1];
    let kept = store.layer_path(&layer.hash).metadata().unwrap();
    assert_eq!((kept.ino(), layer.data_bytes, kept.blocks() * 512), (written, 2 * PAGE, PAGE));
    assert_eq!(seen(&store, "b")[..5], [0, 8, 1, 0, 0]);

    store.put_sandbox(&sandbox("sb-1", &a)).unwrap();
    let (data, table) = (folder.path().join("run/top"), folder.path().join("run/top.extents"));
    fill(&File::create(&data).unwrap(), &File::create(&table).unwrap(), &[(4, 4), (5, 0)], 64);
    let written = data.metadata().unwrap().ino();
    let top = store.adopt_layer(&"sb-1".parse().unwrap(), &data, &table, 64 * PAGE).unwrap().unwrap();
    assert_eq!(store.layer_path(&top.hash).metadata().unwrap().ino(), written);
    assert!(!data.exists() && !table.exists());
    assert!(store.verify(None, false).unwrap().damage.is_empty());
}

#[test]
fn what_the_source_writes_afterwards_is_not_in_the_snapshot() {
    let (_folder, store) = opened();
    let image = image(&store);
    let first = snapshot(&store, &image, "a", None, &[(1, 7)]);
    let mut captured = draft(&store, "b", &[(1, 8)]);
    let memory = captured.outputs().memory.try_clone().unwrap();
    let state = captured.outputs().state.try_clone().unwrap();
    let below = Some(below(&first));
    let meta = SnapshotMeta { below, branched_from: Some("sb-1".into()), ..meta(&image) };
    captured.publish(meta).unwrap();
    memory.write_all_at(&[9; 4096], PAGE).unwrap();
    state.write_all_at(b"other", 0).unwrap();
    assert_eq!(seen(&store, "b")[1], 8);
    store.verify_snapshot(&tag("b")).unwrap();
}

#[test]
fn a_layer_that_lies_is_refused_also_over_others() {
    let (folder, store) = opened();
    let image = image(&store);
    let first = snapshot(&store, &image, "a", None, &[(1, 7)]);
    let before = count(folder.path());
    let mut unlisted = draft(&store, "b", &[(1, 8)]);
    unlisted.outputs().memory.write_all_at(&[1; 4096], 77 * PAGE).unwrap();
    let meta = SnapshotMeta { below: Some(below(&first)), ..meta(&image) };
    assert!(matches!(unlisted.publish(meta.clone()), Err(StoreError::BadLayer { .. })));
    let mut gone = meta.clone();
    gone.below.as_mut().unwrap().memory[0].hash = "0".repeat(64);
    let refused = draft(&store, "b", &[(1, 8)]).publish(gone).unwrap_err();
    assert!(matches!(refused, StoreError::Vanished { kind: "layer", .. }), "{refused}");
    assert_eq!(count(folder.path()), before);
}

/// How many files lie below a folder.
fn count(folder: &std::path::Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    entries.map(|path| if path.is_dir() { count(&path) } else { 1 }).sum()
}

#[test]
fn a_view_that_is_lost_or_damaged_is_made_again() {
    let (_folder, store) = opened();
    let image = image(&store);
    let first = snapshot(&store, &image, "a", None, &[(1, 7)]);
    let second = snapshot(&store, &image, "a2", Some(&first), &[(5, 5)]);
    let second = snapshot(&store, &image, "b", Some(&second), &[(2, 8), (9, 3)]);
    let folder = store.snapshot_folder(&second.id);
    let expected = seen(&store, "b");
    let tear = |name: &str, tear: &dyn Fn(&std::path::Path)| {
        store.shared.open.forget(&second.id);
        tear(&folder.join(name));
        assert_eq!(seen(&store, "b"), expected, "{name}");
        assert!(view::verify(&folder).unwrap(), "{name}");
    };
    for name in ["view", "view.extents", "view.json"] {
        tear(name, &|path| fs::remove_file(path).unwrap());
        tear(name, &|path| File::options().write(true).open(path).unwrap().set_len(5).unwrap());
        tear(name, &|path| {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(&[1; 99], 0).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        });
    }
    // Touched, as by a copy of the store, and right.
    tear("view", &|path| {
        File::options().write(true).open(path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    });
    store.verify_snapshot(&tag("b")).unwrap();
}

#[test]
fn a_tag_that_is_used_again_changes_no_child_and_no_chain() {
    let (_folder, store) = opened();
    let image = image(&store);
    let first = snapshot(&store, &image, "a", None, &[(1, 7)]);
    let second = snapshot(&store, &image, "b", Some(&first), &[(2, 8)]);
    store.put_sandbox(&sandbox("sb-1", &first)).unwrap();
    store.remove_snapshot(&tag("a"), Removal::Force).unwrap();
    snapshot(&store, &image, "a", None, &[(1, 99)]);
    assert_eq!(seen(&store, "b")[..3], [0, 7, 8]);
    let template = store.template(&"sb-1".parse().unwrap()).unwrap().unwrap();
    assert_eq!((template.id, template.manifest), (first.id, first.manifest));
    assert_eq!(second.manifest.memory.len(), 2);
}

#[test]
fn a_sandbox_keeps_what_a_branch_of_it_needs() {
    let (folder, store) = opened();
    let image = image(&store);
    let id = "sb-1".parse().unwrap();
    let first = snapshot(&store, &image, "a", None, &[(1, 7)]);
    store.put_sandboxes(&[sandbox("sb-1", &first), sandbox("sb-2", &first)]).unwrap();
    store.remove_snapshot(&tag("a"), Removal::Alone).unwrap();
    store.remove_image(&"py".parse().unwrap()).unwrap();
    drop(store);
    let store = Store::open(folder.path()).unwrap();
    store.remove_sandbox(&"sb-2".parse().unwrap()).unwrap();
    store.put_sandbox(&sandbox("sb-1", &first)).unwrap();
    let template = store.template(&id).unwrap().unwrap();
    let over = Below { parent: template.id, memory: template.manifest.memory, disk: Vec::new() };
    let meta = SnapshotMeta { below: Some(over), branched_from: Some("sb-1".into()), ..meta(&image) };
    draft(&store, "b", &[(2, 8)]).publish(meta).unwrap();
    assert_eq!(seen(&store, "b")[..3], [0, 7, 8]);
    store.remove_snapshot(&tag("b"), Removal::Alone).unwrap();
    assert!(store.layer_path(&first.manifest.memory[0].hash).exists());
    store.remove_sandbox(&id).unwrap();
    assert_eq!(count(&store.folder("layers")) + count(&store.folder("images")), 0);
    assert_eq!(store.template(&id).unwrap(), None);
}

#[test]
fn children_that_are_being_forked_keep_a_snapshot_that_is_removed() {
    let (_folder, store) = opened();
    let image = image(&store);
    let first = snapshot(&store, &image, "a", None, &[(1, 7)]);
    let open = store.open_snapshot(&tag("a")).unwrap();
    store.remove_snapshot(&tag("a"), Removal::Alone).unwrap();
    store.put_sandbox(&sandbox("sb-1", &first)).unwrap();
    drop(open);
    let other = snapshot(&store, &image, "other", None, &[(1, 9)]);
    store.remove_snapshot(&tag("other"), Removal::Alone).unwrap();
    assert!(!store.layer_path(&other.manifest.memory[0].hash).exists());
    let template = store.template(&"sb-1".parse().unwrap()).unwrap().unwrap();
    assert!(store.open_layer(&template.manifest.memory[0]).is_ok());
    store.remove_sandbox(&"sb-1".parse().unwrap()).unwrap();
    assert_eq!(count(&store.folder("layers")), 0);
}

#[test]
fn a_frozen_top_is_taken_in_kept_by_its_sandbox_and_named_by_a_branch() {
    let (folder, store) = opened();
    let image = image(&store);
    let id = "sb-1".parse().unwrap();
    let first = snapshot(&store, &image, "a", None, &[(1, 7)]);
    let top = |fill_with: u8| {
        let (data, table) = (folder.path().join("run/top"), folder.path().join("run/top.extents"));
        let (file, extents) = (File::create(&data).unwrap(), File::create(&table).unwrap());
        fill(&file, &extents, &[(3, fill_with), (4, 0)], 64);
        (data, table, file)
    };
    let (data, table, _) = top(1);
    let stranger = store.adopt_layer(&id, &data, &table, 64 * PAGE).unwrap_err();
    assert!(matches!(stranger, StoreError::NotFound { kind: "sandbox", .. }), "{stranger}");
    assert!(data.exists() && table.exists());
    store.put_sandbox(&sandbox("sb-1", &first)).unwrap();
    assert!(matches!(store.adopt_layer(&id, &data, &table, 63 * PAGE), Err(StoreError::BadLayer { .. })));
    let layer = store.adopt_layer(&id, &data, &table, 64 * PAGE).unwrap().unwrap();
    assert!(!data.exists() && !table.exists());
    let (data, table, still_open) = top(2);
    let next = store.adopt_layer(&id, &data, &table, 64 * PAGE).unwrap().unwrap();
    still_open.write_all_at(&[9; 4096], 3 * PAGE).unwrap();
    let mut page = [0; 4096];
    File::from(store.open_layer(&next).unwrap().0).read_exact_at(&mut page, 3 * PAGE).unwrap();
    assert_eq!(page, [2; 4096], "the source still had it open");
    // A block of zeroes is kept: the machine counts its blocks.
    assert_eq!((layer.data_bytes, next.data_bytes), (2 * PAGE, 2 * PAGE));
    // What was taken in before a crash comes again, and what holds nothing is no layer.
    let (data, table, _) = top(2);
    assert_eq!(store.adopt_layer(&id, &data, &table, 64 * PAGE).unwrap().unwrap(), next);
    fill(&File::create(&data).unwrap(), &File::create(&table).unwrap(), &[], 64);
    assert_eq!(store.adopt_layer(&id, &data, &table, 64 * PAGE).unwrap(), None);
    assert!(!data.exists() && !table.exists());
    let template = store.template(&id).unwrap().unwrap();
    assert_eq!(template.frozen, [layer.clone(), next.clone()]);

    let over = Below { disk: template.frozen, ..below(&first) };
    let meta = SnapshotMeta { below: Some(over), branched_from: Some("sb-1".into()), ..meta(&image) };
    let branch = draft(&store, "b", &[]).publish(meta).unwrap();
    store.remove_sandbox(&id).unwrap();
    assert_eq!(branch.manifest.disk, [layer.clone(), next]);
    store.verify_snapshot(&tag("b")).unwrap();
    assert!(is_zero(&[0; 9]) && store.open_layer(&layer).is_ok());
    store.remove_snapshot(&tag("b"), Removal::Alone).unwrap();
    assert!(store.open_layer(&layer).is_err());
}

#[test]
fn what_a_crash_left_without_a_row_is_swept() {
    let (folder, store) = opened();
    let image = image(&store);
    let first = snapshot(&store, &image, "a", None, &[(1, 7)]);
    store.put_sandbox(&sandbox("sb-1", &first)).unwrap();
    let before: BTreeMap<_, _> = [("layers", 2), ("snapshots", 2), ("images", 1)].into();
    for left in ["layers/0", "layers/0.extents", "images/0.ext4"] {
        fs::write(folder.path().join(left), "left").unwrap();
    }
    fs::create_dir(folder.path().join("snapshots/0")).unwrap();
    // A sandbox whose row went and whose content was still named.
    store
        .shared
        .db
        .run(|c| {
            c.execute("INSERT INTO snapshot_content VALUES ('sb-9', 'layer', '0')", [])?;
            c.execute("INSERT INTO frozen_tops VALUES ('sb-9', 0, '{}')", [])
        })
        .unwrap();
    drop(store);
    let store = Store::open(folder.path()).unwrap();
    for (name, files) in before {
        assert_eq!(count(&store.folder(name)), files, "{name}");
    }
    assert!(store.template(&"sb-1".parse().unwrap()).unwrap().is_some());
}
