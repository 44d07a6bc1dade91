//! `forkd ps`.

use forkd_protocol::names::SandboxId;

use crate::context::Context;
use crate::error::CliError;
use crate::process::{self, Running};
use crate::ui;

/// List what was started in a sandbox and runs.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd ps sb-6a2f-0001\n\nThose that other processes started are seen by `forkd exec ID -- ps`."
)]
pub(crate) struct Args {
    /// Sandbox
    id: SandboxId,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let running = process::list(&context.client().await?, &args.id).await?;
    context.ui.show(&running, |all| render(all));
    Ok(0)
}

fn render(all: &[Running]) -> String {
    if all.is_empty() {
        return "nothing runs".to_owned();
    }
    ui::table(
        &["PID", "TAG", "TERMINAL", "COMMAND"],
        all.iter().map(|p| {
            let words: Vec<_> =
                std::iter::once(&p.config.cmd).chain(&p.config.args).map(|w| ui::plain(w)).collect();
            [
                p.pid.to_string(),
                p.tag.clone().unwrap_or_else(|| "-".to_owned()),
                if p.terminal { "yes" } else { "-" }.to_owned(),
                words.join(" "),
            ]
        }),
    )
}
