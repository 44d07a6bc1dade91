//! Telling a restored guest that its connections are gone, before it gets new ones.

use crate::virtio::Rings;
use crate::virtio::chain::{Buffers, write_bytes};

use super::device::EVENT_QUEUE;

/// `VIRTIO_VSOCK_EVENT_TRANSPORT_RESET`, a 32-bit little endian number.
const TRANSPORT_RESET: [u8; 4] = [0; 4];
/// An event is one small buffer; some drivers may split it.
const MAX_BUFFERS: usize = 4;

/// Whether new connections may be opened.
///
/// Linux resets the connected sockets in the work item that handles the event, and puts the event's buffer
/// back after that. A connection opened between the event and that moment would be reset as well, so the
/// device waits for the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    /// The event is still to be sent.
    ResetDue,
    /// The event is sent; the guest's ring index then was `seen`.
    ResetSent {
        seen: u16,
    },
}

impl Gate {
    /// Goes as far as the guest lets it; `true` when connections may be opened.
    pub(super) fn advance(&mut self, rings: &mut Rings<'_>, buffers: &mut Buffers) -> bool {
        if *self == Self::ResetDue {
            self.send(rings, buffers);
        }
        if let Self::ResetSent { seen } = *self
            && rings.avail_index(EVENT_QUEUE).is_some_and(|index| index != seen)
        {
            *self = Self::Open;
        }
        *self == Self::Open
    }

    fn send(&mut self, rings: &mut Rings<'_>, buffers: &mut Buffers) {
        while let Some(chain) = rings.pop(EVENT_QUEUE) {
            // Read before the event is handed over: afterwards the guest may be quicker than this thread.
            let Some(seen) = rings.avail_index(EVENT_QUEUE) else { return };
            let sent = chain.collect(MAX_BUFFERS, buffers).is_ok()
                && matches!(write_bytes(rings.ram(), buffers.writable(), 0, &TRANSPORT_RESET), Ok(4));
            if !sent {
                rings.fault();
                rings.put(EVENT_QUEUE, chain.head(), 0);
                continue;
            }
            rings.put(EVENT_QUEUE, chain.head(), 4);
            let returned = rings.notify_after(EVENT_QUEUE, seen);
            *self = if returned { Self::Open } else { Self::ResetSent { seen } };
            return;
        }
    }
}
