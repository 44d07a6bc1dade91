//! A controller that takes a bundle in.

use bytes::Bytes;
use forkd_protocol::digest::Digest;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{ImportStatus, Imported};
use http::{Method, header};

use crate::client::{Client, empty, full};
use crate::error::CliError;

/// An import under way. What came stays with the controller where this breaks off: the same bundle goes on there.
#[derive(Debug)]
pub(crate) struct Importing {
    client: Client,
    called: String,
    /// What the controller said when it began.
    pub(crate) status: ImportStatus,
}

impl Importing {
    /// Hands the document over; refused where the snapshot cannot be taken in, before anything moves.
    pub(crate) async fn begin(client: &Client, document: Bytes, tag: Option<&Tag>) -> Result<Self, CliError> {
        let called = tag.map(|tag| format!("?tag={tag}")).unwrap_or_default();
        let request = client
            .request(Method::POST, &format!("/v1/imports{called}"))
            .header(header::CONTENT_TYPE, "application/json")
            .body(full(document.into()));
        let status = client.json(request).await?;
        Ok(Self { client: client.clone(), called, status })
    }

    /// Hands one object over.
    pub(crate) async fn put(&self, hash: &Digest, object: Bytes) -> Result<(), CliError> {
        let path = format!("/v1/imports/{}/objects/{hash}", self.status.id);
        let request =
            self.client.request(Method::PUT, &path).header(header::CONTENT_TYPE, "application/zstd");
        self.client.send(request.body(full(object.into()))).await.map(drop)
    }

    /// Has everything checked and made visible.
    pub(crate) async fn commit(&self) -> Result<Imported, CliError> {
        let path = format!("/v1/imports/{}/commit{}", self.status.id, self.called);
        self.client.json(self.client.request(Method::POST, &path).body(empty())).await
    }

    /// After a failure: a bundle that the controller refused is not gone on with, so nothing of it has to stay.
    pub(crate) async fn after(&self, failure: &CliError) {
        if matches!(failure, CliError::Api { .. }) && failure.class() == Some(ErrorClass::Caller) {
            self.give_up().await;
        }
    }

    /// Has the controller forget what came so far.
    pub(crate) async fn give_up(&self) {
        // The failure before it is what counts; `forkd gc` removes what this leaves.
        let _ = self.client.delete(&format!("/v1/imports/{}", self.status.id)).await;
    }
}
