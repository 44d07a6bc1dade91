//! `forkd tree`: snapshots and sandboxes as a forest.

use std::collections::{BTreeMap, BTreeSet};

use forkd_protocol::rest::{SandboxInfo, SnapshotInfo};
use serde::Serialize;

use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// Show which snapshot or sandbox comes from which snapshot.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd tree")]
pub(crate) struct Args {}

/// Something and what comes from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Node {
    /// `snapshot`, `sandbox`, or `removed`: a snapshot that has no tag any more.
    kind: &'static str,
    /// Tag or id.
    name: String,
    /// A few words.
    note: String,
    /// What comes from it, the oldest first.
    children: Vec<Node>,
}

pub(crate) async fn run(_args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let snapshots: Vec<SnapshotInfo> = client.get("/v1/snapshots").await?;
    let sandboxes: Vec<SandboxInfo> = client.get("/v1/sandboxes").await?;
    context.ui.show(&forest(&snapshots, &sandboxes), |forest| render(forest));
    Ok(0)
}

/// What comes from a snapshot, by its id.
type Born<'a> = BTreeMap<&'a str, (Vec<&'a SnapshotInfo>, Vec<&'a SandboxInfo>)>;

fn forest(snapshots: &[SnapshotInfo], sandboxes: &[SandboxInfo]) -> Vec<Node> {
    let mut born = Born::new();
    let mut by_age: Vec<&SnapshotInfo> = snapshots.iter().collect();
    by_age.sort_by_key(|s| (s.created_at_unix, &s.tag));
    for snapshot in &by_age {
        if let Some(parent) = &snapshot.parent_id {
            born.entry(parent).or_default().0.push(snapshot);
        }
    }
    let known: BTreeSet<&str> = snapshots.iter().map(|s| s.id.as_str()).collect();
    for sandbox in sandboxes {
        // A controller that does not tell ids has one snapshot of each tag.
        let by_tag = || snapshots.iter().find(|s| s.tag == sandbox.snapshot_tag).map(|s| s.id.as_str());
        let id = sandbox.snapshot_id.as_deref().or_else(by_tag).unwrap_or(&sandbox.snapshot_tag);
        born.entry(id).or_default().1.push(sandbox);
    }
    let mut roots: Vec<Node> = Vec::new();
    for snapshot in by_age.iter().filter(|s| s.parent_id.is_none()) {
        roots.push(snapshot_node(snapshot, &mut born));
    }
    let gone: Vec<&str> = born.keys().copied().filter(|id| !known.contains(id)).collect();
    for id in gone {
        // Its sandboxes still know what it was called.
        let tag = born.get(id).and_then(|(_, sandboxes)| sandboxes.first()).map(|s| s.snapshot_tag.clone());
        let short: String = id.chars().take(12).collect();
        let (name, note) = match tag {
            Some(tag) => (tag, format!("removed, {short}")),
            None => (short, "removed".to_owned()),
        };
        roots.push(Node { kind: "removed", name, note, children: children(id, &mut born) });
    }
    roots
}

fn snapshot_node(snapshot: &SnapshotInfo, born: &mut Born<'_>) -> Node {
    let note = format!("{}, depth {}", ui::size(snapshot.memory_physical_bytes), snapshot.chain_depth);
    let children = children(&snapshot.id, born);
    Node { kind: "snapshot", name: snapshot.tag.clone(), note, children }
}

/// Taken out of `born`, so that this ends whatever the controller says.
fn children(id: &str, born: &mut Born<'_>) -> Vec<Node> {
    let (snapshots, sandboxes) = born.remove(id).unwrap_or_default();
    let running = sandboxes.iter().map(|sandbox| Node {
        kind: "sandbox",
        name: sandbox.id.clone(),
        note: sandbox.state.clone(),
        children: Vec::new(),
    });
    let mut nodes: Vec<Node> = running.collect();
    nodes.extend(snapshots.into_iter().map(|snapshot| snapshot_node(snapshot, born)));
    nodes
}

fn render(forest: &[Node]) -> String {
    if forest.is_empty() {
        return "no snapshots; make one: forkd snapshot --image NAME --tag TAG".to_owned();
    }
    let mut text = String::new();
    for root in forest {
        text.push_str(&line("", root));
        draw(&root.children, "", &mut text);
    }
    text
}

fn draw(nodes: &[Node], indent: &str, text: &mut String) {
    for (n, node) in nodes.iter().enumerate() {
        let last = n + 1 == nodes.len();
        let (branch, below) = if last { ("└── ", "    ") } else { ("├── ", "│   ") };
        text.push_str(&line(&format!("{indent}{branch}"), node));
        draw(&node.children, &format!("{indent}{below}"), text);
    }
}

fn line(indent: &str, node: &Node) -> String {
    format!("{indent}{} ({})\n", ui::plain(&node.name), ui::plain(&node.note))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn snapshot(tag: &str, parent: Option<&str>, age: u64) -> SnapshotInfo {
        let mut value = json!({
            "tag": tag, "id": format!("id-{tag}"), "dir": "", "created_at_unix": age, "status": "ready",
            "bootable": true, "image": "py", "kernel": "k", "vcpus": 1, "memory_mib": 128,
            "memory_physical_bytes": 4096, "memory_hash": "h", "chain_depth": 1 + u32::from(parent.is_some()),
            "timing": { "boot_ms": 1, "warm_ms": 1, "write_ms": 1 }
        });
        value["parent_id"] = parent.map_or(Value::Null, |parent| json!(parent));
        serde_json::from_value(value).unwrap()
    }

    fn sandbox(id: &str, tag: &str, snapshot: Option<&str>) -> SandboxInfo {
        let mut value = json!({
            "id": id, "snapshot_tag": tag, "netns": null, "guest_addr": "", "created_at_unix": 1, "pid": 7,
            "memory_limit_mib": null, "has_branched": false, "last_branch_memory_path": null,
            "branch_count": 0, "state": "running", "ended": null,
            "timing": { "started_us": 1, "restored_us": 2, "answered_us": 3 }
        });
        value["snapshot_id"] = snapshot.map_or(Value::Null, |id| json!(id));
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn snapshots_and_sandboxes_hang_where_they_come_from() {
        let snapshots = [
            snapshot("base", None, 1),
            snapshot("a", Some("id-base"), 3),
            snapshot("b", Some("id-a"), 4),
            snapshot("older", Some("id-base"), 2),
            snapshot("orphan", Some("0123456789abcdef"), 5),
        ];
        let sandboxes = [
            sandbox("sb-1", "base", Some("id-base")),
            sandbox("sb-2", "b", None),
            sandbox("sb-3", "base", Some("id-of-an-older-base")),
        ];
        let expected = "\
base (4.00 KiB, depth 1)
├── sb-1 (running)
├── older (4.00 KiB, depth 2)
└── a (4.00 KiB, depth 2)
    └── b (4.00 KiB, depth 2)
        └── sb-2 (running)
0123456789ab (removed)
└── orphan (4.00 KiB, depth 2)
base (removed, id-of-an-old)
└── sb-3 (running)
";
        assert_eq!(render(&forest(&snapshots, &sandboxes)), expected);
        assert!(render(&[]).contains("forkd snapshot"));
        // A controller that says nonsense is no reason to go round in circles.
        let circle = [snapshot("x", Some("id-y"), 1), snapshot("y", Some("id-x"), 1)];
        assert!(forest(&circle, &[]).is_empty());
    }
}
