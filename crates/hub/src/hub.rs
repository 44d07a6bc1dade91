//! Reading and writing a hub.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forkd_protocol::digest::Digest;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{HubTag, MAX_BUNDLE_BYTES};
use futures::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use serde::{Deserialize, Serialize};

use crate::HubError;
use crate::place::{Kind, Place};

/// What an index says that it is.
const KIND: &str = "forkd-hub";
/// Version of a hub's layout.
const VERSION: u32 = 1;
/// Longest document of a tag.
const MAX_TAG_BYTES: u64 = 64 << 10;
/// Tags read at a time where an index is made.
const AT_ONCE: usize = 8;
/// Bound of connecting, and of each answer: objects have a few MiB.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(300);

/// A hub that is open.
#[derive(Debug, Clone)]
pub struct Hub {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    place: Place,
}

/// `index.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Index {
    kind: String,
    version: u32,
    tags: Vec<HubTag>,
}

impl Hub {
    /// Opens a hub. Nothing is asked of it yet.
    ///
    /// # Errors
    /// A bucket whose settings (`AWS_…` in the environment) are not sound.
    pub fn open(place: Place) -> Result<Self, HubError> {
        let (store, prefix): (Arc<dyn ObjectStore>, _) = match &place.kind {
            // Its root: the folder need not be there.
            Kind::Folder(path) => {
                let prefix = Path::from_absolute_path(path).map_err(|e| unusable(&place, "the folder", e))?;
                (Arc::new(LocalFileSystem::new().with_fsync(true)), prefix)
            }
            Kind::Web => {
                let web = HttpBuilder::new().with_url(&place.url).with_retry(retries());
                let web = web.with_client_options(client_options(place.url.starts_with("http:")));
                (Arc::new(web.build().map_err(|e| unusable(&place, "the server", e))?), Path::default())
            }
            Kind::Bucket(bucket, prefix) => {
                let allow_http = std::env::var("AWS_ALLOW_HTTP").is_ok_and(|allow| allow == "true");
                let s3 = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retries());
                let s3 = s3.with_client_options(client_options(allow_http));
                let prefix = Path::parse(prefix).map_err(|e| unusable(&place, "the prefix", e))?;
                (Arc::new(s3.build().map_err(|e| unusable(&place, "the bucket", e))?), prefix)
            }
        };
        Ok(Self { store, prefix, place })
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.place.url
    }

    /// Whether it can be pushed to.
    ///
    /// # Errors
    /// It is behind a web server.
    pub fn check_writable(&self) -> Result<(), HubError> {
        match self.place.kind {
            Kind::Web => Err(HubError::ReadOnly { hub: self.place.url.clone() }),
            Kind::Folder(_) | Kind::Bucket(..) => Ok(()),
        }
    }

    /// All tags, by name.
    pub async fn tags(&self) -> Result<Vec<HubTag>, HubError> {
        let Some(text) = self.read("index.json", MAX_BUNDLE_BYTES as u64).await? else {
            return Err(HubError::NoIndex { hub: self.place.url.clone() });
        };
        let index: Index = self.parse("index.json", &text)?;
        if index.kind != KIND || index.version != VERSION {
            let reason =
                format!("is that of {} {}, this forkd knows {KIND} {VERSION}", index.kind, index.version);
            return Err(self.damaged("index.json", reason));
        }
        Ok(index.tags)
    }

    /// One tag, where the hub has it.
    pub async fn tag(&self, tag: &Tag) -> Result<Option<HubTag>, HubError> {
        let name = format!("tags/{tag}.json");
        let Some(text) = self.read(&name, MAX_TAG_BYTES).await? else { return Ok(None) };
        self.parse(&name, &text).map(Some)
    }

    /// The document of a bundle, compared with its name.
    pub async fn bundle(&self, digest: &Digest) -> Result<Bytes, HubError> {
        let name = format!("bundles/{digest}.json");
        let text = self.read(&name, MAX_BUNDLE_BYTES as u64).await?.ok_or_else(|| self.lacks(&name))?;
        if Digest::of(&text) != *digest {
            return Err(self.damaged(&name, "hashes to something else".to_owned()));
        }
        Ok(text)
    }

    /// Whether an object is there.
    pub async fn has(&self, hash: &Digest) -> Result<bool, HubError> {
        let name = object_name(hash);
        match self.store.head(&self.path(&name)).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(e) => Err(unusable(&self.place, &name, e)),
        }
    }

    /// An object of at most `most` bytes, as it travels.
    pub async fn object(&self, hash: &Digest, most: u64) -> Result<Bytes, HubError> {
        let name = object_name(hash);
        self.read(&name, most).await?.ok_or_else(|| self.lacks(&name))
    }

    /// Keeps an object as it travels.
    pub async fn put_object(&self, hash: &Digest, object: Bytes) -> Result<(), HubError> {
        self.write(&object_name(hash), object).await
    }

    /// Makes a bundle visible under a tag, once all of its objects are there.
    pub async fn publish(&self, tag: &HubTag, document: Bytes) -> Result<(), HubError> {
        self.write(&format!("bundles/{}.json", tag.bundle), document).await?;
        self.write(&format!("tags/{}.json", tag.tag), json(&self.place, tag)?).await?;
        self.write_index().await
    }

    /// Makes the index of the tags that are there. Of two who push at the same time the later one sees both, and
    /// whoever pushes next puts right what they missed.
    async fn write_index(&self) -> Result<(), HubError> {
        let folder = self.path("tags");
        let listed: Vec<_> = self
            .store
            .list(Some(&folder))
            .try_collect()
            .await
            .map_err(|e| unusable(&self.place, "tags", e))?;
        let names =
            listed.iter().filter_map(|found| found.location.filename()?.strip_suffix(".json")?.parse().ok());
        let names: Vec<Tag> = names.collect();
        let read = futures::stream::iter(names).map(|name| async move { self.tag(&name).await });
        let found: Vec<Option<HubTag>> = read.buffer_unordered(AT_ONCE).try_collect().await?;
        let mut tags: Vec<HubTag> = found.into_iter().flatten().collect();
        tags.sort_by(|a, b| a.tag.cmp(&b.tag));
        let index = Index { kind: KIND.to_owned(), version: VERSION, tags };
        self.write("index.json", json(&self.place, &index)?).await
    }

    async fn read(&self, name: &str, most: u64) -> Result<Option<Bytes>, HubError> {
        let failed = |e| unusable(&self.place, name, e);
        let found = match self.store.get(&self.path(name)).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        let mut pieces = found.into_stream();
        let mut bytes = Vec::new();
        while let Some(piece) = pieces.try_next().await.map_err(failed)? {
            if (bytes.len() + piece.len()) as u64 > most {
                return Err(self.damaged(name, format!("has more than {most} bytes")));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Some(bytes.into()))
    }

    async fn write(&self, name: &str, bytes: Bytes) -> Result<(), HubError> {
        self.check_writable()?;
        let put = self.store.put(&self.path(name), bytes.into()).await;
        put.map(drop).map_err(|e| unusable(&self.place, name, e))
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn parse<'a, T: Deserialize<'a>>(&self, name: &str, text: &'a [u8]) -> Result<T, HubError> {
        serde_json::from_slice(text).map_err(|e| self.damaged(name, format!("cannot be read: {e}")))
    }

    fn damaged(&self, name: &str, reason: String) -> HubError {
        HubError::Damaged { hub: self.place.url.clone(), name: name.to_owned(), reason }
    }

    fn lacks(&self, name: &str) -> HubError {
        HubError::Lacks { hub: self.place.url.clone(), name: name.to_owned() }
    }
}

fn object_name(hash: &Digest) -> String {
    let hash = hash.to_string();
    format!("objects/{}/{hash}.zst", &hash[..2])
}

fn json<T: Serialize>(place: &Place, value: &T) -> Result<Bytes, HubError> {
    serde_json::to_vec_pretty(value).map(Bytes::from).map_err(|e| unusable(place, "a document", e))
}

fn unusable(
    place: &Place,
    name: &str,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> HubError {
    HubError::Unusable { hub: place.url.clone(), name: name.to_owned(), source: source.into() }
}

/// A few tries: whoever waits would rather know.
fn retries() -> RetryConfig {
    RetryConfig { max_retries: 3, retry_timeout: Duration::from_secs(60), ..RetryConfig::default() }
}

fn client_options(allow_http: bool) -> ClientOptions {
    // Of two in one process the first stays, which is the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    ClientOptions::new()
        .with_allow_http(allow_http)
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout(ANSWER_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(folder: &std::path::Path) -> Hub {
        Hub::open(Place::parse(&format!("file://{}/hub", folder.display())).unwrap()).unwrap()
    }

    fn shown(tag: &str, document: &[u8]) -> HubTag {
        HubTag {
            tag: tag.to_owned(),
            id: [1; 32].into(),
            bundle: Digest::of(document),
            pushed_at_unix: 1,
            objects: 1,
            bytes: 2,
            image: "py".to_owned(),
            memory_mib: 512,
            chain_depth: 1,
        }
    }

    #[tokio::test]
    async fn what_is_published_is_listed_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let hub = open(folder.path());
        assert!(matches!(hub.tags().await, Err(HubError::NoIndex { .. })));
        let (hash, a) = (Digest::from([0xab; 32]), "a".parse().unwrap());
        assert!(!hub.has(&hash).await.unwrap() && hub.tag(&a).await.unwrap().is_none());
        assert!(matches!(hub.object(&hash, 9).await, Err(HubError::Lacks { .. })));
        hub.put_object(&hash, Bytes::from_static(b"object")).await.unwrap();
        for (tag, document) in [("b", &b"two"[..]), ("a", b"one")] {
            hub.publish(&shown(tag, document), Bytes::copy_from_slice(document)).await.unwrap();
        }
        assert!(hub.has(&hash).await.unwrap());
        assert_eq!(&hub.object(&hash, 6).await.unwrap()[..], b"object");
        assert_eq!(hub.tags().await.unwrap(), [shown("a", b"one"), shown("b", b"two")]);
        assert_eq!(hub.tag(&a).await.unwrap(), Some(shown("a", b"one")));
        assert_eq!(&hub.bundle(&shown("a", b"one").bundle).await.unwrap()[..], b"one");
        assert!(folder.path().join(format!("hub/objects/ab/{hash}.zst")).is_file());
    }

    #[tokio::test]
    async fn what_is_not_what_its_name_says_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let hub = open(folder.path());
        let tag = shown("a", b"one");
        hub.publish(&tag, Bytes::from_static(b"one")).await.unwrap();
        let at = |name: &str| folder.path().join("hub").join(name);
        std::fs::write(at(&format!("bundles/{}.json", tag.bundle)), "two").unwrap();
        assert!(matches!(hub.bundle(&tag.bundle).await, Err(HubError::Damaged { .. })));
        std::fs::write(at("tags/a.json"), "{").unwrap();
        assert!(matches!(hub.tag(&"a".parse().unwrap()).await, Err(HubError::Damaged { .. })));
        std::fs::write(at("tags/a.json"), vec![b' '; 65 << 10]).unwrap();
        assert!(matches!(hub.tag(&"a".parse().unwrap()).await, Err(HubError::Damaged { .. })));
        let later = r#"{"kind":"forkd-hub","version":2,"tags":[]}"#;
        std::fs::write(at("index.json"), later).unwrap();
        assert!(hub.tags().await.unwrap_err().to_string().contains("forkd-hub 2"));
        let hash = Digest::from([3; 32]);
        hub.put_object(&hash, Bytes::from_static(b"object")).await.unwrap();
        assert!(matches!(hub.object(&hash, 5).await, Err(HubError::Damaged { .. })));
    }

    #[test]
    fn a_web_server_is_read_only() {
        let hub = Hub::open(Place::parse("https://example.org/hub").unwrap()).unwrap();
        assert_eq!(hub.check_writable().unwrap_err().class(), forkd_protocol::error::ErrorClass::Caller);
    }
}
