//! `forkd from-image`: a container image becomes a snapshot.

use forkd_oci::Source;
use forkd_protocol::names::Tag;

use super::image::{DEFAULT_SIZE_MIB, size_range};
use super::snapshot::{self, Parent};
use crate::artifacts;
use crate::context::Context;
use crate::error::CliError;

/// Make a snapshot of a container image.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd from-image python:3.12-slim --tag py312 --warm 'import json'\n  \
                  forkd from-image ./app.tar --tag app\n\nThe image is kept; where it is there already, it is not made again.")]
pub(crate) struct Args {
    /// NAME[:TAG|@DIGEST] in a registry, or the path of an archive or image layout
    #[arg(value_name = "REF")]
    source: Source,
    /// Name of the snapshot
    #[arg(long)]
    tag: Tag,
    /// Speak plain HTTP with the registry
    #[arg(long)]
    insecure_registry: bool,
    /// Size of the file system
    #[arg(long, value_name = "MIB", default_value_t = DEFAULT_SIZE_MIB, value_parser = size_range())]
    size: u64,
    #[command(flatten)]
    parent: Parent,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let (source, insecure) = (&args.source, args.insecure_registry);
    let image =
        artifacts::container_image(&client, &context.ui, None, source, insecure, args.size << 20).await?;
    let request = args.parent.request(args.tag.as_str(), &image.name)?;
    snapshot::from_request(&client, context, &request).await
}
