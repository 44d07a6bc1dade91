//! What children of one parent must not share.

use std::collections::HashSet;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::support::{
    Children, LIST, MONITORS, Snapshot, alone, at_soak, bare, each, eventually, forkd, get, host_sh, numpy,
    store_root, together,
};

/// Everything that could tell two children apart, or not.
const TRAITS: &str = "(lambda os, socket, read: {
    'random': random.random(),
    'numpy.random': numpy.random.rand(),
    'uuid4': str(uuid.uuid4()),
    'urandom': os.urandom(16).hex(),
    'getrandom': os.getrandom(16).hex(),
    'hostname': socket.gethostname(),
    'machine-id': read('/etc/machine-id'),
    'boot_id': read('/proc/sys/kernel/random/boot_id'),
    'kernel uuid': read('/proc/sys/kernel/random/uuid'),
})(__import__('os'), __import__('socket'), lambda path: open(path).read().strip())";

/// A parent with a hook, and a process that writes its host name without end.
const WARM: &str = r##"
import os, subprocess
os.makedirs("/etc/forkd/after-fork.d")
with open("/etc/forkd/after-fork.d/10-note", "w") as hook:
    hook.write("""#!/bin/sh
if [ "$E2E_HOOK" = fail ]; then echo no luck today >&2; exit 7; fi
echo "$FORKD_SANDBOX_ID $(hostname)" >>/var/hook-runs
""")
os.chmod("/etc/forkd/after-fork.d/10-note", 0o755)
loop = "while read name </proc/sys/kernel/hostname; do echo $name; done >/var/names"
subprocess.Popen(["sh", "-c", loop], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
"##;

/// The snapshot of [`WARM`].
fn hooked() -> &'static str {
    static MADE: OnceLock<String> = OnceLock::new();
    MADE.get_or_init(|| {
        let snapshot = Snapshot::make("e2e-hooked", &["--warm", WARM]);
        let tag = snapshot.tag.clone();
        // Tests share it, so none of them removes it.
        std::mem::forget(snapshot);
        tag
    })
}

#[test]
fn children_have_nothing_in_common_that_should_differ() {
    let _world = together();
    let n = at_soak("children", 20, 4);
    let children = Children::fork(numpy(), n);
    let traits: Vec<Value> = each(&children, |child| child.value(TRAITS));
    for name in traits[0].as_object().unwrap().keys() {
        let values: HashSet<String> = traits.iter().map(|t| t[name].to_string()).collect();
        assert_eq!(values.len(), n, "{name}: {values:?}");
        assert!(values.iter().all(|v| v.len() > 4), "{name}: {values:?}");
    }
}

#[test]
fn a_child_is_called_by_its_id_and_knows_its_own_address() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let child = &children[0];
    assert_eq!(child.sh("hostname; cat /etc/hostname"), format!("{0}\n{0}", child.id));
    let own = child.sh("getent hosts $(hostname)");
    assert!(own.starts_with("127.0.1.1 ") && own.ends_with(&child.id), "{own}");
    assert!(child.sh("getent ahosts localhost").contains("127.0.0.1"));
}

#[test]
fn the_clock_is_the_hosts() {
    let _world = together();
    let children = Children::fork(numpy(), 1);
    let seconds = |text: String| text.parse::<f64>().unwrap();
    let before = seconds(host_sh("date +%s.%N"));
    let child = seconds(children[0].eval("import time\ntime.time()").result.unwrap());
    let after = seconds(host_sh("date +%s.%N"));
    assert!(before - 1.0 < child && child < after + 1.0, "{before} {child} {after}");
}

#[test]
fn random_numbers_never_keep_a_child_waiting() {
    let _world = together();
    let children = Children::fork(numpy(), 1);
    let code = "import os\nlen(os.getrandom(256, os.GRND_NONBLOCK))";
    assert_eq!(children[0].value(code), 256);
}

#[test]
fn hooks_run_once_in_each_child_and_never_in_the_parent() {
    let _world = together();
    let children = Children::fork(hooked(), 2);
    for child in children.iter() {
        assert_eq!(child.sh("cat /var/hook-runs"), format!("{0} {0}", child.id));
    }
}

#[test]
fn a_failing_hook_fails_the_fork_with_its_words_and_leaves_nothing() {
    let _world = alone();
    let ran = forkd(&["fork", "--tag", hooked(), "-n", "2", "--env", "E2E_HOOK=fail"]).ends_with(7);
    assert!(ran.stderr.contains("10-note") && ran.stderr.contains("no luck today"), "{}", ran.stderr);
    assert_eq!(get("/v1/sandboxes").json(), json!([]));
    assert_eq!(host_sh(&format!("{LIST} {}/run; {MONITORS}", store_root())), "0");
}

#[test]
fn no_process_of_the_parent_goes_on_under_the_old_name() {
    let _world = together();
    let children = Children::fork(hooked(), 1);
    let child = &children[0];
    let lines: usize = child.sh("wc -l </var/names").parse().unwrap();
    eventually("it has written more", || {
        (child.sh("wc -l </var/names").parse::<usize>().unwrap() > lines + 100).then_some(())
    });
    assert_eq!(child.sh(&format!("tail -n +{} /var/names | sort -u", lines + 1)), child.id);
    assert_ne!(child.sh("head -n 1 /var/names"), child.id);
}
