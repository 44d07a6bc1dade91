//! The computer on which the sandboxes run: the machine where it serves the controller, else this one.

use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use forkd_protocol::rest::SnapshotInfo;
use serde_json::Value;

use super::world::{eventually, program, url};
use super::{bare, forkd, get};

/// What a shell script prints there; it has to end well.
#[track_caller]
pub(crate) fn host_sh(script: &str) -> String {
    let mut command = if in_machine() {
        let mut shell = Command::new(program());
        shell.args(["machine", "shell", "--", "sh", "-c", script]);
        shell
    } else {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    };
    let done = command.stdin(Stdio::null()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{script}\n{}\n{out}\n{err}", done.status);
    out.trim_end().to_owned()
}

/// A script that counts the monitors with a machine: one that waits for its own has a single thread. Those that have
/// ended do not count, whoever has yet to collect them.
pub(crate) const MONITORS: &str =
    "ps -C forkd-vmm -o s=,nlwp= | grep -cE '^[DRS] +([2-9]|[1-9][0-9])' || true";

/// Lists folders below the store's without the run folders of monitors that wait.
pub(crate) const LIST: &str = "ls --ignore='wm-*'";

/// Waits until the pools of waiting monitors and networks are full: starting one takes far less than the pause between two
/// looks.
pub(crate) fn full_pool() {
    let count = || host_sh(&format!("ls {}/run | grep -c ^wm- || true; ls /run/netns | wc -l", store_root()));
    eventually("no more of them are started", || {
        let before = count();
        thread::sleep(Duration::from_secs(1));
        (count() == before).then_some(())
    });
}

/// The process that answers the API.
pub(crate) fn controller_pid() -> String {
    if in_machine() {
        return host_sh("pgrep -xo forkd");
    }
    let port = url().rsplit(':').next().unwrap().trim_end_matches('/');
    host_sh(&format!("pgrep -of '^[^ ]*forkd serve --listen [^ ]*:{port} '"))
}

/// Ends the controller, and maybe other processes in the same moment, without a word. Comes back once the next one
/// answers, which whoever supervises it has started.
pub(crate) fn crash(others: &[u32]) {
    let before = controller_pid();
    let others: Vec<String> = others.iter().map(u32::to_string).collect();
    host_sh(&format!("kill -KILL {before} {}", others.join(" ")));
    eventually("another controller answers", || {
        let answers = forkd(&["ls"]).code == Some(0);
        (answers && controller_pid() != before).then_some(())
    });
}

/// The folder of everything that is stored.
pub(crate) fn store_root() -> String {
    bare();
    let snapshots: Vec<SnapshotInfo> = get("/v1/snapshots").parsed();
    let (root, _) = snapshots.first().unwrap().dir.split_once("/snapshots/").unwrap();
    root.to_owned()
}

fn in_machine() -> bool {
    static SERVES: OnceLock<bool> = OnceLock::new();
    *SERVES.get_or_init(|| {
        let status: Value = forkd(&["--json", "machine", "status"]).parsed();
        status["url"]
            .as_str()
            .is_some_and(|machine| machine.trim_end_matches('/') == url().trim_end_matches('/'))
    })
}
