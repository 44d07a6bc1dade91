//! `forkd push`.

use forkd_hub::{Hub, HubError, Place};
use forkd_protocol::digest::Digest;
use forkd_protocol::names::Tag;

use crate::context::Context;
use crate::error::CliError;
use crate::travel::{Exported, Moved, each, render};
use crate::ui::Step;

/// Send a snapshot to a hub.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd push pynp-b file:///srv/hub\n  AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… AWS_REGION=eu-central-1 forkd push pynp-b s3://bucket/hub\n  forkd pull https://example.org/hub/pynp-b      # there, where a web server serves that folder\n\nA hub is a plain folder. What it has already is not sent; where it breaks off, the same command goes on.\nAWS_ENDPOINT names another S3 server (AWS_ALLOW_HTTP=true for one without TLS)."
)]
pub(crate) struct Args {
    /// Snapshot
    tag: Tag,
    /// file:///PATH or s3://BUCKET/PREFIX
    #[arg(value_name = "URL")]
    hub: String,
    /// Its name in the hub (default: the same)
    #[arg(long = "as", value_name = "TAG")]
    name: Option<Tag>,
    /// Only name image and kernel: who pulls it has to have the same image
    #[arg(long)]
    thin: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let hub = Hub::open(Place::parse(&args.hub)?)?;
    hub.check_writable()?;
    let name = args.name.unwrap_or_else(|| args.tag.clone());
    let client = context.client().await?;
    let mut step = context.ui.step(format!("Pushing {} to {}", args.tag, hub.url()));
    let exported = Exported::begin(&client, &args.tag, args.thin).await?;
    let shown = exported.hub_tag(&name);
    let there = hub.tag(&name).await?;
    if there.as_ref().is_some_and(|there| there.id != shown.id) {
        return Err(HubError::TagTaken { hub: hub.url().to_owned(), tag: name.to_string() }.into());
    }
    let mut moved = Moved::default();
    if there.is_none_or(|there| there.bundle != shown.bundle) {
        moved = send(&hub, &exported, &mut step).await?;
        hub.publish(&shown, exported.document.clone()).await?;
    }
    step.done("");
    let place = format!("{}/{name}", hub.url());
    context.ui.show(&moved.transfer(&exported.bundle, name.as_str(), exported.id.to_string(), place), render);
    Ok(0)
}

/// Sends what the hub lacks.
async fn send(hub: &Hub, exported: &Exported, step: &mut Step) -> Result<Moved, CliError> {
    let objects = exported.bundle.objects();
    step.bytes(objects.iter().map(|(_, bytes)| bytes).sum());
    let (mut moved, mut at) = (Moved::default(), 0);
    let sent = |(hash, bytes)| async move { Ok((bytes, send_one(hub, exported, &hash).await?)) };
    each(objects, sent, |(bytes, length): (u64, Option<u64>)| {
        moved.objects += u64::from(length.is_some());
        moved.bytes += length.unwrap_or(0);
        at += bytes;
        step.at(at);
    })
    .await?;
    Ok(moved)
}

/// How long the object is that was sent; `None` where it was there.
async fn send_one(hub: &Hub, exported: &Exported, hash: &Digest) -> Result<Option<u64>, CliError> {
    if hub.has(hash).await? {
        return Ok(None);
    }
    let object = exported.object(hash).await?;
    let length = object.len() as u64;
    hub.put_object(hash, object).await?;
    Ok(Some(length))
}
