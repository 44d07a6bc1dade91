//! `forkd doctor`.

use forkd_protocol::names::SandboxId;
use tokio::task::block_in_place;

use super::doctor_jail;
use crate::context::Context;
use crate::error::CliError;
use crate::host::{self, Report, Verdict};
use crate::ui;

/// Exit code where forkd cannot run here in any way.
const EXIT_UNFIT: u8 = 6;

/// Look at this computer, item by item: what forkd finds, and how to get what is missing.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd doctor\n  forkd doctor --json | jq -r .way\n  forkd doctor --jail sb-6a2f-0001"
)]
pub(crate) struct Args {
    /// Look at how the monitor of this sandbox is jailed, instead
    #[arg(long, value_name = "ID")]
    jail: Option<SandboxId>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    if let Some(id) = &args.jail {
        return doctor_jail::run(id, context).await;
    }
    let report = block_in_place(host::look);
    context.ui.show(&report, render);
    Ok(if report.way.is_some() { 0 } else { EXIT_UNFIT })
}

fn render(report: &Report) -> String {
    let rows = report.items.iter().map(|item| {
        let verdict = match item.verdict {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        [item.name.to_owned(), verdict.to_owned(), item.found.clone()]
    });
    let mut text = ui::table(&["ITEM", "", "FOUND"], rows);
    let cures: Vec<_> = report.items.iter().filter_map(|i| i.cure.as_ref().map(|c| (i.name, c))).collect();
    if !cures.is_empty() {
        text.push_str("\nWhat to do:\n");
    }
    for (name, cure) in cures {
        text.push_str(&format!("  {name}: {cure}\n"));
    }
    text.push('\n');
    text.push_str(&report.summary);
    text
}
