//! Frames and the descriptors that travel with them.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Reply, Request};

/// Largest JSON text of a frame.
pub const MAX_FRAME_BYTES: usize = 256 * 1024;
/// Most descriptors with one frame (the kernel's own limit is 253).
pub const MAX_DESCRIPTORS: usize = 128;

/// A control conversation that broke.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket failed or timed out; the monitor may be gone.
    #[error("the control socket failed")]
    Socket(#[from] std::io::Error),
    /// The other side closed the connection.
    #[error("the other side of the control socket is gone")]
    Closed,
    /// A frame larger than [`MAX_FRAME_BYTES`] was announced.
    #[error("a control frame of {0} bytes was announced; at most {MAX_FRAME_BYTES} are allowed")]
    TooLarge(usize),
    /// More descriptors than [`MAX_DESCRIPTORS`].
    #[error("{0} descriptors do not fit one control frame")]
    TooManyDescriptors(usize),
    /// The JSON does not say a known message.
    #[error("a control frame could not be read")]
    Malformed(#[from] serde_json::Error),
}

/// One end of a control socket.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
}

impl Connection {
    /// Talks over `stream`.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream }
    }

    /// Bounds every single read and write; `None` waits for ever.
    pub fn set_timeout(&self, timeout: Option<Duration>) -> Result<(), ControlError> {
        self.stream.set_read_timeout(timeout)?;
        self.stream.set_write_timeout(timeout)?;
        Ok(())
    }

    /// Engine side: asks and waits for the answer.
    pub fn call(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<Reply, ControlError> {
        self.send(request, fds)?;
        Ok(self.receive::<Reply>()?.0)
    }

    /// Monitor side: the next request and its descriptors.
    pub fn next_request(&mut self) -> Result<(Request, Vec<OwnedFd>), ControlError> {
        self.receive()
    }

    /// Monitor side: the answer to the last request.
    pub fn answer(&mut self, reply: &Reply) -> Result<(), ControlError> {
        self.send(reply, &[])
    }

    fn send(&mut self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<(), ControlError> {
        if fds.len() > MAX_DESCRIPTORS {
            return Err(ControlError::TooManyDescriptors(fds.len()));
        }
        let body = serde_json::to_vec(message)?;
        let length = u32::try_from(body.len()).ok().filter(|n| *n as usize <= MAX_FRAME_BYTES);
        let header = length.ok_or(ControlError::TooLarge(body.len()))?.to_le_bytes();
        let mut frame = Vec::with_capacity(header.len() + body.len());
        frame.extend_from_slice(&header);
        frame.extend_from_slice(&body);

        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(ControlError::TooManyDescriptors(fds.len()));
        }
        let sent = rustix::io::retry_on_intr(|| {
            sendmsg(&self.stream, &[IoSlice::new(&frame)], &mut ancillary, SendFlags::NOSIGNAL)
        })
        .map_err(std::io::Error::from)?;
        self.stream.write_all(&frame[sent..])?;
        Ok(())
    }

    fn receive<T: DeserializeOwned>(&mut self) -> Result<(T, Vec<OwnedFd>), ControlError> {
        let mut header = [0u8; 4];
        let mut fds = Vec::new();
        let got = self.receive_with_descriptors(&mut header, &mut fds)?;
        self.read_exact(&mut header[got..])?;
        let length = u32::from_le_bytes(header) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(ControlError::TooLarge(length));
        }
        let mut body = vec![0; length];
        self.read_exact(&mut body)?;
        Ok((serde_json::from_slice(&body)?, fds))
    }

    fn receive_with_descriptors(
        &mut self,
        buf: &mut [u8],
        fds: &mut Vec<OwnedFd>,
    ) -> Result<usize, ControlError> {
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let message = rustix::io::retry_on_intr(|| {
            recvmsg(&self.stream, &mut [IoSliceMut::new(buf)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        })
        .map_err(std::io::Error::from)?;
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = part {
                fds.extend(passed);
            }
        }
        if message.bytes == 0 { Err(ControlError::Closed) } else { Ok(message.bytes) }
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> Result<(), ControlError> {
        match self.stream.read_exact(buf) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Err(ControlError::Closed),
            other => Ok(other?),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::control::{FdRole, Restore};

    fn pair() -> (Connection, Connection) {
        let (a, b) = UnixStream::pair().unwrap();
        (Connection::new(a), Connection::new(b))
    }

    #[test]
    fn a_request_arrives_with_its_descriptors() {
        let (mut engine, mut monitor) = pair();
        let file = File::open("/dev/null").unwrap();
        let request = Request::Restore(Restore {
            roles: vec![FdRole::State, FdRole::Console],
            run: true,
            generation: [7; 16],
        });
        let asking = std::thread::spawn({
            let request = request.clone();
            move || engine.call(&request, &[file.as_fd(), file.as_fd()]).unwrap()
        });
        let (got, fds) = monitor.next_request().unwrap();
        assert_eq!(got, request);
        assert_eq!(fds.len(), 2);
        monitor.answer(&Reply::Done { micros: 3 }).unwrap();
        assert_eq!(asking.join().unwrap(), Reply::Done { micros: 3 });
    }

    #[test]
    fn an_oversized_frame_is_refused_before_it_is_read() {
        let (a, mut b) = UnixStream::pair().unwrap();
        b.write_all(&u32::MAX.to_le_bytes()).unwrap();
        assert!(matches!(Connection::new(a).next_request(), Err(ControlError::TooLarge(_))));
    }

    #[test]
    fn a_cut_frame_is_closed_not_a_panic() {
        let (a, mut b) = UnixStream::pair().unwrap();
        b.write_all(&[9, 0, 0, 0, b'{']).unwrap();
        drop(b);
        assert!(matches!(Connection::new(a).next_request(), Err(ControlError::Closed)));
    }
}
