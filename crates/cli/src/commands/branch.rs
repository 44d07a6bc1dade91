//! `forkd branch`.

use std::time::Duration;

use forkd_protocol::names::{SandboxId, Tag};
use forkd_protocol::rest::{BranchMode, BranchRequest, SnapshotInfo};

use crate::client::Client;
use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// Make a snapshot of a running sandbox, which runs on.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd branch ID --tag before-the-upgrade\n  forkd branch ID --mode live --no-wait"
)]
pub(crate) struct Args {
    /// Sandbox
    pub(super) id: SandboxId,
    /// Name of the snapshot (default: one is made up)
    #[arg(long)]
    pub(super) tag: Option<Tag>,
    #[command(flatten)]
    pub(super) how: How,
}

/// How a sandbox is written.
#[derive(Debug, clap::Args)]
pub(crate) struct How {
    /// live: the sandbox runs on while its changes are written; diff: it stands still meanwhile; full: it stands still
    /// while all of its memory is written, and the snapshot lies on no other (default: live)
    #[arg(long, value_enum)]
    mode: Option<Mode>,
    /// Return as soon as the sandbox runs on; `forkd images` shows when the snapshot is ready
    #[arg(long)]
    no_wait: bool,
    /// Also where the sandbox holds secrets, which its processes may have read into the memory that is written; the
    /// audit log says so
    #[arg(long)]
    with_secrets: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Mode {
    Full,
    Diff,
    Live,
}

impl How {
    /// Whether anything was said about it.
    pub(super) fn is_given(&self) -> bool {
        self.mode.is_some() || self.no_wait || self.with_secrets
    }
}

impl From<Mode> for BranchMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Full => Self::Full,
            Mode::Diff => Self::Diff,
            Mode::Live => Self::Live,
        }
    }
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let request = BranchRequest {
        tag: args.tag.map(|tag| tag.to_string()),
        mode: args.how.mode.map(Into::into),
        wait: args.how.no_wait.then_some(false),
        with_secrets: args.how.with_secrets,
        ..BranchRequest::default()
    };
    let made = branch(&client, &args.id, &request).await?;
    context.ui.show(&made, render);
    Ok(0)
}

/// Branches a sandbox.
pub(crate) async fn branch(
    client: &Client,
    id: &SandboxId,
    request: &BranchRequest,
) -> Result<SnapshotInfo, CliError> {
    client.post(&format!("/v1/sandboxes/{id}/branch"), request).await
}

/// What was made of a sandbox, in one line.
pub(crate) fn render(made: &SnapshotInfo) -> String {
    let pause = made.workload_pause_ms.map_or_else(String::new, |ms| {
        format!(", the sandbox stood still for {}", ui::took(Duration::from_secs_f64(ms / 1000.0)))
    });
    if made.status != "ready" {
        return format!("{} is {}{pause}", made.tag, made.status);
    }
    let bytes = made.diff_physical_bytes.unwrap_or(made.memory_physical_bytes);
    format!("{} is ready: {} of memory written{pause}", made.tag, ui::size(bytes))
}
