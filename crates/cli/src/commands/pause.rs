//! `forkd pause` and `forkd resume`.

use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::SandboxInfo;
use futures::StreamExt;

use crate::context::Context;
use crate::error::CliError;

/// How many are paused or continued side by side.
const SIDE_BY_SIDE: usize = 8;

/// Take sandboxes to the disk: their memory is given back until they are resumed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd pause sb-6a2f-0001\n  forkd resume sb-6a2f-0001")]
pub(crate) struct PauseArgs {
    /// Sandboxes
    #[arg(required = true)]
    ids: Vec<SandboxId>,
}

/// Continue paused sandboxes where they stood.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd resume sb-6a2f-0001")]
pub(crate) struct ResumeArgs {
    /// Sandboxes
    #[arg(required = true)]
    ids: Vec<SandboxId>,
}

pub(crate) async fn pause(args: PauseArgs, context: &Context) -> Result<u8, CliError> {
    each("pause", args.ids, context).await
}

pub(crate) async fn resume(args: ResumeArgs, context: &Context) -> Result<u8, CliError> {
    each("resume", args.ids, context).await
}

/// Does it to all of them; one that fails does not keep the others. Ends as the first failure says.
async fn each(verb: &str, ids: Vec<SandboxId>, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let asking = ids.into_iter().map(|id| {
        let client = &client;
        async move { client.post_empty::<SandboxInfo>(&format!("/v1/sandboxes/{id}/{verb}")).await }
    });
    let outcomes: Vec<_> = futures::stream::iter(asking).buffered(SIDE_BY_SIDE).collect().await;
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Ok(info) => done.push(info),
            Err(e) => failed.push(e),
        }
    }
    context.ui.show(&done, |done| render(done));
    let mut failed = failed.into_iter();
    let first = failed.next();
    failed.for_each(|e| context.ui.error(&e));
    first.map_or(Ok(0), Err)
}

fn render(done: &[SandboxInfo]) -> String {
    done.iter().map(|info| format!("{} is {}\n", info.id, info.state)).collect()
}
