//! What tests of several modules share: guests of a few pages, written as a monitor would.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;

use forkd_protocol::control::CpuModel;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::SnapshotTiming;
use forkd_testkit::written;

use crate::chain::Below;
use crate::draft::{Floor, SnapshotDraft};
use crate::error::StoreError;
use crate::extents::{Extent, PAGE, table};
use crate::records::{ImageRecord, SandboxRow, SnapshotMeta, SnapshotRecord};
use crate::store::Store;

/// Pages of a guest: which ones a layer lists, and what byte fills each.
pub(crate) type Pages<'a> = &'a [(u64, u8)];

pub(crate) fn tag(text: &str) -> Tag {
    text.parse().unwrap()
}

pub(crate) fn image(store: &Store) -> ImageRecord {
    let mut draft = store.begin_image(&"py".parse().unwrap(), "a test").unwrap();
    draft.write_all(&[5; 64 * 4096]).unwrap();
    draft.publish().unwrap()
}

pub(crate) fn meta(image: &ImageRecord) -> SnapshotMeta {
    SnapshotMeta {
        image: image.clone(),
        kernel: "6.12".parse().unwrap(),
        vcpus: 1,
        memory_mib: 8,
        cpu: CpuModel::V3,
        warm: None,
        timing: SnapshotTiming::default(),
        pause_ms: None,
        workload_pause_ms: None,
        limits: Default::default(),
        network: None,
        branched_from: None,
        agent_protocol: 1,
        secrets: Vec::new(),
        below: None,
    }
}

/// Runs of sorted pages.
pub(crate) fn runs(pages: Pages<'_>) -> Vec<(u64, u64)> {
    written::runs(pages.iter().map(|(page, _)| *page))
}

/// Writes a sparse file and its table; a page of zeroes is a hole.
pub(crate) fn fill(data: &File, extents: &File, pages: Pages<'_>, size: u64) {
    try_fill(data, extents, pages, size).unwrap();
}

/// The same where there may be no room.
pub(crate) fn try_fill(data: &File, extents: &File, pages: Pages<'_>, size: u64) -> std::io::Result<()> {
    data.set_len(size * PAGE)?;
    for (page, byte) in pages.iter().filter(|(_, byte)| *byte != 0) {
        data.write_all_at(&[*byte; PAGE as usize], page * PAGE)?;
    }
    extents.write_all_at(&table(&runs(pages)), 0)
}

/// A draft with this memory (8 MiB) and no disk.
pub(crate) fn draft(store: &Store, name: &str, pages: Pages<'_>) -> SnapshotDraft {
    let mut draft = store.begin_snapshot(&tag(name)).unwrap();
    let files = draft.outputs();
    let state = written::state(b"AuthenticAMD", 1, format!("state of {name}").as_bytes());
    (&files.state).write_all(&state).unwrap();
    fill(&files.memory, &files.memory_extents, pages, 2048);
    draft
}

/// A snapshot over `parent`, or a whole one.
pub(crate) fn snapshot(
    store: &Store,
    image: &ImageRecord,
    name: &str,
    parent: Option<&SnapshotRecord>,
    pages: Pages<'_>,
) -> SnapshotRecord {
    let below = parent.map(below);
    let branched_from = parent.map(|_| "sb-1".to_owned());
    draft(store, name, pages).publish(SnapshotMeta { below, branched_from, ..meta(image) }).unwrap()
}

pub(crate) fn below(parent: &SnapshotRecord) -> Below {
    let manifest = &parent.manifest;
    Below { parent: parent.id.clone(), memory: manifest.memory.clone(), disk: manifest.disk.clone() }
}

pub(crate) fn sandbox(id: &str, of: &SnapshotRecord) -> SandboxRow {
    SandboxRow {
        id: id.parse().unwrap(),
        snapshot_tag: of.info.tag.clone(),
        snapshot_id: Some(of.id.clone()),
        pid: None,
        pid_start_ticks: None,
        state: "running".to_owned(),
        created_at_unix: 1,
        memory_limit_mib: None,
        ended: None,
        branch_count: 0,
        info_json: "{}".to_owned(),
    }
}

/// The extents that a file of a table lists.
pub(crate) fn extents_of(file: &File, layer_bytes: u64) -> Vec<Extent> {
    crate::extents::read(file, std::path::Path::new("table"), layer_bytes).unwrap()
}

/// A sandbox's disk top in the run folder, with these blocks, and its table.
pub(crate) fn top(store: &Store, blocks: Pages<'_>) -> (std::path::PathBuf, std::path::PathBuf) {
    let (data, table) = (store.folder("run").join("top"), store.folder("run").join("top.extents"));
    fill(&File::create(&data).unwrap(), &File::create(&table).unwrap(), blocks, 64);
    (data, table)
}

/// Pauses a sandbox that has changed these pages and blocks since it was restored, as the engine does.
pub(crate) fn pause(
    store: &Store,
    id: &str,
    floor: Floor,
    (pages, blocks): (Pages<'_>, Pages<'_>),
) -> Result<(), StoreError> {
    let id = id.parse().unwrap();
    let template = store.template(&id)?.unwrap();
    let row = SandboxRow { state: "paused".to_owned(), ..store.sandbox(&id)?.unwrap() };
    let mut draft = store.begin_pause(&id)?;
    let files = draft.outputs();
    (&files.state).write_all(b"state of a sandbox").unwrap();
    fill(&files.memory, &files.memory_extents, pages, 2048);
    files.disk_extents.write_all_at(&table(&runs(blocks)), 0).unwrap();
    let (data, _) = top(store, blocks);
    draft.link_disk_top(&data)?;
    let manifest = template.manifest;
    let disk = manifest.disk.into_iter().chain(template.frozen).collect();
    let below = Some(Below { parent: template.id, memory: manifest.memory, disk });
    let image = store.image_below(&manifest.image);
    draft.park(SnapshotMeta { below, branched_from: Some(id.to_string()), ..meta(&image) }, floor, &row)
}

/// Continues it.
pub(crate) fn resume(store: &Store, id: &str) {
    let row = store.sandbox(&id.parse().unwrap()).unwrap().unwrap();
    store.put_resumed(&SandboxRow { state: "running".to_owned(), ..row }).unwrap();
}
