//! What a tenant may have, and what it has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use forkd_engine::Engine;
use forkd_protocol::rest::{Quota, SandboxInfo, SnapshotInfo, TenantInfo, Usage};
use http::StatusCode;

use crate::error::ApiError;

/// Whoever has too much is asked to come again after so many seconds; what is freed until then nobody knows.
const AGAIN: u64 = 30;
/// Forks that may be saved up, in seconds' worth of them.
const BURST_SECONDS: f64 = 5.0;

/// All quotas. Tenants without one have no bounds.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    tenants: Mutex<HashMap<String, Tenant>>,
}

#[derive(Debug, Default)]
struct Tenant {
    quota: Quota,
    /// Of forks on their way, which are not counted as there yet.
    promised: Usage,
    saved_up: Option<(f64, Instant)>,
}

/// Room that a fork has been promised, until it is dropped.
#[derive(Debug)]
pub(crate) struct Promise(Option<(Arc<Quotas>, String, Usage)>);

impl Quotas {
    pub(crate) fn new(rows: Vec<(String, Quota)>) -> Self {
        let quotas = Self::default();
        rows.into_iter().for_each(|(name, quota)| quotas.set(&name, quota));
        quotas
    }

    pub(crate) fn set(&self, tenant: &str, quota: Quota) {
        self.lock().entry(tenant.to_owned()).or_default().quota = quota;
    }

    /// All tenants that have a quota or anything else.
    pub(crate) fn infos(&self, sandboxes: &[SandboxInfo], snapshots: &[SnapshotInfo]) -> Vec<TenantInfo> {
        let mut known: HashMap<String, Quota> =
            self.lock().iter().map(|(name, tenant)| (name.clone(), tenant.quota)).collect();
        let owners = sandboxes.iter().filter_map(|s| s.tenant.as_ref());
        for owner in owners.chain(snapshots.iter().filter_map(|s| s.tenant.as_ref())) {
            known.entry(owner.clone()).or_default();
        }
        let used = |name: &str| usage(name, sandboxes, snapshots);
        let mut infos: Vec<_> =
            known.into_iter().map(|(name, quota)| TenantInfo { used: used(&name), name, quota }).collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos
    }

    /// Promises room for `n` more sandboxes of `memory_mib` each, or says what is in the way.
    pub(crate) fn admit_forks(
        self: &Arc<Self>,
        engine: &Engine,
        tenant: Option<&str>,
        n: u64,
        memory_mib: u64,
    ) -> Result<Promise, ApiError> {
        self.admit(engine, tenant, n, n.saturating_mul(memory_mib))
    }

    /// Promises the memory of a sandbox that is to be continued.
    pub(crate) fn admit_resume(
        self: &Arc<Self>,
        engine: &Engine,
        sandbox: &SandboxInfo,
    ) -> Result<Promise, ApiError> {
        self.admit(engine, sandbox.tenant.as_deref(), 0, sandbox.guest_memory_mib)
    }

    fn admit(
        self: &Arc<Self>,
        engine: &Engine,
        tenant: Option<&str>,
        n: u64,
        memory_mib: u64,
    ) -> Result<Promise, ApiError> {
        let Some(name) = tenant else { return Ok(Promise(None)) };
        let mut tenants = self.lock();
        let tenant = tenants.entry(name.to_owned()).or_default();
        // Those that are starting have been promised their room.
        let there = engine.sandboxes().into_iter().filter(|s| s.state != "starting").collect::<Vec<_>>();
        let used = usage(name, &there, &[]);
        let wanted = Usage { sandboxes: n, memory_mib, disk_mib: 0 };
        let promised = tenant.promised;
        if n > 0 {
            within(name, "sandboxes", used.sandboxes + promised.sandboxes, n, tenant.quota.sandboxes)?;
        }
        let memory = used.memory_mib + promised.memory_mib;
        within(name, "MiB of memory", memory, wanted.memory_mib, tenant.quota.memory_mib)?;
        tenant.spend(name, n, Instant::now())?;
        tenant.promised.sandboxes += wanted.sandboxes;
        tenant.promised.memory_mib += wanted.memory_mib;
        Ok(Promise(Some((Arc::clone(self), name.to_owned(), wanted))))
    }

