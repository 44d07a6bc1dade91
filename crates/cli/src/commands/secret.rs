//! `forkd secret`.

use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{GiveSecretsRequest, SandboxInfo};

use crate::context::Context;
use crate::error::CliError;
use crate::secrets::{self, Secret};

/// Give a running sandbox secrets: files in its /run/secrets that no snapshot has.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd secret ID API_KEY\n  forkd secret ID API_KEY=@key.txt CERT=@cert.der"
)]
pub(crate) struct Args {
    /// Sandbox
    id: SandboxId,
    /// Value from the variable NAME, or from a file
    #[arg(required = true, value_name = "NAME[=@FILE]", value_parser = secrets::secret)]
    secrets: Vec<Secret>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let request = GiveSecretsRequest { secrets: secrets::values(&args.secrets) };
    let path = format!("/v1/sandboxes/{}/secrets", args.id);
    let info: SandboxInfo = client.post(&path, &request).await?;
    context.ui.show(&info, |info| super::info::secrets(&info.settings.secrets));
    Ok(0)
}
