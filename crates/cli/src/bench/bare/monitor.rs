//! One monitor process, driven over its control socket as the engine does it.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forkd_host::process::Process;
use forkd_protocol::control::{
    Boot, Connection, ControlError, CpuModel, FdRole, MemoryMode, Reply, Request, Restore, Snapshot,
    Snapshotted,
};
use forkd_protocol::error::ErrorClass;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::guest;
use super::{Saved, Stop};
use crate::error::CliError;
use crate::machine;

/// How long a monitor may take to answer, and a guest to say something.
const PATIENCE: Duration = Duration::from_secs(180);
/// Who monitors of a benchmark are, one after the other: nobody whom a controller makes one.
const FIRST_USER: u32 = 1_200_000_000;
/// Far more than there are at once.
const USERS: u32 = 1_000_000;
/// How often a wait looks whether it is to stop.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// Most that a guest may say before it is given up.
const MOST_SAID: usize = 1 << 20;

/// Where monitors are made.
#[derive(Debug)]
pub(super) struct Workshop {
    folder: PathBuf,
    program: PathBuf,
    log: File,
    stop: Stop,
    restored: AtomicU64,
    started: AtomicU32,
}

/// A monitor; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Monitor<'a> {
    workshop: &'a Workshop,
    /// What is started, and ends once the monitor is ready.
    child: Child,
    process: Option<Process>,
    name: String,
    console: UnixStream,
    /// The monitor's end of the console, until it is handed over.
    far_end: Option<UnixStream>,
    said: Vec<u8>,
}

impl Workshop {
    /// Sockets and the monitors' log go into `folder`.
    pub(super) fn new(folder: &Path, program: PathBuf, stop: Stop) -> Result<Self, CliError> {
        let log = folder.join("monitors.log");
        let log = File::create(&log).map_err(|e| CliError::io(format!("making {}", log.display()), e))?;
        let (restored, started) = (AtomicU64::new(0), AtomicU32::new(0));
        Ok(Self { folder: folder.to_owned(), program, log, stop, restored, started })
    }

    /// Starts a monitor, which waits to be told what to do. A monitor of that name must have ended.
    pub(super) fn start(&self, name: &str) -> Result<Monitor<'_>, CliError> {
        self.stop.check()?;
        let failed = |e| CliError::io(format!("starting {}", self.program.display()), e);
        let listener = self.listen(name)?;
        let (console, far_end) = UnixStream::pair().map_err(failed)?;
        console.set_nonblocking(true).map_err(failed)?;
        let child = Command::new(&self.program)
            .args(["--uid", &self.user().to_string()])
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .stdout(Stdio::null())
            .stderr(self.log.try_clone().map_err(failed)?)
            .env_clear()
            .spawn()
            .map_err(failed)?;
        let (name, far_end) = (name.to_owned(), Some(far_end));
        Ok(Monitor { workshop: self, child, process: None, name, console, far_end, said: Vec::new() })
    }

    fn listen(&self, name: &str) -> Result<UnixListener, CliError> {
        let path = self.file(name);
        let _ = fs::remove_file(&path);
        UnixListener::bind(&path).map_err(|e| CliError::io(format!("listening at {}", path.display()), e))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Who the next monitor is: nobody else, as long as it lives.
    fn user(&self) -> u32 {
        FIRST_USER + self.started.fetch_add(1, Ordering::Relaxed) % USERS
    }

    /// A generation id that no other machine of this run was given.
    fn generation(&self) -> [u8; 16] {
        let number = self.restored.fetch_add(1, Ordering::Relaxed);
        (u128::from(std::process::id()) << 64 | u128::from(number)).to_le_bytes()
    }
}

