//! Bundles that nobody vouches for: every kind of lie is refused before anything becomes visible, and what is merely
//! unusual is taken.

use forkd_protocol::digest::Digest;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::{Bundle, PIECE_BYTES};
use forkd_testkit::written;
use serde_json::Value;
use tar::EntryType;

use super::samples::{Tar, chain, document, files, object_name, objects, pack, store, unpack};
use crate::store::Store;
use crate::testing::{image, snapshot, tag};

const DOCUMENT: &[u8] = b"forkd-bundle.json";

fn refused(to: &Store, what: &str, file: &[u8]) {
    let before = files(to);
    let error = match unpack(to, file, None) {
        Ok(_) => panic!("{what} was taken"),
        Err(error) => error,
    };
    let class = error.class();
    assert!(matches!(class, ErrorClass::Caller | ErrorClass::Conflict), "{what}: {class:?} {error}");
    assert!(to.snapshots().unwrap().is_empty(), "{what}");
    // Nothing but the import itself, which is called by a hash.
    let imports = to.root().join("imports");
    let outside = |store: &Store| -> Vec<String> {
        let imports = imports.display().to_string();
        files(store).into_iter().filter(|file| !file.starts_with(&imports)).collect()
    };
    assert_eq!(outside(to), before, "{what}");
    for import in std::fs::read_dir(&imports).unwrap().flatten() {
        let id = import.file_name().to_string_lossy().parse().unwrap();
        to.remove_import(&id).unwrap();
    }
    assert_eq!(files(to), before, "{what}");
}

#[test]
fn hostile_archives_are_refused() {
    let ((_here, from), (_there, to)) = (store(), store());
    chain(&from);
    let (text, all) = objects(&from, "c", false);
    let good = pack(&from, "c", false);
    let begun = || Tar::new().file(DOCUMENT, &text);
    let whole = || all.iter().fold(begun(), |tar, (hash, object)| tar.file(&object_name(hash), object));
    let (hash, object) = &all[0];
    let name = object_name(hash);
    let odd = |kind: EntryType, name: &[u8]| begun().entry(kind, name, 0, b"").finish();
    let pax = |records: &[u8]| {
        begun().entry(EntryType::XHeader, b"x", records.len() as u64, records).file(&name, object).finish()
    };
    let mut sparse = tar::Header::new_gnu();
    sparse.set_entry_type(EntryType::GNUSparse);
    let long = [b"objects/".as_slice(), &[b'a'; 4000]].concat();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", vec![]),
        ("no archive", b"this is no archive at all".repeat(100)),
        ("an empty archive", Tar::new().finish()),
        ("no document", Tar::new().file(&name, object).finish()),
        ("a document behind an object", Tar::new().file(&name, object).file(DOCUMENT, &text).finish()),
        ("a document twice", begun().file(DOCUMENT, &text).finish()),
        ("an object twice", begun().file(&name, object).file(&name, object).finish()),
        ("a path with ..", begun().file(b"../../etc/passwd", b"x").finish()),
        ("a path with .. inside", begun().file(b"objects/../../x", b"x").finish()),
        ("an absolute path", begun().file(b"/etc/passwd", b"x").finish()),
        ("an absolute object", begun().file(&[b"/".as_slice(), &name].concat(), object).finish()),
        ("another file", begun().file(b"readme", b"x").finish()),
        ("an object of no hash", begun().file(b"objects/x.zst", b"x").finish()),
        ("an object that nothing names", begun().file(&object_name(&[9; 32].into()), b"x").finish()),
        ("a name with NUL", begun().file(b"objects\0/x", b"x").finish()),
        ("a symbolic link", odd(EntryType::Symlink, &name)),
        ("a hard link", odd(EntryType::Link, &name)),
        ("a character device", odd(EntryType::Char, &name)),
        ("a block device", odd(EntryType::Block, &name)),
        ("a pipe", odd(EntryType::Fifo, &name)),
        ("another folder", odd(EntryType::Directory, b"etc/")),
        ("a sparse file", odd(EntryType::GNUSparse, &name)),
        ("an unknown kind", odd(EntryType::new(b'Z'), &name)),
        ("an object longer than it can be", begun().file(&name, &vec![0; 1 << 20]).finish()),
        (
            "an object that says it is huge",
            begun().entry(EntryType::Regular, &name, 1 << 40, object).finish(),
        ),
        (
            "a document that says it is huge",
            Tar::new().entry(EntryType::Regular, DOCUMENT, 1 << 33, &text).finish(),
        ),
        ("an object shorter than it says", {
            let mut file = begun().entry(EntryType::Regular, &name, object.len() as u64 + 1, object).finish();
            file.truncate(file.len() - 1024 - 512);
            file
        }),
        ("a size in a pax header", pax(b"20 size=99999999999\n")),
        ("a pax path that leaves", pax(b"23 path=../../etc/crontab\n")),
        ("a pax header that is none", pax(b"999 x=y\n")),
        (
            "a long extension header",
            begun().entry(EntryType::XHeader, b"x", 2 << 20, &vec![b'a'; 2 << 20]).finish(),
        ),
        (
            "a long name that leads elsewhere",
            begun().entry(EntryType::GNULongName, b"x", 4008, &long).file(&name, object).finish(),
        ),
        (
            "headers without end",
            (0..5000).fold(begun(), |tar, _| tar.entry(EntryType::XGlobalHeader, b"x", 0, b"")).finish(),
        ),
        ("objects that do not come", begun().finish()),
        ("one object that does not come", pack_without(&text, &all, all.len() - 1)),
        ("something behind its end", [&good[..], b"x"].concat()),
        ("another archive behind its end", [&good[..], &good].concat()),
        ("padding without end", [&good[..], &vec![0; 2 << 20]].concat()),
        ("a header that does not add up", {
            let mut bad = good.clone();
            bad[0] ^= 1;
            bad
        }),
        (
            "an object of other content",
            whole_but(&text, &all, &zstd::encode_all(&b"something else"[..], 3).unwrap()),
        ),
        ("an object that is no zstd", whole_but(&text, &all, b"this is no zstd")),
        ("an object that is cut off", whole_but(&text, &all, &object[..object.len() - 3])),
        ("an object with something behind it", whole_but(&text, &all, &[&object[..], b"x"].concat())),
        ("a bomb", whole_but(&text, &all, &zstd::encode_all(&vec![0; 64 << 20][..], 19).unwrap())),
        ("an object of a huge window", whole_but(&text, &all, &wide_window())),
    ];
    for (what, file) in &cases {
        refused(&to, what, file);
    }
    for cut in [1, 511, 512, 700, good.len() / 2, good.len() - 1024 - 513] {
        refused(&to, &format!("cut at {cut}"), &good[..cut]);
    }
    unpack(&to, &whole().finish(), None).unwrap();
}

