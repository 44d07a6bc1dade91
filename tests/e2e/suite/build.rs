//! Images out of Dockerfiles.

use forkd_protocol::rest::{ImageInfo, SnapshotInfo};

use crate::support::{IMAGE, delete, forkd, get, together};

const NAME: &str = "e2e-built";

/// Tags that begin like this.
fn tags(start: &str) -> Vec<String> {
    let all: Vec<SnapshotInfo> = get("/v1/snapshots").parsed();
    all.into_iter().map(|s| s.tag).filter(|tag| tag.starts_with(start)).collect()
}

/// Snapshots that builds keep.
fn kept() -> Vec<String> {
    tags("build-")
}

struct Built(Vec<String>);

impl Drop for Built {
    fn drop(&mut self) {
        let new = kept().into_iter().filter(|tag| !self.0.contains(tag));
        new.chain(tags(&format!("img-{NAME}-")))
            .for_each(|tag| drop(delete(&format!("/v1/snapshots/{tag}?force=true"))));
        drop(delete(&format!("/v1/images/{NAME}")));
    }
}

#[test]
fn each_line_is_done_once_and_the_image_is_what_they_say() {
    let _world = together();
    let built = Built(kept());
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let file = folder.path().join("Dockerfile").display().to_string();
    let build =
        || forkd(&["--json", "image", "build", NAME, "--dockerfile", &file, "--build-arg", "WHO=you"]);
    write("hello.txt", "hello\n");
    let text = |last: &str| {
        format!(
            "FROM {IMAGE}\nARG WHO=me\nENV GREETING=\"hi $WHO\"\nWORKDIR /srv/app\nRUN date +%s%N >/once\n\
             COPY --chown=1000:1000 hello.txt ./\nRUN {last}\nUSER 1000\nCMD [\"cat\", \"hello.txt\", \"/greeting\"]\n"
        )
    };
    write("Dockerfile", &text("echo $GREETING >/greeting"));
    let first: ImageInfo = build().ok().parsed();
    let made = kept();
    assert_eq!(made.len() - built.0.len(), 4, "{made:?}");
    assert_eq!(build().ok().parsed::<ImageInfo>(), first, "nothing is done twice");

    let ran = forkd(&[
        "run",
        "--image",
        NAME,
        "--",
        "sh",
        "-c",
        "id -u; pwd; stat -c %u hello.txt; cat /greeting /once",
    ]);
    let said = ran.ok().text();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[..4], ["1000", "/srv/app", "1000", "hi you"]);

    // Only what follows the change is done again.
    write("Dockerfile", &text("echo $GREETING! >/greeting"));
    let second: ImageInfo = build().ok().parsed();
    assert_ne!(second.origin, first.origin);
    assert_eq!(kept().len() - made.len(), 1);
    let again = forkd(&["run", "--image", NAME, "--", "cat", "/greeting", "/once"]).ok().text();
    assert_eq!(again.lines().collect::<Vec<_>>(), ["hi you!", lines[4]]);

    // A line that fails is named, and nothing of it stays.
    write("Dockerfile", &text("echo no room >&2; exit 3"));
    let failed = build().ends_with(7);
    assert!(failed.stderr.contains("line 7 ") && failed.stderr.contains("no room"), "{}", failed.stderr);
    write("Dockerfile", &text("true\nVOLUME /x"));
    let refused = build().ends_with(2);
    assert!(refused.stderr.contains("line 8 ") && refused.stderr.contains("VOLUME"), "{}", refused.stderr);
    assert_eq!(kept().len() - made.len(), 1);
}
