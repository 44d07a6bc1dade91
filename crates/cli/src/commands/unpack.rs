//! `forkd unpack`.

use std::collections::HashSet;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use forkd_protocol::digest::Digest;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{Bundle, Transfer};
use forkd_store::bundle::{Part, read_bundle};
use tokio::sync::mpsc;

use crate::context::Context;
use crate::error::CliError;
use crate::travel::{AT_ONCE, Importing, Moved, render};
use crate::ui::Step;

/// Take a snapshot in from a file.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd unpack b.forkd && forkd fork --tag pynp-b -n 1\n\nEverything is checked before the snapshot becomes visible. Its ancestors keep their tags where these are\nfree. What is here already is not sent; where it breaks off, the same command goes on."
)]
pub(crate) struct Args {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Name of the snapshot here (default: as where it comes from)
    #[arg(long)]
    tag: Option<Tag>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let opened = File::open(&args.file);
    let file = opened.map_err(|e| CliError::io(format!("opening {}", args.file.display()), e))?;
    let client = context.client().await?;
    let mut step = context.ui.step(format!("Unpacking {}", args.file.display()));
    let (sender, mut parts) = mpsc::channel(AT_ONCE);
    let reader = tokio::task::spawn_blocking(move || {
        read_bundle(BufReader::new(file), |part| {
            sender.blocking_send(part).map_err(|_| CliError::local(ErrorClass::Internal, "given up"))
        })
    });
    let ended = |e| CliError::caused(ErrorClass::Internal, "reading the bundle", e);
    let Some(Part::Document(document, bundle)) = parts.recv().await else {
        reader.await.map_err(ended)??;
        return Err(CliError::local(ErrorClass::Caller, "the bundle holds no document"));
    };
    let import = Importing::begin(&client, document.into(), args.tag.as_ref()).await?;
    let done = if import.status.done {
        drop(parts);
        let tag = import.status.snapshots.last().map(|head| head.tag.clone()).unwrap_or_default();
        finished(Moved::default(), &bundle, &tag, &import, &args.file)
    } else {
        let taken = async {
            let moved = take(&import, &bundle, &mut parts, &mut step).await?;
            // Also what follows the last object has to be sound.
            if let Err(refused) = reader.await.map_err(ended)? {
                import.give_up().await;
                return Err(refused);
            }
            Ok::<_, CliError>((moved, import.commit().await?))
        };
        match taken.await {
            Ok((moved, made)) => {
                let done = finished(moved, &bundle, &made.snapshot.tag, &import, &args.file);
                Transfer { snapshots: made.snapshots, ..done }
            }
            Err(e) => {
                import.after(&e).await;
                return Err(e);
            }
        }
    };
    step.done("");
    context.ui.show(&done, render);
    Ok(0)
}

fn finished(moved: Moved, bundle: &Bundle, tag: &str, import: &Importing, file: &Path) -> Transfer {
    let id = import.status.snapshots.last().map(|head| head.id.to_string()).unwrap_or_default();
    moved.transfer(bundle, tag, id, file.display().to_string())
}

/// Hands over what the controller lacks, as it comes.
async fn take(
    import: &Importing,
    bundle: &Bundle,
    parts: &mut mpsc::Receiver<Part>,
    step: &mut Step,
) -> Result<Moved, CliError> {
    let lengths: std::collections::HashMap<Digest, u64> = bundle.objects().into_iter().collect();
    let length = |hash: &Digest| lengths.get(hash).copied().unwrap_or(0);
    let mut missing: HashSet<Digest> = import.status.missing.iter().copied().collect();
    step.bytes(missing.iter().map(length).sum());
    let (mut moved, mut at) = (Moved::default(), 0);
    while let Some(part) = parts.recv().await {
        let Part::Object(hash, object) = part else { continue };
        if missing.remove(&hash) {
            moved.add(&object);
            import.put(&hash, object.into()).await?;
            at += length(&hash);
            step.at(at);
        }
    }
    Ok(moved)
}
