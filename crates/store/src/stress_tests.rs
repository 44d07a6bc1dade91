//! Forks while everything around them is branched, compacted, removed and collected: none ever lacks a page, and a
//! tag that is used again changes nothing for who was forked before.

use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forkd_protocol::control::FdRole;

use super::*;
use crate::chain::Below;
use crate::extents::PAGE;
use crate::records::SnapshotMeta;
use crate::testing::{draft, image, meta, sandbox, snapshot, tag};

/// Forks, each of which is looked at to its last page.
fn forks() -> u64 {
    if std::env::var_os("FORKD_SOAK").is_some_and(|soak| soak == "1") { 2000 } else { 60 }
}

/// One generation of the tag `t`: its pages hold its number.
fn publish(store: &Store, generation: u8) {
    let image = store.image(&"py".parse().unwrap()).unwrap();
    let a = snapshot(store, &image, "t", None, &[(1, generation), (2, generation)]);
    let name = format!("over-{generation}");
    snapshot(store, &image, &name, Some(&a), &[(2, generation), (3, generation)]);
}

/// The byte that fills a page of an open snapshot's base.
fn byte(open: &OpenSnapshot, page: u64) -> u8 {
    let (_, base) = open.files.iter().find(|(role, _)| *role == FdRole::MemoryBase).unwrap();
    let mut bytes = [0; PAGE as usize];
    let file = std::fs::File::from(base.as_fd().try_clone_to_owned().unwrap());
    file.read_exact_at(&mut bytes, page * PAGE).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

/// A life of one sandbox: forked, branched, ended.
fn live(store: &Store, n: u64) {
    let Ok(open) = store.open_snapshot(&tag("t")) else { return };
    let (id, generation) = (format!("sb-{n}"), byte(&open, 1));
    store.put_sandbox(&sandbox(&id, &open.record)).unwrap();
    // From here on its row keeps what it needs.
    let of = (byte(&open, 2), open.record.id.clone());
    drop(open);
    let template = store.template(&id.parse().unwrap()).unwrap().unwrap();
    assert_eq!((generation, &template.id), (of.0, &of.1), "a fork is of one generation");
    for layer in template.manifest.layers() {
        store.open_layer(layer).unwrap();
    }
    let name = format!("branch-{n}");
    let from = store.image_below(&template.manifest.image);
    let memory = template.manifest.memory.clone();
    let below = Below { parent: template.id, memory, disk: Vec::new() };
    let meta = SnapshotMeta { below: Some(below), branched_from: Some(id.clone()), ..meta(&from) };
    let branch = draft(store, &name, &[(7, 7), (1999, n as u8 | 1)]).publish(meta).unwrap();
    store.verify_snapshot(&tag(&name)).unwrap();
    let mut page = [0; PAGE as usize];
    let stack = store.memory_stack(&branch.manifest.memory).unwrap();
    stack.read(1, &mut page).unwrap();
    assert_eq!(
        page, [generation; PAGE as usize],
        "its parent's page shows through, whatever the tag names now"
    );
    store.remove_snapshot(&tag(&name), Removal::Alone).unwrap();
    store.remove_sandbox(&id.parse().unwrap()).unwrap();
}

#[test]
fn nothing_that_goes_on_beside_forks_breaks_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    image(&store);
    publish(&store, 1);
    let (next, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let forking = || {
            scope.spawn(|| {
                while next.load(Ordering::Relaxed) < forks() {
                    live(&store, next.fetch_add(1, Ordering::Relaxed));
                }
            })
        };
        let lives = [forking(), forking(), forking()];
        let around = [
            scope.spawn(|| {
                let mut old = 1;
                for generation in (2..250).cycle().take_while(|_| !done.load(Ordering::Relaxed)) {
                    // By force: branches of running sandboxes descend from it.
                    store.remove_snapshot(&tag("t"), Removal::Force).unwrap();
                    store.remove_snapshot(&tag(&format!("over-{old}")), Removal::Alone).unwrap();
                    publish(&store, generation);
                    old = generation;
                }
            }),
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    store.gc(false).unwrap();
                    store.gc(true).unwrap();
                    let _ = store.verify(None, true).unwrap();
                }
            }),
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for over in store.snapshots().unwrap().into_iter().filter(|s| s.info.chain_depth > 1) {
                        // It may be gone before it is flat.
                        if store.compact_snapshot(&tag(&over.info.tag), &tag("flat")).is_ok() {
                            store.verify_snapshot(&tag("flat")).unwrap();
                            store.remove_snapshot(&tag("flat"), Removal::Alone).unwrap();
                        }
                    }
                }
            }),
        ];
        let lived: Vec<_> = lives.into_iter().map(|life| life.join()).collect();
        done.store(true, Ordering::Relaxed);
        let gone_on: Vec<_> = around.into_iter().map(|one| one.join()).collect();
        for one in lived.into_iter().chain(gone_on) {
            one.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    let all = store.snapshots().unwrap();
    for record in all {
        let _ = store.remove_snapshot(&tag(&record.info.tag), Removal::Cascade);
    }
    store.remove_image(&"py".parse().unwrap()).unwrap();
    store.gc(false).unwrap();
    for folder in ["layers", "images", "snapshots", "staging"] {
        assert_eq!(std::fs::read_dir(store.folder(folder)).unwrap().count(), 0, "{folder}");
    }
}
