//! A snapshot of a controller, as the other side gets to see it.

use bytes::Bytes;
use forkd_protocol::digest::Digest;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{Bundle, HubTag};
use serde::Deserialize;

use super::{digest_of, parse};
use crate::client::Client;
use crate::error::CliError;
use crate::ui;

/// A snapshot that is being sent.
#[derive(Debug)]
pub(crate) struct Exported {
    client: Client,
    tag: Tag,
    /// The document, byte for byte.
    pub(crate) document: Bytes,
    pub(crate) bundle: Bundle,
    /// Id of the snapshot.
    pub(crate) id: Digest,
}

/// As much of a manifest as a hub shows.
#[derive(Deserialize)]
struct Shown {
    memory_mib: u64,
    memory: Vec<serde::de::IgnoredAny>,
    image: Named,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

impl Exported {
    /// Asks for the document; the controller reads and hashes everything for that.
    pub(crate) async fn begin(client: &Client, tag: &Tag, thin: bool) -> Result<Self, CliError> {
        let document = client.bytes(&format!("/v1/snapshots/{tag}/export?thin={thin}")).await?;
        let bundle = parse(&document)?;
        let id = match bundle.snapshots.last() {
            Some(head) => digest_of(head.manifest.as_bytes()),
            None => return Err(CliError::local(ErrorClass::Internal, "the controller sent an empty bundle")),
        };
        Ok(Self { client: client.clone(), tag: tag.clone(), document: document.into(), bundle, id })
    }

    /// One object, compressed.
    pub(crate) async fn object(&self, hash: &Digest) -> Result<Bytes, CliError> {
        let path = format!("/v1/snapshots/{}/objects/{hash}", self.tag);
        self.client.bytes(&path).await.map(Bytes::from)
    }

    /// How a hub shows it under `tag`.
    pub(crate) fn hub_tag(&self, tag: &Tag) -> HubTag {
        let shown: Option<Shown> =
            self.bundle.snapshots.last().and_then(|head| serde_json::from_str(&head.manifest).ok());
        let objects = self.bundle.objects();
        HubTag {
            tag: tag.to_string(),
            id: self.id,
            bundle: digest_of(&self.document),
            pushed_at_unix: ui::now_unix(),
            objects: objects.len() as u64,
            bytes: objects.iter().map(|(_, bytes)| bytes).sum(),
            image: shown.as_ref().map(|s| s.image.name.clone()).unwrap_or_default(),
            memory_mib: shown.as_ref().map_or(0, |s| s.memory_mib),
            chain_depth: shown.map_or(0, |s| u32::try_from(s.memory.len()).unwrap_or(u32::MAX)),
        }
    }
}
