//! Branches of sandboxes that are busy: writing to their disk, to a database, to nearly all of their memory.

use serde_json::json;

use forkd_protocol::rest::SnapshotInfo;

use crate::support::{
    Child, Children, Snapshot, at_soak, bare, check_disk, each, eventually, get, numpy, post, together,
};

/// Makes, renames and removes files without end; every tenth round is brought to the disk.
const FILES: &str = r"
n=0
while :; do
    n=$((n+1)); d=/load/$((n%7)); mkdir -p $d
    head -c $((n%40000+1)) /dev/urandom >$d/new && mv $d/new $d/file-$((n%40))
    rm -rf /load/$(((n+3)%7))/file-$((n%11))
    echo $n >/load/round; [ $((n%10)) -ne 0 ] || sync
done";

/// Ten rows a transaction, each with the checksum of its number.
const ROWS: &str = r"
import hashlib, sqlite3
db = sqlite3.connect('/rows.db', isolation_level=None)
db.execute('PRAGMA journal_mode=WAL')
db.execute('CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY, sum TEXT)')
n = 0
while True:
    db.execute('BEGIN')
    for _ in range(10):
        n += 1
        db.execute('INSERT INTO rows VALUES (?, ?)', (n, hashlib.sha256(str(n).encode()).hexdigest()))
    db.execute('COMMIT')
";

/// How many rows there are, where all of them are right and no transaction is half.
const RIGHT_ROWS: &str = r"
import hashlib, sqlite3
db = sqlite3.connect('/rows.db')
assert db.execute('PRAGMA integrity_check').fetchone() == ('ok',)
rows = db.execute('SELECT n, sum FROM rows ORDER BY n').fetchall()
assert len(rows) % 10 == 0 and [n for n, _ in rows] == list(range(1, len(rows) + 1))
assert all(s == hashlib.sha256(str(n).encode()).hexdigest() for n, s in rows)
print(len(rows))
";

/// Starts a script that goes on after the command that started it.
fn in_background(child: &Child, program: &str, script: &str) {
    child.sh(&format!(
        "cat >/load.script <<'END'\n{script}\nEND\nsetsid {program} /load.script >/load.log 2>&1 & echo $! >/load.pid"
    ));
}

fn stop_background(child: &Child) {
    child.sh("kill -KILL $(cat /load.pid)");
}

fn branch(source: &Child, tag: &str, mode: &str) -> Snapshot {
    let snapshot = Snapshot::named(tag);
    post(&source.path("branch"), json!({ "tag": tag, "mode": mode })).with_status(201);
    snapshot
}

fn mode(round: usize) -> &'static str {
    ["live", "diff", "live", "full"][round % 4]
}

#[test]
fn a_file_system_that_is_being_written_to_is_clean_in_every_branch() {
    let _world = together();
    let sources = Children::fork(bare(), 1);
    let source = &sources[0];
    in_background(source, "sh", FILES);
    let rounds_of = |child: &Child| child.sh("cat /load/round 2>/dev/null || echo 0").parse().unwrap_or(0);
    let mut last = 0;
    for round in 0..at_soak("branches under load", 100, 2) {
        eventually("the load goes on", || (rounds_of(source) > last + 5).then_some(()));
        let snapshot = branch(source, "e2e-load", mode(round));
        check_disk(&snapshot.tag);
        let children = Children::fork(&snapshot.tag, 1);
        let found = rounds_of(&children[0]);
        assert!(found > last, "round {round}: the disk is that of the branch");
        eventually("the load goes on in the child", || (rounds_of(&children[0]) > found).then_some(()));
        children[0].sh("sync; find /load -type f -exec cat {} + | wc -c");
        assert_eq!(children[0].sh("dmesg | grep -Eci 'i/o error|ext4-fs (error|warning)' || true"), "0");
        last = found;
    }
    assert_eq!(source.sh("dmesg | grep -Eci 'i/o error|ext4-fs (error|warning)' || true"), "0");
}

#[test]
fn a_database_that_is_being_written_to_is_right_in_every_branch() {
    let _world = together();
    let sources = Children::fork(bare(), 1);
    let source = &sources[0];
    in_background(source, "python3", ROWS);
    let rows = |child: &Child| -> u64 {
        stop_background(child);
        child.exec(&["python3", "-c", RIGHT_ROWS]).ok().text().trim().parse().unwrap()
    };
    eventually("the database grows", || {
        source.sh("test -s /rows.db && echo y || true").contains('y').then_some(())
    });
    let mut last = 0;
    for round in 0..at_soak("branches of a database", 20, 2) {
        let snapshot = branch(source, "e2e-rows", mode(round));
        let found = rows(&Children::fork(&snapshot.tag, 1)[0]);
        assert!(found >= last, "round {round}: {found} rows after {last}");
        check_disk(&snapshot.tag);
        last = found;
    }
    assert!(last > 0 && rows(source) >= last);
}

