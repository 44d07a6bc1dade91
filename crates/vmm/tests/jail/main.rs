//! What a monitor is in its jail, and what becomes of one that was captured.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod captured;
#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime};

use forkd_host::cgroup::Cgroups;
use forkd_host::jail::Facts;
use forkd_host::seccomp::refused_call;
use forkd_protocol::control::ProcessEnd;
use forkd_protocol::rest::Limits;
use forkd_testkit::{guard, tiny};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::captured::CAPTURED;
use crate::common::{Monitor, jailed};

const SIGSYS: i32 = 31;
const SIGKILL: i32 = 9;

/// What a captured monitor might ask of the kernel, and which call that is. Its filter ends it for each of them.
const KILLED_FOR: [(&str, u32); 15] = [
    ("open /etc/hostname", 257),
    ("open /dev/kvm", 257),
    ("connect out", 41),
    ("connect a socket", 41),
    ("trace another monitor", 101),
    ("execute a program", 59),
    ("start a thread", 435),
    ("signal the controller", 62),
    ("signal it as a thread", 234),
    ("map code", 9),
    ("make memory code", 10),
    ("leave its user namespace", 272),
    ("mount", 165),
    ("become root", 105),
    ("make another machine", 16),
];

fn main() -> ExitCode {
    if std::env::var_os(CAPTURED).is_some() {
        return captured::main();
    }
    let mut trials = vec![
        Trial::test("a_running_monitor_has_nothing_of_the_host", nothing_of_the_host),
        Trial::test("what_is_not_listed_is_found_in_no_other_way", no_other_way),
        Trial::test("processes_are_capped", processes_are_capped),
        Trial::test("memory_is_capped_by_the_cgroup", memory_is_capped),
        Trial::test("a_monitor_that_is_killed_takes_no_writer_along_and_is_noted", a_kill_is_noted),
        Trial::test("one_that_cannot_be_jailed_does_not_run", one_that_cannot_be_jailed),
    ];
    let killed = KILLED_FOR.map(|(act, call)| {
        Trial::test(format!("killed_for_trying_to_{}", act.replace(['/', ' '], "_")), move || {
            killed_for(act, call)
        })
    });
    trials.extend(killed);
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A monitor that does what it is told.
struct Captured {
    process: jailed::Process,
    told: UnixStream,
    _dir: tempfile::TempDir,
}

impl Captured {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(CAPTURED, "1");
        let process = jailed::start_command(command, listener, &path, dir.path());
        let told = UnixStream::connect(&path).unwrap();
        told.set_read_timeout(Some(common::patience())).unwrap();
        Self { process, told, _dir: dir }
    }

    /// What it says of its attempt; nothing where it does not survive that.
    fn attempt(&mut self, act: &str) -> String {
        self.told.write_all(format!("{act}\n").as_bytes()).unwrap();
        let (mut said, mut byte) = (Vec::new(), [0]);
        while matches!(self.told.read(&mut byte), Ok(1)) && byte != *b"\n" {
            said.push(byte[0]);
        }
        String::from_utf8(said).unwrap()
    }
}

/// These say nothing where there is no jail.
fn jailable() -> bool {
    let root = rustix::process::geteuid().is_root();
    guard::kvm()
        && guard::met("root", if root { Ok(()) } else { Err("only root can jail a monitor".to_owned()) })
}

fn killed_for(act: &str, call: u32) -> Result<(), Failed> {
    if !jailable() {
        return Ok(());
    }
    // The kernel's clock of records ticks coarsely.
    let since = SystemTime::now() - Duration::from_secs(1);
    let mut monitor = Captured::start();
    let uid = monitor.process.user();
    assert_eq!(monitor.attempt(act), "", "it lives");
    assert_eq!(monitor.process.wait(), Some(ProcessEnd::Killed { signal: SIGSYS }));
    // The kernel logs a few of these a second, no more.
    let logged = refused_call(uid, since);
    assert!(logged.is_none_or(|logged| logged == call), "killed for {logged:?}");
    Ok(())
}

fn no_other_way() -> Result<(), Failed> {
    if !jailable() {
        return Ok(());
    }
    let mut monitor = Captured::start();
    for path in
        ["/etc/hostname", "/dev/kvm", "../etc/hostname", "1/environ", "self/root/etc", "sys/kernel/hostname"]
    {
        let said = monitor.attempt(&format!("below-proc {path}"));
        let refused = ["No such file", "Permission denied"].iter().any(|why| said.contains(why));
        assert!(refused, "{path}: {said}");
    }
    assert_eq!(monitor.attempt("below-proc self/pagemap"), "done", "which is what it is for");
    Ok(())
}

