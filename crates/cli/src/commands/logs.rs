//! `forkd logs`.

use forkd_protocol::names::SandboxId;

use crate::context::Context;
use crate::error::CliError;

/// Show what a guest wrote on its console.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd logs sb-6a2f-0001 | tail")]
pub(crate) struct Args {
    /// Sandbox
    id: SandboxId,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let bytes = context.client().await?.bytes(&format!("/v1/sandboxes/{}/logs", args.id)).await?;
    if context.ui.is_json() {
        context
            .ui
            .show(&serde_json::json!({ "console": String::from_utf8_lossy(&bytes) }), |_| String::new());
    } else {
        context.ui.guest_text(&bytes);
    }
    Ok(0)
}
