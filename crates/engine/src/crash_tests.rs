//! Killed at every step: the controller, then the monitors under it. What the next controller finds is whole: each tag
//! is there or not, each sandbox runs and answers or is gone, and nothing else is left.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use forkd_host::process::Process;
use forkd_protocol::names::{SandboxId, Tag};
use forkd_protocol::rest::{BranchMode, BranchRequest, CreateSandboxes, RefreshSnapshot, RemoveSnapshot};
use forkd_testkit::fault::{self, Errand, Passage};
use tokio::runtime::Runtime;

use self::support::*;
use crate::{Engine, EngineError};

#[path = "../tests/support/mod.rs"]
mod support;

const CONTROLLER: &str = "crash_tests::a_controller_that_is_killed_at_any_step_leaves_nothing_half";
const MONITORS: &str = "crash_tests::monitors_that_are_killed_at_any_step_leave_nothing_half";
const POINTS: &str = "points";
const OPERATIONS: [&str; 8] =
    ["fork", "snapshot", "refresh", "branch full", "branch diff", "branch live", "pause", "resume"];

/// What each operation finds: a snapshot and a sandbox of it, which is there to be resumed where that is done.
async fn furnish(house: &House, operation: &str) -> SandboxId {
    let engine = house.furnished(bounds()).await;
    let id = fork_one(&engine).await;
    if operation == "resume" {
        engine.pause(&id).await.unwrap();
    }
    engine.shutdown();
    id
}

async fn operate(engine: &Engine, operation: &str) -> Result<(), EngineError> {
    let source = engine.sandboxes().first().map(id).unwrap();
    let mode = match operation {
        "pause" => return engine.pause(&source).await.map(drop),
        "resume" => return engine.resume(&source).await.map(drop),
        "refresh" => return refresh(engine).await,
        "fork" => return engine.fork(children(2)).await.map(drop),
        "snapshot" => return create(engine, &snapshot("new")).await.map(drop),
        "branch full" => BranchMode::Full,
        "branch diff" => BranchMode::Diff,
        _ => BranchMode::Live,
    };
    let asked = BranchRequest { tag: Some("new".into()), mode: Some(mode), ..BranchRequest::default() };
    engine.branch(&source, asked).await.map(drop)
}

async fn refresh(engine: &Engine) -> Result<(), EngineError> {
    let (progress, _lines) = tokio::sync::mpsc::channel(16);
    let asked = RefreshSnapshot { tag: None, kernel: None, warm_timeout_secs: 20 };
    engine.refresh_snapshot("t".parse().unwrap(), asked, progress).await.map(drop)
}

/// In a copy of this program: opens the engine and does what it was sent for.
fn carry_out(errand: Errand, harm: fn(Passage, &Path)) {
    // Its sandboxes are looked at by who sent this process.
    let house = std::mem::ManuallyDrop::new(House::at(&errand.folder));
    alive(async {
        let engine = house.open(bounds()).await;
        match errand.harm {
            Some(passage) => harm(passage, &house.root()),
            None => fault::note(&errand.folder.join(POINTS)).unwrap(),
        }
        let done = operate(&engine, &errand.operation).await;
        fault::disarm();
        // What was harmed may fail. Whatever it says, it leaves nothing behind in this controller either.
        if let Err(e) = done {
            assert!(!engine.snapshots().await.unwrap().iter().any(|s| s.tag == "new"), "{e}");
        }
        eventually(|| names(&house.root().join("staging")).is_empty()).await;
        fork_one(&engine).await;
        engine.shutdown();
    });
}

/// A controller's life: when this returns, nothing of it holds the store any more.
fn alive<T>(life: impl Future<Output = T>) -> T {
    Runtime::new().unwrap().block_on(life)
}

fn passages(test: &str, operation: &str) -> Vec<Passage> {
    let house = House::new();
    alive(furnish(&house, operation));
    let (operation, folder) = (operation.to_owned(), house.folder.path().to_owned());
    let done = fault::send(test, &Errand { operation, folder: folder.clone(), harm: None }).unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    fault::noted(&folder.join(POINTS)).unwrap()
}

/// What is listed is whole; what runs answers and is not frozen; nothing else is there.
async fn assert_found(engine: &Engine, house: &House) {
    let report = engine.store().verify(None, false).unwrap();
    assert!(report.damage.is_empty(), "{report:?}");
    assert!(engine.store().gc(true).unwrap().items.is_empty());
    let mut known: Vec<String> = engine.sandboxes().into_iter().map(|info| info.id).collect();
    known.sort();
    let folders = house.run_folders();
    assert!(folders.iter().all(|folder| known.contains(folder)), "run folders without a sandbox");
    for id in known.iter().map(|id| id.parse().unwrap()) {
        if engine.sandbox(&id).unwrap().state == "paused" {
            engine.resume(&id).await.unwrap();
        }
        assert!(names(&house.root().join("run")).contains(&id.to_string()), "a sandbox without a run folder");
        // Adopted ones are thawed beside the opening.
        let thawed = async {
            while !exec(engine, &id, &["frozen"]).await.is_ok_and(|told| told.stdout == "false") {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), thawed).await.unwrap();
    }
}

/// Whether the sandbox that was there before is to be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lives {
    Yes,
    No,
    /// Where it was on the disk, or was not any more.
    Maybe,
}

