//! Snapshots that leave and arrive: verbs that only concern the store.

use bytes::Bytes;
use forkd_protocol::digest::Digest;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{ImportStatus, Imported};

use crate::engine::Engine;
use crate::error::EngineError;

impl Engine {
    /// The document that names everything a snapshot needs. A `thin` one only names image and kernel.
    pub async fn export(&self, tag: Tag, thin: bool) -> Result<String, EngineError> {
        self.in_store(move |store| Ok(store.export(&tag, thin)?.text().to_owned())).await
    }

    /// One object of a snapshot, compressed.
    pub async fn exported_object(&self, tag: Tag, hash: Digest) -> Result<Vec<u8>, EngineError> {
        self.in_store(move |store| store.exported_object(&tag, &hash)).await
    }

    /// Begins an import, or goes on with one; what is missing for it. `tag` is what the snapshot is to be called, where
    /// not as it was.
    pub async fn begin_import(&self, document: Bytes, tag: Option<Tag>) -> Result<ImportStatus, EngineError> {
        self.in_store(move |store| {
            let vendor = forkd_host::cpu::vendor();
            store.begin_import(&document, tag.as_ref(), vendor.as_deref())
        })
        .await
    }

    /// How far an import is.
    pub async fn import_status(&self, id: Digest, tag: Option<Tag>) -> Result<ImportStatus, EngineError> {
        self.in_store(move |store| store.import_status(&id, tag.as_ref())).await
    }

    /// Takes in one object of an import, compressed.
    pub async fn put_object(&self, id: Digest, hash: Digest, object: Bytes) -> Result<(), EngineError> {
        self.in_store(move |store| store.put_object(&id, &hash, &object)).await
    }

    /// Checks everything that arrived and makes the snapshot visible. It is done to the end beside a future that was
    /// dropped.
    pub async fn commit_import(&self, id: Digest, tag: Option<Tag>) -> Result<Imported, EngineError> {
        let events = self.shared.events.clone();
        let committing = self.in_store(move |store| {
            let (record, snapshots) = store.commit_import(&id, tag.as_ref())?;
            events.made(store, &record.info.tag);
            Ok((record, snapshots))
        });
        let (record, snapshots) = committing.await?;
        Ok(Imported { snapshot: record.info, snapshots })
    }

    /// Gives an import up.
    pub async fn remove_import(&self, id: Digest) -> Result<(), EngineError> {
        self.in_store(move |store| store.remove_import(&id)).await
    }
}
