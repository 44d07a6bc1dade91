//! `forkd verify`.

use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{VerifyReport, VerifySnapshots};

use crate::context::Context;
use crate::error::CliError;

/// Hash stored snapshots again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd verify\n  forkd verify pynp --rebuild-views")]
pub(crate) struct Args {
    /// Snapshot (default: all)
    tag: Option<Tag>,
    /// Make what is derived from the layers again, whether it is right or not
    #[arg(long)]
    rebuild_views: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let step = context.ui.step("Verifying".to_owned());
    let tag = args.tag.map(String::from);
    let request = VerifySnapshots { tag, rebuild_views: args.rebuild_views };
    let report: VerifyReport = client.post("/v1/verify", &request).await?;
    step.done("");
    context.ui.show(&report, render);
    match report.damage.len() {
        0 => Ok(0),
        n => Err(CliError::local(ErrorClass::Corrupt, format!("{n} stored files are damaged")).with_hint(
            "a damaged view: `forkd verify --rebuild-views`; else remove the snapshots and make them again",
        )),
    }
}

fn render(report: &VerifyReport) -> String {
    let rebuilt = match report.views_rebuilt {
        0 => String::new(),
        n => format!(", {n} views made again"),
    };
    let mut text = format!("{} snapshots, {} files hashed{rebuilt}\n", report.snapshots, report.files);
    for damage in &report.damage {
        let line =
            format!("damaged {}: {} (needed by {})", damage.kind, damage.error, damage.tags.join(", "));
        text.push_str(&crate::ui::plain(&line));
        text.push('\n');
    }
    text
}
