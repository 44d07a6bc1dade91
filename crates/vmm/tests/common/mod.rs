//! A monitor process driven over its control socket, as the engine does it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use forkd_protocol::control::{
    Boot, Connection, CpuModel, DiskPart, FdRole, Refusal, Reply, Request, Restore, Snapshot, Snapshotted,
};
use forkd_testkit::tiny;

/// Generous: on a host that interprets guests everything is slow.
const PATIENCE: Duration = Duration::from_secs(60);
const DISK_BYTES: u64 = 1 << 20;

pub(crate) struct Monitor {
    pub(crate) control: Connection,
    pub(crate) console: UnixStream,
    pub(crate) last_words: PathBuf,
    child: Child,
    dir: tempfile::TempDir,
}

/// The files of a snapshot, as descriptors.
pub(crate) struct Saved {
    pub(crate) state: File,
    pub(crate) memory: File,
    pub(crate) memory_extents: File,
    pub(crate) disk_extents: File,
    pub(crate) stats: Snapshotted,
}

impl Monitor {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_forkd-vmm"))
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .spawn()
            .unwrap();
        let control = Connection::new(UnixStream::connect(&path).unwrap());
        control.set_timeout(Some(PATIENCE)).unwrap();
        let (console, _) = UnixStream::pair().unwrap();
        Self { control, console, last_words: dir.path().join("last-words"), child, dir }
    }

    pub(crate) fn boot(&mut self, code: &[u8]) -> Result<(), Refusal> {
        self.boot_with(code, 1, 128)
    }

    pub(crate) fn boot_with(&mut self, code: &[u8], vcpus: u8, memory_mib: u32) -> Result<(), Refusal> {
        let mut kernel = tempfile::tempfile().unwrap();
        kernel.write_all(&tiny::elf(code)).unwrap();
        std::io::Seek::rewind(&mut kernel).unwrap();
        let mut files = self.usual_files();
        files.push((FdRole::Kernel, kernel.into()));
        files.push((FdRole::Initrd, tempfile::tempfile().unwrap().into()));
        let (roles, fds): (Vec<_>, Vec<_>) = files.into_iter().unzip();
        let boot = Boot { vcpus, memory_mib, cmdline: "console=ttyS0".into(), cpu: CpuModel::V3, roles };
        self.ask(Request::Boot(boot), &fds)
    }

    pub(crate) fn restore(&mut self, saved: &Saved, run: bool) -> Result<(), Refusal> {
        let state = copy(&saved.state);
        let memory = saved.memory.try_clone().unwrap();
        self.restore_from(state, memory, run)
    }

    pub(crate) fn restore_from(&mut self, state: File, memory: File, run: bool) -> Result<(), Refusal> {
        self.restore_with(vec![(FdRole::State, state.into()), (FdRole::MemoryBase, memory.into())], run)
    }

    /// Restores where it is known which pages every child changes.
    pub(crate) fn restore_hot(&mut self, saved: &Saved, hot: File, run: bool) -> Result<(), Refusal> {
        let memory = saved.memory.try_clone().unwrap().into();
        let state = copy(&saved.state).into();
        self.restore_with(
            vec![(FdRole::State, state), (FdRole::MemoryBase, memory), (FdRole::Hot, hot.into())],
            run,
        )
    }

    fn restore_with(&mut self, saved: Vec<(FdRole, OwnedFd)>, run: bool) -> Result<(), Refusal> {
        let mut files = self.usual_files();
        files.extend(saved);
        let (roles, fds): (Vec<_>, Vec<_>) = files.into_iter().unzip();
        self.ask(Request::Restore(Restore { roles, run, generation: [9; 16] }), &fds)
    }

    /// The table of the pages that it has changed.
    pub(crate) fn changed(&mut self) -> File {
        let table = tempfile::tempfile().unwrap();
        let fd = table.try_clone().unwrap().into();
        self.ask(Request::Changed { roles: vec![FdRole::ChangedOut] }, &[fd]).unwrap();
        table
    }

    pub(crate) fn snapshot(&mut self, resume: bool) -> Saved {
        let file = || tempfile::tempfile().unwrap();
        let mut saved = Saved {
            state: file(),
            memory: file(),
            memory_extents: file(),
            disk_extents: file(),
            stats: Snapshotted { pause_us: 0, memory: Default::default(), disks: Vec::new() },
        };
        let mut roles = vec![
            FdRole::StateOut,
            FdRole::MemoryOut,
            FdRole::MemoryExtentsOut,
            FdRole::DiskExtentsOut { disk: 0 },
        ];
        let new_top = disk();
        let mut fds = vec![
            saved.state.as_fd(),
            saved.memory.as_fd(),
            saved.memory_extents.as_fd(),
            saved.disk_extents.as_fd(),
        ];
        if resume {
            roles.push(FdRole::DiskTopNew { disk: 0 });
            fds.push(new_top.as_fd());
        }
        match self.control.call(&Request::Snapshot(Snapshot { roles, resume }), &fds).unwrap() {
            Reply::Snapshotted(stats) => saved.stats = stats,
            other => panic!("snapshot answered {other:?}"),
        }
        saved
    }

    pub(crate) fn ask(&mut self, request: Request, fds: &[OwnedFd]) -> Result<(), Refusal> {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        match self.control.call(&request, &fds).unwrap() {
            Reply::Done { .. } => Ok(()),
            Reply::Refused(refusal) => Err(refusal),
            other => panic!("answered {other:?}"),
        }
    }

    pub(crate) fn status(&mut self) -> forkd_protocol::control::Status {
        match self.control.call(&Request::Status, &[]).unwrap() {
            Reply::Status(status) => status,
            other => panic!("answered {other:?}"),
        }
    }

    /// The next bytes that the guest prints.
    pub(crate) fn printed<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.console.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn type_in(&mut self, bytes: &[u8]) {
        self.console.write_all(bytes).unwrap();
    }

    /// Waits for the process to end and reads its last words.
    pub(crate) fn end(mut self) -> (bool, String) {
        let ok = self.child.wait().unwrap().success();
        (ok, std::fs::read_to_string(&self.last_words).unwrap_or_default())
    }

    pub(crate) fn control_path(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    fn usual_files(&mut self) -> Vec<(FdRole, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        self.console = ours;
        let vsock = UnixListener::bind(self.dir.path().join(format!("vsock-{}", rand_name()))).unwrap();
        let part = |part| FdRole::Disk { disk: 0, part };
        vec![
            (part(DiskPart::Base), disk().into()),
            (part(DiskPart::Top), disk().into()),
            (FdRole::VsockListener, vsock.into()),
            (FdRole::Console, theirs.try_clone().unwrap().into()),
            (FdRole::ConsoleInput, theirs.into()),
            (FdRole::ProcDir, File::open("/proc").unwrap().into()),
            (FdRole::LastWords, File::create(&self.last_words).unwrap().into()),
        ]
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A new file with the same content, read from its beginning.
pub(crate) fn copy(file: &File) -> File {
    from_bytes(&bytes(file))
}

pub(crate) fn bytes(file: &File) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

pub(crate) fn from_bytes(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    file
}

fn disk() -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(DISK_BYTES).unwrap();
    file
}

fn rand_name() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
