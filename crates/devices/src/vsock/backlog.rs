//! Bytes from the guest that the host client has not taken yet.

use std::io::{self, Write};

/// A queue of bytes without memory while it is empty.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    bytes: Vec<u8>,
    sent: usize,
}

impl Backlog {
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `len` bytes, which `fill` writes.
    pub(super) fn push(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) {
        if self.sent > 0 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
        let old = self.bytes.len();
        self.bytes.resize(old + len, 0);
        fill(self.bytes.get_mut(old..).unwrap_or_default());
    }

    /// Writes as much as `to` takes without blocking; the answer is how much that was.
    pub(super) fn flush(&mut self, mut to: impl Write) -> io::Result<usize> {
        let before = self.len();
        while let Some(rest) = self.bytes.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match to.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let flushed = before - self.len();
        if self.is_empty() {
            *self = Self::default();
        }
        Ok(flushed)
    }
}
