//! The network of sandboxes: each has a namespace of its own, prepared ahead.
//!
//! * `slot`: one namespace with tap, veth, rules and resolver; `addresses` follow from its number;
//! * `network` (this file): the slots of one controller: waiting, lent out, found again, removed;
//! * `filter`: from a policy to what the kernel's sets hold; `special`: what no policy means by accident;
//! * `rules`: the nftables rules, loaded once per slot; `netfilter`, `gate`: changing what their sets hold;
//! * `traffic`: what the kernel counted;
//! * `dns`: the resolver that guests ask;
//! * `namespace`, `tap`, `rate`: the kernel's interfaces, beside what `forkd_netlink` does.
//!
//! Nothing is touched before the first slot is asked for. Names tell whose a slot is, so a controller that starts again
//! finds those of its sandboxes and removes the others.

mod addresses;
mod dns;
mod error;
mod filter;
mod forwarding;
mod gate;
mod lease;
mod namespace;
mod netfilter;
mod rate;
mod rules;
mod slot;
mod special;
mod tap;
#[cfg(test)]
mod tests;
mod traffic;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_protocol::rest::{NetStats, NetworkPolicy};
use tokio::runtime::Handle;
use tracing::warn;

pub use self::addresses::{MOST_SLOTS, VETH_PREFIX};
pub use self::error::NetError;
pub use self::lease::{Lease, Policing};

use self::dns::Upstream;
use self::filter::Filter;
use self::slot::{Common, Slot, index_of};

/// How a controller's network is laid out.
#[derive(Debug, Clone)]
pub struct NetworkPlan {
    /// Tells the slots of this controller from those of others on the host: letters, digits and `_`, at most 32.
    pub tag: String,
    /// Most slots at once, at most [`MOST_SLOTS`].
    pub capacity: u32,
    /// How many slots wait for the next sandboxes.
    pub waiting: usize,
    /// Where the host lists its name servers.
    pub resolv_conf: PathBuf,
}

/// The slots of one controller. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Network {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    plan: NetworkPlan,
    common: Common,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Slot>,
    /// Slots that there are or are being made.
    count: u32,
    /// Where the search for a free number goes on.
    next: u32,
    /// Somebody wants slots.
    wanted: bool,
    /// The host forwards, and its rules are loaded.
    host_ready: bool,
    /// A slot was made.
    proven: bool,
    closed: bool,
}

impl Network {
    /// The network of a controller whose resolvers run on `runtime`. Nothing is touched yet.
    pub fn new(plan: NetworkPlan, runtime: Handle) -> Self {
        let common = Common {
            prefix: format!("forkd-{}-", plan.tag),
            upstream: Arc::new(Upstream::listed_in(&plan.resolv_conf)),
            runtime,
        };
        Self { inner: Arc::new(Inner { plan, common, state: Mutex::default() }) }
    }

    /// Whether a policy means something that can be enforced.
    ///
    /// # Errors
    /// It names what no policy can open.
    pub fn check_policy(policy: &NetworkPolicy) -> Result<(), NetError> {
        Filter::of(policy).map(drop)
    }

    /// A slot in which the policy holds: one that waited, or a new one; blocks.
    ///
    /// # Errors
    /// The host cannot do it, all slots are taken, or the policy cannot be enforced. Nothing is left then.
    pub fn lease(&self, policy: &NetworkPolicy) -> Result<Lease, NetError> {
        Self::check_policy(policy)?;
        let waiting = self.lock().waiting.pop();
        let slot = match waiting {
            Some(slot) => slot,
            None => self.make()?,
        };
        let enforced = slot.enforcer().enforce(policy);
        let before = slot.before();
        let lease = Lease::new(slot, self.clone(), before);
        // Given back by its guard where the policy is not enforced.
        enforced.map(|()| lease)
    }

    /// The slot of a sandbox that runs, which has this policy, and what had gone through it [before](Lease::before); blocks.
    ///
    /// # Errors
    /// It is not there.
    pub fn find(&self, name: &str, policy: &NetworkPolicy, before: NetStats) -> Result<Lease, NetError> {
        self.prepare_host()?;
        let mut lease = Lease::new(Slot::find(&self.inner.common, name, policy)?, self.clone(), before);
        lease.keep();
        self.lock().count += 1;
        Ok(lease)
    }

