//! Files by the sandbox API.

mod common;

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use common::Agent;
use serde_json::{Value, json};

#[allow(clippy::unwrap_used, reason = "only tests call this")]
fn upload(agent: &Agent, path: &str, bytes: &[u8]) -> (u16, Value) {
    let answer = agent.call(
        "POST",
        &format!("/files?path={path}&username=root"),
        "Content-Type: application/octet-stream\r\n",
        bytes,
    );
    (answer.status, serde_json::from_slice(&answer.body).unwrap())
}

#[test]
fn round_trips() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(3 << 20).collect();
    for (name, bytes) in [("all", &bytes[..]), ("empty", b""), ("one", b"x")] {
        let path = format!("{}/new/folder/{name}", tmp.path().display());
        let (status, written) = upload(&agent, &path, bytes);
        assert_eq!((status, &written), (200, &json!([{"name": name, "path": path, "type": "file"}])));
        let answer = agent.call("GET", &format!("/files?path={path}"), "", b"");
        assert_eq!(answer.status, 200);
        assert!(answer.body == bytes);
        assert!(
            answer.head.to_lowercase().contains(&format!("content-length: {}", bytes.len())),
            "{}",
            answer.head
        );
    }
    assert_eq!(std::fs::read_dir(tmp.path().join("new/folder")).unwrap().count(), 3);
}

#[test]
fn a_sparse_gigabyte_and_ranges() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("sparse");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"end", (1 << 30) - 3).unwrap();
    let url = format!("/files?path={}", path.display());
    let tail = agent.call("GET", &url, "Range: bytes=-5\r\n", b"");
    assert_eq!((tail.status, tail.body.as_slice()), (206, &b"\0\0end"[..]));
    assert!(tail.head.to_lowercase().contains("content-range: bytes 1073741819-1073741823/1073741824"));
    assert_eq!(agent.call("GET", &url, "Range: bytes=1073741824-\r\n", b"").status, 416);
}

#[test]
fn the_old_file_keeps_its_mode_and_a_link_its_target() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    let file = tmp.path().join("script");
    std::fs::write(&file, "old").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o750)).unwrap();
    symlink("script", tmp.path().join("link")).unwrap();
    assert_eq!(upload(&agent, &tmp.path().join("link").to_string_lossy(), b"new").0, 200);
    assert_eq!(std::fs::read(&file).unwrap(), b"new");
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o750);
    assert!(tmp.path().join("link").is_symlink());
}

#[test]
fn a_broken_upload_leaves_the_old_file() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    let file = tmp.path().join("file");
    std::fs::write(&file, "old").unwrap();
    let mut stream = std::net::TcpStream::connect(&agent.address).unwrap();
    let head = format!(
        "POST /files?path={} HTTP/1.1\r\nHost: a\r\nContent-Type: application/octet-stream\r\nContent-Length: 100\r\n\r\nhalf",
        file.display()
    );
    stream.write_all(head.as_bytes()).unwrap();
    common::until("the upload has begun", || std::fs::read_dir(tmp.path()).unwrap().count() == 2);
    drop(stream);
    common::until("nothing is left of it", || std::fs::read_dir(tmp.path()).unwrap().count() == 1);
    assert_eq!(std::fs::read(&file).unwrap(), b"old");
}

#[test]
fn refusals() {
    let agent = Agent::plain();
    let get = |path: &str| {
        let answer = agent.call("GET", path, "", b"");
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["code"], answer.status);
        answer.status
    };
    assert_eq!(get("/files?path=/no/such"), 404);
    assert_eq!(get("/files?path=/etc"), 400);
    assert_eq!(get("/files"), 400);
    assert_eq!(get("/files?path=/etc/passwd&username=ghost"), 401);
    assert_eq!(upload(&agent, "/etc", b"x").0, 400);
    let post =
        |headers: &str, body: &[u8]| agent.call("POST", "/files?path=/tmp/forkd-x", headers, body).status;
    assert_eq!(post("Content-Type: text/plain\r\n", b"x"), 415);
    assert_eq!(post("Content-Type: multipart/form-data\r\n", b"x"), 415);
    assert_eq!(post("Content-Type: application/octet-stream\r\nContent-Encoding: br\r\n", b"x"), 415);
    assert_eq!(post("Content-Type: multipart/form-data; boundary=x\r\n", b"no form"), 400);
    assert_eq!(post("Content-Type: multipart/form-data; boundary=x\r\n", b"--x--\r\n"), 400);
    assert_eq!(post("Content-Type: application/octet-stream\r\nContent-Encoding: gzip\r\n", b"no gzip"), 400);
    assert!(!std::path::Path::new("/tmp/forkd-x").exists());
}

#[test]
fn files_that_change_between_two_reads_come_whole() {
    let agent = Agent::plain();
    for _ in 0..50 {
        let answer = agent.call("GET", "/files?path=/proc/self/status", "", b"");
        assert_eq!(answer.status, 200);
        assert!(String::from_utf8(answer.body).unwrap().ends_with('\n'));
    }
}

#[test]
fn who_is_refused_while_sending_reads_why() {
    let agent = Agent::plain();
    for _ in 0..20 {
        assert_eq!(upload(&agent, "/etc", &vec![1; 8 << 20]).0, 400);
    }
}

