//! `forkd snapshot refresh`.

use forkd_protocol::names::{KernelName, Tag};
use forkd_protocol::rest::RefreshSnapshot;

use super::snapshot::{follow, render};
use crate::context::Context;
use crate::error::CliError;

/// Make a snapshot again from its recorded image and warm-up, with the kernel, agent and monitor of now.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd snapshot refresh pynp\n  forkd snapshot refresh pynp --tag pynp-new"
)]
pub(crate) struct Args {
    /// Snapshot to make again
    from: Tag,
    /// Name of the new one (default: the same; until it is ready that names the old one)
    #[arg(long)]
    tag: Option<Tag>,
    /// Kernel (default: the newest in the store)
    #[arg(long, value_name = "NAME")]
    kernel: Option<KernelName>,
    /// Give up the warm-up after this long
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    warm_timeout: u64,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let step = context.ui.step(format!("Making snapshot {} again", args.from));
    let request = RefreshSnapshot {
        tag: args.tag.map(String::from),
        kernel: args.kernel.map(String::from),
        warm_timeout_secs: args.warm_timeout,
    };
    let made = follow(&client, &format!("/v1/snapshots/{}/refresh", args.from), &request, step).await?;
    context.ui.show(&made, render);
    Ok(0)
}
