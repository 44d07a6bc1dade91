//! `forkd bench chain`.

use forkd_protocol::names::Tag;

use super::bench::{MEMORY_MIB, prepare};
use crate::bench::chain::{Bench, Made, Report};
use crate::bench::{Session, Stop};
use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// Measure whether forks of a long chain of snapshots cost more than those of a flat one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd bench chain\n  forkd bench chain --depth 3 --rounds 1 -n 2\n\n\
                  Removes the chain that it made. A benchmark reports: a goal that is not reached is no failure.")]
pub(crate) struct Args {
    /// Memory layers of the longest snapshot
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=256))]
    depth: u32,
    /// How often each snapshot is forked
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Children of each fork
    #[arg(short, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100))]
    n: u32,
    /// How much memory the changes are scattered over
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(4..=256))]
    mib: u64,
    /// How many single pages each step changes
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pages: u64,
    /// Snapshot with a warm numpy that the chain begins with, made where it does not exist
    #[arg(long, default_value = "bench-numpy")]
    tag: Tag,
    /// Leave the chain
    #[arg(long)]
    keep: bool,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let (client, ui) = (context.client().await?, &context.ui);
    let (snapshot, reused) = prepare(&client, ui, args.tag.as_str(), MEMORY_MIB).await?;
    if snapshot.chain_depth >= args.depth {
        let why = format!("{} has {} layers already", args.tag, snapshot.chain_depth);
        return Err(CliError::usage(why).with_hint("name a flat snapshot, or ask for more with --depth"));
    }
    let stop = Stop::when(super::interrupted());
    let session = Session::new(&client, ui, &stop);
    let Args { depth, rounds, n, mib, pages, keep, .. } = args;
    let bench = Bench { session, depth, mib, pages, rounds, n };
    let (mut report, mut made) = (Report::new(snapshot, reused), Made::default());
    let outcome = bench.run(&mut report, &mut made).await;
    let removed = if keep { Ok(()) } else { made.remove(session).await };
    report.kept = if keep { made.names() } else { Vec::new() };
    if let Err(e) = outcome {
        if report.is_empty() {
            return Err(e);
        }
        report.stopped = Some(ui::in_words(&e));
    }
    report.judge();
    ui.show(&report, Report::render);
    removed?;
    Ok(stop.code().unwrap_or(0))
}
