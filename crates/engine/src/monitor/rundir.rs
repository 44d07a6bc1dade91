//! The folder of one machine: sockets, logs and the private disk top.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use forkd_host::cgroup::{Cgroup, Cgroups};
use forkd_host::process::{self, Process};
use forkd_protocol::control::ProcessEnd;

use forkd_protocol::names::SandboxId;

use super::MonitorError;
use super::branch::FrozenTop;
use crate::fault;
use crate::ids::MAX_ID_LEN;

/// Longest path of a Unix socket (`sun_path`, with its closing zero).
const MAX_SOCKET_PATH: usize = 108;
/// Most bytes of how a process ended.
const MAX_ENDING: u64 = 256;
/// How often a file is looked at that is about to be written.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Most bytes of a log that are handed out, from its end.
const MAX_LOG_BYTES: u64 = 4 << 20;

/// Where the files of one machine lie.
#[derive(Debug, Clone)]
pub(crate) struct RunDir {
    path: PathBuf,
}

/// What a monitor is handed of its folder.
#[derive(Debug)]
pub(crate) struct RunFiles {
    pub(crate) top: File,
    pub(crate) vsock: UnixListener,
    pub(crate) console: File,
    pub(crate) last_words: File,
}

/// What a machine that is branched is handed for its disk.
#[derive(Debug)]
pub(crate) struct BranchFiles {
    /// The empty top that it goes on with.
    pub(crate) top: File,
    /// Where it lists what the old one holds.
    pub(crate) table: File,
    /// The old one, for reading.
    pub(crate) frozen: File,
}

/// What a branch that broke off has done to the disk.
#[derive(Debug)]
pub(crate) enum Mended {
    /// This top, which nobody writes to any more.
    Frozen(FrozenTop),
    /// Nothing, or nothing that is left to do.
    NotFrozen,
}

