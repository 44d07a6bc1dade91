//! Makes processes of the workload.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use forkd_protocol::guest::ImageSettings;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use tokio::sync::watch;
use tokio::time::Instant;

use super::command::{Command, Resolved, StartError, resolve};
use super::exit::Exit;
use super::stream::Stream;
use super::tree::Tree;
use crate::cgroup::{Branch, Cgroups};
use crate::reaper::Reaper;
use crate::sys::{self, Launch};

/// Room in an output pipe: fewer switches between writer and reader than with the kernel's default.
const PIPE_BYTES: usize = 256 * 1024;

/// How and when a process ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) exit: Exit,
    pub(crate) at: Instant,
}

/// What is connected to a new process.
#[derive(Debug, Default)]
pub(crate) struct Wiring {
    /// Input can be written; else it is empty from the start.
    pub(crate) stdin: bool,
    /// A terminal of this many columns and rows in place of three pipes.
    pub(crate) terminal: Option<(u16, u16)>,
    /// Descriptors 3 and up of the process.
    pub(crate) extra: Vec<OwnedFd>,
}

/// A process that executes its program.
#[derive(Debug)]
pub(crate) struct Child {
    pub(crate) pid: i32,
    pub(crate) ended: watch::Receiver<Option<Ended>>,
    pub(crate) tree: Arc<Tree>,
    pub(crate) stdin: Option<Stream>,
    /// Output, or all that a terminal shows.
    pub(crate) stdout: Stream,
    pub(crate) stderr: Option<Stream>,
}

/// Makes processes. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Spawner(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    reaper: Reaper,
    cgroups: Option<Cgroups>,
    env: Mutex<BTreeMap<String, String>>,
    image: ImageSettings,
    frozen: watch::Sender<bool>,
}

/// Our ends and the process's ends of its standard streams.
struct Wired {
    theirs: [OwnedFd; 3],
    stdin: Option<Stream>,
    stdout: Stream,
    stderr: Option<Stream>,
}

/// Ends a process that nobody was told of, such as when a caller gives up while it is being started.
struct KillUnlessKept(Option<Arc<Tree>>);

impl Drop for KillUnlessKept {
    fn drop(&mut self) {
        if let Some(tree) = &self.0 {
            tree.kill();
        }
    }
}

impl Spawner {
    pub(crate) fn new(reaper: Reaper, cgroups: Option<Cgroups>, image: ImageSettings) -> Self {
        let frozen = watch::Sender::new(false);
        Self(Arc::new(Shared { reaper, cgroups, env: Mutex::default(), image, frozen }))
    }

    /// What the image says about running its processes.
    pub(crate) fn image(&self) -> &ImageSettings {
        &self.0.image
    }

    pub(crate) fn cgroups(&self) -> Option<&Cgroups> {
        self.0.cgroups.as_ref()
    }

    /// Variables that every later process is given.
    pub(crate) fn set_env(&self, env: BTreeMap<String, String>) {
        *self.0.env.lock().unwrap_or_else(PoisonError::into_inner) = env;
    }

    pub(crate) fn env(&self) -> BTreeMap<String, String> {
        self.0.env.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// While frozen, nothing new starts in the workload.
    pub(crate) fn set_frozen(&self, frozen: bool) {
        self.0.frozen.send_replace(frozen);
    }

    pub(crate) fn is_frozen(&self) -> bool {
        *self.0.frozen.borrow()
    }

    /// Returns once the workload may run.
    pub(crate) async fn thawed(&self) {
        // The sender lives as long as this spawner.
        let _ = self.0.frozen.subscribe().wait_for(|frozen| !frozen).await;
    }

    /// Starts a process and waits until its program runs.
    pub(crate) async fn spawn(
        &self,
        branch: Branch,
        command: &Command,
        wiring: Wiring,
    ) -> Result<Child, StartError> {
        if branch == Branch::Workload && self.is_frozen() {
            return Err(StartError::Frozen);
        }
        let resolved = resolve(command, &self.env(), &self.0.image)?;
        let label = if branch == Branch::Hooks { "hook" } else { "p" };
        let cgroup = self.0.cgroups.as_ref().map(|cgroups| cgroups.add(branch, label)).transpose()?;
        let wired = wire(&wiring)?;
        let launch = launch_of(resolved, &wired, &wiring, cgroup.as_ref().map(|cgroup| cgroup.as_fd()));
        let started = self.0.reaper.start(&launch)?;
        drop(launch);
        let Wired { theirs, stdin, stdout, stderr } = wired;
        // Our copies of its ends would keep its output open for ever.
        drop((theirs, wiring.extra));
        let tree = Arc::new(Tree::new(started.pid, cgroup, self.0.reaper.clone()));
        let mut guard = KillUnlessKept(Some(tree.clone()));
        check_exec(started.failure, command).await?;
        guard.0 = None;
        Ok(Child { pid: started.pid, ended: started.ended, tree, stdin, stdout, stderr })
    }
}

fn launch_of<'a>(
    resolved: Resolved,
    wired: &'a Wired,
    wiring: &'a Wiring,
    cgroup: Option<std::os::fd::BorrowedFd<'a>>,
) -> Launch<'a> {
    // An unprivileged agent runs everything as itself.
    let privileged = nix::unistd::geteuid().is_root();
    Launch {
        program: resolved.program,
        args: resolved.args,
        env: resolved.env,
        cwd: resolved.cwd,
        credentials: privileged.then(|| resolved.user.credentials()),
        files: wired.theirs.iter().chain(&wiring.extra).map(AsFd::as_fd).collect(),
        terminal: wiring.terminal.is_some(),
        cgroup,
    }
}

fn wire(wiring: &Wiring) -> io::Result<Wired> {
    if let Some((columns, rows)) = wiring.terminal {
        let (ours, theirs) = sys::open_pty(columns, rows)?;
        let stream = Stream::new(ours)?;
        let theirs = [theirs.try_clone()?, theirs.try_clone()?, theirs];
        return Ok(Wired { theirs, stdin: Some(stream.clone()), stdout: stream, stderr: None });
    }
    let (their_stdin, stdin) = if wiring.stdin {
        let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
        (read, Some(Stream::new(write)?))
    } else {
        (File::open("/dev/null")?.into(), None)
    };
    let (stdout, their_stdout) = output_pipe()?;
    let (stderr, their_stderr) = output_pipe()?;
    Ok(Wired { theirs: [their_stdin, their_stdout, their_stderr], stdin, stdout, stderr: Some(stderr) })
}

/// A pipe that a process writes to: our end and its end.
pub(crate) fn output_pipe() -> io::Result<(Stream, OwnedFd)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    // Refused beyond the user's allowance; the default works as well.
    let _ = rustix::pipe::fcntl_setpipe_size(&read, PIPE_BYTES);
    Ok((Stream::new(read)?, write))
}

async fn check_exec(failure: OwnedFd, command: &Command) -> Result<(), StartError> {
    let mut errno = [0; 4];
    let stream = Stream::new(failure)?;
    // Four bytes to a pipe are written whole or not at all.
    if stream.read(&mut errno).await? == 0 {
        return Ok(());
    }
    let error = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
    Err(match error.kind() {
        io::ErrorKind::NotFound => StartError::NotFound(command.program.clone()),
        _ => StartError::NotExecutable { program: command.program.clone(), source: error },
    })
}
