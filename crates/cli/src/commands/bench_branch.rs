//! `forkd bench branch`.

use forkd_protocol::names::Tag;
use forkd_protocol::rest::SnapshotInfo;

use super::bench::prepare;
use crate::bench::branch::{Bench, Report, check_room};
use crate::bench::{Session, Stop};
use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// Memory of a snapshot that is made for this: 256 MiB are rewritten with room to spare.
const MEMORY_MIB: u64 = 1024;

/// Measure what branching costs the sandbox that is branched.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd bench branch\n  forkd bench branch --changed-mib 32\n  \
                  forkd bench branch --sizes 512,2048\n\n\
                  A sandbox ticks every millisecond while it is branched live, diff and full; the longest gap is what its \
                  workload notices. A benchmark reports: a goal that is not reached is no failure.")]
pub(crate) struct Args {
    /// How much the sandbox rewrites before each branch
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=8192))]
    changed_mib: u64,
    /// Snapshot with a warm numpy, made with 1024 MiB where it does not exist
    #[arg(long, default_value = "bench-branch")]
    tag: Tag,
    /// Also branch machines of these sizes, live; each is a snapshot more (TAG-SIZE), made where it does not exist
    #[arg(long, value_name = "MIB", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(256..=16384))]
    sizes: Vec<u64>,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    for size in &args.sizes {
        check_room(args.changed_mib, *size)?;
    }
    let (client, ui) = (context.client().await?, &context.ui);
    let (snapshot, reused) = prepare(&client, ui, args.tag.as_str(), MEMORY_MIB).await?;
    check_room(args.changed_mib, snapshot.memory_mib)?;
    let sizes = sized(&args, context).await?;
    let stop = Stop::when(super::interrupted());
    let bench = Bench { session: Session::new(&client, ui, &stop), changed_mib: args.changed_mib };
    let mut report = Report::new(snapshot, reused, args.changed_mib);
    let mut outcome = bench.run(&mut report).await;
    if outcome.is_ok() {
        outcome = bench.sizes(&sizes, &mut report).await;
    }
    if let Err(e) = outcome {
        if report.is_empty() {
            return Err(e);
        }
        report.stopped = Some(ui::in_words(&e));
    }
    report.judge();
    ui.show(&report, Report::render);
    Ok(stop.code().unwrap_or(0))
}

/// One snapshot for each size that was asked for.
async fn sized(args: &Args, context: &Context) -> Result<Vec<SnapshotInfo>, CliError> {
    let client = context.client().await?;
    let mut all = Vec::new();
    for size in &args.sizes {
        let tag: Tag = format!("{}-{size}", args.tag).parse()?;
        all.push(prepare(&client, &context.ui, tag.as_str(), *size).await?.0);
    }
    Ok(all)
}