/// A whole bundle but for one object.
fn pack_without(text: &[u8], all: &[(Digest, Vec<u8>)], without: usize) -> Vec<u8> {
    let kept = all.iter().enumerate().filter(|(n, _)| *n != without);
    kept.fold(Tar::new().file(DOCUMENT, text), |tar, (_, (hash, object))| {
        tar.file(&object_name(hash), object)
    })
    .finish()
}

/// A whole bundle whose largest object has another content.
fn whole_but(text: &[u8], all: &[(Digest, Vec<u8>)], content: &[u8]) -> Vec<u8> {
    let add = |tar: Tar, (n, (hash, object)): (usize, &(Digest, Vec<u8>))| {
        tar.file(&object_name(hash), if n == 0 { content } else { object })
    };
    all.iter().enumerate().fold(Tar::new().file(DOCUMENT, text), add).finish()
}

/// A frame that wants 2 GiB of memory for a few bytes.
fn wide_window() -> Vec<u8> {
    // Magic; a head without single segment, checksum or size; a window of 2^31; an empty last block.
    vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x01, 0x00, 0x00]
}

/// Changes a document and has to be refused; all is as it was then.
fn lie(to: &Store, good: &[u8], what: &str, change: impl FnOnce(&mut Value)) {
    let mut document: Value = serde_json::from_slice(good).unwrap();
    change(&mut document);
    refuse_text(to, what, &serde_json::to_vec(&document).unwrap());
}

fn refuse_text(to: &Store, what: &str, text: &[u8]) {
    let before = files(to);
    match to.begin_import(text, None, None) {
        Ok(status) => panic!("{what} was taken: {status:?}"),
        Err(e) => assert_eq!(e.class(), ErrorClass::Caller, "{what}: {e}"),
    }
    assert_eq!(files(to), before, "{what}");
}

/// Changes the manifest of the newest snapshot. Its id changes with it, as that of an honest one would.
fn change_manifest(document: &mut Value, change: impl FnOnce(&mut Value)) {
    let text = &mut document["snapshots"][2]["manifest"];
    let mut manifest: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
    change(&mut manifest);
    *text = Value::String(manifest.to_string());
}

