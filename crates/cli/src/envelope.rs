//! Envelopes of the Connect protocol: one flag byte, a big-endian length, that many bytes.

/// Longest envelope that is read; agents send pieces of output of at most 32 KiB.
const MAX_ENVELOPE: usize = 16 << 20;
/// Flag of the last envelope of a stream.
const END: u8 = 0b10;
const HEADER: usize = 5;

/// One envelope of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Envelope {
    /// A message.
    Message(Vec<u8>),
    /// How the stream ended.
    End(Vec<u8>),
}

/// Why a stream is no stream of envelopes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvelopeError {
    /// Larger than any that is sent.
    #[error("an envelope of {0} bytes is too large")]
    TooLarge(usize),
    /// Compressed, which nobody asked for, or flags that are unknown.
    #[error("an envelope has the unknown flags {0:#x}")]
    Flags(u8),
}

/// Takes a byte stream apart into envelopes.
#[derive(Debug, Default)]
pub(crate) struct Decoder {
    pending: Vec<u8>,
}

impl Decoder {
    /// Takes more bytes of the stream.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next envelope, where it is whole.
    pub(crate) fn next(&mut self) -> Result<Option<Envelope>, EnvelopeError> {
        let Some((header, rest)) = self.pending.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [flags, length @ ..] = *header;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > MAX_ENVELOPE {
            return Err(EnvelopeError::TooLarge(length));
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let payload = payload.to_vec();
        self.pending.drain(..HEADER + length);
        match flags {
            0 => Ok(Some(Envelope::Message(payload))),
            END => Ok(Some(Envelope::End(payload))),
            other => Err(EnvelopeError::Flags(other)),
        }
    }
}

/// A message as it is sent.
pub(crate) fn encode(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], length.to_be_bytes().as_slice(), message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(decoder: &mut Decoder) -> Result<Vec<Envelope>, EnvelopeError> {
        std::iter::from_fn(|| decoder.next().transpose()).collect()
    }

    #[test]
    fn envelopes_are_found_wherever_the_stream_is_cut() {
        let mut stream = encode(b"one");
        stream.extend(encode(b""));
        stream.extend([2, 0, 0, 0, 2]);
        stream.extend(b"{}");
        let expected =
            [Envelope::Message(b"one".to_vec()), Envelope::Message(vec![]), Envelope::End(b"{}".to_vec())];
        for cut in 0..=stream.len() {
            let mut decoder = Decoder::default();
            decoder.push(&stream[..cut]);
            let mut got = all(&mut decoder).unwrap();
            decoder.push(&stream[cut..]);
            got.extend(all(&mut decoder).unwrap());
            assert_eq!(got, expected, "cut at {cut}");
        }
    }

    #[test]
    fn lying_lengths_and_unknown_flags_are_refused() {
        let mut decoder = Decoder::default();
        decoder.push(&[0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(decoder.next(), Err(EnvelopeError::TooLarge(0xffff_ffff)));
        let mut decoder = Decoder::default();
        decoder.push(&[1, 0, 0, 0, 0]);
        assert_eq!(decoder.next(), Err(EnvelopeError::Flags(1)));
    }
}
