//! Networks of sandboxes: who is given one, and what is done where this host gives none.
//!
//! A policy that somebody asked for is enforced, or the fork fails. One that is only inherited does not keep sandboxes
//! from being forked on a host without networks: there they run without one, which lets out less.

mod change;
mod error;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use forkd_host::net::{Lease, MOST_SLOTS, NetError, Network, NetworkPlan};
use forkd_protocol::error::{ErrorClass, chain};
use forkd_protocol::rest::{Egress, NetStats, NetworkPolicy};
use forkd_store::Store;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tracing::warn;

pub use error::NetworkError;

/// How sandboxes are given networks.
#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// Most networks at once.
    pub capacity: u32,
    /// Where the host lists its name servers.
    pub resolv_conf: PathBuf,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self { capacity: MOST_SLOTS, resolv_conf: "/etc/resolv.conf".into() }
    }
}

/// What is kept of a sandbox's network, so that the next controller finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NetworkNote {
    /// Its network namespace.
    name: String,
    /// What had gone through it before it was this sandbox's.
    #[serde(default)]
    before: NetStats,
}

impl From<&Lease> for NetworkNote {
    fn from(lease: &Lease) -> Self {
        Self { name: lease.name().to_owned(), before: lease.before() }
    }
}

/// The networks of one engine's sandboxes.
#[derive(Debug)]
pub(crate) struct Networks {
    /// None where they are switched off.
    network: Option<Network>,
    /// Somebody was told that sandboxes run without.
    warned: AtomicBool,
}

impl Networks {
    /// Touches nothing yet. As many wait as there are waiting monitors, twice: making one takes longer.
    pub(crate) fn new(config: Option<&NetworkConfig>, waiting: usize, store: &Store) -> Self {
        let network = config.zip(tag_of(store)).map(|(config, tag)| {
            let NetworkConfig { capacity, resolv_conf } = config.clone();
            Network::new(NetworkPlan { tag, capacity, waiting: 2 * waiting, resolv_conf }, Handle::current())
        });
        Self { network, warned: AtomicBool::default() }
    }

    /// Whether sandboxes can be given networks here; blocks.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn ready(&self) -> Result<(), NetError> {
        self.network()?.prove()
    }

    /// Which policy holds for children: what was asked for, or else what their source has. None where their guests have
    /// no network device. Blocks.
    ///
    /// # Errors
    /// What was asked for cannot be enforced.
    pub(crate) fn settle(
        &self,
        asked: Option<&NetworkPolicy>,
        (inherited, source): (Option<&NetworkPolicy>, &str),
    ) -> Result<Option<NetworkPolicy>, NetworkError> {
        let Some(inherited) = inherited else {
            let wants_out = asked.is_some_and(|p| !matches!(p.egress, Egress::Deny | Egress::None));
            return if wants_out { Err(NetworkError::NoDevice(source.to_owned())) } else { Ok(None) };
        };
        let policy = asked.unwrap_or(inherited);
        Network::check_policy(policy)?;
        if !policy.has_traffic() {
            return Ok(Some(policy.clone()));
        }
        match self.ready() {
            Ok(()) => Ok(Some(policy.clone())),
            // Without a network nothing leaves, either.
            Err(e)
                if e.class() == ErrorClass::HostUnfit
                    && (asked.is_none() || policy.egress == Egress::Deny) =>
            {
                if !self.warned.swap(true, Ordering::Relaxed) {
                    warn!(error = %chain(&e), "sandboxes run without a network");
                }
                Ok(Some(Egress::None.into()))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// A network in which the policy holds; none where it lets nothing pass. Blocks.
    ///
    /// # Errors
    /// It cannot be had. Nothing is left then.
    pub(crate) fn lease(&self, policy: Option<&NetworkPolicy>) -> Result<Option<Lease>, NetError> {
        match policy.filter(|policy| policy.has_traffic()) {
            Some(policy) => self.network()?.lease(policy).map(Some),
            None => Ok(None),
        }
    }

    /// The network of a sandbox that runs, which has this policy; blocks.
    ///
    /// # Errors
    /// It is not there.
    pub(crate) fn find(&self, note: &NetworkNote, policy: &NetworkPolicy) -> Result<Lease, NetError> {
        self.network()?.find(&note.name, policy, note.before)
    }

    /// Removes the networks that none of the named sandboxes has; blocks.
    pub(crate) fn keep_only(&self, names: &[String]) {
        let removed = self.network.as_ref().map_or(Ok(()), |network| network.remove_all_but(names));
        if let Err(e) = removed {
            warn!(error = %chain(&e), "leftovers of networks could not be removed");
        }
    }

    /// Has networks wait from now on, before somebody asks for one.
    pub(crate) fn want(&self) {
        if let Some(network) = &self.network {
            network.want();
        }
    }

    /// Something that makes one more that waits, where that is wanted.
    pub(crate) fn to_fill(&self) -> Option<Network> {
        self.network.clone().filter(Network::lacks_waiting)
    }

    /// Removes those that wait; blocks.
    pub(crate) fn close(&self) {
        if let Some(network) = &self.network {
            network.close();
        }
    }

    fn network(&self) -> Result<&Network, NetError> {
        self.network.as_ref().ok_or_else(|| NetError::Unfit("they are switched off".to_owned()))
    }
}

/// Tells the networks of this store from those of others on the host, as its cgroups are told: by its inode.
fn tag_of(store: &Store) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let found = store.root().metadata().ok()?;
    Some(format!("{:x}_{:x}", found.dev(), found.ino()))
}