#[test]
fn documents_that_lie_are_refused() {
    let ((_here, from), (_there, to)) = (store(), store());
    chain(&from);
    let (good, bundle) = document(&from, "c");
    let other = Digest::from([7; 32]).to_string();
    lie(&to, &good, "another kind", |d| d["kind"] = "tarball".into());
    lie(&to, &good, "a later version", |d| d["version"] = 2.into());
    lie(&to, &good, "no snapshots", |d| d["snapshots"] = Value::Array(vec![]));
    lie(&to, &good, "a wrong tag", |d| d["snapshots"][2]["tag"] = "../c".into());
    lie(&to, &good, "a tag twice", |d| d["snapshots"][1]["tag"] = "c".into());
    lie(&to, &good, "a snapshot twice", |d| d["snapshots"][0] = d["snapshots"][2].clone());
    lie(&to, &good, "no ancestor", |d| drop(d["snapshots"].as_array_mut().unwrap().remove(1)));
    lie(&to, &good, "the other way round", |d| d["snapshots"].as_array_mut().unwrap().reverse());
    lie(&to, &good, "a layer too few", |d| drop(d["layers"].as_array_mut().unwrap().remove(0)));
    lie(&to, &good, "a layer without content", |d| d["layers"][0]["content"] = Value::Null);
    lie(&to, &good, "a layer twice", |d| d["layers"][0] = d["layers"][1].clone());
    lie(&to, &good, "a layer of another name", |d| d["layers"][0]["hash"] = other.clone().into());
    lie(&to, &good, "a layer of another length", |d| d["layers"][0]["content"]["bytes"] = 4096.into());
    lie(&to, &good, "a layer of no hash", |d| d["layers"][0]["hash"] = "../../x".into());
    lie(&to, &good, "an image too few", |d| d["images"] = Value::Array(vec![]));
    lie(&to, &good, "an image too many", |d| {
        let more = serde_json::json!({ "hash": other });
        d["images"].as_array_mut().unwrap().push(more);
    });
    lie(&to, &good, "an image that is too long", |d| {
        d["images"][0]["content"]["bytes"] = (1u64 << 40).into()
    });
    lie(&to, &good, "a kernel of another name", |d| d["kernels"][0]["name"] = "6.13".into());
    lie(&to, &good, "a kernel that leaves", |d| d["kernels"][0]["name"] = "../6.12".into());
    lie(&to, &good, "an endless kernel", |d| {
        d["kernels"][0]["content"]["vmlinuz"]["bytes"] = u64::MAX.into()
    });
    lie(&to, &good, "a piece too many", |d| {
        let pieces = d["layers"][0]["content"]["pieces"].as_array_mut().unwrap();
        pieces.push(other.clone().into());
    });
    lie(&to, &good, "a negative length", |d| d["layers"][0]["content"]["bytes"] = (-1).into());
    lie(&to, &good, "a state of another length", |d| d["snapshots"][2]["state"]["bytes"] = 1.into());
    lie(&to, &good, "a later state", |d| d["snapshots"][2]["state_format"] = 99.into());
    let piece = bundle.layers[0].content.as_ref().unwrap().pieces[0].to_string();
    lie(&to, &good, "an object of two lengths", |d| d["layers"][1]["content"]["pieces"][0] = piece.into());

    type Change = fn(&mut Value);
    let manifests: [(&str, Change); 18] = [
        ("a later manifest", |m| m["format"] = 9.into()),
        ("an earlier manifest", |m| m["format"] = 0.into()),
        ("a later agent", |m| m["agent_protocol"] = 99.into()),
        ("an unknown field", |m| m["surprise"] = 1.into()),
        ("no vCPUs", |m| m["vcpus"] = 0.into()),
        ("many vCPUs", |m| m["vcpus"] = 9.into()),
        ("endless memory", |m| m["memory_mib"] = u64::MAX.into()),
        ("no memory layers", |m| m["memory"] = Value::Array(vec![])),
        ("a layer beyond the memory", |m| m["memory"][2]["size_bytes"] = (1u64 << 40).into()),
        ("more data than the layer is long", |m| m["memory"][2]["data_bytes"] = (9u64 << 20).into()),
        ("part of a page", |m| m["memory"][2]["data_bytes"] = 4097.into()),
        ("more extents than pages", |m| m["memory"][2]["extents"] = 4096.into()),
        ("a disk layer beyond the disk", |m| m["disk"][0]["size_bytes"] = (1u64 << 30).into()),
        ("another image", |m| m["image"]["hash"] = "../py".into()),
        ("an image of odd size", |m| m["image"]["size_bytes"] = 5000.into()),
        ("an image that leaves", |m| m["image"]["name"] = "../py".into()),
        ("a kernel that leaves", |m| m["kernel"] = "a/b".into()),
        ("an endless state", |m| m["state_bytes"] = (1u64 << 40).into()),
    ];
    for (what, change) in manifests {
        lie(&to, &good, what, |d| change_manifest(d, change));
    }
    lie(&to, &good, "two manifests that disagree", |d| {
        change_manifest(d, |m| m["memory"][0]["size_bytes"] = 4096.into());
    });

    lie(&to, &good, "deep JSON", |d| d["layers"] = deep(100));
    refuse_text(&to, "deeper JSON", &[b"{\"kind\":", "[".repeat(100_000).as_bytes()].concat());
    refuse_text(&to, "no JSON", b"{\"kind\":");
    refuse_text(&to, "nothing", b"");
    refuse_text(&to, "an endless document", &vec![b' '; (16 << 20) + 1]);
    refuse_text(&to, "many pieces", &many_pieces(&good));
}

