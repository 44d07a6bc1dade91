//! What people do inside a sandbox: terminals, processes they leave and come back to, files, code that is watched, and
//! images that were containers.

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Child, Children, Snapshot, bare, delete, forkd, forkd_fed, numpy, raw, together};

#[test]
fn a_terminal_is_one_on_both_sides() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let child = &children[0];
    child.exec(&["test", "-t", "0"]).ends_with(1);
    let seen = forkd_fed(
        &["exec", "-t", &child.id, "--", "sh", "-c", "test -t 0 && stty size; read x; echo got $x"],
        b"word\n",
    );
    let text = seen.ok().text();
    // Without a terminal here it is one that everybody has.
    assert!(text.contains("24 80") && text.contains("got word"), "{text:?}");
    let shell = forkd_fed(&["shell", &child.id], b"echo $((6*7)); exit 5\n");
    assert!(shell.ends_with(5).text().contains("42"));
}

#[test]
fn a_process_is_left_and_come_back_to() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let child = &children[0];
    let script = "echo begun; while ! test -e /go; do sleep 0.1; done; echo gone on; exit 6";
    let pid = forkd(&["exec", "-d", &child.id, "--", "sh", "-c", script]).ok().text().trim().to_owned();
    let running: Value = forkd(&["--json", "ps", &child.id]).ok().parsed();
    assert_eq!(running[0]["pid"].to_string(), pid);
    assert_eq!((&running[0]["config"]["cmd"], &running[0]["terminal"]), (&json!("sh"), &json!(false)));
    child.sh("touch /go");
    // All that nobody read is there, also of one that has ended meanwhile, as long as it is listed.
    let attached = forkd(&["attach", &child.id, &pid]);
    if attached.code == Some(6) {
        assert_eq!(attached.text(), "begun\ngone on\n");
    } else {
        assert!(attached.stderr.contains("forkd ps"), "{}", attached.stderr);
    }
    forkd(&["attach", &child.id, "999999"]).ends_with(125);
}

#[test]
fn folders_are_copied_in_and_out() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let child = &children[0];
    let tmp = tempfile::tempdir().unwrap();
    let from = tmp.path().join("from");
    std::fs::create_dir_all(from.join("deep/empty")).unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
    std::fs::write(from.join("deep/all bytes"), &bytes).unwrap();
    std::fs::set_permissions(from.join("deep/all bytes"), std::fs::Permissions::from_mode(0o640)).unwrap();
    symlink("deep", from.join("link")).unwrap();
    let (local, remote) = (from.display().to_string(), format!("{}:/srv/app", child.id));
    forkd(&["cp", &local, &remote]).ends_with(2);
    forkd(&["cp", "-r", &local, &remote]).ok();
    assert_eq!(
        child.sh("stat -c '%a %U %s' '/srv/app/deep/all bytes'; readlink /srv/app/link"),
        "640 root 1000000\ndeep"
    );
    // Into a folder that is there.
    forkd(&["cp", "-r", &local, &remote]).ok();
    child.sh("test -d /srv/app/from/deep/empty");
    let back = tmp.path().join("back");
    forkd(&["cp", "-r", &format!("{remote}/from"), &back.display().to_string()]).ok();
    assert!(std::fs::read(back.join("deep/all bytes")).unwrap() == bytes);
    assert!(back.join("deep/empty").is_dir() && back.join("link").is_symlink());
    forkd(&["cp", &format!("{}:/none", child.id), &back.display().to_string()]).ends_with(3);
    assert_eq!(std::fs::read_dir(tmp.path()).unwrap().count(), 2);
}

/// Runs code to its end; an old version of HTTP, in which the answer ends with the connection.
fn execute(child: &Child, asked: &Value) -> Vec<Value> {
    let (path, body) = (child.path("agent/execute"), asked.to_string());
    let head =
        format!("POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}", body.len());
    let answer = raw(format!("{head}\r\n\r\n{body}")).with_status(200);
    answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn watched_code_runs_in_the_warm_interpreter() {
    let _world = together();
    let children = Children::fork(numpy(), 1);
    let child = &children[0];
    let code = "import sys\nprint('numpy' in sys.modules)\nnumpy.arange(3)";
    let lines: Vec<Value> = execute(child, &json!({ "code": code }));
    let of = |kind: &str| lines.iter().find(|l| l["type"] == kind).unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!(
        (&of("stdout")["text"], &of("result")["text"]),
        (&json!("True\n"), &json!("array([0, 1, 2])"))
    );
    let lines = execute(child, &json!({ "code": "cd /usr && pwd", "language": "bash" }));
    assert!(lines.iter().any(|l| l["type"] == "stdout" && l["text"] == "/usr\n"), "{lines:?}");
}

/// What `docker save` writes of an image without any shell, whose one program is a static busybox.
fn saved(folder: &std::path::Path) -> std::path::PathBuf {
    let path = folder.join("saved.tar");
    let script = r#"
        set -e
        mkdir -p layer/app layer/etc image
        cp "$(command -v busybox)" layer/app/busybox
        echo 'app:x:1234:1234::/app:/app/busybox' >layer/etc/passwd
        tar -C layer -cf image/layer.tar app etc
        id=$(sha256sum image/layer.tar | cut -d' ' -f1)
        cat >image/config.json <<END
{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:$id"]},
"config":{"User":"app","WorkingDir":"/app","Env":["MARK=of the image"],"Entrypoint":["/app/busybox","echo"],"Cmd":["usual"]}}
END
        echo '[{"Config":"config.json","RepoTags":["app:1"],"Layers":["layer.tar"]}]' >image/manifest.json
        tar -C image -cf saved.tar manifest.json config.json layer.tar
    "#;
    let mut shell = Command::new("sh").current_dir(folder).stdin(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
    path
}

#[test]
fn a_container_image_without_a_shell_is_run_as_it_says() {
    let _world = together();
    let tmp = tempfile::tempdir().unwrap();
    let snapshot = Snapshot::named("e2e-container");
    let archive = saved(tmp.path()).display().to_string();
    forkd(&["from-image", &archive, "--tag", &snapshot.tag, "--mem", "256", "--size", "64"]).ok();
    let children = Children::fork(&snapshot.tag, 1);
    let child = &children[0];
    let told = child.exec(&["/app/busybox", "sh", "-c", "/app/busybox id -u; pwd; echo $MARK"]).ok().text();
    assert_eq!(told, "1234\n/app\nof the image\n");
    let root = forkd(&["exec", &child.id, "--user", "root", "--", "/app/busybox", "id", "-u"]).ok().text();
    assert_eq!(root, "0\n");
    drop(children);
    drop(snapshot);
    let images: Value = forkd(&["--json", "image", "ls"]).ok().parsed();
    for image in images.as_array().unwrap().iter().filter_map(|i| i["name"].as_str()) {
        if image.starts_with("oci-saved") {
            delete(&format!("/v1/images/{image}"));
        }
    }
}
