//! Giving secrets: to sandboxes that run, and to children of those that hold some.

use forkd_protocol::guest::{GiveSecrets, PATH_SECRETS};
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{CreateSandboxes, SandboxInfo, SecretValues};
use futures::TryFutureExt;

use super::{SecretError, Secrets, check};
use crate::engine::{Engine, Shared, ask};
use crate::error::EngineError;
use crate::fork::{self, Wishes};
use crate::guest::{GuestError, Limits};

impl Engine {
    /// Names of the secrets that processes of a sandbox may have read.
    ///
    /// # Errors
    /// There is no such sandbox.
    pub fn secret_names(&self, id: &SandboxId) -> Result<Vec<String>, EngineError> {
        Ok(self.find(id)?.settings.look(|s| s.secrets.names()))
    }

    /// Gives a running sandbox secrets beside those that it has, or in their place.
    ///
    /// # Errors
    /// A name or value is not possible, the sandbox does not run, or its agent is older than that.
    pub async fn give_secrets(
        &self,
        id: &SandboxId,
        values: SecretValues,
    ) -> Result<SandboxInfo, EngineError> {
        check(&values)?;
        let handle = self.running(id)?;
        // Not while it is being written.
        let _turn = handle.turns.disk.lock().await;
        let mut all = handle.settings.look(|s| s.secrets.clone());
        all.add(values.clone());
        if all.names().len() > forkd_protocol::rest::MAX_SECRETS {
            return Err(SecretError::TooMany(all.names().len()).into());
        }
        let mut new = Secrets::default();
        new.add(values.clone());
        let question = GiveSecrets { secrets: new.for_guest() };
        let limits = Limits::small(self.shared.config.bounds.guest_grace);
        let told = handle.guest.post_once::<_, serde_json::Value>(PATH_SECRETS, &question, limits);
        ask(&handle, told.map_err(GuestError::or_older)).await?;
        handle.settings.change(&self.shared.store, id, |s| s.secrets.add(values)).await?;
        Ok(handle.info())
    }

    /// Forks children of a snapshot that was made of a sandbox with its secrets, which they have, too.
    ///
    /// # Errors
    /// As [`Engine::fork`]; and the sandbox is gone.
    pub async fn fork_inheriting(
        &self,
        asked: CreateSandboxes,
        source: &SandboxId,
    ) -> Result<Vec<SandboxInfo>, EngineError> {
        let carried = Some(of_source(&self.shared, source)?);
        fork::fork(&self.shared, asked, Wishes { carried, ..Wishes::default() }).await
    }
}

/// What children of a running sandbox inherit, where that is asked for. Looked up before anything is made.
pub(crate) fn carried(
    shared: &Shared,
    asked: &CreateSandboxes,
) -> Result<Option<(SandboxId, Secrets)>, EngineError> {
    match (&asked.from_sandbox, asked.with_secrets) {
        (_, false) => Ok(None),
        (None, true) => Err(SecretError::NoSource.into()),
        (Some(source), true) => of_source(shared, &source.parse()?).map(Some),
    }
}

fn of_source(shared: &Shared, source: &SandboxId) -> Result<(SandboxId, Secrets), EngineError> {
    let handle = shared.registry.get(source)?;
    Ok((source.clone(), handle.settings.look(|s| s.secrets.clone())))
}
