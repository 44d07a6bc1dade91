use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use forkd_testkit::guard;
use tar::{Builder, Header};

use super::*;

const MAX: u64 = 16 << 20;

fn entry(kind: EntryType, name: &str, link: &str, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    let raw = header.as_ustar_mut().unwrap();
    // Written by hand: the builder refuses the names that have to be tried.
    raw.name[..name.len()].copy_from_slice(name.as_bytes());
    raw.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(0o4755);
    header.set_uid(12);
    header.set_gid(34);
    header.set_mtime(1_000_000);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn try_unpack(archive: &[u8]) -> (tempfile::TempDir, Result<Unpacked, MakeError>) {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("root");
    fs::create_dir(&root).unwrap();
    let result = unpack(archive, &root, MAX);
    (outer, result)
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    guard::met("root", root.then_some(()).ok_or_else(|| "unpacking sets owners".to_owned()))
}

#[test]
fn hostile_entries_are_refused_and_write_nothing_outside() {
    use EntryType as T;
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("absolute", vec![entry(T::Regular, "/tmp/forkd-evil", "", b"x")]),
        ("dots", vec![entry(T::Regular, "../evil", "", b"x")]),
        ("inner dots", vec![entry(T::Regular, "a/../../evil", "", b"x")]),
        (
            "through a link",
            vec![entry(T::Symlink, "out", "..", b""), entry(T::Regular, "out/evil", "", b"x")],
        ),
        (
            "through an absolute link",
            vec![entry(T::Symlink, "out", "/tmp", b""), entry(T::Regular, "out/forkd-evil", "", b"x")],
        ),
        (
            "folder through a link",
            vec![entry(T::Symlink, "out", "..", b""), entry(T::Directory, "out/evil/", "", b"")],
        ),
        (
            "folder over a link",
            vec![entry(T::Symlink, "out", "..", b""), entry(T::Directory, "out", "", b"")],
        ),
        ("hard link outside", vec![entry(T::Link, "evil", "../../../etc/passwd", b"")]),
        ("hard link absolute", vec![entry(T::Link, "evil", "/etc/passwd", b"")]),
        (
            "hard link through a link",
            vec![entry(T::Symlink, "etc", "/etc", b""), entry(T::Link, "evil", "etc/passwd", b"")],
        ),
        ("device", vec![entry(T::Block, "sda", "", b"")]),
        ("twice", vec![entry(T::Regular, "a", "", b"x"), entry(T::Regular, "a", "", b"y")]),
        ("over a link", vec![entry(T::Symlink, "a", "../evil", b""), entry(T::Regular, "a", "", b"y")]),
        ("no name", vec![entry(T::Regular, ".", "", b"x")]),
        ("sparse", vec![entry(T::GNUSparse, "a", "", b"x")]),
        ("long header", vec![entry(T::GNULongName, "a", "", &vec![b'x'; (1 << 20) + 1])]),
        ("odd kind", vec![entry(T::new(b'Q'), "a", "", b"")]),
        ("pax size", vec![entry(T::XHeader, "h", "", b"11 size=99\n"), entry(T::Regular, "a", "", b"x")]),
        (
            "pax dots",
            vec![entry(T::XHeader, "h", "", b"16 path=../evil\n"), entry(T::Regular, "a", "", b"x")],
        ),
    ];
    for (what, entries) in cases {
        let (outer, result) = try_unpack(&entries.concat());
        assert!(
            matches!(&result, Err(e) if e.class() == forkd_protocol::error::ErrorClass::Caller),
            "{what}: {result:?}"
        );
        let names: Vec<_> = fs::read_dir(outer.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["root"], "{what}");
        assert!(!Path::new("/tmp/forkd-evil").exists(), "{what}");
    }
}

#[test]
fn a_bomb_ends_at_the_bound() {
    let mut header = entry(EntryType::Regular, "big", "", b"");
    let mut tar_header = Header::from_byte_slice(&header).clone();
    tar_header.set_size(1 << 40);
    tar_header.set_cksum();
    header = tar_header.as_bytes().to_vec();
    let endless = io::Read::chain(&header[..], io::repeat(0));
    let root = tempfile::tempdir().unwrap();
    let result = unpack(endless, root.path(), MAX);
    assert!(matches!(result, Err(MakeError::HostileArchive { .. })), "{result:?}");
}

#[test]
fn truncated_and_random_archives_are_errors() {
    let mut whole = entry(EntryType::Regular, "a", "", &[7; 3000]);
    whole.truncate(1500);
    assert!(try_unpack(&whole).1.is_err());
    let noise: Vec<u8> = (0..4096u32).map(|n| (n * 7 % 251) as u8).collect();
    assert!(try_unpack(&noise).1.is_err());
}

#[test]
fn an_honest_archive_keeps_owners_modes_links_and_attributes() {
    if !is_root() {
        return;
    }
    let long = format!("usr/{}", "d/".repeat(60));
    let mut builder = Builder::new(Vec::new());
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_size(2);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(5);
    builder.append_data(&mut header, format!("{long}file"), &b"ok"[..]).unwrap();
    let mut archive = entry(EntryType::Directory, "./", "", b"");
    archive.extend(builder.into_inner().unwrap());
    archive.truncate(archive.len() - 1024);
    archive.extend(entry(EntryType::Directory, "usr/bin/", "", b""));
    archive.extend(entry(EntryType::XHeader, "h", "", b"30 SCHILY.xattr.user.note=hey\n"));
    archive.extend(entry(EntryType::Regular, "usr/bin/su", "", b"content"));
    archive.extend(entry(EntryType::Link, "usr/bin/su2", "usr/bin/su", b""));
    archive.extend(entry(EntryType::Symlink, "bin", "usr/bin", b""));
    archive.extend(entry(EntryType::Symlink, "abs", "/etc/passwd", b""));
    archive.extend(entry(EntryType::Char, "dev/null", "", b""));
    archive.extend(entry(EntryType::Directory, "usr/bin/", "", b""));
    let (outer, result) = try_unpack(&archive);
    assert_eq!(result.unwrap().bytes, 9);
    let root = outer.path().join("root");
    let su = fs::metadata(root.join("usr/bin/su")).unwrap();
    assert_eq!((su.permissions().mode() & 0o7777, su.uid(), su.gid()), (0o4755, 12, 34));
    assert_eq!((su.nlink(), su.mtime(), su.len()), (2, 1_000_000, 7));
    assert_eq!(fs::metadata(root.join("usr/bin")).unwrap().mtime(), 1_000_000);
    assert_eq!(fs::read_link(root.join("abs")).unwrap(), Path::new("/etc/passwd"));
    assert_eq!(fs::read(root.join(format!("{long}file"))).unwrap(), b"ok");
    assert!(!root.join("dev/null").exists());
    let mut note = [0; 8];
    match rustix::fs::getxattr(root.join("usr/bin/su"), "user.note", &mut note) {
        Ok(length) => assert_eq!(&note[..length], b"hey"),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODATA) => {}
        Err(e) => panic!("{e}"),
    }
}
