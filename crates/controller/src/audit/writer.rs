//! The one thread that writes the log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use forkd_store::{AuditHead, Store};
use tokio::sync::oneshot;
use tracing::error;

use super::{Line, NOTHING_BEFORE, files, hash_of};

/// How long a line may wait until it is synced to the disk.
pub(super) const SYNC_EVERY: Duration = Duration::from_millis(500);
/// A file of this size is followed by another.
const ROTATE: u64 = 64 << 20;
/// Lines that wait while the disk takes none; beyond that they are lost, and counted.
const WAITING: usize = 16_384;

/// The log. Cheap to clone; when the last clone is dropped everything is synced.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    sender: Sender<Entry>,
    folder: PathBuf,
}

/// A line on its way, and who waits for it.
#[derive(Debug)]
struct Entry {
    line: Line,
    written: Option<oneshot::Sender<()>>,
    sync: bool,
}

impl Log {
    /// Goes on with the log in `folder`. Blocks.
    pub(crate) fn open(folder: &Path, store: Store) -> io::Result<Self> {
        Self::with_rotation(folder, store, ROTATE)
    }

    fn with_rotation(folder: &Path, store: Store, rotate: u64) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let writer = Writer::open(folder, store, rotate)?;
        let (sender, receiver) = channel();
        std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run(&receiver))?;
        Ok(Self { sender, folder: folder.to_owned() })
    }

    /// Where it lies.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Adds a line; number and hash are put in by the writer. Resolves when it is written, or, with `sync`, safe.
    pub(crate) async fn add(&self, line: Line, sync: bool) {
        let (tell, written) = oneshot::channel();
        if self.sender.send(Entry { line, written: Some(tell), sync }).is_ok() {
            // Unanswered where it could not be written; that has been said in the controller's log.
            drop(written.await);
        }
    }

    /// Adds a line that nobody waits for.
    pub(crate) fn add_later(&self, line: Line) {
        let _ = self.sender.send(Entry { line, written: None, sync: false });
    }

    /// Resolves when all that was added before is safe, with what is then known of it.
    pub(crate) async fn settle(&self) {
        let (tell, written) = oneshot::channel();
        let nothing = Line { seq: u64::MAX, ..Line::default() };
        if self.sender.send(Entry { line: nothing, written: Some(tell), sync: true }).is_ok() {
            drop(written.await);
        }
    }
}

#[derive(Debug)]
struct Writer {
    folder: PathBuf,
    store: Store,
    rotate: u64,
    file: File,
    length: u64,
    head: AuditHead,
    waiting: Vec<Entry>,
    lost: u64,
    unsynced: Option<Instant>,
}

impl Writer {
    fn open(folder: &Path, store: Store, rotate: u64) -> io::Result<Self> {
        let known = store.audit_head().map_err(io::Error::other)?;
        let mut head = AuditHead { seq: 0, hash: NOTHING_BEFORE.to_owned() };
        let last = files::all(folder)?.pop();
        let mut length = 0;
        if let Some(path) = &last {
            let (end, whole) = files::end_of(path)?;
            length = whole;
            if let Some((seq, hash)) = end {
                head = AuditHead { seq, hash };
            }
        }
        // What was safe once and is not there any more stays missing: the chain goes on from it, so that no later
        // line hides the gap.
        if let Some(known) = known.filter(|known| known.seq > head.seq) {
            error!(expected = known.seq, found = head.seq, "lines of the audit log are missing");
            head = known;
        }
        let path = last.unwrap_or_else(|| files::path_of(folder, head.seq + 1));
        let file = open_file(&path)?;
        // A line that a crash tore was never waited for.
        file.set_len(length)?;
        let (waiting, folder) = (Vec::new(), folder.to_owned());
        Ok(Self { folder, store, rotate, file, length, head, waiting, lost: 0, unsynced: None })
    }

