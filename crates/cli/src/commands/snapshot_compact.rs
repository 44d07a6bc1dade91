//! `forkd snapshot-compact`.

use forkd_protocol::names::Tag;
use forkd_protocol::rest::{CompactSnapshot, SnapshotInfo};

use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// Make a flat snapshot of one that lies on others.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd snapshot-compact --from pynp-b --to pynp-flat")]
pub(crate) struct Args {
    /// Snapshot to flatten; it stays as it is
    #[arg(long)]
    from: Tag,
    /// Name of the flat one
    #[arg(long)]
    to: Tag,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let step = context.ui.step(format!("Flattening {}", args.from));
    let request = CompactSnapshot { to: args.to.to_string() };
    let made: SnapshotInfo = client.post(&format!("/v1/snapshots/{}/compact", args.from), &request).await?;
    step.done("");
    context.ui.show(&made, |made| format!("{}: {} stored", made.tag, ui::size(made.memory_physical_bytes)));
    Ok(0)
}
