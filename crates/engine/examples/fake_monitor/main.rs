//! A monitor without a machine, for tests: speaks the control protocol on its stdin and serves an agent that
//! obeys, stalls, floods, lies or dies as it is told.
//!
//! How it behaves is said by the folder it is started from: each file in `moods/` is taken (removed) by the
//! first monitor that comes, and its name is the mood; without one it is obedient.

mod agent;
mod lineage;

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::exit;

use forkd_protocol::control::{
    CONTROL_VERSION, Connection, DiskPart, FdRole, LayerStats, MemoryMode, Phase, Refusal, RefusalClass,
    Reply, Request, Snapshot, Snapshotted, Status,
};
use forkd_testkit::written::table;

type Anyhow<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Anyhow<()> {
    // The door of its cgroup, where the host has any.
    if let Some(door) = std::env::var_os(forkd_protocol::control::CGROUP_DOOR) {
        std::fs::write(door, "0")?;
    }
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    if arguments.next().is_some_and(|verb| verb == "read-in") {
        return Ok(());
    }
    if lineage::before_it_is_the_monitor()? {
        return Ok(());
    }
    let mood = take_mood(Path::new(&program).parent().unwrap_or(Path::new(".")));
    let listener = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    lineage::ready(&listener)?;
    let mut monitor = Monitor { mood, phase: Phase::Waiting, files: Vec::new() };
    loop {
        let mut connection = Connection::new(listener.accept()?.0);
        while let Ok((request, fds)) = connection.next_request() {
            let reply = monitor.answer(request, fds)?;
            connection.answer(&reply)?;
        }
    }
}

fn take_mood(folder: &Path) -> String {
    let Ok(entries) = std::fs::read_dir(folder.join("moods")) else { return String::new() };
    entries
        .flatten()
        .find(|entry| std::fs::remove_file(entry.path()).is_ok())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .unwrap_or_default()
}

struct Monitor {
    mood: String,
    phase: Phase,
    files: Vec<(FdRole, OwnedFd)>,
}

impl Monitor {
    fn answer(&mut self, request: Request, fds: Vec<OwnedFd>) -> Anyhow<Reply> {
        match request {
            Request::Status => Ok(Reply::Status(Status {
                version: self.version(),
                program: "fake".to_owned(),
                phase: self.phase,
                exit: None,
                changed_pages: 0,
                console_dropped: 0,
                device_errors: 0,
                tops: self.tops()?,
            })),
            Request::Boot(boot) => self.run(boot.roles, fds, false),
            Request::Restore(restore) => self.run(restore.roles, fds, true),
            Request::Pause => self.enter(Phase::Paused),
            Request::Resume => self.enter(Phase::Running),
            Request::Snapshot(snapshot) => self.write(&snapshot, fds).or_else(unless_full),
            Request::Changed { roles } => self.tell_changed(&roles, fds),
            // It dies with whoever had it frozen, or is thawed by the next.
            Request::Guard { .. } | Request::Unguard | Request::OpenNetwork => Ok(Reply::Done { micros: 1 }),
            Request::Stop => exit(0),
        }
    }

    /// Which file its disk is written to.
    fn tops(&self) -> Anyhow<Vec<u64>> {
        let top = self.file(FdRole::Disk { disk: 0, part: DiskPart::Top })?;
        let top = top.filter(|_| self.mood != "tells-no-top");
        Ok(top.map(|fd| File::from(fd).metadata().map(|m| m.ino())).transpose()?.into_iter().collect())
    }

    fn tell_changed(&self, roles: &[FdRole], fds: Vec<OwnedFd>) -> Anyhow<Reply> {
        let ([FdRole::ChangedOut], Ok([out])) = (roles, <[OwnedFd; 1]>::try_from(fds)) else {
            return Ok(refusal("one output is needed"));
        };
        let first = if self.mood == "hot-lie" { 1 << 40 } else { 1 };
        File::from(out).write_all_at(&table(&[(first, 1)]), 0)?;
        Ok(Reply::Done { micros: 1 })
    }

    fn version(&self) -> u32 {
        match (self.mood.as_str(), self.phase) {
            ("other-version", _) | ("other-version-once-running", Phase::Running) => 99,
            ("old-monitor", _) => 1,
            _ => CONTROL_VERSION,
        }
    }

