//! Figures that take a walk through page tables or folders.

use std::time::{Duration, Instant};

use forkd_protocol::rest::SandboxStats;
use forkd_store::StoreUsage;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Label, signed};
use crate::engine::Engine;
use crate::error::EngineError;

/// How long they are good: as long as Prometheus waits from one look to the next, or a little less.
const GOOD_FOR: Duration = Duration::from_secs(15);

/// Figures as they were a moment ago.
#[derive(Debug)]
pub(super) struct Costly {
    at: Instant,
    memory: [(&'static str, u64); 5],
    store: StoreUsage,
}

impl Costly {
    /// Looks at every sandbox that runs, and at the store.
    pub(super) async fn look(engine: &Engine) -> Result<Self, EngineError> {
        let sandboxes = engine.all_stats().await.sandboxes;
        let sum = |of: fn(&SandboxStats) -> u64| sandboxes.iter().map(of).sum();
        let memory = [
            ("guest_private", sum(|s| s.guest_private_bytes)),
            ("guest_shared", sum(|s| s.guest_shared_bytes)),
            ("monitor_private", sum(|s| s.monitor_private_bytes)),
            ("page_tables", sum(|s| s.page_table_bytes)),
            ("charged", sum(|s| s.memory_charged_bytes.unwrap_or_default())),
        ];
        let store = engine.in_store(|store| Ok(store.usage())).await?;
        Ok(Self { at: Instant::now(), memory, store })
    }

    /// Whether somebody has to look again.
    pub(super) fn is_old(&self) -> bool {
        self.at.elapsed() >= GOOD_FOR
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let memory = Family::<Label, Gauge>::default();
        for (kind, value) in self.memory {
            memory.get_or_create(&[("kind", kind)]).set(signed(value));
        }
        let help = "Memory of all sandboxes: private to them, of their snapshots, and what their cgroups are charged";
        registry.register_with_unit("memory", help, Unit::Bytes, memory);
        let store = Family::<Label, Gauge>::default();
        for (kind, value) in self.store.kinds() {
            store.get_or_create(&[("kind", kind)]).set(signed(value));
        }
        registry.register_with_unit("store", "Bytes on the disk, by what they are", Unit::Bytes, store);
    }
}
