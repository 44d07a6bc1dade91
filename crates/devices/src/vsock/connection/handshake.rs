//! A client's first line: `CONNECT <port>`.

use std::io::{self, Read};

use super::{Connection, Phase};

/// Longest first line of a client, newline included.
const MAX_LINE: usize = 32;

impl Connection {
    /// Reads on in the client's first line. A client that says anything else is dropped.
    pub(in crate::vsock) fn shake_hands(&mut self) {
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
