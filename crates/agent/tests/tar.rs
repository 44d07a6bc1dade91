//! Folders as archives.
#![allow(clippy::unwrap_used, reason = "only tests call this")]

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use common::Agent;

fn url(path: &Path) -> String {
    format!("/tar?path={}&username=root", path.display())
}

fn entry(archive: &mut tar::Builder<Vec<u8>>, kind: tar::EntryType, name: &str, link: &str, content: &[u8]) {
    let mut header = tar::Header::new_ustar();
    let raw = header.as_ustar_mut().unwrap();
    raw.name[..name.len()].copy_from_slice(name.as_bytes());
    raw.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    archive.append(&header, content).unwrap();
}

#[test]
fn a_folder_goes_out_and_comes_back_the_same() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    let from = tmp.path().join("from");
    fs::create_dir_all(from.join("empty/deep")).unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    fs::write(from.join("all bytes"), &bytes).unwrap();
    fs::write(from.join("run"), "#!/bin/sh").unwrap();
    fs::set_permissions(from.join("run"), fs::Permissions::from_mode(0o750)).unwrap();
    fs::write(from.join("x".repeat(200)), "long").unwrap();
    symlink("/nowhere", from.join("link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
    let out = agent.call("GET", &url(&from), "", b"");
    assert_eq!(out.status, 200);
    let into = tmp.path().join("new/into");
    let back = agent.call("POST", &url(&into), "", &out.body);
    assert_eq!((back.status, &back.body[..]), (200, &b"{\"entries\":7}"[..]));
    let there = into.join("from");
    assert!(fs::read(there.join("all bytes")).unwrap() == bytes);
    assert_eq!(fs::read(there.join("x".repeat(200))).unwrap(), b"long");
    assert_eq!(fs::metadata(there.join("run")).unwrap().permissions().mode() & 0o7777, 0o750);
    assert_eq!(fs::read_link(there.join("link")).unwrap(), Path::new("/nowhere"));
    assert!(there.join("empty/deep").is_dir() && !there.join("socket").exists());
    assert_eq!(agent.call("GET", &url(&tmp.path().join("none")), "", b"").status, 404);
}

#[test]
fn what_breaks_off_or_leads_out_leaves_nothing() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    let into = tmp.path().join("into");
    let mut whole = tar::Builder::new(Vec::new());
    entry(&mut whole, tar::EntryType::Regular, "file", "", &[7; 100_000]);
    let whole = whole.into_inner().unwrap();
    assert_eq!(agent.call("POST", &url(&into), "", &whole[..50_000]).status, 400);
    assert_eq!(fs::read_dir(&into).unwrap().count(), 0);
    for (kind, name) in [
        (tar::EntryType::Regular, "../evil"),
        (tar::EntryType::Regular, "/tmp/forkd-evil"),
        (tar::EntryType::Char, "device"),
        (tar::EntryType::Fifo, "pipe"),
        (tar::EntryType::Link, "hard"),
    ] {
        let mut archive = tar::Builder::new(Vec::new());
        entry(&mut archive, kind, name, "x", b"");
        let refused = agent.call("POST", &url(&into), "", &archive.into_inner().unwrap());
        assert_eq!(refused.status, 400, "{name}");
    }
    assert_eq!(fs::read_dir(&into).unwrap().count() + fs::read_dir(tmp.path()).unwrap().count(), 1);
}