/// Lists in lists.
fn deep(levels: usize) -> Value {
    (0..levels).fold(Value::Null, |inner, _| Value::Array(vec![inner]))
}

/// More bytes than any bundle may hold, in a document of legal length.
fn many_pieces(good: &[u8]) -> Vec<u8> {
    let mut bundle: Bundle = serde_json::from_slice(good).unwrap();
    let vmlinuz = &mut bundle.kernels[0].content.as_mut().unwrap().vmlinuz;
    vmlinuz.bytes = (1 << 40) + 1;
    vmlinuz.pieces = (0..vmlinuz.bytes.div_ceil(PIECE_BYTES)).map(|n| Digest::of(&n.to_le_bytes())).collect();
    serde_json::to_vec(&bundle).unwrap()
}

/// A bundle whose document was changed, with objects that fit it.
fn with_object(from: &Store, change: impl FnOnce(&mut Bundle) -> (Vec<u8>, Vec<u8>)) -> Vec<u8> {
    let (text, all) = objects(from, "c", false);
    let mut bundle: Bundle = serde_json::from_slice(&text).unwrap();
    let (old, new) = change(&mut bundle);
    let old = Digest::of(&old);
    let hash = Digest::of(&new);
    let packed = zstd::encode_all(&new[..], 3).unwrap();
    let states = bundle.snapshots.iter_mut().map(|snapshot| &mut snapshot.state);
    let files = bundle.layers.iter_mut().chain(&mut bundle.images).filter_map(|file| file.content.as_mut());
    for piece in states.chain(files).flat_map(|contents| &mut contents.pieces).filter(|piece| **piece == old)
    {
        *piece = hash;
    }
    let text = serde_json::to_string(&bundle).unwrap();
    let replaced =
        all.into_iter().map(|(h, object)| if h == old { (hash, packed.clone()) } else { (h, object) });
    replaced
        .fold(Tar::new().file(DOCUMENT, text.as_bytes()), |tar, (h, object)| {
            tar.file(&object_name(&h), &object)
        })
        .finish()
}

#[test]
fn objects_that_are_sound_and_say_something_else_than_the_manifest_are_refused() {
    let ((_here, from), (_there, to)) = (store(), store());
    chain(&from);
    let piece = |bundle: &Bundle, n: usize| -> Vec<u8> {
        let hash = bundle.layers[n].content.as_ref().unwrap().pieces[0];
        let object = from.exported_object(&tag("c"), &hash).unwrap();
        zstd::decode_all(&object[..]).unwrap()
    };
    let layer = |change: fn(&mut Vec<u8>)| {
        with_object(&from, |bundle| {
            let old = piece(bundle, 0);
            let mut new = old.clone();
            change(&mut new);
            (old, new)
        })
    };
    // The base has pages 1 and 2, and 9: a head, two entries of first page and length, three pages.
    refused(&to, "another page", &layer(|l| *l.last_mut().unwrap() ^= 1));
    refused(&to, "another table", &layer(|l| l[0] = b'X'));
    refused(&to, "an extent elsewhere", &layer(|l| l[16] = 3));
    refused(&to, "an extent beyond the end", &layer(|l| l[16 + 7] = 0xff));
    refused(&to, "an empty extent", &layer(|l| l[24] = 0));
    refused(&to, "a longer extent", &layer(|l| l[24] = 9));
    refused(&to, "extents out of order", &layer(|l| l[16] = 20));
    refused(&to, "a table of more entries", &layer(|l| l[8] = 0xff));
    refused(&to, "a table without end", &layer(|l| l[8..16].fill(0xff)));

    let state = |new: Vec<u8>| {
        with_object(&from, |bundle| {
            let hash = bundle.snapshots[2].state.pieces[0];
            let object = from.exported_object(&tag("c"), &hash).unwrap();
            (zstd::decode_all(&object[..]).unwrap(), new)
        })
    };
    refused(&to, "another state", &state(written::state(b"AuthenticAMD", 1, b"state of d")));
    let image = with_object(&from, |bundle| {
        let hash = bundle.images[0].content.as_ref().unwrap().pieces[0];
        let old = zstd::decode_all(&from.exported_object(&tag("c"), &hash).unwrap()[..]).unwrap();
        let mut new = old.clone();
        *new.last_mut().unwrap() ^= 1;
        (old, new)
    });
    refused(&to, "another image", &image);
    unpack(&to, &pack(&from, "c", false), None).unwrap();
}

