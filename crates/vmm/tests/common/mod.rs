//! A monitor process driven over its control socket, as the engine does it.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod jailed;

use std::fs::File;
use std::io::{PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use forkd_memory::extents::{Extent, read_table};
use forkd_protocol::control::{
    Boot, Connection, CpuModel, DiskPart, FdRole, LayerStats, MemoryMode, ProcessEnd, Refusal, Reply,
    Request, Restore, Snapshot, Snapshotted, WriterEnd,
};
use forkd_testkit::tiny;

/// Generous: on a host that interprets guests everything is slow. Large guests take as long as the disk does.
pub(crate) fn patience() -> Duration {
    let soaking = std::env::var_os("FORKD_SOAK").is_some_and(|soak| soak == "1");
    Duration::from_secs(if soaking { 3600 } else { 120 })
}

const DISK_BYTES: u64 = 1 << 20;

pub(crate) struct Monitor {
    pub(crate) control: Connection,
    pub(crate) console: UnixStream,
    pub(crate) last_words: PathBuf,
    process: jailed::Process,
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
        let process = jailed::start(listener, dir.path());
        let control = Connection::new(UnixStream::connect(&path).unwrap());
        control.set_timeout(Some(patience())).unwrap();
        let (console, _) = UnixStream::pair().unwrap();
        Self { control, console, last_words: dir.path().join("last-words"), process, dir }
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
        self.write(resume, MemoryMode::Flat).unwrap()
    }

    /// Writes what was changed while the machine runs on; returns once all is written.
    pub(crate) fn branch(&mut self, memory: MemoryMode) -> Result<Saved, Refusal> {
        self.write(true, memory)
    }

    /// Writes what was changed, after which the machine stands still with its disk as it was.
    pub(crate) fn stand_still(&mut self) -> Saved {
        self.write(false, MemoryMode::Changed).unwrap()
    }

    fn write(&mut self, resume: bool, memory: MemoryMode) -> Result<Saved, Refusal> {
        let (pending, told) = self.begin(resume, memory, None)?;
        Ok(if memory == MemoryMode::Live { pending.finish(told) } else { pending })
    }

    /// A live branch whose writer is still at work.
    pub(crate) fn begin_live(&mut self) -> (Saved, PipeReader) {
        self.begin(true, MemoryMode::Live, None).unwrap()
    }

    /// A branch one output of which goes elsewhere.
    pub(crate) fn branch_into(
        &mut self,
        memory: MemoryMode,
        role: FdRole,
        fd: BorrowedFd<'_>,
    ) -> Result<(Saved, PipeReader), Refusal> {
        self.begin(true, memory, Some((role, fd)))
    }

    fn begin(
        &mut self,
        resume: bool,
        memory: MemoryMode,
        instead: Option<(FdRole, BorrowedFd<'_>)>,
    ) -> Result<(Saved, PipeReader), Refusal> {
        let file = || tempfile::tempfile().unwrap();
        let mut saved = Saved {
            state: file(),
            memory: file(),
            memory_extents: file(),
            disk_extents: file(),
            stats: Snapshotted {
                pause_us: 0,
                memory: LayerStats::default(),
                disks: Vec::new(),
                writer: None,
            },
        };
        let new_top = disk();
        let (told, status) = std::io::pipe().unwrap();
        let mut outputs = vec![
            (FdRole::StateOut, saved.state.as_fd()),
            (FdRole::MemoryOut, saved.memory.as_fd()),
            (FdRole::MemoryExtentsOut, saved.memory_extents.as_fd()),
            (FdRole::DiskExtentsOut { disk: 0 }, saved.disk_extents.as_fd()),
        ];
        if resume {
            outputs.push((FdRole::DiskTopNew { disk: 0 }, new_top.as_fd()));
        }
        if memory == MemoryMode::Live {
            outputs.push((FdRole::WriterStatus, status.as_fd()));
        }
        for (role, fd) in &mut outputs {
            *fd = instead.filter(|(other, _)| other == role).map_or(*fd, |(_, other)| other);
        }
        let (roles, fds): (Vec<_>, Vec<_>) = outputs.into_iter().unzip();
        let reply = self
            .control
            .call(&Request::Snapshot(Snapshot { roles, resume, memory, guarded: false }), &fds)
            .unwrap();
        match reply {
            Reply::Snapshotted(stats) => saved.stats = stats,
            Reply::Refused(refusal) => return Err(refusal),
            other => panic!("snapshot answered {other:?}"),
        }
        Ok((saved, told))
    }

    /// Restores a branch: its own pages over those of `base`.
    pub(crate) fn restore_over(&mut self, base: &Saved, branch: &Saved) -> Result<(), Refusal> {
        self.restore_layers(&branch.state, &base.memory, Some((&branch.memory, &branch.memory_extents)), true)
    }

    /// Restores a base and the one file of pages that lies over it.
    pub(crate) fn restore_layers(
        &mut self,
        state: &File,
        base: &File,
        upper: Option<(&File, &File)>,
        run: bool,
    ) -> Result<(), Refusal> {
        let mut saved =
            vec![(FdRole::State, copy(state).into()), (FdRole::MemoryBase, base.try_clone().unwrap().into())];
        if let Some((data, table)) = upper {
            saved.push((FdRole::MemoryUpper, data.try_clone().unwrap().into()));
            saved.push((FdRole::MemoryUpperExtents, copy(table).into()));
        }
        self.restore_with(saved, run)
    }

    /// The process of one of its writers, which it knows by its own namespace's number.
    pub(crate) fn writer(&self, branch: &Saved) -> u32 {
        let told = branch.stats.writer.unwrap();
        self.offspring().into_iter().find(|&pid| jailed::own_number(pid) == Some(told)).unwrap()
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Processes that the monitor started and that are still there, dead ones among them.
    pub(crate) fn offspring(&self) -> Vec<u32> {
        self.process.children()
    }

    /// Waits until no writer is left, not even a dead one.
    pub(crate) fn without_writers(&self) {
        let began = std::time::Instant::now();
        while !self.offspring().is_empty() {
            assert!(began.elapsed() < patience(), "a writer is still there");
            std::thread::yield_now();
        }
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
        let ok = self.process.wait() == Some(ProcessEnd::Exited { code: 0 });
        (ok, std::fs::read_to_string(&self.last_words).unwrap_or_default())
    }

    pub(crate) fn control_path(&self) -> PathBuf {
        self.dir.path().join("control.sock")
    }

    fn usual_files(&mut self) -> Vec<(FdRole, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(patience())).unwrap();
        self.console = ours;
        let vsock = UnixListener::bind(self.dir.path().join(format!("vsock-{}", rand_name()))).unwrap();
        let part = |part| FdRole::Disk { disk: 0, part };
        vec![
            (part(DiskPart::Base), disk().into()),
            (part(DiskPart::Top), disk().into()),
            (FdRole::VsockListener, vsock.into()),
            (FdRole::Console, theirs.try_clone().unwrap().into()),
            (FdRole::ConsoleInput, theirs.into()),
            (FdRole::LastWords, File::create(&self.last_words).unwrap().into()),
        ]
    }
}

impl Saved {
    /// Waits for the writer.
    pub(crate) fn finish(mut self, told: PipeReader) -> Self {
        match writer_end(told).unwrap() {
            WriterEnd::Written { extents, pages } => {
                self.stats.memory = LayerStats { extents, bytes: pages * 4096 };
            }
            failed @ WriterEnd::Failed { .. } => panic!("the writer: {failed:?}"),
        }
        self
    }

    /// The pages that it lists itself, where it is a branch.
    pub(crate) fn own_pages(&self) -> Vec<Extent> {
        let pages = self.memory.metadata().unwrap().len() / 4096;
        read_table(&mut copy(&self.memory_extents), pages).unwrap()
    }
}

/// Waits for a writer; none where it says nothing.
pub(crate) fn writer_end(mut told: PipeReader) -> Option<WriterEnd> {
    let mut line = String::new();
    told.read_to_string(&mut line).unwrap();
    serde_json::from_str(&line).ok()
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
