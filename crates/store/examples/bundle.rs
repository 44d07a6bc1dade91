//! Bundles by hand: makes the small ones that tests keep (`golden DIR`), and measures packing and unpacking on one core
//! (`speed MEMORY_MIB FILLED_MIB`).

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use forkd_protocol::control::CpuModel;
use forkd_protocol::rest::{Bundle, SnapshotTiming};
use forkd_store::bundle::{BundleWriter, Part, read_bundle};
use forkd_store::{Below, SnapshotMeta, SnapshotRecord, Store, StoreError};
use forkd_testkit::written::{runs, state, table};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const PAGE: usize = 4096;

#[expect(clippy::print_stdout, reason = "a program for people")]
fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["golden", folder] => golden(Path::new(folder)),
        ["speed", memory, filled] => speed(memory.parse()?, filled.parse()?, &mut |line| println!("{line}")),
        _ => {
            println!("bundle golden DIR | speed MEMORY_MIB FILLED_MIB");
            Ok(())
        }
    }
}

/// One of today's format, one whose agent is older than any that is spoken, one of a later format.
fn golden(folder: &Path) -> Outcome<()> {
    std::fs::create_dir_all(folder)?;
    let root = tempfile::tempdir()?;
    let store = Store::open(root.path())?;
    let guest = |agent_protocol, pages| Guest {
        memory_mib: 8,
        agent_protocol,
        pages,
        content: |n| vec![n as u8 + 1; PAGE],
    };
    let a = snapshot(&store, "golden-a", None, &guest(1, &[1, 2, 9]))?;
    snapshot(&store, "golden-b", Some(&a), &guest(1, &[2, 3]))?;
    std::fs::write(folder.join("first.forkd"), pack(&store, "golden-b", |text| text)?)?;
    let later = |text: String| text.replacen(r#""version":1"#, r#""version":2"#, 1);
    std::fs::write(folder.join("future.forkd"), pack(&store, "golden-b", later)?)?;
    drop(store);
    let root = tempfile::tempdir()?;
    let store = Store::open(root.path())?;
    snapshot(&store, "golden-a", None, &guest(0, &[1]))?;
    std::fs::write(folder.join("older-agent.forkd"), pack(&store, "golden-a", |text| text)?)?;
    Ok(())
}

/// Packs and unpacks a guest of which so much is filled with something like a program's memory.
fn speed(memory_mib: u64, filled_mib: u64, say: &mut dyn FnMut(&str)) -> Outcome<()> {
    let (here, there) = (tempfile::tempdir_in(".")?, tempfile::tempdir_in(".")?);
    let (from, to) = (Store::open(here.path())?, Store::open(there.path())?);
    let pages: Vec<u64> = (0..filled_mib << 8).map(|n| n * memory_mib / filled_mib.max(1)).collect();
    let guest = Guest { memory_mib, agent_protocol: 1, pages: &pages, content: page };
    snapshot(&from, "speed", None, &guest)?;
    let began = Instant::now();
    let file = pack(&from, "speed", |text| text)?;
    let packed = began.elapsed();
    unpack(&to, &file)?;
    let whole = began.elapsed();
    let rate = |mib: u64| mib as f64 * 1.048_576 / whole.as_secs_f64();
    say(&format!("{memory_mib} MiB, {filled_mib} MiB filled, bundle of {} MiB", file.len() >> 20));
    say(&format!("packed in {packed:?}, unpacked in {:?}", whole - packed));
    say(&format!(
        "together {:.0} MB/s of memory, {:.0} MB/s of what is filled",
        rate(memory_mib),
        rate(filled_mib)
    ));
    Ok(())
}

/// Half a page of small numbers, half of noise: compresses about as the memory of an interpreter does.
fn page(n: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    let mut noise = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        let value = if at % 4 == 0 { noise } else { (n + at as u64) & 0xff };
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// What a monitor would write of a guest.
struct Guest<'a> {
    memory_mib: u64,
    agent_protocol: u32,
    pages: &'a [u64],
    content: fn(u64) -> Vec<u8>,
}

/// A snapshot as a monitor would write it.
fn snapshot(
    store: &Store,
    tag: &str,
    parent: Option<&SnapshotRecord>,
    guest: &Guest<'_>,
) -> Outcome<SnapshotRecord> {
    let name = "py".parse()?;
    if store.image(&name).is_err() {
        let mut image = store.begin_image(&name, "made by hand")?;
        image.append(&[5; 16 * PAGE])?;
        image.publish()?;
    }
    let mut draft = store.begin_snapshot(&tag.parse()?)?;
    let files = draft.outputs();
    (&files.state).write_all(&state(b"AuthenticAMD", 1, tag.as_bytes()))?;
    files.memory.set_len(guest.memory_mib << 20)?;
    for n in guest.pages {
        files.memory.write_all_at(&(guest.content)(*n), n * PAGE as u64)?;
    }
    (&files.memory_extents).write_all(&table(&runs(guest.pages.iter().copied())))?;
    let below = parent.map(|parent| Below {
        parent: parent.id.clone(),
        memory: parent.manifest.memory.clone(),
        disk: parent.manifest.disk.clone(),
    });
    Ok(draft.publish(SnapshotMeta {
        image: store.image(&name)?,
        kernel: "6.12".parse()?,
        vcpus: 1,
        memory_mib: guest.memory_mib,
        cpu: CpuModel::V3,
        warm: None,
        timing: SnapshotTiming::default(),
        pause_ms: None,
        workload_pause_ms: None,
        limits: Default::default(),
        network: None,
        branched_from: None,
        agent_protocol: guest.agent_protocol,
        secrets: Vec::new(),
        below,
    })?)
}

fn pack(store: &Store, tag: &str, change: impl Fn(String) -> String) -> Outcome<Vec<u8>> {
    let export = store.export(&tag.parse()?, false)?;
    let bundle: Bundle = serde_json::from_str(export.text())?;
    let mut writer = BundleWriter::new(Vec::new(), change(export.text().to_owned()).as_bytes())?;
    for (hash, _) in bundle.objects() {
        let object = export.object(&hash)?.ok_or("the document names what is not there")?;
        writer.object(&hash, &object)?;
    }
    Ok(writer.finish()?)
}

fn unpack(store: &Store, file: &[u8]) -> Outcome<()> {
    let mut id = None;
    read_bundle(file, |part| match (part, id) {
        (Part::Document(text, _), _) => {
            id = Some(store.begin_import(&text, None, None)?.id);
            Ok::<_, StoreError>(())
        }
        (Part::Object(hash, object), Some(id)) => store.put_object(&id, &hash, &object),
        (Part::Object(..), None) => Ok(()),
    })?;
    store.commit_import(&id.ok_or("there was no document")?, None)?;
    Ok(())
}
