//! Sending large files to the controller: compressed while they are read, a bar while they go.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::{ImageInfo, KernelInfo};
use forkd_store::make::{MadeImage, MadeKernel};
use forkd_store::write_sparse;
use http::{Method, header};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use crate::client::{self, Client};
use crate::error::{BoxError, CliError};
use crate::parse::percent;
use crate::ui::Ui;

/// Fast rather than small: the far end is mostly this computer.
const LEVEL: i32 = 1;
/// Bytes handed on at a time, and how many such pieces wait at most.
const PIECE: usize = 256 << 10;
const WAITING: usize = 8;
/// How often the bar moves.
const TICK: Duration = Duration::from_millis(200);

/// Sends an image.
pub(crate) async fn image(
    client: &Client,
    ui: &Ui,
    name: &str,
    made: &MadeImage,
) -> Result<ImageInfo, CliError> {
    let total = stored(&made.path)?;
    let path = format!("/v1/images/{}?origin={}", percent(name), percent(&made.origin));
    let file = made.path.clone();
    let feed = move |out: &mut dyn Write| write_sparse(&file, out);
    put(client, ui, &format!("Storing image {name}"), &path, total, feed).await
}

/// Sends a kernel with its modules, as a tar of both.
pub(crate) async fn kernel(client: &Client, ui: &Ui, made: &MadeKernel) -> Result<KernelInfo, CliError> {
    let total = length(&made.vmlinuz)? + length(&made.modules)?;
    let path = format!("/v1/kernels/{}", percent(made.name.as_str()));
    let (vmlinuz, modules) = (made.vmlinuz.clone(), made.modules.clone());
    let feed = move |out: &mut dyn Write| {
        let mut tar = tar::Builder::new(out);
        tar.append_file("vmlinuz", &mut File::open(&vmlinuz)?)?;
        tar.append_file("modules.cpio", &mut File::open(&modules)?)?;
        tar.finish()
    };
    put(client, ui, &format!("Storing kernel {}", made.name), &path, total, feed).await
}

fn length(path: &Path) -> Result<u64, CliError> {
    let found =
        std::fs::metadata(path).map_err(|e| CliError::io(format!("reading {}", path.display()), e))?;
    Ok(found.len())
}

/// Bytes that a sparse file has on disk: what is sent of it, nearly.
fn stored(path: &Path) -> Result<u64, CliError> {
    let found =
        std::fs::metadata(path).map_err(|e| CliError::io(format!("reading {}", path.display()), e))?;
    Ok(found.len().min(found.blocks().saturating_mul(512)))
}

async fn put<T, F>(
    client: &Client,
    ui: &Ui,
    what: &str,
    path: &str,
    total: u64,
    feed: F,
) -> Result<T, CliError>
where
    T: DeserializeOwned,
    F: FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(WAITING);
    let done = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&done);
    let feeder = tokio::task::spawn_blocking(move || compress(sender, counter, feed));
    let body = client::streamed(futures::stream::unfold(receiver, |mut r| async move {
        let piece = r.recv().await?;
        Some((piece, r))
    }));
    let request =
        client.request(Method::PUT, path).header(header::CONTENT_TYPE, "application/zstd").body(body);

    let mut step = ui.step(what);
    step.bytes(total);
    let mut tick = tokio::time::interval(TICK);
    let mut answer = std::pin::pin!(client.json(request));
    let answer = loop {
        tokio::select! {
            answer = &mut answer => break answer,
            _ = tick.tick() => step.at(done.load(Ordering::Relaxed)),
        }
    };
    match answer {
        Ok(answer) => {
            step.done("");
            Ok(answer)
        }
        // A file that cannot be read shows at the far end only as a broken upload: the cause is here.
        Err(e @ CliError::Unreachable { .. }) if feeder.is_finished() => match feeder.await {
            Ok(Err(cause)) if cause.kind() != io::ErrorKind::BrokenPipe => Err(CliError::io(what, cause)),
            _ => Err(e),
        },
        Err(e) => Err(e),
    }
}

/// Runs `feed` into a compressor whose output goes to the channel.
fn compress<F>(sender: mpsc::Sender<Result<Bytes, BoxError>>, done: Arc<AtomicU64>, feed: F) -> io::Result<()>
where
    F: FnOnce(&mut dyn Write) -> io::Result<()>,
{
    let abort = sender.clone();
    let outcome = (|| {
        let pieces = io::BufWriter::with_capacity(PIECE, Pieces { sender });
        let mut counted = Counted { inner: zstd::Encoder::new(pieces, LEVEL)?, done };
        feed(&mut counted)?;
        counted.inner.finish()?.flush()
    })();
    if let Err(e) = &outcome {
        // Without this the far end would take what came so far for the whole.
        let _ = abort.blocking_send(Err(e.to_string().into()));
    }
    outcome
}

/// Counts what is written into a compressor.
struct Counted<W> {
    inner: W,
    done: Arc<AtomicU64>,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.done.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Hands what is written to a request body.
struct Pieces {
    sender: mpsc::Sender<Result<Bytes, BoxError>>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.sender.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs something that blocks, such as making an image, beside the rest.
pub(crate) async fn blocking<T, F>(work: F) -> Result<T, CliError>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let outcome = tokio::task::spawn_blocking(work).await;
    outcome.map_err(|e| CliError::caused(ErrorClass::Internal, "a task broke", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fed_arrives_compressed_and_an_error_is_passed_on() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (sender, mut receiver) = mpsc::channel(WAITING);
        let done = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&done);
        let feeder = std::thread::spawn(move || {
            compress(sender, counter, |out| {
                out.write_all(&[7; 1_000_000])?;
                Err(io::Error::other("broken"))
            })
        });
        let mut got = Vec::new();
        let error = runtime.block_on(async {
            loop {
                match receiver.recv().await {
                    Some(Ok(piece)) => got.extend(piece),
                    Some(Err(e)) => break e.to_string(),
                    None => panic!("no error arrived"),
                }
            }
        });
        assert_eq!(error, "broken");
        assert!(feeder.join().unwrap().is_err());
        assert_eq!(done.load(Ordering::Relaxed), 1_000_000);
    }

    #[test]
    fn the_stream_unpacks_to_what_was_fed() {
        let (sender, mut receiver) = mpsc::channel(WAITING);
        let text = "forkd ".repeat(100_000);
        let fed = text.clone();
        let feeder =
            std::thread::spawn(move || compress(sender, Arc::default(), |out| out.write_all(fed.as_bytes())));
        let mut got = Vec::new();
        while let Some(piece) = receiver.blocking_recv() {
            got.extend(piece.unwrap());
        }
        feeder.join().unwrap().unwrap();
        assert_eq!(zstd::decode_all(got.as_slice()).unwrap(), text.as_bytes());
    }
}
