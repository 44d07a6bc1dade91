//! What the guest is sent, and in which order.

use std::io;

use vm_memory::{GuestMemoryError, ReadVolatile};

use super::{Connection, HEADER, Phase, kind_of};
use crate::GuestRam;
use crate::virtio::chain::{Segment, for_each_slice, total_len, write_bytes};
use crate::vsock::packet::{
    OP_CREDIT_REQUEST, OP_CREDIT_UPDATE, OP_REQUEST, OP_RST, OP_RW, OP_SHUTDOWN, SHUTDOWN_RECEIVE,
    SHUTDOWN_SEND,
};

/// Most data in one packet.
const MAX_PACKET: u64 = 64 * 1024;

/// What the guest is to be sent next.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::vsock) struct Outgoing {
    pub(in crate::vsock) op: u16,
    pub(in crate::vsock) flags: u32,
    pub(in crate::vsock) len: u32,
}

impl Connection {
    /// Whether [`Connection::next_packet`] may have something. It is allowed to be wrong in that direction.
    pub(in crate::vsock) fn has_packets(&self) -> bool {
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
    pub(in crate::vsock) fn next_packet(&mut self, ram: &GuestRam, segments: &[Segment]) -> Option<Outgoing> {
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
