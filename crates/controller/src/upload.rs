//! Uploads: a body that is decompressed while it arrives, for a thread that may block.

use std::io::{self, Read};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use tokio_util::io::{StreamReader, SyncIoBridge};

use crate::error::ApiError;
use crate::progress::Teller;

/// A client that sends nothing for so long holds a thread for nothing.
const STALL: Duration = Duration::from_secs(60);
/// Largest window of a compressed body (2^27 bytes): what reading one may take of memory.
const WINDOW_LOG: u32 = 27;

/// The bytes behind a zstd-compressed body. How many there may be is decided where they are kept.
pub(crate) fn decompressed(body: Body) -> Result<impl Read + Send + 'static, ApiError> {
    let reader = SyncIoBridge::new(StreamReader::new(Box::pin(steady(body.into_data_stream()))));
    let failed =
        |e: io::Error| ApiError::new(http::StatusCode::INTERNAL_SERVER_ERROR, "internal", e.to_string());
    let mut decoder = zstd::Decoder::new(reader).map_err(failed)?;
    decoder.window_log_max(WINDOW_LOG).map_err(failed)?;
    Ok(decoder)
}

/// The stream with a bound on each wait.
fn steady(body: BodyDataStream) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::unfold(Some(body), |body| async move {
        let mut body = body?;
        match tokio::time::timeout(STALL, body.next()).await {
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some(body))),
            Ok(Some(Err(e))) => Some((Err(io::Error::other(e)), None)),
            Ok(None) => None,
            Err(_) => Some((Err(io::Error::new(io::ErrorKind::TimedOut, "nothing came for 60 s")), None)),
        }
    })
}

/// A reader that tells how much was read.
#[derive(Debug)]
pub(crate) struct Counted<R> {
    from: R,
    tell: Teller,
    read: u64,
    told: u64,
}

/// How often it is told, bytes.
const TOLD_EVERY: u64 = 64 << 20;

impl<R> Counted<R> {
    pub(crate) fn new(from: R, tell: Teller) -> Self {
        Self { from, tell, read: 0, told: 0 }
    }
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(into)?;
        self.read += n as u64;
        if self.read - self.told >= TOLD_EVERY || (n == 0 && self.read > self.told) {
            self.told = self.read;
            self.tell.line(format!("{} MiB taken in", self.read >> 20));
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(body: Body) -> io::Result<Vec<u8>> {
        let mut reader = decompressed(body).unwrap();
        let reading = tokio::task::spawn_blocking(move || {
            let mut out = Vec::new();
            reader.read_to_end(&mut out).map(|_| out)
        });
        reading.await.unwrap()
    }

    #[tokio::test]
    async fn a_body_is_unpacked_in_pieces_and_a_cut_one_is_an_error() {
        let text = vec![7u8; 3_000_000];
        let packed = zstd::encode_all(text.as_slice(), 1).unwrap();
        let pieces: Vec<io::Result<Bytes>> =
            packed.chunks(10).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
        assert_eq!(read(Body::from_stream(stream::iter(pieces))).await.unwrap(), text);
        let cut = packed[..packed.len() - 4].to_vec();
        assert_eq!(read(Body::from(cut)).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(read(Body::from("this is no zstd")).await.is_err());
    }

    #[test]
    fn how_much_was_read_is_told_now_and_then_and_at_the_end() {
        let (tell, mut heard) = crate::progress::channel();
        let length = 2 * TOLD_EVERY + (1 << 20);
        let mut counted = Counted::new(io::repeat(0).take(length), tell);
        assert_eq!(io::copy(&mut counted, &mut io::sink()).unwrap(), length);
        drop(counted);
        let lines: Vec<String> = std::iter::from_fn(|| heard.blocking_recv()).collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert_eq!(lines[2], "129 MiB taken in");
    }

    #[tokio::test]
    async fn a_broken_connection_is_an_error_not_an_end() {
        let packed = zstd::encode_all(&b"abc"[..], 1).unwrap();
        let pieces = vec![Ok(Bytes::from(packed)), Err(io::Error::other("gone"))];
        assert!(read(Body::from_stream(stream::iter(pieces))).await.is_err());
    }
}
