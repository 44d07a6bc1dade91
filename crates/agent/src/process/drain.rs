//! Reading a process's output to its end.
//!
//! The end of output and the end of the process are two things: descendants left in the background hold the pipe
//! open for as long as they live. So output is complete at end of file, or, once the main process ended, when all
//! that was in the pipe at that moment was read and [`GRACE`] has passed. Nothing that the main process
//! wrote is ever cut, however slow the consumer.

use std::io;
use std::time::Duration;

use tokio::sync::watch;

use super::spawner::Ended;
use super::stream::Stream;

/// Most bytes handed on at once; what clients of the sandbox API are used to.
pub(crate) const CHUNK: usize = 32 * 1024;
/// How long descendants may add to the output after the main process ended.
const GRACE: Duration = Duration::from_millis(200);

/// Hands everything read to `sink`. True where the stream ended, false where descendants still hold it.
pub(crate) async fn drain<F>(
    stream: &Stream,
    mut ended: watch::Receiver<Option<Ended>>,
    mut sink: F,
) -> io::Result<bool>
where
    F: AsyncFnMut(&[u8]),
{
    let mut buffer = vec![0; CHUNK];
    let at = loop {
        tokio::select! {
            read = stream.read(&mut buffer) => match read? {
                0 => return Ok(true),
                count => sink(&buffer[..count]).await,
            },
            state = ended.wait_for(Option::is_some) => match state.ok().and_then(|state| *state) {
                Some(state) => break state.at,
                // The table of children is gone, and with it the agent.
                None => return Ok(true),
            },
        }
    };
    let mut left = stream.pending();
    while left > 0 {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(true);
        }
        sink(&buffer[..count]).await;
        left = left.saturating_sub(count);
    }
    let deadline = at + GRACE;
    while let Ok(read) = tokio::time::timeout_at(deadline, stream.read(&mut buffer)).await {
        match read? {
            0 => return Ok(true),
            count => sink(&buffer[..count]).await,
        }
    }
    Ok(false)
}

/// Reads to the end and forgets it, so that a descendant left behind is neither blocked nor ended by its output.
pub(crate) async fn discard(stream: Stream) {
    let mut buffer = vec![0; CHUNK];
    while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
}
