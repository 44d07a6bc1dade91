//! `forkd kill`.

use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::SandboxInfo;
use futures::StreamExt;

use super::removal;
use crate::client::Client;
use crate::context::Context;
use crate::error::CliError;

/// How many are ended side by side.
const SIDE_BY_SIDE: usize = 8;

/// End sandboxes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd kill sb-6a2f-0001 sb-6a2f-0002\n  forkd kill --all")]
pub(crate) struct Args {
    /// Sandboxes
    #[arg(required_unless_present = "all")]
    ids: Vec<SandboxId>,
    /// Every sandbox there is
    #[arg(long, conflicts_with = "ids")]
    all: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let ids = if args.all { every(&client).await? } else { args.ids };
    let (killed, failed) = kill(&client, ids).await;
    removal::report(&context.ui, &killed, failed)
}

async fn every(client: &Client) -> Result<Vec<SandboxId>, CliError> {
    let all: Vec<SandboxInfo> = client.get("/v1/sandboxes").await?;
    all.into_iter().map(|s| s.id.parse().map_err(CliError::from)).collect()
}

/// Ends sandboxes side by side. With `--all` one that ended meanwhile is fine; a named one that does not
/// exist is an error.
pub(crate) async fn kill(client: &Client, ids: Vec<SandboxId>) -> (Vec<String>, Vec<CliError>) {
    let outcomes = futures::stream::iter(ids)
        .map(|id| async move { (client.delete(&format!("/v1/sandboxes/{id}")).await, id) })
        .buffered(SIDE_BY_SIDE)
        .collect::<Vec<_>>()
        .await;
    let (mut killed, mut failed) = (Vec::new(), Vec::new());
    for (outcome, id) in outcomes {
        match outcome {
            Ok(()) => killed.push(id.to_string()),
            Err(e) => failed.push(e),
        }
    }
    (killed, failed)
}

/// Ends one sandbox, whether or not it is still there.
pub(crate) async fn end(client: &Client, id: &str) -> Result<(), CliError> {
    match client.delete(&format!("/v1/sandboxes/{id}")).await {
        Err(e) if e.class() == Some(ErrorClass::NotFound) => Ok(()),
        other => other,
    }
}