impl RunDir {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.path.join("control.sock")
    }

    pub(crate) fn vsock(&self) -> PathBuf {
        self.path.join("vsock.sock")
    }

    pub(crate) fn console(&self) -> PathBuf {
        self.path.join("console.log")
    }

    pub(crate) fn monitor_log(&self) -> PathBuf {
        self.path.join("monitor.log")
    }

    pub(crate) fn top(&self) -> PathBuf {
        self.path.join("disk0.top")
    }

    pub(crate) fn last_words(&self) -> PathBuf {
        self.path.join("last-words")
    }

    /// Where the reaper of the monitor notes how that ended.
    fn ending(&self) -> PathBuf {
        self.path.join("ending")
    }

    fn pid_file(&self) -> PathBuf {
        self.path.join("monitor.pid")
    }

    fn cgroup_file(&self) -> PathBuf {
        self.path.join("cgroup")
    }

    /// Makes what a monitor is handed; the top is a hole as large as the disk below it.
    pub(crate) fn open_files(&self, disk_bytes: u64) -> Result<RunFiles, MonitorError> {
        let top_path = self.top();
        let top = create(&top_path, true)?;
        top.set_len(disk_bytes).map_err(|e| MonitorError::file("size", &top_path, e))?;
        Ok(RunFiles {
            top,
            vsock: listen(&self.vsock())?,
            console: create(&self.console(), false)?,
            last_words: create(&self.last_words(), false)?,
        })
    }

    fn new_top(&self) -> PathBuf {
        self.path.join("disk0.top.new")
    }

    fn frozen_top(&self) -> PathBuf {
        self.path.join("disk0.frozen")
    }

    fn frozen_table(&self) -> PathBuf {
        self.path.join("disk0.frozen.extents")
    }

    /// Whether a branch broke off in the middle of freezing the disk.
    pub(crate) fn has_branch_files(&self) -> bool {
        [self.new_top(), self.frozen_top(), self.frozen_table()].iter().any(|path| path.exists())
    }

    /// Brings the tops in order after a branch that broke off, given the inode of the file that the monitor writes to.
    /// Returns the top that was frozen, where one was and is still here; `None` in the place of that where it cannot be
    /// told.
    pub(crate) fn mend_tops(&self, written: Option<u64>) -> Result<Option<Mended>, MonitorError> {
        let frozen = FrozenTop { data: self.frozen_top(), table: self.frozen_table() };
        if self.new_top().exists() {
            let is_written = |path: PathBuf| fs::metadata(path).is_ok_and(|m| Some(m.ino()) == written);
            if is_written(self.top()) {
                self.remove_branch_files()?;
                return Ok(Some(Mended::NotFrozen));
            }
            if !is_written(self.new_top()) {
                return Ok(None);
            }
            self.settle_tops()?;
            return Ok(Some(Mended::Frozen(frozen)));
        }
        if frozen.data.exists() {
            return Ok(Some(Mended::Frozen(frozen)));
        }
        // It was taken in; this is what was left to remove.
        remove_if_there(&[frozen.table])?;
        Ok(Some(Mended::NotFrozen))
    }

    /// Makes what a machine that is branched is handed for its disk.
    pub(crate) fn open_branch_files(&self, disk_bytes: u64) -> Result<BranchFiles, MonitorError> {
        let top_path = self.new_top();
        let top = create(&top_path, true)?;
        let made = top.set_len(disk_bytes).map_err(|e| MonitorError::file("size", &top_path, e));
        let old = self.top();
        let opened = made.and_then(|()| File::open(&old).map_err(|e| MonitorError::file("open", &old, e)));
        match opened.and_then(|frozen| Ok((frozen, create(&self.frozen_table(), true)?))) {
            Ok((frozen, table)) => Ok(BranchFiles { top, table, frozen }),
            Err(e) => {
                self.remove_branch_files()?;
                Err(e)
            }
        }
    }

    /// Undoes [`RunDir::open_branch_files`], where the machine never used them.
    pub(crate) fn remove_branch_files(&self) -> Result<(), MonitorError> {
        remove_if_there(&[self.new_top(), self.frozen_table()])
    }

    /// The new top takes the place of the frozen one; half of that may be done already.
    pub(crate) fn settle_tops(&self) -> Result<FrozenTop, MonitorError> {
        let rename = |from: PathBuf, to: PathBuf| {
            fs::rename(&from, &to).map_err(|e| MonitorError::file("move", &from, e))
        };
        if !self.frozen_top().exists() {
            rename(self.top(), self.frozen_top())?;
        }
        fault::at!("engine::branch::top_moved");
        rename(self.new_top(), self.top())?;
        Ok(FrozenTop { data: self.frozen_top(), table: self.frozen_table() })
    }

    pub(crate) fn listen_control(&self) -> Result<UnixListener, MonitorError> {
        listen(&self.control())
    }

    pub(crate) fn create_log(&self) -> Result<File, MonitorError> {
        create(&self.monitor_log(), false)
    }

    pub(crate) fn create_ending(&self) -> Result<File, MonitorError> {
        create(&self.ending(), false)
    }

    /// How the process of the monitor ended. Its reaper notes that a moment after it has: waits, at most `bound`.
    pub(crate) fn process_end(&self, bound: Duration) -> Option<ProcessEnd> {
        let deadline = Instant::now() + bound;
        loop {
            let noted = tail(&self.ending(), MAX_ENDING).ok()?;
            if noted.ends_with(b"\n") {
                return serde_json::from_slice(&noted).ok();
            }
            if Instant::now() >= deadline {
                return None;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Notes which process belongs to this folder, for a controller that finds the folder but no row.
    pub(crate) fn note_process(&self, process: &Process) -> Result<(), MonitorError> {
        let path = self.pid_file();
        let boot = process::boot_id().map_err(|e| MonitorError::file("write", &path, e))?;
        let (pid, ticks, user) = (process.pid(), process.start_ticks(), process.user()?);
        fs::write(&path, format!("{pid} {ticks} {boot} {user}\n"))
            .map_err(|e| MonitorError::file("write", &path, e))
    }

    /// The user that the noted process is or was, and when that was noted.
    pub(crate) fn noted_user(&self) -> Option<(u32, SystemTime)> {
        let noted = fs::metadata(self.pid_file()).and_then(|note| note.modified()).ok()?;
        let note = fs::read_to_string(self.pid_file()).ok()?;
        Some((note.split_ascii_whitespace().nth(3)?.parse().ok()?, noted))
    }

    /// The process that was noted, where it is still that one.
    pub(crate) fn noted_process(&self) -> Option<Process> {
        let note = fs::read_to_string(self.pid_file()).ok()?;
        let mut fields = note.split_ascii_whitespace();
        let (pid, ticks, boot) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?, fields.next()?);
        if process::boot_id().ok()? != boot {
            return None;
        }
        Process::find(pid, ticks).ok().flatten()
    }

    /// Notes which cgroup belongs to this folder, before that is made.
    pub(crate) fn note_cgroup(&self, leaf: &str) -> Result<(), MonitorError> {
        let path = self.cgroup_file();
        fs::write(&path, leaf).map_err(|e| MonitorError::file("write", &path, e))
    }

    /// The cgroup that was noted, where it is there.
    pub(crate) fn noted_cgroup(&self, cgroups: &Cgroups) -> Option<Cgroup> {
        cgroups.find(fs::read_to_string(self.cgroup_file()).ok()?.parse::<SandboxId>().ok()?.as_str())
    }

    /// Removes all but the logs: what is worth reading once a machine has ended.
    pub(crate) fn keep_logs_only(&self) -> Result<(), MonitorError> {
        remove_if_there(&[
            self.top(),
            self.new_top(),
            self.frozen_top(),
            self.frozen_table(),
            self.vsock(),
            self.control(),
            self.last_words(),
            self.pid_file(),
            self.ending(),
            self.cgroup_file(),
        ])
    }

    /// The bytes of the serial console, as far as the monitor kept them; none where no machine has had this folder yet.
    pub(crate) fn read_console(&self) -> io::Result<Vec<u8>> {
        match tail(&self.console(), MAX_LOG_BYTES) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read,
        }
    }

    /// What the monitor said, the newest where it said much.
    pub(crate) fn read_monitor_log(&self) -> io::Result<Vec<u8>> {
        tail(&self.monitor_log(), MAX_LOG_BYTES)
    }
}

