//! One connection between a host client and a port of the guest: its phase, and what comes from the guest.
//! What goes to the guest is in [`outgoing`].

mod handshake;
mod outgoing;

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use vm_memory::{GuestMemoryError, VolatileMemoryError, WriteVolatile};

use super::backlog::Backlog;
use super::packet::{HEADER_LEN, SHUTDOWN_RECEIVE, SHUTDOWN_SEND};
use crate::GuestRam;
use crate::virtio::chain::{Segment, for_each_slice};

/// Bytes of one connection that the guest may have under way, and so the most that waits here for a slow
/// host client.
pub(super) const BUF_ALLOC: u32 = 256 * 1024;
/// The guest is told of its credit when it has grown by this much.
const CREDIT_STEP: u32 = BUF_ALLOC / 4;
const HEADER: u64 = HEADER_LEN as u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The client has not sent its whole first line.
    Handshake {
        since: Instant,
    },
    /// The guest has been asked, or is about to be.
    Requested {
        sent: bool,
    },
    Established,
    /// The guest is through with it; what it sent still has to reach the client.
    Draining,
    /// To be removed.
    Closed,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    pub(super) guest_port: u32,
    pub(super) phase: Phase,
    /// Waiting for its turn to send to the guest.
    pub(super) queued: bool,
    /// What the device's total counts of this connection, and whether its socket is watched for room.
    pub(super) noted_backlog: usize,
    pub(super) watches_writable: bool,
    /// The client's first line, then what came right behind it.
    early: Vec<u8>,
    /// The stream may have bytes or an end of file to read.
    readable: bool,
    /// The client closed its end altogether.
    hung_up: bool,
    client_eof: bool,
    /// The guest receives no more, and sends no more.
    guest_deaf: bool,
    guest_mute: bool,
    shutdown_sent: u32,
    reset: bool,
    /// From the guest, not yet taken by the client.
    backlog: Backlog,
    /// Bytes that left towards the client, of which the guest was last told `fwd_told`.
    fwd_cnt: u32,
    fwd_told: u32,
    credit_wanted: bool,
    /// Bytes sent to the guest, and what the guest last said of its buffer.
    sent_cnt: u32,
    guest_buf_alloc: u32,
    guest_fwd_cnt: u32,
    credit_asked: bool,
}

impl Connection {
    pub(super) fn new(stream: UnixStream, now: Instant) -> Self {
        Self {
            stream,
            guest_port: 0,
            phase: Phase::Handshake { since: now },
            queued: false,
            noted_backlog: 0,
            watches_writable: false,
            early: Vec::new(),
            readable: true,
            hung_up: false,
            client_eof: false,
            guest_deaf: false,
            guest_mute: false,
            shutdown_sent: 0,
            reset: false,
            backlog: Backlog::default(),
            fwd_cnt: 0,
            fwd_told: 0,
            credit_wanted: false,
            sent_cnt: 0,
            guest_buf_alloc: 0,
            guest_fwd_cnt: 0,
            credit_asked: false,
        }
    }

    pub(super) fn backlog_len(&self) -> usize {
        self.backlog.len()
    }

    pub(super) fn fwd_cnt(&self) -> u32 {
        self.fwd_cnt
    }

    pub(super) fn now_readable(&mut self) {
        self.readable = true;
    }

    pub(super) fn now_hung_up(&mut self) {
        self.hung_up = true;
        self.readable = true;
        if matches!(self.phase, Phase::Draining) {
            self.phase = Phase::Closed;
        }
    }

    /// The guest accepted.
    pub(super) fn accepted(&mut self, host_port: u32) {
        self.phase = Phase::Established;
        let line = format!("OK {host_port}\n");
        // The first bytes into an empty socket: either they fit or the client is gone.
        if !matches!((&self.stream).write(line.as_bytes()), Ok(len) if len == line.len()) {
            self.reset = true;
        }
    }

    /// What the guest says of its buffer in every packet.
    pub(super) fn note_credit(&mut self, buf_alloc: u32, fwd_cnt: u32) {
        self.guest_buf_alloc = buf_alloc;
        self.guest_fwd_cnt = fwd_cnt;
        self.credit_asked = false;
    }