impl Monitor<'_> {
    /// Its process, once it was spoken to.
    pub(super) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Process::pid)
    }

    /// Waits until the monitor is there, and finds out which process it is.
    fn arrive(&mut self) -> Result<(), CliError> {
        if self.process.is_some() {
            return Ok(());
        }
        let failed = |e| CliError::io(format!("starting {}", self.name), e);
        self.child.wait().map_err(failed)?;
        let connected = UnixStream::connect(self.workshop.file(&self.name)).ok();
        self.process = connected.and_then(|connection| Process::of_listener(&connection).ok());
        match &self.process {
            Some(_) => Ok(()),
            None => {
                let message = format!("{} did not come up{}", self.name, self.traces());
                Err(CliError::local(ErrorClass::Internal, message))
            }
        }
    }

    /// Waits until it is there and has done what it does before it is told anything.
    pub(super) fn ready(&mut self) -> Result<(), CliError> {
        match self.call(&Request::Status, &[])? {
            Reply::Status(_) => Ok(()),
            other => Err(self.odd(&other)),
        }
    }

    /// Boots the guest.
    pub(super) fn boot(&mut self, kernel: &Path, ramdisk: &Path) -> Result<(), CliError> {
        let open = |path: &Path| {
            File::open(path).map_err(|e| CliError::io(format!("opening {}", path.display()), e))
        };
        let (kernel, ramdisk) = (open(kernel)?, open(ramdisk)?);
        let request = |roles| {
            Request::Boot(Boot {
                vcpus: 1,
                memory_mib: guest::MEMORY_MIB,
                cmdline: guest::CMDLINE.to_owned(),
                cpu: CpuModel::default(),
                roles,
            })
        };
        let files = [(FdRole::Kernel, kernel.as_fd()), (FdRole::Initrd, ramdisk.as_fd())];
        self.begin(&files, request).map(drop)
    }

    /// Restores the guest and lets it run; how long the monitor says that took, microseconds.
    pub(super) fn restore(&mut self, saved: &Saved) -> Result<u64, CliError> {
        let generation = self.workshop.generation();
        let mut files =
            vec![(FdRole::State, saved.state.as_fd()), (FdRole::MemoryBase, saved.memory.as_fd())];
        files.extend(saved.hot.iter().map(|hot| (FdRole::Hot, hot.as_fd())));
        self.begin(&files, |roles| Request::Restore(Restore { roles, run: true, generation }))
    }

    /// Writes the guest out; it stands still then.
    pub(super) fn snapshot(
        &mut self,
        state: &File,
        memory: &File,
        extents: &File,
    ) -> Result<Snapshotted, CliError> {
        let roles = vec![FdRole::StateOut, FdRole::MemoryOut, FdRole::MemoryExtentsOut];
        let request =
            Request::Snapshot(Snapshot { roles, resume: false, memory: MemoryMode::Flat, guarded: false });
        match self.call(&request, &[state.as_fd(), memory.as_fd(), extents.as_fd()])? {
            Reply::Snapshotted(told) => Ok(told),
            other => Err(self.odd(&other)),
        }
    }

    /// Has the table of the pages that the guest has changed written.
    pub(super) fn changed(&mut self, table: &File) -> Result<(), CliError> {
        match self.call(&Request::Changed { roles: vec![FdRole::ChangedOut] }, &[table.as_fd()])? {
            Reply::Done { .. } => Ok(()),
            other => Err(self.odd(&other)),
        }
    }

    /// Asks the guest whether it is there.
    pub(super) fn ping(&mut self) -> Result<(), CliError> {
        if self.console.write_all(guest::PING.as_bytes()).is_ok() {
            return Ok(());
        }
        // Nobody is there any more: what it said before is the reason, if anything is.
        while self.listen().unwrap_or(false) && self.said.len() < MOST_SAID {}
        Err(self.silent(guest::PONG))
    }

    /// Waits until the guest says `word`.
    pub(super) fn await_word(&mut self, word: &str) -> Result<(), CliError> {
        let began = Instant::now();
        while !contains(&self.said, word.as_bytes()) {
            self.workshop.stop.check()?;
            if began.elapsed() > PATIENCE || self.said.len() > MOST_SAID {
                return Err(self.silent(word));
            }
            let mut fds = [PollFd::new(&self.console, PollFlags::IN)];
            match poll(&mut fds, Some(&LOOK_EVERY)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(CliError::io("waiting for a guest", e.into())),
            }
            if !self.listen()? {
                return Err(self.silent(word));
            }
        }
        Ok(())
    }

    /// Ends the process without waiting for it to be gone.
    pub(super) fn kill(&mut self) {
        let _ = match &self.process {
            Some(process) => process.kill().map_err(io::Error::other),
            None => self.child.kill(),
        };
    }

    /// Takes in what the guest says; false where nobody is there any more.
    fn listen(&mut self) -> Result<bool, CliError> {
        let mut chunk = [0u8; 4096];
        match self.console.read(&mut chunk) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.said.extend_from_slice(chunk.get(..count).unwrap_or_default());
                Ok(true)
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(true),
            Err(e) => Err(CliError::io(format!("listening to {}", self.name), e)),
        }
    }

    /// The first request, with what every machine needs of its own.
    fn begin(
        &mut self,
        files: &[(FdRole, BorrowedFd<'_>)],
        request: impl FnOnce(Vec<FdRole>) -> Request,
    ) -> Result<u64, CliError> {
        let far_end = self.far_end.take().ok_or_else(|| CliError::usage("a monitor runs one machine"))?;
        let vsock = self.workshop.listen(&format!("{}.vsock", self.name))?;
        let words = self.last_words();
        let words =
            File::create(&words).map_err(|e| CliError::io(format!("making {}", words.display()), e))?;
        let own = [
            (FdRole::VsockListener, vsock.as_fd()),
            (FdRole::Console, far_end.as_fd()),
            (FdRole::ConsoleInput, far_end.as_fd()),
            (FdRole::LastWords, words.as_fd()),
        ];
        let (roles, fds): (Vec<_>, Vec<_>) = files.iter().chain(&own).copied().unzip();
        match self.call(&request(roles), &fds)? {
            Reply::Done { micros } => Ok(micros),
            other => Err(self.odd(&other)),
        }
    }

    fn call(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Reply, CliError> {
        self.arrive()?;
        let conversed = UnixStream::connect(self.workshop.file(&self.name))
            .map_err(ControlError::from)
            .map(Connection::new)
            .and_then(|mut control| {
                control.set_timeout(Some(PATIENCE))?;
                control.call(request, fds)
            });
        conversed.map_err(|e| {
            CliError::caused(ErrorClass::Internal, format!("speaking to {}{}", self.name, self.traces()), e)
        })
    }

    fn odd(&self, reply: &Reply) -> CliError {
        let said = match reply {
            Reply::Refused(refusal) => refusal.message.clone(),
            other => format!("{other:?}"),
        };
        CliError::local(ErrorClass::Internal, format!("{}: {said}", self.name))
    }

    fn silent(&self, word: &str) -> CliError {
        let said = String::from_utf8_lossy(&self.said);
        let tail: String = said.chars().rev().take(300).collect::<Vec<_>>().into_iter().rev().collect();
        let message = format!("{} did not say {word}; it said {tail:?}{}", self.name, self.traces());
        CliError::local(ErrorClass::GuestFault, message)
    }

    fn last_words(&self) -> PathBuf {
        self.workshop.file(&format!("{}.words", self.name))
    }

    /// What the monitor left behind: how the guest ended, and what went wrong.
    fn traces(&self) -> String {
        let log = self.workshop.folder.join("monitors.log");
        let traces = [machine::tail(&self.last_words(), 1), machine::tail(&log, 3)];
        traces.iter().filter(|t| !t.is_empty()).map(|t| format!(" ({t})")).collect()
    }
}

impl Drop for Monitor<'_> {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
        if let Some(process) = &self.process {
            let _ = process.ended_within(PATIENCE);
        }
        for suffix in ["", ".vsock", ".words"] {
            let _ = fs::remove_file(self.workshop.file(&format!("{}{suffix}", self.name)));
        }
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_monitor_that_ends_at_once_is_told_with_its_last_words() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("forkd-vmm");
        fs::write(&program, "#!/bin/sh\necho no kvm here >&2\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let stop = runtime.block_on(async { Stop::when(std::future::pending()) });
        let workshop = Workshop::new(folder.path(), program, stop).unwrap();
        let saved = || File::open("/dev/null").unwrap();
        let saved = Saved { state: saved(), memory: saved(), extents: saved(), hot: None };
        let mut monitor = workshop.start("c0").unwrap();
        let e = monitor.restore(&saved).unwrap_err();
        assert!(e.to_string().contains("c0") && e.to_string().contains("no kvm here"), "{e}");
        let e = monitor.await_word("pong").unwrap_err();
        assert!(e.to_string().contains("did not say pong"), "{e}");
        drop(monitor);
        assert_ne!(workshop.generation(), workshop.generation());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "program and log are left");
    }

    #[test]
    fn words_are_found_wherever_they_stand() {
        assert!(contains(b"\r\npong\r\n", b"pong"));
        assert!(!contains(b"pon", b"pong"));
    }
}
