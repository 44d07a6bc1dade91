//! A session's output on its way to any number of readers, in bounded memory.
//!
//! * One reader: the process waits for it, as on a pipe. Nothing is lost.
//! * Several: the process waits for the fastest. A reader that falls more than [`LIMIT`] behind it is ended with an
//!   error rather than silently missing a part.
//! * None: the process goes on; the last [`LIMIT`] bytes are kept for the next reader. What a reader has been given is
//!   not given again, so attaching anew goes on where the last reader stopped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::exit::Exit;

/// Most bytes kept.
const LIMIT: usize = 1024 * 1024;

/// Where output is put and read. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Frames(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    log: Mutex<Log>,
    /// Something to read.
    news: Notify,
    /// Something was read.
    room: Notify,
}

#[derive(Debug, Default)]
struct Log {
    frames: VecDeque<Bytes>,
    bytes: usize,
    /// Number of the first frame kept.
    first: u64,
    /// By reader, the number of the frame it reads next.
    readers: BTreeMap<u64, u64>,
    next_reader: u64,
    exit: Option<Exit>,
}

/// What a reader gets next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Frame(Bytes),
    /// All output was read.
    Ended(Exit),
    /// The reader was too slow and has missed output.
    Lagged,
}

/// One place in the output; detached when dropped.
#[derive(Debug)]
pub(crate) struct Reader {
    frames: Frames,
    id: u64,
}

impl Frames {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.0.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a frame; waits for room where a reader is to have all of it.
    pub(crate) async fn put(&self, frame: Bytes) {
        loop {
            let room = self.0.room.notified();
            if self.log().try_put(&frame) {
                break;
            }
            room.await;
        }
        self.0.news.notify_waiters();
    }

    /// No more output will come.
    pub(crate) fn end(&self, exit: Exit) {
        self.log().exit = Some(exit);
        self.0.news.notify_waiters();
    }

    /// The first reader begins with all that is kept, a further one with what comes from now on.
    pub(crate) fn attach(&self) -> Reader {
        let mut log = self.log();
        let start = if log.readers.is_empty() { log.first } else { log.end() };
        let id = log.next_reader;
        log.next_reader += 1;
        log.readers.insert(id, start);
        drop(log);
        Reader { frames: self.clone(), id }
    }

    /// Whether anybody reads.
    pub(crate) fn has_readers(&self) -> bool {
        !self.log().readers.is_empty()
    }
}

impl Reader {
    pub(crate) async fn next(&mut self) -> Next {
        loop {
            let news = self.frames.0.news.notified();
            let next = self.frames.log().take(self.id);
            if let Some(next) = next {
                self.frames.0.room.notify_waiters();
                return next;
            }
            news.await;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut log = self.frames.log();
        log.readers.remove(&self.id);
        log.forget_what_all_have_read();
        drop(log);
        self.frames.0.room.notify_waiters();
    }
}

impl Log {
    fn end(&self) -> u64 {
        self.first + self.frames.len() as u64
    }

    fn try_put(&mut self, frame: &Bytes) -> bool {
        let fastest = self.readers.values().copied().max();
        while self.bytes + frame.len() > LIMIT && !self.frames.is_empty() {
            if fastest.is_some_and(|fastest| fastest <= self.first) {
                return false;
            }
            self.drop_first();
        }
        self.bytes += frame.len();
        self.frames.push_back(frame.clone());
        true
    }

    fn take(&mut self, reader: u64) -> Option<Next> {
        let at = *self.readers.get(&reader)?;
        let Some(offset) = at.checked_sub(self.first) else { return Some(Next::Lagged) };
        let frame = usize::try_from(offset).ok().and_then(|offset| self.frames.get(offset)).cloned();
        let Some(frame) = frame else { return self.exit.map(Next::Ended) };
        self.readers.insert(reader, at + 1);
        self.forget_what_all_have_read();
        Some(Next::Frame(frame))
    }

    fn forget_what_all_have_read(&mut self) {
        let Some(slowest) = self.readers.values().copied().min() else { return };
        while self.first < slowest && !self.frames.is_empty() {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(frame) = self.frames.pop_front() {
            self.bytes -= frame.len();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn frame(byte: u8) -> Bytes {
        vec![byte; LIMIT / 4].into()
    }

    fn put(frames: &Frames, byte: u8) -> bool {
        frames.put(frame(byte)).now_or_never().is_some()
    }

    fn next(reader: &mut Reader) -> Option<Next> {
        reader.next().now_or_never()
    }

    #[test]
    fn without_readers_the_newest_is_kept() {
        let frames = Frames::default();
        assert!((0..10).all(|byte| put(&frames, byte)));
        frames.end(Exit::Code(3));
        let mut reader = frames.attach();
        for byte in 6..10 {
            assert_eq!(next(&mut reader), Some(Next::Frame(frame(byte))));
        }
        assert_eq!(next(&mut reader), Some(Next::Ended(Exit::Code(3))));
    }

    #[test]
    fn a_sole_reader_holds_the_process_back_and_misses_nothing() {
        let frames = Frames::default();
        let mut reader = frames.attach();
        assert!((0..4).all(|byte| put(&frames, byte)));
        assert!(!put(&frames, 4));
        assert_eq!(next(&mut reader), Some(Next::Frame(frame(0))));
        assert!(put(&frames, 4));
        for byte in 1..5 {
            assert_eq!(next(&mut reader), Some(Next::Frame(frame(byte))));
        }
        assert_eq!(next(&mut reader), None);
    }

    #[test]
    fn of_several_readers_the_slow_one_is_told_what_it_missed() {
        let frames = Frames::default();
        let (mut fast, mut slow) = (frames.attach(), frames.attach());
        for byte in 0..8 {
            assert!(put(&frames, byte));
            assert_eq!(next(&mut fast), Some(Next::Frame(frame(byte))));
        }
        assert_eq!(next(&mut slow), Some(Next::Lagged));
    }

    #[test]
    fn attaching_anew_goes_on_where_the_last_reader_stopped() {
        let frames = Frames::default();
        let mut first = frames.attach();
        assert!(put(&frames, 0) && put(&frames, 1));
        assert_eq!(next(&mut first), Some(Next::Frame(frame(0))));
        drop(first);
        assert!(put(&frames, 2));
        let mut second = frames.attach();
        assert_eq!(next(&mut second), Some(Next::Frame(frame(1))));
        assert_eq!(next(&mut second), Some(Next::Frame(frame(2))));
    }

    #[test]
    fn a_process_waits_no_longer_for_a_reader_that_left() {
        let frames = Frames::default();
        let reader = frames.attach();
        assert!((0..4).all(|byte| put(&frames, byte)));
        assert!(!put(&frames, 4));
        drop(reader);
        assert!(put(&frames, 4));
    }
}
