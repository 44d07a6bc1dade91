//! `forkd ping`.

use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::PingResponse;

use crate::context::Context;
use crate::error::CliError;

/// Ping.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd ping sb-6a2f-0001")]
pub(crate) struct Args {
    /// Sandbox
    id: SandboxId,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let began = std::time::Instant::now();
    let pong: PingResponse =
        context.client().await?.post_empty(&format!("/v1/sandboxes/{}/ping", args.id)).await?;
    context.ui.show(&pong, |pong| {
        let warm = match (&pong.numpy_version, pong.warmup_ready) {
            (Some(v), true) => format!("warm {} with numpy {v}", pong.agent_lang),
            (None, true) => format!("warm {}", pong.agent_lang),
            (_, false) => "no warm interpreter".to_owned(),
        };
        format!("{} answered after {}: {warm}", args.id, crate::ui::took(began.elapsed()))
    });
    Ok(0)
}
