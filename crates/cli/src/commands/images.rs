//! `forkd images`: the snapshots, as the published command shows them.

use forkd_hub::{Hub, Place};
use forkd_protocol::rest::{HubTag, SnapshotInfo};

use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// List snapshots.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd images\n  forkd images --remote https://example.org/hub\n\nRoot file systems are listed by `forkd image ls`."
)]
pub(crate) struct Args {
    /// List those of a hub instead: file:///PATH, https://HOST/PATH or s3://BUCKET/PREFIX
    #[arg(long, value_name = "URL")]
    remote: Option<String>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    if let Some(url) = args.remote {
        let tags = Hub::open(Place::parse(&url)?)?.tags().await?;
        context.ui.show(&tags, |all| render_remote(all, ui::now_unix()));
        return Ok(0);
    }
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

fn render_remote(all: &[HubTag], now: u64) -> String {
    ui::table(
        &["TAG", "IMAGE", "MEMORY", "DEPTH", "SIZE", "AGE"],
        all.iter().map(|t| {
            [
                t.tag.clone(),
                t.image.clone(),
                format!("{} MiB", t.memory_mib),
                t.chain_depth.to_string(),
                ui::size(t.bytes),
                ui::age(t.pushed_at_unix, now),
            ]
        }),
    )
}
