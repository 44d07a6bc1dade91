//! Reaching what listens in a sandbox.

use forkd_protocol::guest::{GuestMetrics, PATH_METRICS, TUNNEL_ECHO, TUNNEL_SOURCE};
use forkd_protocol::names::SandboxId;
use futures::TryFutureExt;

use crate::engine::{Engine, ask};
use crate::error::EngineError;
use crate::guest::{GuestError, Limits, Tunnel};

impl Engine {
    /// Resolves when a sandbox is being removed, has ended, or nobody looks after it any more. Holds nothing of it.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn over(&self, id: &SandboxId) -> Result<impl Future<Output = ()> + Send + use<>, EngineError> {
        Ok(self.find(id)?.removed_or_ended())
    }

    /// Connects to a TCP port of a running sandbox, wherever in it something listens on it.
    ///
    /// # Errors
    /// It does not run, nothing listens there (`port_not_open`), or its agent is older than that.
    pub async fn open_port(&self, id: &SandboxId, port: u16) -> Result<Tunnel, EngineError> {
        self.tunnel(id, &port.to_string()).await
    }

    /// Connects to the sandbox's agent, which sends back whatever it is sent: what a connection costs without anybody
    /// behind it.
    ///
    /// # Errors
    /// As [`Engine::open_port`].
    pub async fn open_echo(&self, id: &SandboxId) -> Result<Tunnel, EngineError> {
        self.tunnel(id, TUNNEL_ECHO).await
    }

    /// Connects to the sandbox's agent, which sends zeroes until it is left: how fast a connection is without anybody behind
    /// it.
    ///
    /// # Errors
    /// As [`Engine::open_port`].
    pub async fn open_source(&self, id: &SandboxId) -> Result<Tunnel, EngineError> {
        self.tunnel(id, TUNNEL_SOURCE).await
    }

    /// How a running guest is doing, by its own account.
    ///
    /// # Errors
    /// It does not run, or its agent is older than that.
    pub async fn guest_metrics(&self, id: &SandboxId) -> Result<GuestMetrics, EngineError> {
        let handle = self.running(id)?;
        let limits = Limits::small(self.shared.config.bounds.guest_grace);
        let told = handle.guest.get(PATH_METRICS, limits);
        ask(&handle, told.map_err(GuestError::or_older)).await
    }

    async fn tunnel(&self, id: &SandboxId, to: &str) -> Result<Tunnel, EngineError> {
        let (handle, busy) = self.reached(id).await?;
        let opened = handle.guest.tunnel(to, self.shared.config.bounds.guest_grace);
        Ok(Tunnel::new(ask(&handle, opened.map_err(GuestError::or_older)).await?, busy))
    }
}
