//! `forkd bench`.

use std::path::PathBuf;

use forkd_protocol::names::Tag;
use forkd_protocol::rest::{CreateSnapshot, MAX_CHILDREN, SnapshotInfo};

use super::{bench_branch, bench_chain, bench_churn, bench_exec, quickstart, snapshot};
use crate::bench::bare::{self, Bare, elsewhere};
use crate::bench::product::Product;
use crate::bench::{Against, Report, Session, Stop};
use crate::client::Client;
use crate::context::Context;
use crate::error::CliError;
use crate::ui::{self, Ui};
use crate::upload::blocking;
use crate::{artifacts, host};

const COUNTS: [u32; 4] = [1, 10, 30, 100];
const BARE_COUNTS: [u32; 3] = [1, 10, 30];
/// Memory of a snapshot that is made for this.
pub(super) const MEMORY_MIB: u64 = 512;

/// Measure how fast forks are and what they cost.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example:\n  forkd bench --n 1,10\n  forkd bench --bare --n 30 --against 30:3120:5440\n  \
                  forkd bench branch\n  forkd bench chain\n\n\
                  A benchmark reports: a goal that is not reached is no failure."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// How many children in each round (default: 1,10,30,100; with --bare 1,10,30)
    #[arg(short, long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CHILDREN)))]
    n: Vec<u32>,
    /// Snapshot with a warm numpy, made where it does not exist
    #[arg(long, default_value = "bench-numpy", conflicts_with = "bare")]
    tag: Tag,
    /// How many warm evals are timed
    #[arg(long, default_value_t = 100, conflicts_with = "bare", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    calls: u32,
    /// The monitor alone: a busybox guest that answers pings on its serial line, no controller, no agent
    #[arg(long)]
    bare: bool,
    /// What another monitor took for the same, all milliseconds; once for each N
    #[arg(long, requires = "bare", value_name = "N:RESTORED:ANSWERED")]
    against: Vec<Against>,
    /// Kernel of the bare guest (default: the newest in the store where it runs)
    #[arg(long, requires = "bare", value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Folder for the bare guest's ramdisk and snapshot, which then stay (default: a temporary one)
    #[arg(long, requires = "bare", value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// What else is measured.
#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// What branching costs the sandbox that is branched: live, diff and full
    Branch(bench_branch::Args),
    /// Forks of a long chain of snapshots against forks of a flat one
    Chain(bench_chain::Args),
    /// What forks and kills leave behind on the host, again and again
    Churn(bench_churn::Args),
    /// What forkd adds to commands and evaluations, beside an echo
    Exec(bench_exec::Args),
}

pub(crate) async fn run(mut args: Args, context: &Context) -> Result<u8, CliError> {
    match args.verb.take() {
        Some(Verb::Branch(args)) => bench_branch::run(args, context).await,
        Some(Verb::Chain(args)) => bench_chain::run(args, context).await,
        Some(Verb::Churn(args)) => bench_churn::run(args, context).await,
        Some(Verb::Exec(args)) => bench_exec::run(args, context).await,
        None if args.bare => bare(args, context).await,
        None => product(args, context).await,
    }
}

async fn product(args: Args, context: &Context) -> Result<u8, CliError> {
    let (client, ui) = (context.client().await?, &context.ui);
    let (snapshot, reused) = prepare(&client, ui, args.tag.as_str(), MEMORY_MIB).await?;
    let stop = Stop::when(super::interrupted());
    let product = Product::new(Session::new(&client, ui, &stop), args.tag.as_str());
    let counts = if args.n.is_empty() { COUNTS.to_vec() } else { args.n };
    let (rounds, broke) = product.rounds(&counts).await;
    let (eval, no_eval) = match product.evals(args.calls).await {
        Ok(eval) => (Some(eval), None),
        Err(e) => (None, Some(e)),
    };
    let stopped = match (rounds.is_empty() && eval.is_none(), broke.or(no_eval)) {
        (true, Some(e)) => return Err(e),
        (_, why) => why.map(|e| ui::in_words(&e)),
    };
    let mut report = Report { snapshot, reused, rounds, stopped, eval, goals: Vec::new() };
    report.judge();
    ui.show(&report, Report::render);
    Ok(stop.code().unwrap_or(0))
}

/// The snapshot to fork from, made with that much memory where it does not exist, and whether it was there already.
pub(super) async fn prepare(
    client: &Client,
    ui: &Ui,
    tag: &str,
    memory_mib: u64,
) -> Result<(SnapshotInfo, bool), CliError> {
    let all: Vec<SnapshotInfo> = client.get("/v1/snapshots").await?;
    if let Some(snapshot) = all.into_iter().find(|s| s.tag == tag) {
        return Ok((snapshot, true));
    }
    quickstart::ensure_image(client, ui).await?;
    let plain = snapshot::plainly(tag, quickstart::IMAGE, Some(quickstart::WARM));
    let wanted = CreateSnapshot { memory_mib, ..plain };
    Ok((snapshot::create(client, ui, &wanted).await?, false))
}

async fn bare(args: Args, context: &Context) -> Result<u8, CliError> {
    let probe = blocking(host::probe).await??;
    if !probe.is_usable() {
        // Where the controller runs, there is KVM; with it comes the kernel.
        let client = context.client().await?;
        artifacts::ensure_kernel(&client, &context.ui).await?;
        return elsewhere::run(&client, &context.ui);
    }
    let stop = Stop::when(super::interrupted());
    let counts = if args.n.is_empty() { BARE_COUNTS.to_vec() } else { args.n };
    let kernel = args.kernel.or_else(|| bare::kernel(&super::default_root()));
    let kernel = match kernel {
        Some(kernel) => kernel,
        None => artifacts::kernel_image(&context.ui).await?,
    };
    let (ui, listening) = (context.ui.clone(), stop.clone());
    let report = blocking(move || {
        let bare = Bare::new(&ui, listening, kernel, args.dir)?;
        bare.run(&counts, &args.against)
    })
    .await??;
    context.ui.show(&report, bare::Report::render);
    Ok(stop.code().unwrap_or(0))
}
