//! `forkd rmi`.

use forkd_protocol::names::Tag;

use super::removal;
use crate::context::Context;
use crate::error::CliError;

/// Remove snapshots.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd rmi pynp\n\nOne that others descend from is removed with --cascade or --force only."
)]
pub(crate) struct Args {
    /// Snapshots
    #[arg(required = true)]
    tags: Vec<Tag>,
    /// Remove those that descend from them, too
    #[arg(long)]
    cascade: bool,
    /// Remove them alone; what others need of them stays
    #[arg(long, conflicts_with = "cascade")]
    force: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let query = match (args.cascade, args.force) {
        (true, _) => "?cascade=true",
        (false, true) => "?force=true",
        (false, false) => "",
    };
    removal::remove(&client, &context.ui, "/v1/snapshots", &args.tags, query).await
}