    /// Whether there is room for one more snapshot; how large it is going to be nobody knows.
    pub(crate) fn admit_snapshot(
        &self,
        tenant: Option<&str>,
        snapshots: &[SnapshotInfo],
    ) -> Result<(), ApiError> {
        let Some(name) = tenant else { return Ok(()) };
        let quota = self.lock().get(name).map(|tenant| tenant.quota).unwrap_or_default();
        within(name, "MiB of disk", usage(name, &[], snapshots).disk_mib, 1, quota.disk_mib)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Tenant>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tenant {
    /// A bucket that fills at the quota's rate.
    fn spend(&mut self, name: &str, n: u64, now: Instant) -> Result<(), ApiError> {
        let Some(rate) = self.quota.forks_per_second else { return Ok(()) };
        if rate == 0 {
            return within(name, "forks per second", 0, n, Some(0));
        }
        let (rate, wanted) = (rate as f64, n as f64);
        let full = rate * BURST_SECONDS;
        let (saved, at) = self.saved_up.unwrap_or((full, now));
        let saved = (saved + now.duration_since(at).as_secs_f64() * rate).min(full);
        // More than ever fits is let through once all is saved up, and paid for afterwards.
        if saved < wanted.min(full) {
            self.saved_up = Some((saved, now));
            let seconds = ((wanted.min(full) - saved) / rate).ceil() as u64;
            let text = format!(
                "tenant {name} may fork {rate} per second; {n} more were asked for: wait {seconds} s"
            );
            return Err(exceeded(text, seconds.max(1)));
        }
        self.saved_up = Some((saved - wanted, now));
        Ok(())
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let Some((quotas, name, promised)) = self.0.take() else { return };
        if let Some(tenant) = quotas.lock().get_mut(&name) {
            tenant.promised.sandboxes -= promised.sandboxes;
            tenant.promised.memory_mib -= promised.memory_mib;
        }
    }
}

fn usage(tenant: &str, sandboxes: &[SandboxInfo], snapshots: &[SnapshotInfo]) -> Usage {
    let is_its = |owner: &Option<String>| owner.as_deref() == Some(tenant);
    let its = || sandboxes.iter().filter(|s| is_its(&s.tenant) && s.ended.is_none());
    let own_bytes = |s: &SnapshotInfo| s.diff_physical_bytes.unwrap_or(s.memory_physical_bytes);
    Usage {
        sandboxes: its().count() as u64,
        memory_mib: its().filter(|s| s.state != "paused").map(|s| s.guest_memory_mib).sum(),
        disk_mib: snapshots
            .iter()
            .filter(|s| is_its(&s.tenant))
            .map(own_bytes)
            .sum::<u64>()
            .div_ceil(1 << 20),
    }
}

fn within(name: &str, what: &str, used: u64, wanted: u64, bound: Option<u64>) -> Result<(), ApiError> {
    match bound {
        Some(bound) if used.saturating_add(wanted) > bound => Err(exceeded(
            format!("tenant {name} has {used} of {bound} {what}; {wanted} more were asked for"),
            AGAIN,
        )),
        _ => Ok(()),
    }
}

fn exceeded(text: String, seconds: u64) -> ApiError {
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "quota_exceeded", text).retry_after(seconds)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn forks_are_saved_up_for_some_seconds_and_no_longer() {
        let quota = Quota { forks_per_second: Some(2), ..Quota::default() };
        let mut tenant = Tenant { quota, ..Tenant::default() };
        let start = Instant::now();
        tenant.spend("a", 10, start).unwrap();
        assert!(tenant.spend("a", 1, start).is_err());
        tenant.spend("a", 1, start + Duration::from_millis(600)).unwrap();
        // A request for more than is ever saved up passes once all is there.
        assert!(tenant.spend("a", 100, start + Duration::from_secs(2)).is_err());
        tenant.spend("a", 100, start + Duration::from_secs(60)).unwrap();
        assert!(tenant.spend("a", 1, start + Duration::from_secs(90)).is_err());
    }

    #[test]
    fn a_bound_is_met_exactly() {
        assert!(within("a", "sandboxes", 3, 2, Some(5)).is_ok());
        assert!(within("a", "sandboxes", 4, 2, Some(5)).is_err());
        assert!(within("a", "sandboxes", u64::MAX, 2, None).is_ok());
    }
}
