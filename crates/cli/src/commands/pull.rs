//! `forkd pull`.

use std::collections::HashMap;

use forkd_hub::{Hub, HubError, Place};
use forkd_protocol::digest::Digest;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{Transfer, longest_object};

use crate::context::Context;
use crate::error::CliError;
use crate::travel::{Importing, Moved, digest_of, each, parse, render};
use crate::ui::Step;

/// Take a snapshot in from a hub.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd images --remote https://example.org/hub\n  forkd pull https://example.org/hub/pynp-b\n  forkd pull s3://bucket/hub/pynp-b --tag mine\n\nEverything is checked before the snapshot becomes visible. What is here already is not fetched; where it\nbreaks off, the same command goes on."
)]
pub(crate) struct Args {
    /// The hub, a slash and the tag in it: file:///PATH/TAG, https://HOST/PATH/TAG or s3://BUCKET/PREFIX/TAG
    #[arg(value_name = "URL")]
    place: String,
    /// Name of the snapshot here (default: as in the hub)
    #[arg(long)]
    tag: Option<Tag>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let (hub, name) = Place::with_tag(&args.place)?;
    let hub = Hub::open(hub)?;
    let client = context.client().await?;
    let mut step = context.ui.step(format!("Pulling {name} from {}", hub.url()));
    let found = hub.tag(&name).await?;
    let found = found.ok_or_else(|| HubError::NoTag { hub: hub.url().to_owned(), tag: name.to_string() })?;
    let document = hub.bundle(&found.bundle).await?;
    let tag = args.tag.unwrap_or(name);
    let import = Importing::begin(&client, document.clone(), Some(&tag)).await?;
    // Only now: it was checked over there.
    let bundle = parse(&document)?;
    let (mut moved, mut snapshots) = (Moved::default(), Vec::new());
    if !import.status.done {
        let lengths: HashMap<Digest, u64> = bundle.objects().into_iter().collect();
        let taken = async {
            let moved = fetch(&hub, &import, &lengths, &mut step).await?;
            Ok::<_, CliError>((moved, import.commit().await?))
        };
        match taken.await {
            Ok((fetched, made)) => (moved, snapshots) = (fetched, made.snapshots),
            Err(e) => {
                import.after(&e).await;
                return Err(e);
            }
        }
    }
    step.done("");
    // What arrived, whatever the hub called it.
    let id = bundle.snapshots.last().map_or(found.id, |head| digest_of(head.manifest.as_bytes()));
    let done = moved.transfer(&bundle, tag.as_str(), id.to_string(), args.place);
    context.ui.show(&Transfer { snapshots, ..done }, render);
    Ok(0)
}

/// Fetches what the controller lacks.
async fn fetch(
    hub: &Hub,
    import: &Importing,
    lengths: &HashMap<Digest, u64>,
    step: &mut Step,
) -> Result<Moved, CliError> {
    let length = |hash: &Digest| lengths.get(hash).copied().unwrap_or(0);
    let missing = &import.status.missing;
    step.bytes(missing.iter().map(length).sum());
    let (mut moved, mut at) = (Moved::default(), 0);
    let fetched = |hash| async move {
        let bytes = length(hash);
        let object = hub.object(hash, longest_object(bytes)).await?;
        import.put(hash, object.clone()).await?;
        Ok((bytes, object.len() as u64))
    };
    each(missing, fetched, |(bytes, length): (u64, u64)| {
        moved.objects += 1;
        moved.bytes += length;
        at += bytes;
        step.at(at);
    })
    .await?;
    Ok(moved)
}
