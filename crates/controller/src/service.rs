//! The controller as a whole: an engine, and what stands around it.

use std::sync::Arc;

use axum::extract::FromRef;
use forkd_engine::{Engine, EngineError};
use forkd_store::StoreError;
use tokio::sync::Semaphore;

use crate::access::{ChosenToken, Hosts, Keyring, Quotas};
use crate::audit::Log;
use crate::clock::unix_now;
use crate::error::ApiError;
use crate::metrics::Traffic;

/// How many may follow what happens at once.
const MAX_FOLLOWERS: usize = 256;

/// What a service is told when it opens.
#[derive(Debug, Clone, Default)]
pub struct ServiceOptions {
    /// Names that a loopback listener answers to beside those of this computer.
    pub hosts: Hosts,
    /// A token that a person chose: it may do everything.
    pub chosen: Option<ChosenToken>,
    /// A token of the controller's owner: it may do everything, and that there is one demands none of others.
    pub owner: Option<ChosenToken>,
}

/// Why a service did not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenServiceError {
    /// The registry failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The audit log could not be gone on with: without it nothing is served.
    #[error("the audit log in {folder} could not be opened")]
    Audit {
        /// Its folder.
        folder: std::path::PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A background thread broke; a fault of forkd.
    #[error("a task of the controller ended before its work was done")]
    Broken,
}

/// An engine with tokens, quotas and an audit log. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Service {
    engine: Engine,
    around: Arc<Around>,
}

#[derive(Debug)]
struct Around {
    hosts: Hosts,
    keyring: Keyring,
    quotas: Arc<Quotas>,
    audit: Log,
    traffic: Traffic,
    followers: Arc<Semaphore>,
}

impl Service {
    /// Puts around an engine what its store keeps for that.
    ///
    /// # Errors
    /// Registry or audit log cannot be read.
    pub async fn open(engine: Engine, options: ServiceOptions) -> Result<Self, OpenServiceError> {
        let store = engine.store().clone();
        let opening = tokio::task::spawn_blocking(move || {
            store.sweep_claims()?;
            store.forget_unanswered_keys()?;
            let folder = store.root().join("audit");
            let audit = Log::open(&folder, store.clone())
                .map_err(|source| OpenServiceError::Audit { folder, source })?;
            let keyring = Keyring::new(store.tokens()?, options.chosen, options.owner);
            let quotas = Arc::new(Quotas::new(store.tenants()?));
            let (hosts, traffic) = (options.hosts, Traffic::default());
            let followers = Arc::new(Semaphore::new(MAX_FOLLOWERS));
            Ok::<_, OpenServiceError>(Around { hosts, keyring, quotas, audit, traffic, followers })
        });
        let around = opening.await.map_err(|_| OpenServiceError::Broken)??;
        Ok(Self { engine, around: Arc::new(around) })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Whether there is a token that is good.
    pub fn has_token(&self) -> bool {
        self.around.keyring.has_good(unix_now())
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        &self.around.hosts
    }

    pub(crate) fn keyring(&self) -> &Keyring {
        &self.around.keyring
    }

    pub(crate) fn quotas(&self) -> &Arc<Quotas> {
        &self.around.quotas
    }

    /// Places of those who follow what happens.
    pub(crate) fn followers(&self) -> Arc<Semaphore> {
        Arc::clone(&self.around.followers)
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.around.traffic
    }

    pub(crate) fn audit(&self) -> &Log {
        &self.around.audit
    }
}

impl FromRef<Service> for Engine {
    fn from_ref(service: &Service) -> Self {
        service.engine.clone()
    }
}

/// Work that blocks, on a thread where it may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| EngineError::Broken.into())
}
