//! `forkd rmi`.

use forkd_protocol::names::Tag;

use super::removal;
use crate::context::Context;
use crate::error::CliError;

/// Remove snapshots.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd rmi pynp")]
pub(crate) struct Args {
    /// Snapshots
    #[arg(required = true)]
    tags: Vec<Tag>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    removal::remove(&client, &context.ui, "/v1/snapshots", &args.tags).await
}
