//! Requests one after the other over one connection, as a client makes them that stays.

use forkd_protocol::error::ErrorClass;
use http::{Method, header};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::{self, Client, Sender};
use crate::error::CliError;

/// A connection to a controller that is used again.
#[derive(Debug)]
pub(crate) struct Kept<'a> {
    client: &'a Client,
    sender: Sender,
}

impl<'a> Kept<'a> {
    /// Connects.
    pub(crate) async fn open(client: &'a Client) -> Result<Self, CliError> {
        Ok(Self { client, sender: client.connected().await? })
    }

    /// `POST path` with a JSON body, answered with JSON.
    pub(crate) async fn post<B: Serialize, T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &B,
    ) -> Result<T, CliError> {
        let bytes = serde_json::to_vec(body)
            .map_err(|e| CliError::caused(ErrorClass::Internal, "writing the request", e))?;
        let request = self.client.request(Method::POST, path);
        let request = request.header(header::CONTENT_TYPE, "application/json").body(client::full(bytes));
        let request = request.map_err(|e| CliError::caused(ErrorClass::Caller, "forming the request", e))?;
        let answer = match self.sender.ready().await {
            Ok(()) => self.sender.send_request(request).await,
            Err(e) => Err(e),
        };
        self.client.read_json(answer.map_err(Into::into)).await
    }
}
