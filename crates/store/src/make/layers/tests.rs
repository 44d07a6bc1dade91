use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use forkd_protocol::error::ErrorClass;
use forkd_testkit::guard;
use tar::{EntryType, Header};

use super::*;
use crate::make::unpack::Unpacked;

/// Entries of a layer: a path that ends in `/` is a folder, `path -> target` a link, `path => target` a hard link.
fn layer(entries: &[&str]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        let mut header = Header::new_ustar();
        let (name, kind, link) = match (entry.split_once(" -> "), entry.split_once(" => ")) {
            (Some((name, to)), _) => (name, EntryType::Symlink, to),
            (_, Some((name, to))) => (name, EntryType::Link, to),
            _ if entry.ends_with('/') => (*entry, EntryType::Directory, ""),
            _ => (*entry, EntryType::Regular, ""),
        };
        let raw = header.as_ustar_mut().unwrap();
        raw.name[..name.len()].copy_from_slice(name.as_bytes());
        raw.linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        let content = if kind == EntryType::Regular { entry.as_bytes() } else { b"" };
        header.set_size(content.len() as u64);
        header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o640 });
        header.set_uid(12);
        header.set_gid(34);
        header.set_mtime(1_000_000);
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    guard::met("root", root.then_some(()).ok_or_else(|| "unpacking sets owners".to_owned()))
}

/// Unpacks layers over each other; the folder that holds the root, and how the last one went.
fn stacked(layers: &[&[&str]]) -> (tempfile::TempDir, Result<Unpacked, MakeError>) {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("root");
    fs::create_dir(&root).unwrap();
    let mut last = Ok(Unpacked::default());
    for entries in layers {
        assert!(last.is_ok(), "{last:?}");
        last = unpack_layer(&layer(entries)[..], &root, 1 << 20);
    }
    (outer, last)
}

/// All paths below a root, sorted; links with their targets.
fn listing(root: &Path) -> Vec<String> {
    fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_symlink() {
                found.push(format!("{name} -> {}", fs::read_link(&path).unwrap().display()));
            } else if kind.is_dir() {
                found.push(format!("{name}/"));
                walk(root, &path, found);
            } else {
                found.push(name);
            }
        }
    }
    let mut found = Vec::new();
    walk(root, root, &mut found);
    found.sort();
    found
}

fn result_of(layers: &[&[&str]]) -> Vec<String> {
    let (outer, result) = stacked(layers);
    result.unwrap();
    listing(&outer.path().join("root"))
}

#[test]
fn a_layer_replaces_adds_and_takes_away() {
    if !is_root() {
        return;
    }
    let below: &[&str] = &["a/", "a/one", "a/two", "b", "c -> a", "d/", "d/x/", "d/x/deep"];
    assert_eq!(
        result_of(&[below, &["a/", "a/.wh.one", "a/three"]]),
        ["a/", "a/three", "a/two", "b", "c -> a", "d/", "d/x/", "d/x/deep"]
    );
    // A file in the place of a folder, a folder in the place of a file and of a link.
    assert_eq!(
        result_of(&[below, &["d", "b/", "b/in", "c/"]]),
        ["a/", "a/one", "a/two", "b/", "b/in", "c/", "d"]
    );
    assert_eq!(result_of(&[below, &[".wh.d", ".wh.a", ".wh.c", ".wh.missing", "gone/.wh.x"]]), ["b"]);
}

#[test]
fn an_opaque_folder_hides_what_is_below_and_nothing_else() {
    if !is_root() {
        return;
    }
    let below: &[&str] = &["d/", "d/old", "d/s/", "d/s/old", "e"];
    let expected = ["d/", "d/new", "d/s/", "d/s/new", "e"];
    assert_eq!(result_of(&[below, &["d/", "d/.wh..wh..opq", "d/new", "d/s/", "d/s/new"]]), expected);
    // Wherever in the layer it stands.
    assert_eq!(result_of(&[below, &["d/", "d/new", "d/s/", "d/s/new", "d/.wh..wh..opq"]]), expected);
    // What a layer puts there it does not white out itself.
    assert_eq!(result_of(&[&["f"], &["f", ".wh.f"]]), ["f"]);
}

#[test]
fn links_of_lower_layers_are_walked_through_where_they_stay_inside() {
    if !is_root() {
        return;
    }
    let below: &[&str] = &["usr/", "usr/bin/", "usr/bin/sh", "bin -> usr/bin"];
    assert_eq!(
        result_of(&[below, &["bin/tool", "usr/bin/.wh.sh", "copy => bin/tool"]]),
        ["bin -> usr/bin", "copy", "usr/", "usr/bin/", "usr/bin/tool"]
    );
}

#[test]
fn hostile_layers_are_refused_and_reach_nothing_outside() {
    if !is_root() {
        return;
    }
    let cases: &[(&str, &[&[&str]])] = &[
        ("through a link out", &[&["out -> ../.."], &["out/evil"]]),
        ("through an absolute link", &[&["out -> /tmp"], &["out/forkd-evil"]]),
        ("through a link to nowhere", &[&["out -> nowhere"], &["out/evil"]]),
        ("through a loop", &[&["a -> b", "b -> a"], &["a/evil"]]),
        ("whiteout through a link out", &[&["out -> .."], &["out/.wh.keep"]]),
        ("whiteout of dots", &[&["a/"], &["a/.wh..."]]),
        ("whiteout of nothing", &[&["a/"], &["a/.wh."]]),
        ("whiteout of a whiteout", &[&["a/"], &["a/.wh..wh.plnk"]]),
        ("hard link out", &[&["a"], &["b => ../keep"]]),
        ("hard link through a link out", &[&["out -> .."], &["b => out/keep"]]),
        ("dots", &[&["a"], &["../evil"]]),
    ];
    for (what, layers) in cases {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(outer.path().join("keep"), b"kept").unwrap();
        let mut last = Ok(Unpacked::default());
        for entries in *layers {
            last = unpack_layer(&layer(entries)[..], &root, 1 << 20);
        }
        assert!(matches!(&last, Err(e) if e.class() == ErrorClass::Caller), "{what}: {last:?}");
        assert_eq!(listing(outer.path()).iter().filter(|n| !n.starts_with("root/")).count(), 1, "{what}");
        assert!(!Path::new("/tmp/forkd-evil").exists(), "{what}");
    }
}

#[test]
fn layers_together_stay_within_the_file_system() {
    let files: Vec<String> = (0..100).map(|n| format!("{n:0>90}")).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let root = tempfile::tempdir().unwrap();
    let refused = unpack_layer(&layer(&files)[..], root.path(), 8_000);
    assert!(matches!(refused, Err(MakeError::HostileArchive { .. })), "{refused:?}");
}

#[test]
fn settings_are_written_over_whatever_the_image_has_there() {
    if !is_root() {
        return;
    }
    let settings = ImageSettings { user: Some("app".to_owned()), ..ImageSettings::default() };
    for image in
        [&["etc/", "etc/forkd/", "etc/forkd/image.json -> /etc/passwd"][..], &["etc -> real", "real/"], &[]]
    {
        let (outer, _) = stacked(&[image]);
        let root = outer.path().join("root");
        write_settings(&root, &settings).unwrap();
        let path = root.join("etc/forkd/image.json");
        assert_eq!(serde_json::from_slice::<ImageSettings>(&fs::read(&path).unwrap()).unwrap(), settings);
        let meta = fs::symlink_metadata(&path).unwrap();
        assert_eq!((meta.permissions().mode() & 0o7777, meta.uid()), (0o644, 0));
    }
}
