//! `forkd run`: a command in a fresh sandbox of an image.

use forkd_protocol::names::{ImageName, SandboxId};
use forkd_protocol::rest::{ImageInfo, SnapshotInfo};

use super::exec::{self, How};
use super::{fork, kill, snapshot};
use crate::artifacts;
use crate::client::Client;
use crate::context::Context;
use crate::error::CliError;
use crate::parse;
use crate::ui::Ui;

/// Run a command in a fresh sandbox of an image.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd run --image py -- python3 -c 'print(6*7)'\n\n\
                  The first run boots the image and keeps it as the snapshot img-NAME; later ones fork from that.")]
pub(crate) struct Args {
    /// Image
    #[arg(long)]
    image: ImageName,
    #[command(flatten)]
    how: How,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let outcome = async {
        let client = context.client().await?;
        let tag = ensure_snapshot(&client, &context.ui, &args.image).await?;
        in_a_child(&client, &context.ui, &tag, args.how).await
    };
    outcome.await.map_err(CliError::around_command)
}

/// Forks a child, runs the command in it and ends it, also where this process is interrupted.
async fn in_a_child(client: &Client, ui: &Ui, tag: &str, how: How) -> Result<u8, CliError> {
    let children = fork::create(client, &fork::plainly(tag, 1)).await?;
    let Some(child) = children.first() else {
        return Err(CliError::local(forkd_protocol::error::ErrorClass::Internal, "no child came back"));
    };
    let id: SandboxId = child.id.parse()?;
    let outcome = tokio::select! {
        outcome = exec::exec(client, ui, &id, how) => outcome,
        signal = super::interrupted() => signal,
    };
    let ended = kill::end(client, &child.id).await;
    let code = outcome?;
    ended.map(|()| code)
}

/// The tag of the unwarmed snapshot of an image, made anew where the image was replaced since.
async fn ensure_snapshot(client: &Client, ui: &Ui, image: &ImageName) -> Result<String, CliError> {
    let tag = parse::image_tag(image)?.to_string();
    let info: ImageInfo = client.get(&format!("/v1/images/{image}")).await?;
    let snapshots: Vec<SnapshotInfo> = client.get("/v1/snapshots").await?;
    match snapshots.iter().find(|s| s.tag == tag) {
        Some(s) if is_of(s, &info) => return Ok(tag),
        Some(_) => client.delete(&format!("/v1/snapshots/{tag}")).await?,
        None => {}
    }
    artifacts::ensure_kernel(client, ui).await?;
    snapshot::create(client, ui, &snapshot::plainly(&tag, image.as_str(), None)).await?;
    Ok(tag)
}

fn is_of(snapshot: &SnapshotInfo, image: &ImageInfo) -> bool {
    snapshot.image == image.name && snapshot.bootable && snapshot.created_at_unix >= image.created_at_unix
}
