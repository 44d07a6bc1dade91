use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::Fate;

use super::BundleError;
use super::samples::{chain, files, objects, pack, store, unpack};
use crate::error::StoreError;
use crate::store::Store;
use crate::testing::{Pages, image, snapshot, tag};

fn bundle_error(error: StoreError) -> BundleError {
    match error {
        StoreError::Bundle(e) => e,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_chain_arrives_whole_in_another_store_with_its_ancestors_image_and_kernel() {
    let ((_here, from), (_there, to)) = (store(), store());
    let sent = chain(&from);
    let (head, fates, _) = unpack(&to, &pack(&from, "c", false), None).unwrap();
    assert_eq!((&head.id, &head.manifest, head.info.tag.as_str()), (&sent[2].id, &sent[2].manifest, "c"));
    assert!(fates.iter().all(|fate| fate.fate == Fate::New) && fates.len() == 3);
    for record in &sent {
        let arrived = to.snapshot(&tag(&record.info.tag)).unwrap();
        assert_eq!((&arrived.id, &arrived.manifest), (&record.id, &record.manifest));
        to.open_snapshot(&tag(&record.info.tag)).unwrap();
    }
    let report = to.verify(None, false).unwrap();
    assert_eq!((report.snapshots, report.damage), (3, vec![]));
    assert_eq!(to.snapshot_detail(&tag("c")).unwrap().ancestors, ["b", "a"]);
    let (mine, theirs) = (from.kernel(None).unwrap(), to.kernel(None).unwrap());
    assert_eq!((mine.id, mine.info.name), (theirs.id, theirs.info.name));
    let name = "py".parse().unwrap();
    assert_eq!(from.image(&name).unwrap().info.hash, to.image(&name).unwrap().info.hash);
    // What was sent is what is there, but for the times in views.
    let names = |store: &Store| -> Vec<String> {
        let root = store.root().display().to_string();
        files(store).into_iter().map(|file| file.replace(&root, "")).collect()
    };
    assert_eq!(names(&from), names(&to));
    // It leaves as it came.
    assert_eq!(from.export(&tag("c"), false).unwrap().text(), to.export(&tag("c"), false).unwrap().text());
}

#[test]
fn what_is_there_costs_nothing_and_what_is_missing_alone_is_asked_for() {
    let ((_here, from), (_there, to)) = (store(), store());
    chain(&from);
    let (_, _, first) = unpack(&to, &pack(&from, "b", false), None).unwrap();
    let (text, all) = objects(&from, "c", false);
    let status = to.begin_import(&text, None, None).unwrap();
    // State, memory layer and disk layer of "c".
    assert_eq!((status.missing.len(), all.len()), (3, first + 3));
    assert_eq!(
        status.snapshots.iter().map(|s| s.fate).collect::<Vec<_>>(),
        [Fate::Present, Fate::Present, Fate::New]
    );
    let (head, _, second) = unpack(&to, &pack(&from, "c", false), None).unwrap();
    assert_eq!(second, 3);
    let before = files(&to);
    assert_eq!(unpack(&to, &pack(&from, "c", false), None).unwrap().2, 0);
    assert_eq!(files(&to), before);
    to.verify_snapshot(&tag("c")).unwrap();

    // The same snapshot has one name.
    let here = bundle_error(unpack(&to, &pack(&from, "c", false), Some("d")).unwrap_err());
    assert_eq!((here.class(), here.to_string().contains("\"c\"")), (ErrorClass::Conflict, true));
    assert_eq!(to.snapshot(&tag("c")).unwrap().id, head.id);
}

#[test]
fn a_tag_that_is_taken_is_refused_before_anything_moves_and_an_ancestor_gives_way() {
    let ((_here, from), (_there, to)) = (store(), store());
    chain(&from);
    let own = snapshot(&to, &image(&to), "c", None, &[(1, 8)]);
    snapshot(&to, &image(&to), "a", None, &[(1, 7)]);
    let before = files(&to);
    let refused = unpack(&to, &pack(&from, "c", false), None).unwrap_err();
    assert!(matches!(&refused, StoreError::TagTaken { tag } if tag == "c"), "{refused}");
    assert_eq!(files(&to), before);
    let draft = to.begin_snapshot(&tag("reserved")).unwrap();
    let refused = unpack(&to, &pack(&from, "c", false), Some("reserved")).unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Conflict);
    drop(draft);

    let (head, fates, _) = unpack(&to, &pack(&from, "c", false), Some("mine")).unwrap();
    assert_eq!(fates.iter().map(|f| f.fate).collect::<Vec<_>>(), [Fate::Unnamed, Fate::New, Fate::New]);
    assert_eq!((head.info.tag.as_str(), to.snapshot(&tag("c")).unwrap().id), ("mine", own.id));
    let detail = to.snapshot_detail(&tag("mine")).unwrap();
    assert_eq!(detail.ancestors, ["b".to_owned(), from.snapshot(&tag("a")).unwrap().id]);
    assert_eq!(to.verify(None, false).unwrap().damage, []);
}

#[test]
fn an_import_that_broke_off_goes_on_where_it_was_also_in_a_store_that_was_opened_anew() {
    let ((_here, from), (there, to)) = (store(), store());
    chain(&from);
    let (text, all) = objects(&from, "c", false);
    let id = to.begin_import(&text, None, None).unwrap().id;
    let half = all.len() / 2;
    for (hash, object) in &all[..half] {
        to.put_object(&id, hash, object).unwrap();
        to.put_object(&id, hash, object).unwrap();
    }
    let early = bundle_error(to.commit_import(&id, None).unwrap_err());
    assert!(matches!(early, BundleError::Incomplete { missing } if missing == all.len() - half));
    assert!(to.snapshots().unwrap().is_empty());
    drop(to);

    let to = Store::open(there.path()).unwrap();
    let status = to.import_status(&id, None).unwrap();
    assert_eq!(status.missing, all[half..].iter().map(|(hash, _)| *hash).collect::<Vec<_>>());
    assert_eq!(to.begin_import(&text, None, None).unwrap(), status);
    for (hash, object) in &all[half..] {
        to.put_object(&id, hash, object).unwrap();
    }
    to.commit_import(&id, None).unwrap();
    to.verify_snapshot(&tag("c")).unwrap();
    assert!(matches!(bundle_error(to.commit_import(&id, None).unwrap_err()), BundleError::NoImport { .. }));
    assert_eq!(std::fs::read_dir(to.folder("imports")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(to.folder("staging")).unwrap().count(), 0);
}

#[test]
fn an_import_that_nobody_goes_on_with_is_garbage() {
    let ((_here, from), (there, to)) = (store(), store());
    chain(&from);
    let before = files(&to);
    let (text, all) = objects(&from, "c", false);
    let id = to.begin_import(&text, None, None).unwrap().id;
    to.put_object(&id, &all[0].0, &all[0].1).unwrap();
    // One that is under way is not.
    assert!(to.gc(false).unwrap().items.is_empty());
    assert_eq!(to.import_status(&id, None).unwrap().missing.len(), all.len() - 1);
    drop(to);
    let to = Store::open(there.path()).unwrap();
    let report = to.gc(true).unwrap();
    assert_eq!(
        report.items.iter().map(|i| (i.kind.as_str(), i.name.clone())).collect::<Vec<_>>(),
        [("import", id.to_string())]
    );
    assert_eq!(to.gc(false).unwrap().items, report.items);
    assert_eq!(files(&to), before);
    // And one that is given up goes at once.
    let id = to.begin_import(&text, None, None).unwrap().id;
    to.remove_import(&id).unwrap();
    assert_eq!(files(&to), before);
    // What is none goes when the store opens.
    std::fs::create_dir_all(to.folder("imports").join("nonsense/objects")).unwrap();
    drop(to);
    let to = Store::open(there.path()).unwrap();
    assert_eq!(std::fs::read_dir(to.folder("imports")).unwrap().count(), 0);
}

#[test]
fn a_thin_bundle_needs_its_image() {
    let ((_here, from), (_there, to)) = (store(), store());
    chain(&from);
    let (thin, whole) = (pack(&from, "c", true), pack(&from, "c", false));
    assert!(thin.len() < whole.len());
    let before = files(&to);
    let refused = bundle_error(unpack(&to, &thin, None).unwrap_err());
    assert!(refused.to_string().contains("py") && refused.class() == ErrorClass::Conflict, "{refused}");
    assert_eq!(files(&to), before);
    image(&to);
    unpack(&to, &thin, None).unwrap();
    to.verify_snapshot(&tag("c")).unwrap();
    assert!(to.kernels().unwrap().is_empty());
}

#[test]
fn another_processor_is_refused_before_anything_moves() {
    let ((_here, from), (_there, to)) = (store(), store());
    chain(&from);
    let before = files(&to);
    let (text, _) = objects(&from, "c", false);
    let refused = to.begin_import(&text, None, Some("GenuineIntel")).unwrap_err();
    assert_eq!(refused.class(), ErrorClass::HostUnfit);
    assert!(refused.to_string().contains("forkd snapshot"), "{refused}");
    assert_eq!(files(&to), before);
    assert!(to.begin_import(&text, None, Some("AuthenticAMD")).is_ok());
}

#[test]
fn names_that_are_taken_stay_what_they_are() {
    let ((_here, from), (_there, to)) = (store(), store());
    chain(&from);
    let mut other = to.begin_image(&"py".parse().unwrap(), "mine").unwrap();
    other.append(&[8; 4096]).unwrap();
    let other = other.publish().unwrap();
    let mut kernel = to.begin_kernel(&"6.1".parse().unwrap()).unwrap();
    kernel.write_vmlinuz(&b"mine"[..]).unwrap();
    kernel.write_modules(&b"mine"[..]).unwrap();
    let kernel = kernel.publish().unwrap();
    unpack(&to, &pack(&from, "c", false), None).unwrap();
    assert_eq!(to.image(&"py".parse().unwrap()).unwrap(), other);
    // The newest kernel is what new snapshots get: never one from outside.
    assert_eq!(to.kernel(None).unwrap(), kernel);
    assert_eq!(to.kernels().unwrap().len(), 2);
    to.verify_snapshot(&tag("c")).unwrap();
    // And what was taken in can be removed to the last byte.
    for name in ["c", "b", "a"] {
        to.remove_snapshot(&tag(name), crate::Removal::Alone).unwrap();
    }
    assert_eq!(std::fs::read_dir(to.folder("layers")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(to.folder("images")).unwrap().count(), 1);
}

#[test]
fn a_snapshot_that_is_removed_is_not_sent_any_more() {
    let (_here, from) = store();
    chain(&from);
    let export = from.export(&tag("c"), false).unwrap();
    let (_, all) = objects(&from, "c", false);
    from.remove_snapshot(&tag("c"), crate::Removal::Alone).unwrap();
    // Whoever has it goes on; nobody else finds it.
    assert!(export.object(&all[0].0).unwrap().is_some());
    assert!(matches!(from.exported_object(&tag("c"), &all[0].0), Err(StoreError::NotFound { .. })));
    assert!(from.exported_object(&tag("b"), &[7; 32].into()).is_err());
}

/// Sorted pages out of any numbers.
fn pages(numbers: &[(u8, u8)], zero: bool) -> Vec<(u64, u8)> {
    let mut pages: Vec<(u64, u8)> = numbers
        .iter()
        .map(|(page, byte)| (u64::from(*page), if zero { *byte } else { (*byte).max(1) }))
        .collect();
    pages.sort_unstable();
    pages.dedup_by_key(|(page, _)| *page);
    pages
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(12))]
    #[test]
    fn whatever_is_packed_unpacks_to_the_same_hashes(
        layers in proptest::collection::vec(proptest::collection::vec((0u8..200, 0u8..4), 0..40), 1..4)
    ) {
        let ((_here, from), (_there, to)) = (store(), store());
        let image = image(&from);
        let mut last = None;
        for (n, numbers) in layers.iter().enumerate() {
            let pages = pages(numbers, n > 0);
            let listed: Pages<'_> = &pages;
            last = Some(snapshot(&from, &image, &format!("s{n}"), last.as_ref(), listed));
        }
        let last = last.unwrap();
        let (arrived, _, _) = unpack(&to, &pack(&from, &last.info.tag, false), None).unwrap();
        assert_eq!((&arrived.id, &arrived.manifest), (&last.id, &last.manifest));
        assert_eq!(to.verify(None, false).unwrap().damage, []);
    }
}
