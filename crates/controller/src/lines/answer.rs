//! One connection: a line, and its answer.

use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::action::{Action, Outcome, written};

/// Longest line, bytes: as the body of a request to the API.
const MAX_LINE: u64 = 16 << 20;
/// How long a line may take to arrive, and an answer to be taken.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reads one line, has `call` do what it asks for, and writes what came of it; then the connection is over.
///
/// A refusal of `call` is for the client: what happened, to what, what to do. A client that leaves loses its answer.
pub async fn answer<S, F>(stream: S, call: F)
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: AsyncFnOnce(Action) -> Result<Outcome, String>,
{
    let mut stream = BufReader::new(stream);
    let line = match timeout(PATIENCE, line(&mut stream)).await {
        Ok(Some(line)) => line,
        // Nobody asks anything.
        Ok(None) => return,
        Err(_) => Err(format!("no line came in {} s", PATIENCE.as_secs())),
    };
    let outcome = match line.and_then(|line| Action::of(&line)) {
        Ok(action) => call(action).await,
        Err(refusal) => Err(refusal),
    };
    let sending = async {
        stream.write_all(&written(outcome)).await?;
        stream.shutdown().await
    };
    // A client that is gone, or takes nothing, has no use for it.
    let _ = timeout(PATIENCE, sending).await;
}

async fn line<S: AsyncRead + Unpin>(stream: &mut BufReader<S>) -> Option<Result<Vec<u8>, String>> {
    let mut line = Vec::new();
    match stream.take(MAX_LINE).read_until(b'\n', &mut line).await {
        Ok(0) | Err(_) => None,
        Ok(_) if line.last() != Some(&b'\n') && line.len() as u64 == MAX_LINE => {
            Some(Err(format!("the line is longer than {} MiB", MAX_LINE >> 20)))
        }
        Ok(_) => Some(Ok(line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client reads that sent these bytes and closed its side.
    async fn told(sent: &[u8]) -> String {
        let (mut client, server) = tokio::io::duplex(64);
        let serving = answer(server, async |action| match action {
            Action::Exec(request) => Err(format!("asked for {:?}", request.args)),
            other => Err(format!("{other:?}")),
        });
        let mut text = String::new();
        let asking = async {
            // It may be refused before it was read.
            let _ = client.write_all(sent).await;
            let _ = client.shutdown().await;
            client.read_to_string(&mut text).await.unwrap();
        };
        tokio::join!(serving, asking);
        text
    }

    #[tokio::test]
    async fn a_line_is_answered_with_a_line_also_without_its_end() {
        for end in ["\n", ""] {
            let text = told(format!(r#"{{"action":"exec","args":["ls"]}}{end}"#).as_bytes()).await;
            assert_eq!(text, "{\"error\":\"asked for [\\\"ls\\\"]\",\"exit_code\":1}\n");
        }
    }

    #[tokio::test]
    async fn a_page_in_a_browser_gets_nothing_done() {
        let text = told(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n{\"action\":\"ping\"}\n").await;
        assert!(text.contains("no JSON"), "{text}");
    }

    #[tokio::test]
    async fn silence_is_answered_with_silence() {
        assert_eq!(told(b"").await, "");
    }

    #[tokio::test]
    async fn a_line_without_end_is_refused() {
        let text = told(&vec![b' '; usize::try_from(MAX_LINE).unwrap() + 1]).await;
        assert!(text.contains("longer than 16 MiB"), "{text}");
    }
}