fn remove_if_there(paths: &[PathBuf]) -> Result<(), MonitorError> {
    for path in paths {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(MonitorError::file("remove", path, e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// How long the longest socket path below `root` is; an error where the kernel would refuse it.
pub(crate) fn check_root(root: &Path) -> Result<(), (usize, usize)> {
    let longest = root.join("run").join("x".repeat(MAX_ID_LEN)).join("control.sock");
    let needed = longest.as_os_str().len() + 1;
    if needed <= MAX_SOCKET_PATH { Ok(()) } else { Err((needed, MAX_SOCKET_PATH)) }
}

/// The last `max` bytes of a file, also of one that grows meanwhile.
pub(crate) fn tail(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(max)))?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn listen(path: &Path) -> Result<UnixListener, MonitorError> {
    UnixListener::bind(path).map_err(|e| MonitorError::file("listen on", path, e))
}

fn create(path: &Path, read: bool) -> Result<File, MonitorError> {
    OpenOptions::new()
        .read(read)
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|e| MonitorError::file("create", path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::new(dir.path().to_owned());
        (dir, run)
    }

    #[test]
    fn a_top_is_a_hole_of_the_disks_size() {
        use std::os::unix::fs::MetadataExt;
        let (_keep, run) = dir();
        let files = run.open_files(1 << 30).unwrap();
        let meta = files.top.metadata().unwrap();
        assert_eq!((meta.len(), meta.blocks()), (1 << 30, 0));
        assert!(run.open_files(1 << 30).is_err(), "a folder belongs to one machine");
    }

    #[test]
    fn only_logs_stay_of_what_has_ended() {
        let (keep, run) = dir();
        run.open_files(4096).unwrap();
        let _ = (run.listen_control().unwrap(), run.create_log().unwrap());
        run.keep_logs_only().unwrap();
        run.keep_logs_only().unwrap();
        let mut left: Vec<_> = fs::read_dir(keep.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["console.log", "monitor.log"]);
    }

    #[test]
    fn a_note_leads_back_to_the_process_and_a_stale_one_to_nobody() {
        let (_keep, run) = dir();
        let me = Process::of_child(std::process::id()).unwrap();
        assert!(run.noted_process().is_none());
        run.note_process(&me).unwrap();
        assert_eq!(run.noted_process().unwrap().pid(), me.pid());
        let note = fs::read_to_string(run.pid_file()).unwrap();
        fs::write(run.pid_file(), note.replacen(&me.start_ticks().to_string(), "1", 1)).unwrap();
        assert!(run.noted_process().is_none());
        fs::write(run.pid_file(), "nonsense").unwrap();
        assert!(run.noted_process().is_none());
    }

    #[test]
    fn a_root_that_is_too_deep_is_told_apart() {
        assert!(check_root(Path::new("/var/lib/forkd")).is_ok());
        assert!(check_root(&Path::new("/").join("d".repeat(80))).is_err());
    }

    #[test]
    fn a_log_is_read_from_its_end() {
        let (keep, _run) = dir();
        let path = keep.path().join("log");
        fs::write(&path, b"0123456789").unwrap();
        assert_eq!(tail(&path, 4).unwrap(), b"6789");
        assert_eq!(tail(&path, 400).unwrap(), b"0123456789");
    }
}
