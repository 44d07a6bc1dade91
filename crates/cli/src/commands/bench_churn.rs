//! `forkd bench churn`.

use forkd_protocol::names::Tag;

use super::bench::{MEMORY_MIB, prepare};
use crate::bench::Stop;
use crate::bench::churn::{Churn, Report};
use crate::context::Context;
use crate::error::CliError;

/// Exit code where something is left behind.
const EXIT_GROWN: u8 = 1;

/// Fork and kill again and again, and count what is left: namespaces, cgroups, processes, descriptors, disk, memory.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd bench churn --cycles 100\n  forkd bench churn --cycles 1000 --kill-controller 100\n\n\
                  Ends with 1 where there is more of anything than before. Other work on the host counts, too.\n\
                  Whoever supervises the controller starts it again after it was killed."
)]
pub(crate) struct Args {
    /// How often children are forked and killed
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cycles: u32,
    /// Children of each cycle
    #[arg(short, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    n: u32,
    /// In how many of the cycles the controller is killed (kill -9) while the children run
    #[arg(long, value_name = "K", default_value_t = 0)]
    kill_controller: u32,
    /// Snapshot with a warm numpy, made where it does not exist
    #[arg(long, default_value = "bench-numpy")]
    tag: Tag,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    prepare(&context.client().await?, &context.ui, args.tag.as_str(), MEMORY_MIB).await?;
    let stop = Stop::when(super::interrupted());
    let kills = args.kill_controller.min(args.cycles);
    let churn = Churn { tag: args.tag.as_str(), cycles: args.cycles, n: args.n, kills };
    let report = churn.run(context, &stop).await?;
    context.ui.show(&report, Report::render);
    let verdict = if report.is_clean() { 0 } else { EXIT_GROWN };
    Ok(stop.code().unwrap_or(verdict))
}