#[test]
fn a_full_disk_is_said_and_leaves_nothing() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    let small = tmp.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(&small)
        .status()
        .is_ok_and(|status| status.success());
    if !forkd_testkit::guard::met(
        "mount",
        mounted.then_some(()).ok_or_else(|| "mounting is not allowed".to_owned()),
    ) {
        return;
    }
    let (status, body) = upload(&agent, &small.join("big").to_string_lossy(), &vec![1; 4 << 20]);
    let left = std::fs::read_dir(&small).unwrap().count();
    std::process::Command::new("umount").arg(&small).status().unwrap();
    assert_eq!((status, left), (507, 0), "{body}");
}

#[test]
fn looking_making_moving_removing() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    let at = |name: &str| tmp.path().join(name).to_string_lossy().into_owned();
    let call = |method: &str, body: Value| agent.unary(&format!("filesystem.Filesystem/{method}"), &body);
    let (status, made) = call("MakeDir", json!({"path": at("a/b")}));
    assert_eq!((status, made["entry"]["type"].as_str()), (200, Some("FILE_TYPE_DIRECTORY")));
    assert_eq!(call("MakeDir", json!({"path": at("a/b")})).1["code"], "already_exists");
    std::fs::write(tmp.path().join("a/file"), "abc").unwrap();
    assert_eq!(call("MakeDir", json!({"path": at("a/file")})).1["code"], "invalid_argument");
    let (_, stat) = call("Stat", json!({"path": at("a/./file")}));
    assert_eq!((stat["entry"]["size"].as_str(), stat["entry"]["name"].as_str()), (Some("3"), Some("file")));
    assert_eq!(stat["entry"]["path"], at("a/file"));
    assert_eq!(call("Stat", json!({"path": at("none")})).1["code"], "not_found");
    let paths = |body: Value| -> Vec<String> {
        let entries = call("ListDir", body).1["entries"].as_array().unwrap().clone();
        entries.iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
    };
    std::fs::write(tmp.path().join("a/b/deep"), "").unwrap();
    assert_eq!(paths(json!({"path": at("a")})), [at("a/b"), at("a/file")]);
    assert_eq!(paths(json!({"path": at("a"), "depth": 2})), [at("a/b"), at("a/b/deep"), at("a/file")]);
    assert_eq!(call("ListDir", json!({"path": at("a/file")})).1["code"], "invalid_argument");
    let (_, moved) = call("Move", json!({"source": at("a/file"), "destination": at("c/moved")}));
    assert_eq!(moved["entry"]["path"], at("c/moved"));
    assert_eq!(call("Move", json!({"source": at("none"), "destination": at("x")})).1["code"], "not_found");
    assert_eq!(call("Remove", json!({"path": at("a")})), (200, json!({})));
    assert_eq!(call("Remove", json!({"path": at("a")})), (200, json!({})));
    assert_eq!(call("Remove", json!({"path": "/"})).0, 400);
    assert!(!tmp.path().join("a").exists());
}

/// A form with one file each.
fn form(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, content) in files {
        let head = format!(
            "--line\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        );
        body.extend(head.as_bytes());
        body.extend(*content);
        body.extend(b"\r\n");
    }
    body.extend(b"--line--\r\n");
    body
}

const FORM: &str = "Content-Type: multipart/form-data; boundary=line\r\n";

#[test]
fn files_come_as_parts_of_a_form() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    let folder = tmp.path().display();
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    // With a path it is that, whatever the part is called.
    let path = format!("{folder}/one");
    let answer = agent.call("POST", &format!("/files?path={path}"), FORM, &form(&[("odd name", &bytes)]));
    let written: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((answer.status, &written), (200, &json!([{"name": "one", "path": path, "type": "file"}])));
    assert!(std::fs::read(&path).unwrap() == bytes);
    // Several are called as their parts say, with all their folders.
    let names = [format!("{folder}/new/a%22b"), format!("{folder}/ü c"), format!("{folder}/empty")];
    let parts = [(&names[0][..], &b"1"[..]), (&names[1], b"--line\r\nno end"), (&names[2], b"")];
    let answer = agent.call("POST", "/files", FORM, &form(&parts));
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    let written: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(written.as_array().unwrap().len(), 3);
    assert_eq!(std::fs::read(tmp.path().join("new/a\"b")).unwrap(), b"1");
    assert_eq!(std::fs::read(tmp.path().join("empty")).unwrap(), b"");
}

#[test]
fn compressed_uploads_are_unpacked() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("file");
    let content = b"again and again ".repeat(100_000);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&content).unwrap();
    let packed = encoder.finish().unwrap();
    let headers = "Content-Type: application/octet-stream\r\nContent-Encoding: gzip\r\n";
    let url = format!("/files?path={}", path.display());
    assert_eq!(agent.call("POST", &url, headers, &packed).status, 200);
    assert!(std::fs::read(&path).unwrap() == content);
    // What breaks off leaves the old file.
    assert_eq!(agent.call("POST", &url, headers, &packed[..packed.len() / 2]).status, 400);
    assert!(std::fs::read(&path).unwrap() == content);
    assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 1);
}

#[test]
fn variables_are_told_and_taken() {
    let agent = Agent::plain();
    let envs = || -> Value { serde_json::from_slice(&agent.call("GET", "/envs", "", b"").body).unwrap() };
    assert_eq!(envs(), json!({}));
    let init = json!({ "envVars": { "A": "1" }, "timestamp": "2026-01-01T00:00:00Z" }).to_string();
    assert_eq!(agent.call("POST", "/init", "", init.as_bytes()).status, 204);
    assert_eq!(envs(), json!({ "A": "1" }));
    assert_eq!(agent.exec(&["sh", "-c", "echo $A"]).text(), "1\n");
    assert_eq!(agent.call("POST", "/init", "", b"{").status, 400);
}