#[test]
fn a_state_that_is_not_what_the_document_says_is_refused() {
    let ((_here, from), (_there, to)) = (store(), store());
    chain(&from);
    let (text, all) = objects(&from, "c", false);
    let mut document: Value = serde_json::from_slice(&text).unwrap();
    document["snapshots"][2]["cpu_vendor"] = "GenuineIntel".into();
    let begun = Tar::new().file(DOCUMENT, document.to_string().as_bytes());
    let file = all.iter().fold(begun, |tar, (hash, object)| tar.file(&object_name(hash), object)).finish();
    refused(&to, "another processor", &file);
}

#[test]
fn what_is_merely_unusual_is_taken() {
    let (_here, from) = store();
    chain(&from);
    let (text, all) = objects(&from, "c", false);
    let good = pack(&from, "c", false);
    let begun = || Tar::new().file(DOCUMENT, &text);
    let add = |tar: Tar, (hash, object): &(Digest, Vec<u8>)| tar.file(&object_name(hash), object);
    let mut document: Value = serde_json::from_slice(&text).unwrap();
    document["comment"] = "made by hand".into();
    document["layers"][0]["note"] = serde_json::json!({ "a": [1, 2, { "b": null }] });
    // Passed over, however deep it is.
    document["deep"] = deep(100);
    document["made_by"] = Value::String("another program".to_owned());
    let spaced = serde_json::to_string_pretty(&document).unwrap();
    let named = |tar: Tar, (hash, object): &(Digest, Vec<u8>)| {
        let name = object_name(hash);
        let record = [format!("{} path=./", name.len() + 11).as_bytes(), &name, b"\n"].concat();
        assert_eq!(record.len(), name.len() + 11);
        tar.entry(EntryType::XHeader, b"x", record.len() as u64, &record).file(b"short", object)
    };
    let long = |tar: Tar, (hash, object): &(Digest, Vec<u8>)| {
        let name = [&object_name(hash)[..], b"\0"].concat();
        tar.entry(EntryType::GNULongName, b"././@LongLink", name.len() as u64, &name).file(b"short", object)
    };
    let recompressed: Vec<(Digest, Vec<u8>)> = all
        .iter()
        .map(|(hash, object)| {
            (*hash, zstd::encode_all(&zstd::decode_all(&object[..]).unwrap()[..], 19).unwrap())
        })
        .collect();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("as it is written", good.clone()),
        ("in another order", all.iter().rev().fold(begun(), add).finish()),
        ("with folders", {
            let tar =
                Tar::new().entry(EntryType::Directory, b"./", 0, b"").file(b"./forkd-bundle.json", &text);
            all.iter().fold(tar.entry(EntryType::Directory, b"./objects/", 0, b""), add).finish()
        }),
        (
            "with pax headers",
            all.iter().fold(begun().entry(EntryType::XGlobalHeader, b"x", 0, b""), named).finish(),
        ),
        ("with GNU's long names", all.iter().fold(begun(), long).finish()),
        ("padded to a record", [&good[..], &[0; 10240]].concat()),
        ("without an end", good[..good.len() - 1024].to_vec()),
        ("with unknown fields", all.iter().fold(Tar::new().file(DOCUMENT, spaced.as_bytes()), add).finish()),
        ("compressed otherwise", recompressed.iter().fold(begun(), add).finish()),
    ];
    for (what, file) in cases {
        let (_there, to) = store();
        unpack(&to, &file, None).unwrap_or_else(|e| panic!("{what}: {e:?}"));
        assert_eq!(to.verify(None, false).unwrap().damage, [], "{what}");
    }
}

#[test]
fn a_layer_that_lists_nothing_is_taken() {
    let ((_here, from), (_there, to)) = (store(), store());
    let image = image(&from);
    snapshot(&from, &image, "empty", None, &[]);
    unpack(&to, &pack(&from, "empty", false), None).unwrap();
    to.verify_snapshot(&tag("empty")).unwrap();
}