    fn run(&mut self, roles: Vec<FdRole>, fds: Vec<OwnedFd>, restored: bool) -> Anyhow<Reply> {
        match self.mood.as_str() {
            "refuse" => return Ok(refusal("this host lacks what the guest was shown")),
            "unbuildable" => {
                let message = "the ramdisk does not fit".to_owned();
                return Ok(Reply::Refused(Refusal { class: RefusalClass::Caller, message }));
            }
            "die" => {
                complain("dying of a mood");
                exit(7);
            }
            _ => {}
        }
        if roles.len() != fds.len() {
            return Ok(refusal("descriptors and roles differ in number"));
        }
        self.files = roles.into_iter().zip(fds).collect();
        if self.file(FdRole::Hot)?.is_some() {
            complain("was told what is hot");
        }
        let Some(vsock) = self.file(FdRole::VsockListener)? else { return Ok(refusal("no vsock listener")) };
        let last_words = self.file(FdRole::LastWords)?.map(File::from);
        agent::serve(UnixListener::from(vsock), last_words, self.mood.clone(), restored);
        self.enter(Phase::Running)
    }

    fn file(&self, role: FdRole) -> Anyhow<Option<OwnedFd>> {
        let found = self.files.iter().find(|(r, _)| *r == role);
        Ok(found.map(|(_, fd)| fd.try_clone()).transpose()?)
    }

    fn enter(&mut self, phase: Phase) -> Anyhow<Reply> {
        self.phase = phase;
        Ok(Reply::Done { micros: 1 })
    }

    /// One page of memory, which differs between a parent and what is written of a restored machine; one block of the
    /// latter's disk.
    fn write(&mut self, asked: &Snapshot, fds: Vec<OwnedFd>) -> Anyhow<Reply> {
        match self.mood.as_str() {
            "refuse-snapshot" => return Ok(refusal("it cannot be written")),
            "full" => {
                let message = "writing memory: no space left".to_owned();
                return Ok(Reply::Refused(Refusal { class: RefusalClass::Exhausted, message }));
            }
            _ => {}
        }
        let parent = asked.memory == MemoryMode::Flat && !asked.resume;
        let (mut disk, mut new_top, mut memory) = (LayerStats::default(), None, Ok(()));
        for (role, fd) in asked.roles.iter().zip(fds) {
            let mut file = File::from(fd);
            match role {
                FdRole::StateOut => file.write_all_at(b"state of a fake machine", 0)?,
                FdRole::MemoryOut => {
                    file.set_len(128 << 20)?;
                    memory = file.write_all_at(&[if parent { 7 } else { 8 }; 4096], 4096);
                    if asked.memory != MemoryMode::Live {
                        std::mem::replace(&mut memory, Ok(()))?;
                    }
                }
                FdRole::DiskExtentsOut { .. } if !parent => {
                    file.write_all_at(&table(&[(2, 1)]), 0)?;
                    disk = LayerStats { extents: 1, bytes: 4096 };
                }
                FdRole::DiskTopNew { .. } => new_top = Some(OwnedFd::from(file)),
                FdRole::WriterStatus => match self.mood.as_str() {
                    "writer-killed" => {}
                    _ if memory.is_err() => writeln!(file, r#"{{"how":"failed","errno":28}}"#)?,
                    "writer-full" => writeln!(file, r#"{{"how":"failed","errno":28}}"#)?,
                    _ => writeln!(file, r#"{{"how":"written","extents":1,"pages":1}}"#)?,
                },
                FdRole::MemoryExtentsOut => file.write_all_at(&table(&[(1, 1)]), 0)?,
                FdRole::DiskExtentsOut { .. } => file.write_all_at(&table(&[]), 0)?,
                // It has no other descriptor of its top than the one that could write.
                FdRole::DiskTopFrozen { .. } => {}
                _ => return Ok(refusal("an output that is none")),
            }
        }
        let top = FdRole::Disk { disk: 0, part: DiskPart::Top };
        if let Some((_, old)) = self.files.iter_mut().find(|(role, _)| *role == top && !parent) {
            File::from(old.try_clone()?).write_all_at(&[9; 4096], 2 * 4096)?;
            if let Some(new_top) = new_top {
                *old = new_top;
            }
        }
        if !asked.resume {
            self.phase = Phase::Paused;
        }
        if self.mood == "die-at-write" {
            exit(7);
        }
        let memory = LayerStats { extents: 1, bytes: 4096 };
        Ok(Reply::Snapshotted(Snapshotted { pause_us: 1, memory, disks: vec![disk], writer: None }))
    }
}

/// A disk that is full is said, as a monitor says it.
fn unless_full(error: Box<dyn Error + Send + Sync>) -> Anyhow<Reply> {
    match error.downcast_ref::<std::io::Error>() {
        Some(e) if e.kind() == std::io::ErrorKind::StorageFull => {
            let message = format!("writing: {e}");
            Ok(Reply::Refused(Refusal { class: RefusalClass::Exhausted, message }))
        }
        _ => Err(error),
    }
}

fn refusal(message: &str) -> Reply {
    Reply::Refused(Refusal { class: RefusalClass::HostUnfit, message: message.to_owned() })
}

#[expect(clippy::print_stderr, reason = "stderr is the log of a monitor")]
fn complain(text: &str) {
    eprintln!("{text}");
}
