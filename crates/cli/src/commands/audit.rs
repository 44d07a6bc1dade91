//! `forkd audit`: who changed what.

use forkd_protocol::rest::{AuditLine, AuditReport};

use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// The audit log.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd audit tail -n 20\n  forkd audit verify\n\n\
                        Every call that changes something, and every one that was refused, is a line of JSON below\n\
                        ROOT/audit; each carries the hash of the one before.")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Show the newest lines
    Tail {
        /// How many
        #[arg(short, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        n: u32,
    },
    /// Check whether every line is there and as it was written; exit code 1 where one is not
    Verify,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    match args.verb {
        Verb::Tail { n } => {
            let lines: Vec<AuditLine> = client.get(&format!("/v1/audit?limit={n}")).await?;
            context.ui.show(&lines, |lines| render(lines, ui::now_unix()));
            Ok(0)
        }
        Verb::Verify => {
            let report: AuditReport = client.get("/v1/audit/verify").await?;
            context.ui.show(&report, say);
            Ok(u8::from(!report.sound))
        }
    }
}

fn render(lines: &[AuditLine], now: u64) -> String {
    ui::table(
        &["LINE", "AGE", "WHO", "FROM", "WHAT", "TO", "OUTCOME", "TOOK"],
        lines.iter().map(|l| {
            [
                l.seq.to_string(),
                ui::age(l.at_ms / 1000, now),
                l.who.clone(),
                l.from.clone(),
                l.what.clone(),
                ui::plain(&[std::slice::from_ref(&l.to), &l.secrets].concat().join(" ")),
                format!("{} {}", l.outcome, l.status),
                ui::took(std::time::Duration::from_micros(l.micros)),
            ]
        }),
    )
}

fn say(report: &AuditReport) -> String {
    if report.sound {
        return format!("{} lines in {} files are as they were written", report.lines, report.files);
    }
    format!("the audit log is not as it was written:\n  {}", report.problems.join("\n  "))
}
