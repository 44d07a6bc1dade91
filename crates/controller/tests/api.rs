//! The API over a real connection, with a real engine on an empty store: everything that needs no guest.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends at the first surprise"
)]

mod support;

use std::path::Path;

use forkd_protocol::rest::{ErrorEvent, ImageInfo, KernelInfo, SnapshotInfo};

use support::Controller;

/// Every file below a folder.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        }
        found.push(path.display().to_string());
    }
    found.sort();
    found
}

/// Names that could leave the store, hide or be taken for a flag, as they stand in a path.
fn bad_names() -> Vec<String> {
    let long = "x".repeat(300);
    ["..", "%2e%2e", "a%2f..%2fb", "a/../b", "a%00b", "-rf", "%C3%BCn%C3%AF", "a%20b", "%ff", "a;b", &long]
        .map(str::to_owned)
        .to_vec()
}

#[test]
fn bad_names_in_paths_are_refused_and_touch_nothing() {
    let controller = Controller::start();
    let before = files(controller.folder.path());
    for name in bad_names() {
        controller.delete(&format!("/v1/snapshots/{name}")).refused(400);
        if !name.contains('/') {
            controller.get(&format!("/v1/snapshots/{name}/info")).refused(400);
            controller.post(&format!("/v1/snapshots/{name}/compact"), r#"{"to":"t"}"#).refused(400);
        }
        controller.get(&format!("/v1/sandboxes/{name}")).refused(400);
        controller.delete(&format!("/v1/sandboxes/{name}")).refused(400);
        controller.get(&format!("/v1/images/{name}")).refused(400);
        controller.put(&format!("/v1/images/{name}"), b"x").refused(400);
        controller.put(&format!("/v1/kernels/{name}"), b"x").refused(400);
        if !name.contains('/') {
            controller.post(&format!("/v1/sandboxes/{name}/ping"), "").refused(400);
            controller.get(&format!("/v1/sandboxes/{name}/agent/health")).refused(400);
        }
    }
    assert_eq!(files(controller.folder.path()), before);
}

#[test]
fn bad_names_in_bodies_are_refused_and_touch_nothing() {
    let controller = Controller::start();
    let before = files(controller.folder.path());
    let long = "x".repeat(300);
    for tag in ["", "..", "a/../b", "/etc/passwd", "%2e%2e", "a\0b", "-rf", "ünï", &long] {
        let tag = serde_json::to_string(tag).unwrap();
        controller.post("/v1/snapshots", &format!(r#"{{"tag":{tag},"image":"py"}}"#)).refused(400);
        controller.post("/v1/snapshots", &format!(r#"{{"tag":"t","image":{tag}}}"#)).refused(400);
        controller
            .post("/v1/snapshots", &format!(r#"{{"tag":"t","image":"py","kernel":{tag}}}"#))
            .refused(400);
        controller.post("/v1/sandboxes", &format!(r#"{{"snapshot_tag":{tag}}}"#)).refused(400);
        controller.post("/v1/snapshots/t/compact", &format!(r#"{{"to":{tag}}}"#)).refused(400);
        controller.post("/v1/verify", &format!(r#"{{"tag":{tag}}}"#)).refused(400);
    }
    assert_eq!(files(controller.folder.path()), before);
}

#[test]
fn numbers_out_of_range_and_empty_commands_are_refused() {
    let controller = Controller::start();
    for n in ["0", "1001", "4294967295", "-1", "1e9", "\"2\""] {
        controller.post("/v1/sandboxes", &format!(r#"{{"snapshot_tag":"t","n":{n}}}"#)).refused(400);
    }
    for field in
        [r#""vcpus":0"#, r#""vcpus":9"#, r#""memory_mib":127"#, r#""memory_mib":16385"#, r#""cpu":"486""#]
    {
        controller.post("/v1/snapshots", &format!(r#"{{"tag":"t","image":"py",{field}}}"#)).refused(400);
    }
    controller.post("/v1/sandboxes/sb-1/exec", r#"{"args":[]}"#).refused(400);
    controller.post("/v1/sandboxes/sb-1/exec", r#"{"args":["x"],"timeout_secs":31536001}"#).refused(400);
    controller.post("/v1/sandboxes/sb-1/eval", r#"{"code":"1","timeout_secs":31536001}"#).refused(400);
    controller.get("/v1/audit?after=9223372036854775808").refused(400);
    controller.delete("/v1/snapshots/t?cascade=true&force=true").refused(400);
    controller.delete("/v1/snapshots/t?cascade=perhaps").refused(400);
    controller.post("/v1/gc?dry_run=2", "").refused(400);
}

#[test]
fn a_policy_may_be_a_word_a_list_or_an_object() {
    let controller = Controller::start();
    let json = [("content-type", "application/json")];
    let put = |policy: &str| {
        controller.send("PUT", "/v1/sandboxes/sb-0-0/network", &json, policy.as_bytes()).status
    };
    for policy in [r#""deny""#, r#"["203.0.113.0/24"]"#, r#"{"egress":"deny"}"#] {
        assert_eq!(put(policy), 404, "{policy}");
    }
    assert_eq!(put(r#"["?"]"#), 400);
}

#[test]
fn what_is_not_there_is_404() {
    let controller = Controller::start();
    assert_eq!(controller.post("/v1/sandboxes", r#"{"snapshot_tag":"t"}"#).refused(404).code, "not_found");
    controller.post("/v1/snapshots", r#"{"tag":"t","image":"py"}"#).refused(404);
    controller.delete("/v1/snapshots/t").refused(404);
    controller.get("/v1/snapshots/t/info").refused(404);
    controller.post("/v1/snapshots/t/compact", r#"{"to":"flat"}"#).refused(404);
    controller.post("/v1/verify", r#"{"tag":"t"}"#).refused(404);
    controller.get("/v1/images/py").refused(404);
    controller.delete("/v1/images/py").refused(404);
    controller.delete("/v1/kernels/k").refused(404);
    let missing = controller.get("/v1/sandboxes/sb-1").refused(404);
    assert!(missing.error.contains("sb-1"), "{}", missing.error);
    for path in ["exec", "eval"] {
        controller.post(&format!("/v1/sandboxes/sb-1/{path}"), r#"{"args":["x"],"code":"1"}"#).refused(404);
    }
    for path in ["logs", "stats", "agent/health"] {
        controller.get(&format!("/v1/sandboxes/sb-1/{path}")).refused(404);
    }
    controller.post("/v1/sandboxes/sb-1/ping", "").refused(404);
    controller.delete("/v1/sandboxes/sb-1").refused(404);
}

#[test]
fn what_is_no_request_is_refused_in_the_same_shape() {
    let controller = Controller::start();
    for body in ["", "{", "[]", r#"["t",null,1]"#, "null", r#"{"snapshot_tag":5}"#, r#"{"n":1}"#, "\u{0}"] {
        controller.post("/v1/sandboxes", body).refused(400);
        controller.post("/v1/snapshots", body).refused(400);
    }
    controller.send("POST", "/v1/sandboxes", &[], b"{}").refused(415);
    let huge = format!(r#"{{"snapshot_tag":"{}"}}"#, "x".repeat(17 << 20));
    controller.post("/v1/sandboxes", &huge).refused(413);
    for path in ["/", "/v1", "/v1/nothing", "/v3/sandboxes", "/v1/snapshots/", "//"] {
        controller.get(path).refused(404);
    }
    controller.send("PATCH", "/v1/sandboxes", &[], b"").refused(405);
    controller.send("PUT", "/healthz", &[], b"").refused(405);
    controller.get("/v1/sandboxes/sb-1/exec").refused(405);
}

#[test]
fn a_failure_after_the_status_line_comes_as_an_event() {
    let controller = Controller::start();
    let headers = [("Content-Type", "application/json"), ("Accept", "text/event-stream")];
    let answer = controller.send("POST", "/v1/snapshots", &headers, br#"{"tag":"t","image":"py"}"#);
    assert_eq!(answer.status, 200);
    let text = String::from_utf8(answer.body).unwrap();
    let data = text.split_once("event: error\ndata: ").expect(&text).1.trim();
    let event: ErrorEvent = serde_json::from_str(data).unwrap();
    assert_eq!((event.status, event.body.code.as_str()), (404, "not_found"));
}

#[test]
fn an_image_tells_how_much_of_it_arrived() {
    let controller = Controller::start();
    let packed = zstd::encode_all(vec![3u8; 4 << 20].as_slice(), 1).unwrap();
    let headers = [("Content-Type", "application/zstd"), ("Accept", "text/event-stream")];
    let put = controller.send("PUT", "/v1/images/py", &headers, &packed);
    let text = String::from_utf8(put.body).unwrap();
    assert_eq!(put.status, 200, "{text}");
    assert!(text.starts_with("event: progress\ndata: 4 MiB taken in\n\n"), "{text}");
    let done = text.split_once("event: done\ndata: ").expect(&text).1.trim();
    assert_eq!(serde_json::from_str::<ImageInfo>(done).unwrap().name, "py");
}

#[test]
fn images_come_and_go() {
    let controller = Controller::start();
    // An empty ext4 file system is mostly holes; the store looks only at its size.
    let mut raw = vec![0u8; 4 << 20];
    raw[1024..2048].fill(7);
    let packed = zstd::encode_all(raw.as_slice(), 1).unwrap();
    let put = controller.put("/v1/images/py?origin=a%20test", &packed);
    assert_eq!(put.status, 201, "{}", String::from_utf8_lossy(&put.body));
    let info: ImageInfo = put.json();
    assert_eq!((info.name.as_str(), info.origin.as_str(), info.size_bytes), ("py", "a test", 4 << 20));
    assert_eq!(controller.get("/v1/images").json::<Vec<ImageInfo>>(), std::slice::from_ref(&info));
    assert_eq!(controller.get("/v1/images/py").json::<ImageInfo>(), info);

    controller.put("/v1/images/cut", &packed[..packed.len() / 2]).refused(400);
    controller.put("/v1/images/junk", b"this is no zstd").refused(400);
    controller.put("/v1/images/empty", b"").refused(400);
    assert_eq!(controller.get("/v1/images").json::<Vec<ImageInfo>>().len(), 1);

    assert_eq!(controller.delete("/v1/images/py").status, 204);
    assert!(controller.get("/v1/images").json::<Vec<ImageInfo>>().is_empty());
}

#[test]
fn a_kernel_is_a_tar_of_exactly_two_files() {
    let controller = Controller::start();
    let archive = |names: &[&str]| {
        let mut tar = tar::Builder::new(Vec::new());
        for name in names {
            let mut header = tar::Header::new_gnu();
            header.set_size(3);
            header.set_mode(0o644);
            header.set_cksum();
            tar.append_data(&mut header, name, &b"abc"[..]).unwrap();
        }
        zstd::encode_all(tar.into_inner().unwrap().as_slice(), 1).unwrap()
    };
    for names in [&["vmlinuz"][..], &["vmlinuz", "modules.cpio", "more"], &["vmlinuz", "vmlinuz"], &[]] {
        controller.put("/v1/kernels/k", &archive(names)).refused(400);
    }
    assert!(controller.get("/v1/kernels").json::<Vec<KernelInfo>>().is_empty());
    let put = controller.put("/v1/kernels/k", &archive(&["vmlinuz", "modules.cpio"]));
    assert_eq!(put.status, 201, "{}", String::from_utf8_lossy(&put.body));
    assert_eq!(controller.get("/v1/kernels").json::<Vec<KernelInfo>>()[0].name, "k");
    assert_eq!(controller.delete("/v1/kernels/k").status, 204);
}

#[test]
fn an_empty_controller_describes_itself() {
    let controller = Controller::start();
    assert_eq!(controller.get("/healthz").body, br#"{"ok":true}"#);
    let version: serde_json::Value = controller.get("/version").json();
    assert_eq!(version["api"], "v1");
    assert!(controller.get("/v1/snapshots").json::<Vec<SnapshotInfo>>().is_empty());
    assert!(controller.get("/v1/sandboxes").json::<Vec<serde_json::Value>>().is_empty());
    let metrics = String::from_utf8(controller.get("/metrics").body).unwrap();
    for line in
        ["forkd_sandboxes_active 0", "forkd_snapshots_total 0", "forkd_build_info{version=\"0.1.0\"} 1"]
    {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");
}

#[test]
fn the_document_names_every_route_and_no_other_answers() {
    let controller = Controller::start();
    let document: serde_json::Value = controller.get("/openapi.json").json();
    let paths = document["paths"].as_object().unwrap();
    for (path, item) in paths {
        for method in item.as_object().unwrap().keys() {
            let path = path.replace("{id}", "sb-1").replace("{tag}", "t").replace("{name}", "n");
            let path = path.replace("{port}", "80").replace("{path}", "p").replace("{hash}", "0");
            let answer = controller.send(&method.to_uppercase(), &path, &[], b"");
            let gone = String::from_utf8_lossy(&answer.body).contains("no_such_route");
            assert!(!gone && answer.status != 405, "{method} {path}");
        }
    }
    assert!(paths.len() >= 14, "{:?}", paths.keys());
    assert!(document["components"]["schemas"]["SandboxInfo"].is_object());
}

#[test]
fn the_document_in_the_repository_is_that_of_the_code() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let wanted = forkd_controller::openapi_json();
    if std::env::var_os("FORKD_WRITE_DOCUMENTS").is_some() {
        std::fs::write(&file, wanted).unwrap();
    }
    let stored = std::fs::read_to_string(&file).unwrap_or_default();
    let hint = "docs/openapi.json is not that of the code; write it anew: FORKD_WRITE_DOCUMENTS=1 cargo test -p forkd-controller";
    assert!(stored == wanted, "{hint}");
    let served = Controller::start().get("/openapi.json");
    assert_eq!(String::from_utf8(served.body).unwrap(), wanted);
    let document = forkd_controller::openapi();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{}", document["openapi"]);
    let mut ids = std::collections::BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            assert!(
                ids.insert(operation["operationId"].as_str().unwrap()),
                "{method} {path}: its id is another's"
            );
            for status in ["403", "500"] {
                let shared = &operation["responses"][status]["$ref"];
                assert_eq!(*shared, format!("#/components/responses/{status}"), "{method} {path}");
            }
        }
    }
}

#[test]
fn the_page_of_the_document_needs_nothing_else() {
    let page = Controller::start().get("/docs");
    assert_eq!(page.status, 200);
    assert!(
        page.head.to_ascii_lowercase().contains("content-security-policy: default-src 'none'"),
        "{}",
        page.head
    );
    assert!(String::from_utf8(page.body).unwrap().contains("/v1/sandboxes/{id}/branch"));
}

#[test]
fn bundles_are_refused_before_anything_is_kept() {
    let controller = Controller::start();
    let before = files(controller.folder.path());
    let hash = "0".repeat(64);
    controller.get("/v1/snapshots/none/export").refused(404);
    controller.get(&format!("/v1/snapshots/none/objects/{hash}")).refused(404);
    controller.get("/v1/snapshots/none/objects/x").refused(400);
    for body in ["", "{}", "[", r#"{"kind":"forkd-bundle","version":1}"#] {
        let refused = controller.post("/v1/imports", body).refused(400);
        assert_eq!(refused.code, "bundle_refused", "{body}");
    }
    let newer = controller.post("/v1/imports", r#"{"kind":"forkd-bundle","version":7}"#).refused(400);
    assert!(newer.code == "bundle_too_new" && newer.error.contains("use a newer forkd"), "{newer:?}");
    controller.post("/v1/imports?tag=..", "{}").refused(400);
    let object = format!("/v1/imports/{hash}/objects/{hash}");
    assert_eq!(controller.get(&format!("/v1/imports/{hash}")).refused(404).code, "no_import");
    controller.put(&object, b"x").refused(404);
    controller.put(&object.replace("0/objects", "/objects"), b"x").refused(400);
    controller.put(&object, &vec![0; 17 << 20]).refused(413);
    controller.post(&format!("/v1/imports/{hash}/commit"), "").refused(404);
    controller.delete(&format!("/v1/imports/{hash}")).refused(404);
    assert_eq!(files(controller.folder.path()), before);
}
