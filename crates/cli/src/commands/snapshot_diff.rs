//! `forkd snapshot-diff`.

use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::{SandboxId, Tag};
use forkd_protocol::rest::{BranchMode, BranchRequest, ExecRequest, ExecResponse, SandboxInfo, SnapshotInfo};

use super::branch::{branch, render};
use super::fork::{create, end_all, plainly};
use crate::client::Client;
use crate::context::Context;
use crate::error::CliError;

/// Make a snapshot of another one and what a command changes in it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd snapshot-diff --from pynp --tag pynp-pandas --exec 'pip install pandas'"
)]
pub(crate) struct Args {
    /// Snapshot to start from
    #[arg(long)]
    from: Tag,
    /// Name of the new one
    #[arg(long)]
    tag: Tag,
    /// Command, run by the shell of the sandbox; where it fails nothing is made
    #[arg(long, value_name = "COMMAND")]
    exec: String,
    /// Give the command up after this long
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let step = context.ui.step(format!("Changing {} into {}", args.from, args.tag));
    let children = create(&client, &plainly(args.from.as_str(), 1)).await?;
    let made = change(&client, &args, &children, &step).await;
    // The sandbox was only there for this, also where it failed.
    let ended = end_all(&client, &children).await;
    let made = made?;
    ended?;
    step.done("");
    context.ui.show(&made, render);
    Ok(0)
}

async fn change(
    client: &Client,
    args: &Args,
    children: &[SandboxInfo],
    step: &crate::ui::Step,
) -> Result<SnapshotInfo, CliError> {
    let id: Option<SandboxId> = children.first().and_then(|child| child.id.parse().ok());
    let id = id.ok_or_else(|| CliError::local(ErrorClass::Internal, "the controller named no sandbox"))?;
    step.note(&format!("running {}", args.exec));
    let request = ExecRequest::of(["/bin/sh", "-c", &args.exec], args.timeout);
    let ran: ExecResponse = client.post(&format!("/v1/sandboxes/{id}/exec"), &request).await?;
    if ran.exit_code != 0 {
        let said = format!("{}{}", ran.stdout, ran.stderr);
        let how = format!("the command ended with {}, so no snapshot was made", ran.exit_code);
        return Err(CliError::local(ErrorClass::GuestFault, format!("{how}\n{}", said.trim_end())));
    }
    step.note("writing what it changed");
    let request = BranchRequest {
        tag: Some(args.tag.to_string()),
        mode: Some(BranchMode::Diff),
        ..BranchRequest::default()
    };
    branch(client, &id, &request).await
}
