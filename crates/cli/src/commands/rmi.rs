//! `forkd rmi`.

use forkd_protocol::names::Tag;

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
    for tag in &args.tags {
        client.delete(&format!("/v1/snapshots/{tag}")).await?;
    }
    context.ui.show(&args.tags, |tags| tags.iter().map(|t| format!("{t}\n")).collect());
    Ok(0)
}
