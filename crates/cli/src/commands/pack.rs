//! `forkd pack`.

use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use forkd_protocol::digest::Digest;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::Tag;
use forkd_store::bundle::BundleWriter;
use futures::{StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use crate::context::Context;
use crate::error::CliError;
use crate::travel::{AT_ONCE, Exported, Moved, render};
use crate::ui::Step;

/// Write a snapshot, with all that it needs, into a file.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd pack --tag pynp-b --out b.forkd\n  forkd unpack b.forkd        # there\n\nEvery ancestor goes with it. A thin bundle needs the same image where it is unpacked."
)]
pub(crate) struct Args {
    /// Snapshot
    #[arg(long)]
    tag: Tag,
    /// The file; one that is there is replaced
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Only name image and kernel
    #[arg(long)]
    thin: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let mut step = context.ui.step(format!("Packing {}", args.tag));
    let exported = Exported::begin(&client, &args.tag, args.thin).await?;
    let objects = exported.bundle.objects();
    step.bytes(objects.iter().map(|(_, bytes)| bytes).sum());

    let (sender, receiver) = mpsc::channel(AT_ONCE);
    let (document, out) = (exported.document.clone(), args.out.clone());
    let writer = tokio::task::spawn_blocking(move || write(&out, &document, receiver));
    let moved = fetch(&exported, &objects, &sender, &mut step).await?;
    // A channel that ends without this leaves no file. Where nobody takes it the writer says why.
    let _ = sender.send(Next::End).await;
    writer.await.map_err(|e| CliError::caused(ErrorClass::Internal, "writing the bundle", e))??;
    let place = args.out.display().to_string();
    step.done(&place);
    let id = exported.id.to_string();
    context.ui.show(&moved.transfer(&exported.bundle, args.tag.as_str(), id, place), render);
    Ok(0)
}

/// What is written next.
enum Next {
    Object(Digest, Bytes),
    End,
}

/// Fetches the objects in the order in which they are written.
async fn fetch(
    exported: &Exported,
    objects: &[(Digest, u64)],
    to: &mpsc::Sender<Next>,
    step: &mut Step,
) -> Result<Moved, CliError> {
    let (mut moved, mut done) = (Moved::default(), 0);
    let fetched = futures::stream::iter(objects)
        .map(|(hash, bytes)| async move { Ok::<_, CliError>((*hash, *bytes, exported.object(hash).await?)) });
    let mut fetched = std::pin::pin!(fetched.buffered(AT_ONCE));
    while let Some((hash, bytes, object)) = fetched.try_next().await? {
        moved.add(&object);
        if to.send(Next::Object(hash, object)).await.is_err() {
            break;
        }
        done += bytes;
        step.at(done);
    }
    Ok(moved)
}

/// Writes aside, and renames what is whole.
fn write(out: &Path, document: &[u8], mut objects: mpsc::Receiver<Next>) -> Result<(), CliError> {
    let failed = |e| CliError::io(format!("writing {}", out.display()), e);
    let folder = out.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let aside = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let mut writer = BundleWriter::new(BufWriter::new(aside), document).map_err(failed)?;
    loop {
        match objects.blocking_recv() {
            Some(Next::Object(hash, object)) => writer.object(&hash, &object).map_err(failed)?,
            Some(Next::End) => break,
            None => return Ok(()),
        }
    }
    let mut aside = writer.finish().and_then(|file| Ok(file.into_inner()?)).map_err(failed)?;
    aside.flush().and_then(|()| aside.as_file().sync_all()).map_err(failed)?;
    let public = std::fs::Permissions::from_mode(0o644);
    aside.as_file().set_permissions(public).map_err(failed)?;
    aside.persist(out).map_err(|e| failed(e.error))?;
    Ok(())
}
