//! `forkd images`: the snapshots, as the published command shows them.

use forkd_protocol::rest::SnapshotInfo;

use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// List snapshots.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd images\n\nRoot file systems are listed by `forkd image ls`.")]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, context: &Context) -> Result<u8, CliError> {
    let snapshots: Vec<SnapshotInfo> = context.client().await?.get("/v1/snapshots").await?;
    context.ui.show(&snapshots, |all| render(all, ui::now_unix()));
    Ok(0)
}

fn render(all: &[SnapshotInfo], now: u64) -> String {
    if all.is_empty() {
        return "no snapshots; make one: forkd snapshot --image NAME --tag TAG".to_owned();
    }
    ui::table(
        &["TAG", "IMAGE", "STATUS", "VCPUS", "MEMORY", "STORED", "AGE"],
        all.iter().map(|s| {
            [
                s.tag.clone(),
                s.image.clone(),
                s.status.clone(),
                s.vcpus.to_string(),
                format!("{} MiB", s.memory_mib),
                ui::size(s.memory_physical_bytes),
                ui::age(s.created_at_unix, now),
            ]
        }),
    )
}
