//! Starting a jailed monitor and finding its process, as the engine does it.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use forkd_protocol::control::ProcessEnd;
use forkd_testkit::guard;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Users of test monitors; no two live ones share one.
const FIRST_UID: u32 = 1_100_000_000;

/// A monitor's process; it ends with this handle.
pub(crate) struct Process {
    pid: u32,
    pidfd: OwnedFd,
    ending: PathBuf,
    /// Where it is not jailed: it is our own child then.
    child: Option<Child>,
}

/// Starts the monitor's program and waits until the monitor is ready.
pub(crate) fn start(listener: UnixListener, dir: &Path) -> Process {
    let path = listener.local_addr().unwrap().as_pathname().unwrap().to_owned();
    let command = Command::new(env!("CARGO_BIN_EXE_forkd-vmm"));
    start_command(command, listener, &path, dir)
}

/// The same with another program.
pub(crate) fn start_command(
    mut command: Command,
    listener: UnixListener,
    path: &Path,
    dir: &Path,
) -> Process {
    let ending = dir.join("ending");
    command.stdin(Stdio::from(OwnedFd::from(listener))).stdout(File::create(&ending).unwrap());
    if !jails() {
        let child = command.arg("--unjailed").spawn().unwrap();
        return Process { pid: child.id(), pidfd: open(child.id()), ending, child: Some(child) };
    }
    let started = command.arg("--uid").arg(uid().to_string()).status().unwrap();
    assert!(started.success(), "no monitor came of it: {started}");
    drop(command);
    let peer = rustix::net::sockopt::socket_peercred(UnixStream::connect(path).unwrap()).unwrap();
    let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
    Process { pid, pidfd: open(pid), ending, child: None }
}

/// Whether monitors are jailed here. Only a debug build can do without.
fn jails() -> bool {
    let root = rustix::process::geteuid().is_root();
    root || !cfg!(debug_assertions) || guard::met("root", Err("monitors run without their jail".to_owned()))
}

fn uid() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    FIRST_UID + std::process::id() % 1_000_000 * 64 + NEXT.fetch_add(1, Ordering::Relaxed) % 64
}

fn open(pid: u32) -> OwnedFd {
    pidfd_open(Pid::from_raw(pid.cast_signed()).unwrap(), PidfdFlags::empty()).unwrap()
}

/// Ends some process.
pub(crate) fn kill(pid: u32) {
    let _ = pidfd_send_signal(open(pid), Signal::KILL);
}

/// What a process is called in the innermost pid namespace that it is in.
pub(crate) fn own_number(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Whom it is jailed as.
    pub(crate) fn user(&self) -> u32 {
        std::os::unix::fs::MetadataExt::uid(&fs::metadata(format!("/proc/{}", self.pid)).unwrap())
    }

    /// Processes that it started and that are still there, dead ones among them.
    pub(crate) fn children(&self) -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap();
        let lists = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")).unwrap());
        lists
            .flat_map(|list| list.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
            .collect()
    }

    pub(crate) fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Waits for its end; how it ended, where anybody knows.
    pub(crate) fn wait(&mut self) -> Option<ProcessEnd> {
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], None).unwrap();
        if let Some(child) = &mut self.child {
            return child.wait().unwrap().code().map(|code| ProcessEnd::Exited { code });
        }
        // The reaper notes it as soon as it runs.
        let began = std::time::Instant::now();
        loop {
            let noted = fs::read_to_string(&self.ending).unwrap();
            if noted.ends_with('\n') {
                return serde_json::from_str(&noted).ok();
            }
            assert!(began.elapsed() < super::patience(), "the reaper noted nothing: {noted:?}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        self.wait();
    }
}
