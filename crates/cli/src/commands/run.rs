//! `forkd run`: a command in a fresh sandbox of an image.

use forkd_protocol::error::ErrorClass;
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
                  The first run boots the image and keeps it as the snapshot img-NAME-HASH; later ones fork from that.")]
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
        return Err(CliError::local(ErrorClass::Internal, "no child came back"));
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

/// The tag of the unwarmed snapshot of an image as it is now; made where it is missing, and then those that
/// earlier runs made of what the image was before are removed.
pub(crate) async fn ensure_snapshot(client: &Client, ui: &Ui, image: &ImageName) -> Result<String, CliError> {
    let info: ImageInfo = client.get(&format!("/v1/images/{image}")).await?;
    let tag = parse::image_tag(&info.name, &info.hash)?.to_string();
    let snapshots: Vec<SnapshotInfo> = client.get("/v1/snapshots").await?;
    if let Some(found) = snapshots.iter().find(|s| s.tag == tag) {
        return if is_of(found, &info) { Ok(tag) } else { Err(in_the_way(&tag, image)) };
    }
    artifacts::ensure_kernel(client, ui).await?;
    snapshot::create(client, ui, &snapshot::plainly(&tag, image.as_str(), None)).await?;
    for old in snapshots.iter().filter(|s| is_ours(s) && s.image == info.name) {
        if let Err(e) = client.delete(&format!("/v1/snapshots/{}", old.tag)).await {
            ui.note(&format!(
                "the snapshot {} of what {image} was before could not be removed: {e}",
                old.tag
            ));
        }
    }
    Ok(tag)
}

fn is_of(snapshot: &SnapshotInfo, image: &ImageInfo) -> bool {
    snapshot.image == image.name && snapshot.image_hash == image.hash && snapshot.bootable
}

/// Whether a run made it: only then its tag follows from the image that it was booted from.
fn is_ours(snapshot: &SnapshotInfo) -> bool {
    parse::image_tag(&snapshot.image, &snapshot.image_hash).is_ok_and(|tag| tag.as_str() == snapshot.tag)
}

fn in_the_way(tag: &str, image: &ImageName) -> CliError {
    let message = format!("the snapshot {tag} is in the way: it is not one of the image {image}");
    CliError::local(ErrorClass::Conflict, message)
        .with_hint(format!("where nobody needs it: `forkd rmi {tag}`, then run again"))
}
