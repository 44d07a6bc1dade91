//! `forkd bench exec`.

use forkd_protocol::names::Tag;

use super::bench::{MEMORY_MIB, prepare};
use crate::bench::exec::{Exec, Report};
use crate::bench::{Session, Stop};
use crate::context::Context;
use crate::error::CliError;

/// What forkd adds to evals and commands, against an echo on the same way; how fast output streams, against a copy.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd bench exec\n  forkd bench exec --calls 100 --stream-mib 16 --json")]
pub(crate) struct Args {
    /// How many round trips of each kind
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    calls: u32,
    /// How much output is streamed, MiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    stream_mib: u64,
    /// Snapshot with a warm numpy, made where it does not exist
    #[arg(long, default_value = "bench-numpy")]
    tag: Tag,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    prepare(&client, &context.ui, args.tag.as_str(), MEMORY_MIB).await?;
    let stop = Stop::when(super::interrupted());
    let exec = Exec { tag: args.tag.as_str(), calls: args.calls, stream_mib: args.stream_mib };
    let report = exec.run(Session::new(&client, &context.ui, &stop)).await?;
    context.ui.show(&report, Report::render);
    Ok(stop.code().unwrap_or(0))
}
