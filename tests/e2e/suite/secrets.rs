//! Secrets: in the guest's memory, and in no snapshot.

use forkd_protocol::rest::{AuditLine, SandboxInfo, SnapshotInfo, SnapshotInfoDetail};

use crate::support::{Children, Snapshot, bare, forkd, get, host_sh, store_root, together};

/// Long enough that nothing else contains it.
const VALUE: &str = "hush-4fJz0vQkW9xT7mB2yLdE8cRnA1uSgHpK5oViX3wZ";

/// In how many lines of what a snapshot has beside the one below it the value stands.
fn traces(tag: &str) -> String {
    let detail: SnapshotInfoDetail = forkd(&["--json", "snapshot-info", tag]).ok().parsed();
    let own = detail.memory_layers.iter().skip(1).chain(&detail.disk_layers);
    let files: Vec<_> = own.map(|layer| layer.hash.as_str()).collect();
    // Without the holes, which are most of them.
    let (root, files) = (store_root(), files.join(" "));
    host_sh(&format!("cd {root}/layers && tar -Scf - {files} | grep -acF {VALUE} || true"))
}

#[test]
fn a_secret_is_a_file_in_memory_that_snapshots_lack_and_their_sources_keep() {
    let _world = together();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), VALUE).unwrap();
    let argument = format!("KEY=@{}", file.path().display());
    let children = Children::fork_with(bare(), 1, &["--secret", &argument]);
    let child = &children[0];
    let shown = child.sh("stat -c '%a %u %s' /run/secrets/KEY; stat -f -c %T /run/secrets");
    assert_eq!(shown, format!("400 0 {}\ntmpfs", VALUE.len()));

    // Nobody has read it yet: whatever a snapshot of this contains is forkd's own doing.
    let snapshot = Snapshot::named("e2e-secret");
    let refused = forkd(&["branch", &child.id, "--tag", &snapshot.tag]).ends_with(4);
    assert!(refused.stderr.contains("--with-secrets"), "{}", refused.stderr);
    let made: SnapshotInfo =
        forkd(&["--json", "branch", &child.id, "--tag", &snapshot.tag, "--with-secrets"]).ok().parsed();
    assert_eq!(made.secrets, ["KEY"]);
    assert_eq!(traces(&snapshot.tag), "0");
    let heirs = Children::fork(&snapshot.tag, 1);
    assert_eq!(heirs[0].sh("ls /run/secrets"), "");
    let inherited = &heirs[0].info.settings.secrets[0];
    assert_eq!((inherited.inherited_from.as_deref(), inherited.held), (Some(snapshot.tag.as_str()), false));
    let lines: Vec<AuditLine> = get("/v1/audit?limit=50").parsed();
    assert!(lines.iter().any(|l| l.secrets == ["KEY"] && l.to.contains(&child.id)), "{lines:?}");

    // Who has it open reads on.
    child.sh("setsid sh -c 'exec 3</run/secrets/KEY; touch /open; until [ -e /go ]; do sleep 0.1; done; \
              cat <&3 >/read' >/dev/null 2>&1 & until [ -e /open ]; do sleep 0.1; done");
    for verb in ["pause", "resume"] {
        forkd(&[verb, &child.id]).ok();
    }
    assert_eq!(
        child.sh("touch /go; until [ -s /read ]; do sleep 0.1; done; cat /read /run/secrets/KEY"),
        VALUE.repeat(2)
    );
    let info: SandboxInfo = forkd(&["--json", "info", &child.id]).ok().parsed();
    assert!(info.settings.secrets[0].held);
}
