//! `forkd gc`.

use forkd_protocol::rest::GarbageReport;

use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// Remove stored content that nothing names.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd gc --dry-run")]
pub(crate) struct Args {
    /// Only say what would go
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let report: GarbageReport = client.post_empty(&format!("/v1/gc?dry_run={}", args.dry_run)).await?;
    context.ui.show(&report, render);
    Ok(0)
}

fn render(report: &GarbageReport) -> String {
    if report.items.is_empty() {
        return "nothing to remove".to_owned();
    }
    let rows = report.items.iter().map(|i| [i.kind.clone(), i.name.clone(), ui::size(i.bytes)]);
    let what = if report.dry_run { "would be freed" } else { "freed" };
    format!("{}{} {what}\n", ui::table(&["KIND", "NAME", "SIZE"], rows), ui::size(report.bytes))
}