    /// Removes every slot of this controller but those named; blocks.
    ///
    /// # Errors
    /// One cannot be removed; the others are.
    pub fn remove_all_but(&self, keep: &[String]) -> Result<(), NetError> {
        let mut first = Ok(());
        for name in namespace::list(&self.inner.common.prefix) {
            let Some(index) = index_of(&self.inner.common, &name).filter(|_| !keep.contains(&name)) else {
                continue;
            };
            if let Err(e) = slot::remove(&name, index) {
                first = first.and(Err(e));
            }
        }
        first
    }

    /// Whether slots can be had here: where none ever was, one is made for that; blocks.
    ///
    /// # Errors
    /// What is missing.
    pub fn prove(&self) -> Result<(), NetError> {
        if self.lock().proven { Ok(()) } else { self.fill_one() }
    }

    /// Has slots wait from now on, though nobody has asked for one yet.
    pub fn want(&self) {
        self.lock().wanted = true;
    }

    /// Whether another slot should wait.
    pub fn lacks_waiting(&self) -> bool {
        let state = self.lock();
        let Inner { plan, .. } = &*self.inner;
        state.wanted && !state.closed && state.waiting.len() < plan.waiting && state.count < plan.capacity
    }

    /// Makes one that waits; blocks.
    ///
    /// # Errors
    /// As for [`Network::lease`].
    pub fn fill_one(&self) -> Result<(), NetError> {
        let slot = self.make()?;
        self.put(slot);
        Ok(())
    }

    /// Removes what waits, and the host's rules where no sandbox needs them; blocks.
    pub fn close(&self) {
        let waiting = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(|slot| self.discard(slot));
        let state = self.lock();
        if state.host_ready && state.count == 0 && namespace::list(&self.inner.common.prefix).is_empty() {
            // Rules without sandboxes do nothing.
            let _ = rules::load(&rules::without(&self.table()));
        }
    }

    fn make(&self) -> Result<Slot, NetError> {
        self.prepare_host()?;
        self.reserve()?;
        let made = self.make_reserved();
        match &made {
            Ok(_) => self.lock().proven = true,
            Err(_) => self.lock().count -= 1,
        }
        made.map_err(NetError::or_unfit)
    }

    fn reserve(&self) -> Result<(), NetError> {
        let (mut state, capacity) = (self.lock(), self.inner.plan.capacity);
        if state.count >= capacity {
            return Err(NetError::Exhausted(capacity));
        }
        state.count += 1;
        Ok(())
    }

    /// The next number that nobody has, neither we nor another controller.
    fn make_reserved(&self) -> Result<Slot, NetError> {
        for _ in 0..MOST_SLOTS {
            let index = {
                let mut state = self.lock();
                let index = state.next;
                state.next = (index + 1) % MOST_SLOTS;
                index
            };
            match Slot::prepare(&self.inner.common, index) {
                Err(e) if e.is_taken() => {}
                made => return made,
            }
        }
        Err(NetError::Exhausted(MOST_SLOTS))
    }

    /// Takes back a slot whose guest is gone: it waits again, or is removed; blocks.
    fn give_back(&self, mut slot: Slot) {
        let keep = !self.lock().closed && self.lock().waiting.len() < self.inner.plan.waiting;
        match if keep { slot.renew() } else { return self.discard(slot) } {
            Ok(()) => self.put(slot),
            Err(e) => {
                warn!(slot = slot.name(), error = %forkd_protocol::error::chain(&e), "a slot is not used again");
                self.discard(slot);
            }
        }
    }

    fn put(&self, slot: Slot) {
        let mut state = self.lock();
        if state.closed || state.waiting.len() >= self.inner.plan.waiting {
            drop(state);
            return self.discard(slot);
        }
        state.waiting.push(slot);
    }

    fn discard(&self, slot: Slot) {
        let name = slot.name().to_owned();
        if let Err(e) = slot.remove() {
            warn!(slot = name, error = %forkd_protocol::error::chain(&e), "a slot could not be removed");
        }
        let mut state = self.lock();
        state.count = state.count.saturating_sub(1);
    }

    /// Once: the host forwards, and its rules are there.
    fn prepare_host(&self) -> Result<(), NetError> {
        let mut state = self.lock();
        state.wanted = true;
        if state.host_ready {
            return Ok(());
        }
        forwarding::check()?;
        forwarding::allow()?;
        let unfit = |e: NetError| NetError::Unfit(forkd_protocol::error::chain(&e));
        rules::load(&rules::of_host(&self.table())).map_err(unfit)?;
        state.host_ready = true;
        Ok(())
    }

    fn table(&self) -> String {
        format!("forkd_{}", self.inner.plan.tag)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
