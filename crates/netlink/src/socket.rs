//! Asking the kernel over netlink. It answers while it is asked, so nothing here ever waits.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkDeserializable, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

/// A socket that speaks one of netlink's protocols, in the namespace of the thread that opened it.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

const ANSWER_ROOM: usize = 64 * 1024;

impl Netlink {
    /// `protocol` is one of [`netlink_sys::protocols`].
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_non_blocking(true)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends messages as one, and reads what became of each that wants to know. The first refusal is the error.
    ///
    /// # Errors
    /// The kernel's refusal, or what it answers is no message.
    pub fn send<M>(&mut self, messages: Vec<NetlinkMessage<M>>) -> io::Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        self.drain();
        let (mut bytes, mut wanted) = (Vec::new(), Vec::new());
        for mut message in messages {
            self.sequence = self.sequence.wrapping_add(1);
            message.header.sequence_number = self.sequence;
            message.header.flags |= NLM_F_REQUEST;
            if message.header.flags & NLM_F_ACK != 0 {
                wanted.push(self.sequence);
            }
            message.finalize();
            let start = bytes.len();
            bytes.resize(start + message.buffer_len(), 0);
            message.serialize(bytes.get_mut(start..).unwrap_or_default());
        }
        self.socket.send(&bytes, 0)?;
        while !wanted.is_empty() {
            let (sequence, said) = self.answer::<M>()?;
            said?;
            wanted.retain(|&one| one != sequence);
        }
        Ok(())
    }

    fn answer<M: NetlinkDeserializable>(&mut self) -> io::Result<(u32, io::Result<()>)> {
        let mut room = Vec::with_capacity(ANSWER_ROOM);
        self.socket.recv(&mut room, 0)?;
        let message = NetlinkMessage::<M>::deserialize(&room).map_err(io::Error::other)?;
        let said = match message.payload {
            NetlinkPayload::Error(e) => e.code.map_or(Ok(()), |_| Err(e.to_io())),
            _ => Ok(()),
        };
        Ok((message.header.sequence_number, said))
    }

    /// Takes out what an earlier refusal left unread.
    fn drain(&mut self) {
        let mut room = Vec::with_capacity(ANSWER_ROOM);
        while self.socket.recv(&mut room, libc::MSG_TRUNC).is_ok() {
            room.clear();
        }
    }
}
