//! Where forkd's published Python client looks for the sandbox that it had this program fork.
//!
//! It runs `forkd fork --tag TAG -n 1 --settle-secs 3600` and connects to `FORKD_TARGET` until that ends: an address of
//! this computer, wherever the controller is.

use std::time::Duration;

use forkd_controller::{Action, Outcome, answer_line};
use forkd_protocol::names::SandboxId;
use tokio::net::TcpListener;

use crate::client::Client;
use crate::error::CliError;

/// The address, for programs.
const TARGET: &str = "FORKD_TARGET";
/// What such a client takes where nobody names one.
const USUAL: &str = "10.42.0.2:8888";

/// After an accept that failed: descriptors may be short.
const AGAIN: Duration = Duration::from_millis(100);

/// An address that is ours, where nobody is answered yet.
#[derive(Debug)]
pub(crate) struct Target(TcpListener);

impl Target {
    /// Takes the address that clients are told; where they are told none, the usual one, if this computer has it.
    pub(crate) async fn take() -> Result<Option<Self>, CliError> {
        match std::env::var(TARGET).ok().filter(|at| !at.is_empty()) {
            Some(at) => {
                let taken = TcpListener::bind(&at).await;
                let listener =
                    taken.map_err(|e| CliError::io(format!("listening at {at}, which {TARGET} names"), e))?;
                Ok(Some(Self(listener)))
            }
            None => Ok(TcpListener::bind(USUAL).await.ok().map(Self)),
        }
    }

    /// Answers for a sandbox, as long as this is polled.
    pub(crate) async fn serve(self, client: &Client, id: &SandboxId) {
        loop {
            let Ok((stream, _)) = self.0.accept().await else {
                tokio::time::sleep(AGAIN).await;
                continue;
            };
            let (client, id) = (client.clone(), id.clone());
            tokio::spawn(async move {
                answer_line(stream, async |action| {
                    act(&client, &id, action).await.map_err(|e| e.to_string())
                })
                .await;
            });
        }
    }
}

async fn act(client: &Client, id: &SandboxId, action: Action) -> Result<Outcome, CliError> {
    let path = action.path(id);
    Ok(match action {
        Action::Ping => Outcome::Pong(client.post_empty(&path).await?),
        Action::Exec(request) => Outcome::Executed(client.post(&path, &request).await?),
        Action::Eval(request) => Outcome::Evaluated(client.post(&path, &request).await?),
    })
}