    pub(super) fn want_credit_update(&mut self) {
        self.credit_wanted = true;
    }

    pub(super) fn must_reset(&mut self) {
        self.reset = true;
    }

    /// The guest will send or receive no more.
    pub(super) fn guest_shutdown(&mut self, flags: u32) {
        if flags & SHUTDOWN_SEND != 0 {
            self.guest_mute = true;
            self.end_if_flushed();
        }
        if flags & SHUTDOWN_RECEIVE != 0 && !self.guest_deaf {
            self.guest_deaf = true;
            // A client that goes on writing now sees an error instead of silence.
            let _ = self.stream.shutdown(Shutdown::Read);
        }
        if self.guest_mute && self.guest_deaf {
            // The guest's close waits for this answer, but not for the client to read on.
            self.reset = true;
        }
    }

    /// The guest gave the connection up.
    pub(super) fn guest_reset(&mut self) {
        let flushed = self.backlog.is_empty() || !self.guest_mute;
        self.phase = if flushed { Phase::Closed } else { Phase::Draining };
    }

    /// Takes `len` bytes of a packet from the guest, which lie behind the header in `segments`.
    pub(super) fn take(&mut self, ram: &GuestRam, segments: &[Segment], len: u32) -> FromGuest {
        let room = BUF_ALLOC.saturating_sub(u32::try_from(self.backlog.len()).unwrap_or(BUF_ALLOC));
        if len > room || self.guest_mute {
            self.reset = true;
            return FromGuest::Violation;
        }
        let mut failed = false;
        let Self { stream, backlog, fwd_cnt, .. } = self;
        let taken = for_each_slice(ram, segments, HEADER..HEADER + u64::from(len), |mut slice| {
            while backlog.is_empty() && !failed && !slice.is_empty() {
                match stream.write_volatile(&slice) {
                    Ok(done) => {
                        *fwd_cnt = fwd_cnt.wrapping_add(u32::try_from(done).unwrap_or(0));
                        slice = slice.offset(done)?;
                    }
                    Err(error) => match kind_of(&error) {
                        Some(io::ErrorKind::Interrupted) => {}
                        Some(io::ErrorKind::WouldBlock) => break,
                        _ => failed = true,
                    },
                }
            }
            if !failed && !slice.is_empty() {
                backlog.push(slice.len(), |to| {
                    slice.copy_to(to);
                });
            }
            Ok::<_, GuestMemoryError>(())
        });
        if failed || taken.is_err() {
            self.reset = true;
        }
        self.note_progress();
        FromGuest::Taken
    }

    /// The stream takes bytes again.
    pub(super) fn flush(&mut self) {
        match self.backlog.flush(&self.stream) {
            Ok(len) => {
                self.fwd_cnt = self.fwd_cnt.wrapping_add(u32::try_from(len).unwrap_or(0));
                self.note_progress();
                self.end_if_flushed();
            }
            Err(_) if matches!(self.phase, Phase::Draining) => self.phase = Phase::Closed,
            Err(_) => self.reset = true,
        }
    }

    fn note_progress(&mut self) {
        if self.fwd_cnt.wrapping_sub(self.fwd_told) >= CREDIT_STEP {
            self.credit_wanted = true;
        }
    }

    fn end_if_flushed(&mut self) {
        if self.backlog.is_empty() {
            if self.guest_mute {
                // Fails only if the client is gone, which epoll reports as well.
                let _ = self.stream.shutdown(Shutdown::Write);
            }
            if matches!(self.phase, Phase::Draining) {
                self.phase = Phase::Closed;
            }
        }
    }
}

/// Whether the guest kept its side of the credit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FromGuest {
    Taken,
    /// More than it had credit for, or after it said that it would send no more.
    Violation,
}

fn kind_of(error: &VolatileMemoryError) -> Option<io::ErrorKind> {
    match error {
        VolatileMemoryError::IOError(error) => Some(error.kind()),
        _ => None,
    }
}