fn processes_are_capped() -> Result<(), Failed> {
    if !jailable() {
        return Ok(());
    }
    let mut monitor = Captured::start();
    let said = monitor.attempt("fork");
    let made: u32 =
        said.strip_suffix(" copies").and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{said}"));
    assert!((1..24).contains(&made), "{made} copies");
    // As writers do they would outlive it.
    monitor.process.children().into_iter().for_each(jailed::kill);
    Ok(())
}

fn memory_is_capped() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let (cgroups, limits) =
        (Cgroups::detect(folder.path()), Limits { memory_mib: Some(64), ..Limits::default() });
    if !jailable() || !guard::met("cgroup", cgroups.check(&limits).map_err(|e| e.to_string())) {
        return Ok(());
    }
    let Some(leaf) = cgroups.create("memory")? else { return Err("a host with limits has no leaf".into()) };
    cgroups.limit(&leaf, &limits)?;
    let mut monitor = Captured::start();
    leaf.add(monitor.process.pid()).unwrap();
    assert_eq!(monitor.attempt("fill 256"), "", "it lives");
    assert_eq!(monitor.process.wait(), Some(ProcessEnd::Killed { signal: SIGKILL }));
    // Whoever was in it went with it, and the kernel counts each.
    assert!(leaf.memory_kills() > 0);
    leaf.remove().unwrap();
    Ok(())
}

fn nothing_of_the_host() -> Result<(), Failed> {
    if !jailable() {
        return Ok(());
    }
    let mut monitor = Monitor::start();
    monitor.boot_with(tiny::ECHO, 2, 128).unwrap();
    assert_eq!(monitor.printed(), *b"R");
    let facts = once_all_are_filtered(monitor.pid())?;
    let user = facts.users[0];
    assert!(user >= 65536 && facts.users == [user; 4] && facts.groups == [user; 4]);
    // User namespaces are not to be had by everybody on every host.
    assert!(facts.shared_namespaces.is_subset(&BTreeSet::from(["user"])), "{:?}", facts.shared_namespaces);
    assert!(facts.capabilities.is_empty() && facts.supplementary == 0 && facts.no_new_privileges);
    assert_eq!((facts.root_entries, facts.root_read_only, facts.parent_number), (0, true, Some(1)));
    assert!(facts.threads.len() >= 3, "{:?}", facts.threads);
    assert!(facts.threads.values().all(|&(mode, filters)| mode == 2 && filters == 3), "{:?}", facts.threads);
    assert_eq!(facts.descriptors.get("directory"), Some(&1), "{:?}", facts.descriptors);
    assert_eq!(facts.limits["Max core file size"], (Some(0), Some(0)));
    Ok(())
}

/// A vCPU's thread may still be on its way to its filter when another one's guest prints.
fn once_all_are_filtered(monitor: u32) -> Result<Facts, Failed> {
    let began = Instant::now();
    loop {
        let facts = Facts::of(monitor)?;
        let filtered = facts.threads.values().all(|&(mode, filters)| mode == 2 && filters == 3);
        if filtered && facts.threads.len() >= 3 || began.elapsed() > Duration::from_secs(60) {
            return Ok(facts);
        }
        std::thread::yield_now();
    }
}

fn a_kill_is_noted() -> Result<(), Failed> {
    if !jailable() {
        return Ok(());
    }
    let mut monitor = Captured::start();
    assert_eq!(monitor.attempt("fork 1"), "1 copies");
    let copies = monitor.process.children();
    assert_eq!(copies.len(), 1);
    monitor.process.kill();
    assert_eq!(monitor.process.wait(), Some(ProcessEnd::Killed { signal: SIGKILL }));
    assert!(jailed::own_number(copies[0]).is_some(), "its copy lives on");
    jailed::kill(copies[0]);
    Ok(())
}

fn one_that_cannot_be_jailed() -> Result<(), Failed> {
    for uid in ["0", "1000", "-1", "nobody", "4294967296"] {
        let refused = Command::new(env!("CARGO_BIN_EXE_forkd-vmm")).args(["--uid", uid]).output()?;
        assert_eq!(refused.status.code(), Some(2), "{uid}: {refused:?}");
    }
    if cfg!(not(debug_assertions)) {
        let refused = Command::new(env!("CARGO_BIN_EXE_forkd-vmm")).arg("--unjailed").output()?;
        assert_eq!(refused.status.code(), Some(2), "a release build knows no such thing: {refused:?}");
    }
    Ok(())
}