#[test]
fn children_that_fill_their_disks_leave_each_clean() {
    let _world = together();
    let (n, mib) = at_soak("children and MiB each", (20, 50), (3, 4));
    let children = Children::fork(bare(), n);
    let write = format!("cd /var; head -c {mib}M /dev/urandom >data; sha256sum data >sum; sync");
    each(&children, |child| child.sh(&write));
    for (number, child) in children.iter().enumerate() {
        let snapshot = branch(child, &format!("e2e-full-{number}"), "live");
        check_disk(&snapshot.tag);
        Children::fork(&snapshot.tag, 1)[0].sh("cd /var; sha256sum --quiet -c sum");
    }
}

#[test]
fn a_guest_that_rewrites_most_of_its_memory_is_branched_without_a_kill() {
    let _world = together();
    // Four fifths of the limit, beside what the template's own pages cost.
    let (limit, array) = (440, 352);
    let sources = Children::fork_with(numpy(), 1, &["--memory-limit-mib", &limit.to_string()]);
    let source = &sources[0];
    source.eval(&format!(
        "import threading
filled, rounds = numpy.zeros({array} << 20, 'u1'), [0]
def rewrite():
    while True:
        numpy.add(filled, 1, out=filled)
        rounds[0] += 1
threading.Thread(target=rewrite, daemon=True).start()"
    ));
    let done = |child: &Child| child.value("rounds[0]").as_u64().unwrap();
    for round in 0..at_soak("branches of a full sandbox", 50, 2) {
        let before = done(source);
        eventually("the memory is rewritten", || (done(source) > before).then_some(()));
        let snapshot = branch(source, "e2e-heavy", "live");
        let info = get(&format!("{}/info", snapshot.path())).json();
        assert!(info["chain_depth"] == 2, "round {round}: {info}");
        let seen = source.seen().unwrap();
        assert_eq!((seen.state.as_str(), seen.ended.as_deref()), ("running", None), "round {round}");
    }
    let before = done(source);
    eventually("the memory is still rewritten", || (done(source) > before).then_some(()));
}

/// A server that answers every connection, and a timer.
const SERVE: &str = "
import socket, threading
listener = socket.socket()
listener.bind(('127.0.0.1', 0))
listener.listen()
port, rang = listener.getsockname()[1], []
def answer():
    while True:
        peer, _ = listener.accept()
        peer.sendall(b'served')
        peer.close()
threading.Thread(target=answer, daemon=True).start()
";

const ASK: &str = "socket.create_connection(('127.0.0.1', port), 60).recv(16).decode()";

#[test]
fn what_is_under_way_goes_on_in_source_and_child() {
    let _world = together();
    let sources = Children::fork(numpy(), 1);
    let source = &sources[0];
    source.eval(SERVE);
    in_background(source, "sh", "while :; do echo x >>/beats; sleep 0.2; done");
    let beats = |child: &Child| child.sh("wc -l </beats").trim().parse::<u64>().unwrap();
    let waiting = "echo begun >/begun; while [ ! -e /go ]; do sleep 0.1; done; echo went on";
    std::thread::scope(|scope| {
        let under_way = scope.spawn(|| source.exec(&["sh", "-c", waiting]));
        eventually("the command has begun", || {
            source.sh("cat /begun 2>/dev/null || true").contains("begun").then_some(())
        });
        source.eval("timer = threading.Timer(60, rang.append, ['rang']); timer.start()");
        let tag = "e2e-under-way";
        let snapshot = Snapshot::named(tag);
        let made: SnapshotInfo =
            post(&source.path("branch"), json!({ "tag": tag })).with_status(201).parsed();
        assert_eq!(made.status, "ready");
        let children = Children::fork(&snapshot.tag, 1);
        let child = &children[0];
        for one in [source, child] {
            assert_eq!(one.value(ASK), "served", "the listening socket");
            let before = beats(one);
            eventually("the background process goes on", || (beats(one) > before).then_some(()));
            eventually("the timer rings", || (one.value("rang") == json!(["rang"])).then_some(()));
        }
        source.sh("touch /go");
        let ran = under_way.join().unwrap().ok();
        assert_eq!(ran.text().trim(), "went on", "the command whose output somebody waits for");
    });
}
