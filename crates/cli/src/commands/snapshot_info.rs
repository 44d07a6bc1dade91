//! `forkd snapshot-info`.

use forkd_protocol::names::Tag;
use forkd_protocol::rest::{LayerInfo, SnapshotInfoDetail};

use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// Show what a snapshot consists of.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd snapshot-info pynp\n  forkd snapshot-info pynp --json")]
pub(crate) struct Args {
    /// Snapshot
    tag: Tag,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let detail: SnapshotInfoDetail = client.get(&format!("/v1/snapshots/{}/info", args.tag)).await?;
    context.ui.show(&detail, |detail| render(detail, ui::now_unix()));
    Ok(0)
}

fn render(d: &SnapshotInfoDetail, now: u64) -> String {
    let list = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let on_disk = |logical, physical| format!("{}, {} on disk", ui::size(logical), ui::size(physical));
    let lines = [
        ("tag", d.tag.clone()),
        ("hash", d.id.clone()),
        ("age", ui::age(d.created_at_unix, now)),
        ("image", format!("{} ({})", d.image, d.image_hash)),
        ("kernel", d.kernel.clone()),
        ("agent protocol", d.agent_protocol.to_string()),
        ("state format", d.state_format.map_or_else(|| "unknown".to_owned(), |version| version.to_string())),
        ("depth", d.chain_depth.to_string()),
        ("secrets", list(&d.secrets)),
        ("ancestors", list(&d.ancestors)),
        ("dependents", list(&d.dependents)),
        ("memory", on_disk(d.memory_logical_bytes, d.memory_physical_bytes)),
        ("disk", on_disk(d.disk_logical_bytes, d.disk_physical_bytes)),
        ("machine state", ui::size(d.vmstate_bytes)),
        ("view", ui::size(d.view_physical_bytes)),
    ];
    let mut text: String =
        lines.iter().map(|(name, value)| format!("{name:<16}{}\n", ui::plain(value))).collect();
    let layers = [("memory", &d.memory_layers), ("disk", &d.disk_layers)];
    let rows = layers.iter().flat_map(|(kind, layers)| layers.iter().map(|layer| row(kind, layer)));
    text.push('\n');
    text.push_str(&ui::table(&["LAYER", "HASH", "HOLDS", "ON DISK", "EXTENTS"], rows));
    text
}

fn row(kind: &str, layer: &LayerInfo) -> [String; 5] {
    let sizes = (ui::size(layer.logical_bytes), ui::size(layer.physical_bytes));
    [kind.to_owned(), layer.hash.clone(), sizes.0, sizes.1, layer.extents.to_string()]
}