/// The next controller, after whatever happened: all is well, works, and goes away without a rest.
async fn assert_whole(house: &House, source: &SandboxId, operation: &str, lives: Lives) {
    let engine = house.open(bounds()).await;
    assert_found(&engine, house).await;
    assert_eq!(monitors(house), engine.sandboxes().len(), "monitors that nobody knows");
    let found = engine.sandbox(source).is_ok();
    assert!(
        lives == Lives::Maybe || found == (lives == Lives::Yes),
        "the sandbox that was there before: {found}"
    );
    let snapshots = engine.snapshots().await.unwrap();
    assert!(snapshots.iter().all(|s| s.status == "ready" && (s.tag == "t" || s.tag == "new")));
    for tag in snapshots.into_iter().map(|s| s.tag) {
        let child = CreateSandboxes { snapshot_tag: tag, ..children(1) };
        engine.fork(child).await.unwrap();
    }
    if found {
        let again = BranchRequest { tag: Some("again".into()), ..BranchRequest::default() };
        match engine.branch(source, again).await {
            Ok(made) => assert_eq!(made.status, "ready"),
            // It is not known which top the monitor writes to.
            Err(e) => assert!(operation.starts_with("branch") && e.code() == "conflict", "{e}"),
        }
    }
    for info in engine.sandboxes() {
        engine.kill(&id(&info)).await.unwrap();
    }
    assert_eq!((monitors(house), house.run_folders().len()), (0, 0));
    for info in engine.snapshots().await.unwrap() {
        let force = RemoveSnapshot { force: true, ..RemoveSnapshot::default() };
        engine.remove_snapshot(info.tag.parse::<Tag>().unwrap(), force).await.unwrap();
    }
    for folder in ["layers", "snapshots", "staging"] {
        // What a child tells of its hot pages may still be on its way, and keeps what it is told of until then.
        let none_left = || {
            engine.store().gc(false).unwrap();
            names(&house.root().join(folder)).is_empty()
        };
        eventually(none_left).await;
    }
    engine.shutdown();
}

/// Processes of this house that run.
fn monitors(house: &House) -> usize {
    let program = house.libexec().join("forkd-vmm");
    let runs = |pid: &str| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.split(|byte| *byte == 0).next() == Some(program.as_os_str().as_encoded_bytes())
    };
    names("/proc".as_ref()).iter().filter(|pid| runs(pid)).count()
}

#[test]
fn a_controller_that_is_killed_at_any_step_leaves_nothing_half() {
    if let Some(errand) = fault::errand() {
        return carry_out(errand, |passage, _| passage.then_die());
    }
    let mut passed = BTreeSet::new();
    for operation in OPERATIONS {
        for passage in passages(CONTROLLER, operation) {
            let house = House::new();
            let source = alive(furnish(&house, operation));
            let (operation, folder) = (operation.to_owned(), house.folder.path().to_owned());
            let harm = Some(passage.clone());
            let sent =
                fault::send(CONTROLLER, &Errand { operation: operation.clone(), folder, harm }).unwrap();
            assert_eq!(sent.status.signal(), Some(9), "{operation} at {passage}: {}", sent.status);
            eprintln!("{operation} at {passage}");
            alive(assert_whole(&house, &source, &operation, Lives::Yes));
            passed.insert(passage.point);
        }
    }
    let all = fault::points_of(env!("CARGO_MANIFEST_DIR").as_ref()).unwrap();
    assert_eq!(
        all.difference(&passed).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "no operation passes these"
    );
}

#[test]
fn monitors_that_are_killed_at_any_step_leave_nothing_half() {
    if let Some(errand) = fault::errand() {
        return carry_out(errand, |passage, root| {
            let run = root.join("run");
            passage.then(move || kill_all_in(&run));
        });
    }
    for operation in OPERATIONS {
        for passage in passages(MONITORS, operation) {
            let house = House::new();
            let source = alive(furnish(&house, operation));
            let lives = if matches!(operation, "pause" | "resume") { Lives::Maybe } else { Lives::No };
            let (operation, folder) = (operation.to_owned(), house.folder.path().to_owned());
            let harm = Some(passage.clone());
            let sent = fault::send(MONITORS, &Errand { operation: operation.clone(), folder, harm }).unwrap();
            let said = String::from_utf8_lossy(&sent.stdout);
            assert!(sent.status.success(), "{operation} at {passage}: {said}");
            eprintln!("{operation} at {passage}");
            alive(assert_whole(&house, &source, &operation, lives));
        }
    }
}

/// Kills every monitor that is noted in a run folder, and waits for each to be gone.
fn kill_all_in(run: &Path) {
    for folder in fs::read_dir(run).unwrap().map(|entry| entry.unwrap().path()) {
        let note = fs::read_to_string(folder.join("monitor.pid")).unwrap_or_default();
        let mut fields = note.split(' ').map_while(|field| field.parse::<u64>().ok());
        let (Some(pid), Some(ticks)) = (fields.next(), fields.next()) else { continue };
        if let Some(process) = Process::find(u32::try_from(pid).unwrap(), ticks).unwrap() {
            process.kill().unwrap();
            process.ended_within(Duration::from_secs(20)).unwrap();
        }
    }
}
