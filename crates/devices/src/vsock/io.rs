//! Packets in both directions.

use super::connection::{BUF_ALLOC, Connection, FromGuest, Phase};
use super::device::{HOST_CID, MAX_BACKLOG_TOTAL, RX_QUEUE, TX_QUEUE, Vsock};
use super::packet::{
    HEADER_LEN, Header, OP_CREDIT_REQUEST, OP_CREDIT_UPDATE, OP_RESPONSE, OP_RST, OP_RW, OP_SHUTDOWN,
    TYPE_STREAM,
};
use crate::GuestRam;
use crate::virtio::Rings;
use crate::virtio::chain::{Buffers, read_bytes, total_len, write_bytes};

/// Most buffers of a packet: a header and the fragments of the largest socket buffer, with room to spare.
const MAX_BUFFERS: usize = 128;
/// Most resets that wait for a buffer. A guest that provokes more without taking any loses the rest.
const MAX_RESETS: usize = 256;

impl Vsock {
    /// Takes what the guest sent.
    pub(super) fn receive(&mut self, rings: &mut Rings<'_>) {
        while let Some(chain) = rings.pop(TX_QUEUE) {
            let mut bytes = [0; HEADER_LEN];
            let whole = chain.collect(MAX_BUFFERS, &mut self.buffers).is_ok()
                && read_bytes(rings.ram(), self.buffers.readable(), 0, &mut bytes)
                    .is_ok_and(|len| len == HEADER_LEN);
            let header = Header::parse(&bytes);
            let room = total_len(self.buffers.readable()).saturating_sub(HEADER_LEN as u64);
            if whole && u64::from(header.len) <= room {
                self.dispatch(&header, rings);
            } else {
                rings.fault();
            }
            rings.put(TX_QUEUE, chain.head(), 0);
        }
    }

    fn dispatch(&mut self, header: &Header, rings: &mut Rings<'_>) {
        let from_us = header.src_cid == self.guest_cid && header.dst_cid == HOST_CID;
        let port = header.dst_port;
        let known = self.connections.get_mut(&port).filter(|connection| {
            let talking = matches!(connection.phase, Phase::Requested { sent: true } | Phase::Established);
            from_us && header.kind == TYPE_STREAM && talking && connection.guest_port == header.src_port
        });
        let Some(connection) = known else {
            return self.answer_unknown(header, rings);
        };
        connection.note_credit(header.buf_alloc, header.fwd_cnt);
        if !deliver(connection, header, rings, &self.buffers, self.backlog_total) {
            rings.fault();
        }
        self.tend(port);
    }

    /// A packet of no connection is answered with a reset. Not so a reset, which would go back and forth,
    /// nor credit: a guest may still be reading what a connection that ended here has sent it.
    fn answer_unknown(&mut self, header: &Header, rings: &mut Rings<'_>) {
        if matches!(header.op, OP_RST | OP_CREDIT_UPDATE | OP_CREDIT_REQUEST) {
            return;
        }
        if self.resets.len() < MAX_RESETS {
            self.resets.push_back(header.reset_for());
        } else {
            rings.fault();
        }
    }

    /// Sends the guest what there is for it, one packet per connection in turn, as long as it has room.
    pub(super) fn send(&mut self, rings: &mut Rings<'_>) {
        while !self.resets.is_empty() || !self.ready.is_empty() {
            let Some(chain) = rings.pop(RX_QUEUE) else { return };
            let usable = chain.collect(MAX_BUFFERS, &mut self.buffers).is_ok()
                && total_len(self.buffers.writable()) > HEADER_LEN as u64;
            if !usable {
                rings.fault();
                rings.put(RX_QUEUE, chain.head(), 0);
                continue;
            }
            match self.fill(rings.ram()) {
                Some(header) => {
                    // The buffers were checked and are long enough.
                    let _ = write_bytes(rings.ram(), self.buffers.writable(), 0, &header.bytes());
                    let len = u32::try_from(HEADER_LEN).map_or(0, |own| header.len.saturating_add(own));
                    rings.put(RX_QUEUE, chain.head(), len);
                }
                None => rings.undo_pop(RX_QUEUE),
            }
        }
    }

    /// Puts the next packet's data into `self.buffers` and gives back its header.
    fn fill(&mut self, ram: &GuestRam) -> Option<Header> {
        if let Some(reset) = self.resets.pop_front() {
            return Some(reset);
        }
        while let Some(port) = self.ready.pop_front() {
            let Some(connection) = self.connections.get_mut(&port) else { continue };
            connection.queued = false;
            let packet = connection.next_packet(ram, self.buffers.writable());
            let header = packet.map(|packet| Header {
                src_cid: HOST_CID,
                dst_cid: self.guest_cid,
                src_port: port,
                dst_port: connection.guest_port,
                len: packet.len,
                kind: TYPE_STREAM,
                op: packet.op,
                flags: packet.flags,
                buf_alloc: BUF_ALLOC,
                fwd_cnt: connection.fwd_cnt(),
            });
            self.tend(port);
            if header.is_some() {
                return header;
            }
        }
        None
    }
}

/// Gives a packet to its connection; `false` if the guest broke the protocol, for which the connection is
/// reset.
fn deliver(
    connection: &mut Connection,
    header: &Header,
    rings: &Rings<'_>,
    buffers: &Buffers,
    backlog_total: usize,
) -> bool {
    match (header.op, connection.phase) {
        (OP_RESPONSE, Phase::Requested { .. }) => connection.accepted(header.dst_port),
        (OP_RST, _) => connection.guest_reset(),
        (OP_SHUTDOWN, Phase::Established) => connection.guest_shutdown(header.flags),
        (OP_RW, Phase::Established) => {
            let fits = backlog_total.saturating_add(header.len as usize) <= MAX_BACKLOG_TOTAL;
            if !fits {
                connection.must_reset();
                return false;
            }
            let taken = connection.take(rings.ram(), buffers.readable(), header.len);
            return taken == FromGuest::Taken;
        }
        (OP_CREDIT_UPDATE, _) => {}
        (OP_CREDIT_REQUEST, _) => connection.want_credit_update(),
        // Among them REQUEST: the guest must not open connections, least of all this one again.
        _ => {
            connection.must_reset();
            return false;
        }
    }
    true
}