    fn run(mut self, receiver: &Receiver<Entry>) {
        loop {
            match receiver.recv_timeout(SYNC_EVERY) {
                Ok(entry) => {
                    self.waiting.push(entry);
                    self.waiting.extend(receiver.try_iter().take(1024));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.write_waiting();
        }
        self.write_waiting();
        self.sync();
    }

    fn write_waiting(&mut self) {
        let mut entries = std::mem::take(&mut self.waiting).into_iter();
        let mut acknowledged = Vec::new();
        let mut sync = self.unsynced.is_some_and(|since| since.elapsed() >= SYNC_EVERY);
        for entry in entries.by_ref() {
            sync |= entry.sync;
            if entry.line.seq != u64::MAX
                && let Err(e) = self.write(&entry.line)
            {
                error!(error = %e, "the audit log takes no line; it is tried again");
                self.waiting.push(Entry { written: None, ..entry });
                break;
            }
            acknowledged.extend(entry.written);
        }
        self.waiting.extend(entries.map(|entry| Entry { written: None, ..entry }));
        if self.waiting.len() > WAITING {
            self.lost += (self.waiting.len() - WAITING) as u64;
            self.waiting.truncate(WAITING);
            error!(lost = self.lost, "lines of the audit log are lost");
        }
        if sync {
            self.sync();
        }
        for written in acknowledged {
            // Who waited for it may have left.
            let _ = written.send(());
        }
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        if self.length >= self.rotate {
            self.sync();
            self.file = open_file(&files::path_of(&self.folder, self.head.seq + 1))?;
            self.length = 0;
        }
        let line = Line { seq: self.head.seq + 1, prev: self.head.hash.clone(), ..line.clone() };
        let mut text = serde_json::to_vec(&line)?;
        let hash = hash_of(&text);
        text.push(b'\n');
        if let Err(e) = self.file.write_all(&text) {
            // Half a line would end the chain.
            self.file.set_len(self.length)?;
            return Err(e);
        }
        self.length += text.len() as u64;
        self.head = AuditHead { seq: line.seq, hash };
        self.unsynced.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// First the lines, then the head: what the registry knows of is there.
    fn sync(&mut self) {
        if self.unsynced.is_none() {
            return;
        }
        let noted = self
            .file
            .sync_data()
            .and_then(|()| self.store.set_audit_head(&self.head).map_err(io::Error::other));
        match noted {
            Ok(()) => self.unsynced = None,
            Err(e) => error!(error = %e, "the audit log could not be synced; it is tried again"),
        }
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::super::verify::verify;
    use super::*;

    struct House {
        folder: tempfile::TempDir,
        store: Store,
    }

    impl House {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let store = Store::open(&folder.path().join("root")).unwrap();
            Self { folder, store }
        }

        fn audit(&self) -> PathBuf {
            self.folder.path().join("audit")
        }

        /// Writes so many lines with a log that is closed afterwards.
        fn write(&self, lines: usize) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let log = Log::with_rotation(&self.audit(), self.store.clone(), 500).unwrap();
                for n in 0..lines {
                    log.add(
                        Line { at_ms: 1_800_000_000_000, what: format!("call {n}"), ..Line::default() },
                        false,
                    )
                    .await;
                }
                log.settle().await;
            });
        }

        fn problems(&self) -> Vec<String> {
            let head = self.store.audit_head().unwrap();
            verify(&self.audit(), head.as_ref()).unwrap().problems
        }

        /// Rewrites the text of the file with the `n`th place.
        fn edit(&self, n: usize, change: impl FnOnce(Vec<String>) -> Vec<String>) {
            let path = &files::all(&self.audit()).unwrap()[n];
            let lines = fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect();
            fs::write(path, change(lines).iter().map(|line| format!("{line}\n")).collect::<String>())
                .unwrap();
        }
    }

    #[test]
    fn the_chain_goes_on_over_rotations_and_restarts() {
        let house = House::new();
        house.write(9);
        house.write(9);
        assert!(files::all(&house.audit()).unwrap().len() > 3);
        assert_eq!(house.problems(), Vec::<String>::new());
        let newest = super::super::newest(&house.audit(), 0, 5).unwrap();
        assert_eq!(newest.iter().map(|l| l.seq).collect::<Vec<_>>(), [14, 15, 16, 17, 18]);
        assert_eq!(super::super::newest(&house.audit(), 16, 5).unwrap().len(), 2);
    }

    #[test]
    fn a_changed_a_removed_and_a_swapped_line_are_found() {
        let change = |lines: Vec<String>| -> Vec<String> {
            lines.iter().map(|l| l.replace("call 1", "call 7")).collect()
        };
        let remove = |mut lines: Vec<String>| {
            lines.remove(1);
            lines
        };
        let swap = |mut lines: Vec<String>| {
            lines.swap(0, 1);
            lines
        };
        let edits: [fn(Vec<String>) -> Vec<String>; 3] = [change, remove, swap];
        for edit in edits {
            let house = House::new();
            house.write(9);
            house.edit(0, edit);
            assert!(!house.problems().is_empty());
            house.write(3);
            assert!(!house.problems().is_empty(), "later lines do not hide it");
        }
    }

    #[test]
    fn a_cut_end_is_found_also_after_later_lines_and_so_is_a_removed_file() {
        let house = House::new();
        house.write(3);
        house.edit(0, |mut lines| {
            lines.pop();
            lines
        });
        assert!(house.problems()[0].contains("cut"), "{:?}", house.problems());
        house.write(2);
        assert!(!house.problems().is_empty());

        let house = House::new();
        house.write(9);
        fs::remove_file(&files::all(&house.audit()).unwrap()[1]).unwrap();
        assert!(!house.problems().is_empty());
        let house = House::new();
        house.write(9);
        fs::remove_dir_all(house.audit()).unwrap();
        fs::create_dir(house.audit()).unwrap();
        assert!(!house.problems().is_empty());
    }

    #[test]
    fn a_torn_last_line_is_no_damage() {
        let house = House::new();
        house.write(2);
        let path = files::all(&house.audit()).unwrap().pop().unwrap();
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"seq\":3,\"at").unwrap();
        house.write(1);
        assert_eq!(house.problems(), Vec::<String>::new());
    }
}
