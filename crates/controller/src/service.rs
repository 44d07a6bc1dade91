//! The controller as a whole: an engine, and what stands around it.

use std::sync::{Arc, Weak};

use axum::extract::FromRef;
use forkd_engine::{Engine, EngineError};
use forkd_store::StoreError;
use tokio::sync::Semaphore;

use crate::access::{ChosenToken, Hosts, Keyring, Quotas};
use crate::audit::Log;
use crate::clock::unix_now;
use crate::error::ApiError;
use crate::lines::{GuestPorts, Lines};
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
    /// Where published clients reach sandboxes over TCP.
    pub guest_ports: GuestPorts,
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
    parts: Arc<Parts>,
}

/// A service that others keep, or have let go of.
#[derive(Debug, Clone)]
pub(crate) struct WeakService(Weak<Parts>);

impl WeakService {
    pub(crate) fn upgrade(&self) -> Option<Service> {
        self.0.upgrade().map(|parts| Service { parts })
    }
}

#[derive(Debug)]
struct Parts {
    engine: Engine,
    hosts: Hosts,
    keyring: Keyring,
    quotas: Arc<Quotas>,
    audit: Log,
    traffic: Traffic,
    followers: Arc<Semaphore>,
    lines: Lines,
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
            let lines = Lines::new(options.guest_ports);
            Ok::<_, OpenServiceError>(Parts {
                engine,
                hosts,
                keyring,
                quotas,
                audit,
                traffic,
                followers,
                lines,
            })
        });
        let parts = opening.await.map_err(|_| OpenServiceError::Broken)??;
        Ok(Self { parts: Arc::new(parts) })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.parts.engine
    }

    /// Whether there is a token that is good.
    pub fn has_token(&self) -> bool {
        self.parts.keyring.has_good(unix_now())
    }

    /// A handle that keeps nothing alive.
    pub(crate) fn downgrade(&self) -> WeakService {
        WeakService(Arc::downgrade(&self.parts))
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.parts.lines
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        &self.parts.hosts
    }

    pub(crate) fn keyring(&self) -> &Keyring {
        &self.parts.keyring
    }

    pub(crate) fn quotas(&self) -> &Arc<Quotas> {
        &self.parts.quotas
    }

    /// Places of those who follow what happens.
    pub(crate) fn followers(&self) -> Arc<Semaphore> {
        Arc::clone(&self.parts.followers)
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.parts.traffic
    }

    pub(crate) fn audit(&self) -> &Log {
        &self.parts.audit
    }
}

impl FromRef<Service> for Engine {
    fn from_ref(service: &Service) -> Self {
        service.engine().clone()
    }
}

/// Work that blocks, on a thread where it may.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| EngineError::Broken.into())
}
