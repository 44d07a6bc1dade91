//! `forkd eval`.

use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{DEFAULT_TIMEOUT_SECS, EvalRequest, EvalResponse};

use crate::context::Context;
use crate::error::CliError;
use crate::ui::Ui;

/// Evaluate in the warm interpreter of a sandbox.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd eval sb-6a2f-0001 -- 'numpy.zeros(5).tolist()'")]
pub(crate) struct Args {
    /// Sandbox
    id: SandboxId,
    /// Interrupt the code after this long
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_TIMEOUT_SECS)]
    timeout: u64,
    /// An expression, or statements
    #[arg(last = true, required = true, value_name = "CODE")]
    code: String,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let request = EvalRequest { code: args.code, timeout_secs: args.timeout };
    let answer: EvalResponse = client.post(&format!("/v1/sandboxes/{}/eval", args.id), &request).await?;
    if context.ui.is_json() {
        context.ui.show(&answer, |_| String::new());
    } else {
        render(&answer, &context.ui);
    }
    Ok(u8::from(answer.error.is_some()))
}

/// What the code printed goes where it printed it, then the value or the traceback.
fn render(answer: &EvalResponse, ui: &Ui) {
    ui.line(&answer.stdout);
    if !answer.stderr.is_empty() {
        ui.note(answer.stderr.trim_end_matches('\n'));
    }
    if let Some(result) = &answer.result {
        ui.line(result);
    }
    if let Some(error) = &answer.error {
        ui.note(answer.traceback.as_ref().unwrap_or(error).trim_end_matches('\n'));
    }
    if answer.truncated {
        ui.note("note: more was printed than one answer carries; the rest was dropped");
    }
}
