//! Another policy for a sandbox that is there already.

use forkd_host::net::Network;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{Egress, NetworkPolicy, SandboxInfo};

use super::NetworkError;
use crate::engine::{Engine, blocking};
use crate::error::EngineError;
use crate::settings::Settings;

impl Engine {
    /// From one instant to the next another policy holds for a sandbox, also for its open connections. One that is
    /// paused has it once it is continued.
    ///
    /// # Errors
    /// There is no such sandbox, or the policy cannot be enforced: then the one before holds still.
    pub async fn set_network(
        &self,
        id: &SandboxId,
        policy: NetworkPolicy,
    ) -> Result<SandboxInfo, EngineError> {
        Network::check_policy(&policy).map_err(NetworkError::from)?;
        let handle = self.find(id)?;
        handle.settled().await;
        let _turn = handle.settings.network_turn.lock().await;
        let policing = handle.view.borrow().policing.clone();
        let before = handle.settings.look(|s| s.network.clone());
        let Some(before) = before else { return Err(NetworkError::Without(id.to_string()).into()) };
        let store = &self.shared.store;
        let to = |policy: NetworkPolicy, pending| {
            move |s: &mut Settings| (s.network, s.network_pending) = (Some(policy), pending)
        };
        if handle.check_paused().is_ok() {
            handle.settings.change(store, id, to(policy, false)).await?;
            return Ok(handle.info());
        }
        handle.check_running()?;
        let Some(policing) = policing else {
            // Nothing passes, whatever the policy.
            return if matches!(policy.egress, Egress::Deny | Egress::None) {
                Ok(handle.info())
            } else {
                Err(NetworkError::Without(id.to_string()).into())
            };
        };
        // Before it holds: a controller that starts again meanwhile sees to that.
        handle.settings.change(store, id, to(policy.clone(), true)).await?;
        let asked = policy.clone();
        let enforced = blocking(move || policing.set(&asked)).await?;
        let holds = if enforced.is_ok() { policy } else { before };
        handle.settings.change(store, id, to(holds, false)).await?;
        enforced.map_err(NetworkError::from)?;
        Ok(handle.info())
    }
}
