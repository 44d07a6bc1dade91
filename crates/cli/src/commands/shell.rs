//! `forkd shell`.

use forkd_protocol::names::SandboxId;

use super::exec::{self, How};
use crate::context::Context;
use crate::error::CliError;

/// The image's bash where it has one, else its sh.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi";

/// Open a shell in a sandbox.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd shell sb-6a2f-0001\n  forkd shell sb-6a2f-0001 --user nobody")]
pub(crate) struct Args {
    /// Sandbox
    id: SandboxId,
    /// User (default: the image's, else root)
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let outcome = async {
        let client = context.client().await?;
        let how = How::in_terminal(args.user, ["/bin/sh", "-c", SHELL]);
        exec::exec(&client, &context.ui, &args.id, how).await
    };
    outcome.await.map_err(CliError::around_command)
}
