//! One connection between a host client and a port of the guest.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use vm_memory::{GuestMemoryError, ReadVolatile, VolatileMemoryError, WriteVolatile};

use super::backlog::Backlog;
use super::packet::{
    HEADER_LEN, OP_CREDIT_REQUEST, OP_CREDIT_UPDATE, OP_REQUEST, OP_RST, OP_RW, OP_SHUTDOWN,
    SHUTDOWN_RECEIVE, SHUTDOWN_SEND,
};
use crate::GuestRam;
use crate::virtio::chain::{Segment, for_each_slice, total_len, write_bytes};

/// Bytes of one connection that the guest may have under way, and so the most that waits here for a slow
/// host client.
pub(super) const BUF_ALLOC: u32 = 256 * 1024;
/// Longest first line of a client, newline included.
pub(super) const MAX_LINE: usize = 32;
/// The guest is told of its credit when it has grown by this much.
const CREDIT_STEP: u32 = BUF_ALLOC / 4;
/// Most data in one packet.
const MAX_PACKET: u64 = 64 * 1024;
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

/// What the guest is to be sent next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outgoing {
    pub(super) op: u16,
    pub(super) flags: u32,
    pub(super) len: u32,
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

    /// Reads on in the client's first line. A client that says anything else is dropped.
    pub(super) fn shake_hands(&mut self) {
        while self.readable && matches!(self.phase, Phase::Handshake { .. }) {
            let mut bytes = [0; MAX_LINE];
            let room = MAX_LINE.saturating_sub(self.early.len());
            match self.stream.read(bytes.get_mut(..room).unwrap_or_default()) {
                Ok(0) => self.phase = Phase::Closed,
                Ok(len) => {
                    self.early.extend(bytes.iter().take(len));
                    self.parse_line();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(_) => self.phase = Phase::Closed,
            }
        }
    }

    fn parse_line(&mut self) {
        let Some(end) = self.early.iter().position(|byte| *byte == b'\n') else {
            if self.early.len() >= MAX_LINE {
                self.phase = Phase::Closed;
            }
            return;
        };
        // What follows the line in the same segment is data already.
        let rest = self.early.split_off(end + 1);
        let line = std::mem::replace(&mut self.early, rest);
        match port_of(line.get(..end).unwrap_or_default()) {
            Some(port) => {
                self.guest_port = port;
                self.phase = Phase::Requested { sent: false };
            }
            None => self.phase = Phase::Closed,
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

    /// Whether [`Connection::next_packet`] may have something. It is allowed to be wrong in that direction.
    pub(super) fn has_packets(&self) -> bool {
        match self.phase {
            Phase::Requested { sent: false } => true,
            Phase::Requested { sent: true } => self.reset || self.hung_up,
            Phase::Established => {
                self.reset || self.credit_wanted || self.wants_to_read() || self.due_shutdown() != 0
            }
            Phase::Handshake { .. } | Phase::Draining | Phase::Closed => false,
        }
    }

    fn wants_to_read(&self) -> bool {
        let pending = !self.early.is_empty() || (self.readable && !self.client_eof);
        pending && !self.guest_deaf && (self.guest_room() > 0 || !self.credit_asked)
    }

    fn guest_room(&self) -> u32 {
        self.guest_buf_alloc.saturating_sub(self.sent_cnt.wrapping_sub(self.guest_fwd_cnt))
    }

    fn due_shutdown(&self) -> u32 {
        let no_more = self.client_eof || (self.hung_up && self.guest_deaf);
        let flags = match (no_more, self.hung_up) {
            (false, _) => 0,
            (true, false) => SHUTDOWN_SEND,
            (true, true) => SHUTDOWN_SEND | SHUTDOWN_RECEIVE,
        };
        if flags & !self.shutdown_sent != 0 { flags } else { 0 }
    }

    /// Decides on the next packet; data goes into `segments`, behind the place of the header.
    pub(super) fn next_packet(&mut self, ram: &GuestRam, segments: &[Segment]) -> Option<Outgoing> {
        let packet = self.choose(ram, segments)?;
        // Every packet carries the count.
        self.fwd_told = self.fwd_cnt;
        self.credit_wanted = false;
        Some(packet)
    }

    fn choose(&mut self, ram: &GuestRam, segments: &[Segment]) -> Option<Outgoing> {
        let plain = |op| Some(Outgoing { op, flags: 0, len: 0 });
        match self.phase {
            Phase::Requested { sent: false } => {
                self.phase = Phase::Requested { sent: true };
                return plain(OP_REQUEST);
            }
            // The client did not wait for the answer.
            Phase::Requested { sent: true } if self.hung_up || self.reset => {
                self.phase = Phase::Closed;
                return plain(OP_RST);
            }
            Phase::Established => {}
            _ => return None,
        }
        if self.reset {
            let flushing = self.guest_mute && !self.backlog.is_empty() && !self.hung_up;
            self.phase = if flushing { Phase::Draining } else { Phase::Closed };
            return plain(OP_RST);
        }
        if self.wants_to_read() {
            if self.guest_room() == 0 {
                self.credit_asked = true;
                return plain(OP_CREDIT_REQUEST);
            }
            match self.read_client(ram, segments) {
                Ok(0) => {}
                Ok(len) => {
                    self.sent_cnt = self.sent_cnt.wrapping_add(len);
                    return Some(Outgoing { op: OP_RW, flags: 0, len });
                }
                Err(_) => {
                    self.phase = Phase::Closed;
                    return plain(OP_RST);
                }
            }
        }
        let flags = self.due_shutdown();
        if flags != 0 {
            self.shutdown_sent |= flags;
            if self.hung_up {
                // Nobody is left on this side. The guest reads what it has and closes in its own time; its
                // last packets are answered as those of an unknown connection.
                self.phase = Phase::Closed;
            }
            return Some(Outgoing { op: OP_SHUTDOWN, flags, len: 0 });
        }
        if self.credit_wanted { plain(OP_CREDIT_UPDATE) } else { None }
    }

    /// Moves bytes from the client into guest memory, as many as guest and buffers have room for; 0 means
    /// that there are none now.
    fn read_client(&mut self, ram: &GuestRam, segments: &[Segment]) -> io::Result<u32> {
        let room = total_len(segments).saturating_sub(HEADER).min(self.guest_room().into()).min(MAX_PACKET);
        if !self.early.is_empty() {
            let len = usize::try_from(room).unwrap_or(usize::MAX).min(self.early.len());
            let rest = self.early.split_off(len);
            let early = std::mem::replace(&mut self.early, rest);
            write_bytes(ram, segments, HEADER, &early).map_err(io::Error::other)?;
            return Ok(u32::try_from(len).unwrap_or(0));
        }
        let mut total = 0u32;
        let Self { stream, readable, client_eof, .. } = self;
        for_each_slice(ram, segments, HEADER..HEADER + room, |mut slice| {
            while *readable && !*client_eof && !slice.is_empty() {
                match stream.read_volatile(&mut slice) {
                    Ok(0) => *client_eof = true,
                    Ok(len) => {
                        total += u32::try_from(len).unwrap_or(0);
                        slice = slice.offset(len)?;
                    }
                    Err(error) => match kind_of(&error) {
                        Some(io::ErrorKind::Interrupted) => {}
                        Some(io::ErrorKind::WouldBlock) => *readable = false,
                        // What was read still counts; the error shows again at the next attempt.
                        _ if total > 0 => break,
                        _ => return Err(error.into()),
                    },
                }
            }
            Ok::<_, GuestMemoryError>(())
        })
        .map_err(io::Error::other)?;
        Ok(total)
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

/// The port in `CONNECT <port>`.
fn port_of(line: &[u8]) -> Option<u32> {
    let digits = line.strip_prefix(b"CONNECT ")?;
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_connect_line_names_a_port() {
        assert_eq!(port_of(b"CONNECT 52"), Some(52));
        assert_eq!(port_of(b"CONNECT 4294967295"), Some(u32::MAX));
        for line in [
            &b"CONNECT"[..],
            b"CONNECT ",
            b"CONNECT -1",
            b"CONNECT +1",
            b"CONNECT 4294967296",
            b"connect 1",
            b"CONNECT 1 ",
            b"CONNECT  1",
            b"CONNECT 1\r",
            b"GET / HTTP/1.1",
        ] {
            assert_eq!(port_of(line), None, "{}", String::from_utf8_lossy(line));
        }
    }
}
