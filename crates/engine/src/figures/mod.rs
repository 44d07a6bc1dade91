//! What an engine counts and measures, in the shapes that Prometheus knows.
//!
//! Counters and histograms are moved where things happen; levels are looked at when somebody asks, and what is costly to
//! look at no more often than every quarter of a minute.

mod costly;

use std::time::{Duration, Instant};

use forkd_protocol::rest::{BranchMode, ForkTiming};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::branch::MAX_AT_ONCE;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::monitor::{KILLED_BY_FILTER, KILLED_FOR_MEMORY};
use costly::Costly;

/// One label: its name and its value.
type Label = [(&'static str, &'static str); 1];
/// A histogram for each value of a label.
type Histograms = Family<Label, Histogram, fn() -> Histogram>;

/// Why the kernel ended a sandbox.
const BY_FILTER: Label = [("reason", "seccomp")];
const FOR_MEMORY: Label = [("reason", "memory")];

/// From half a millisecond to a quarter of an hour, each twice the one before.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 2.0, 21))
}

/// What was counted since the engine was opened.
#[derive(Debug)]
pub(crate) struct Figures {
    operations: Histograms,
    failures: Family<[(&'static str, &'static str); 2], Counter>,
    forks: Histogram,
    pauses: Histograms,
    workload_pauses: Histograms,
    killed: Family<Label, Counter>,
    costly: tokio::sync::Mutex<Option<Costly>>,
}

impl Default for Figures {
    fn default() -> Self {
        let figures = Self {
            operations: Family::new_with_constructor(seconds),
            failures: Family::default(),
            forks: seconds(),
            pauses: Family::new_with_constructor(seconds),
            workload_pauses: Family::new_with_constructor(seconds),
            killed: Family::default(),
            costly: tokio::sync::Mutex::default(),
        };
        // There from the beginning, so that the first one is a rise.
        for reason in [BY_FILTER, FOR_MEMORY] {
            drop(figures.killed.get_or_create(&reason));
        }
        figures
    }
}

impl Figures {
    /// Notes how long an operation took, or what kind of failure it was.
    pub(crate) async fn timed<T>(
        &self,
        operation: &'static str,
        work: impl Future<Output = Result<T, EngineError>>,
    ) -> Result<T, EngineError> {
        let began = Instant::now();
        let outcome = work.await;
        match &outcome {
            Ok(_) => {
                self.operations
                    .get_or_create(&[("operation", operation)])
                    .observe(began.elapsed().as_secs_f64());
            }
            Err(e) => {
                let class = e.class().name();
                self.failures.get_or_create(&[("operation", operation), ("class", class)]).inc();
            }
        }
        outcome
    }

    /// A child answered with its new identity.
    pub(crate) fn forked(&self, timing: ForkTiming) {
        self.forks.observe(Duration::from_micros(timing.answered_us).as_secs_f64());
    }

    /// A sandbox was branched: how long its machine stood still, and how long its workload did.
    pub(crate) fn branched(&self, mode: BranchMode, machine: Duration, workload: Duration) {
        let label = [("mode", mode.name())];
        self.pauses.get_or_create(&label).observe(machine.as_secs_f64());
        self.workload_pauses.get_or_create(&label).observe(workload.as_secs_f64());
    }

    /// A sandbox ended by itself, for this reason.
    pub(crate) fn ended(&self, reason: &str) {
        if reason.starts_with(KILLED_BY_FILTER) {
            self.killed.get_or_create(&BY_FILTER).inc();
        } else if reason.starts_with(KILLED_FOR_MEMORY) {
            self.killed.get_or_create(&FOR_MEMORY).inc();
        }
    }

    pub(crate) fn killed_by_filter(&self) -> u64 {
        self.killed.get_or_create(&BY_FILTER).get()
    }

    fn register(&self, registry: &mut Registry) {
        let second = || Unit::Seconds;
        registry.register_with_unit(
            "operation",
            "How long what was asked for took, where it was done",
            second(),
            self.operations.clone(),
        );
        registry.register(
            "operation_failures",
            "What was asked for and not done, by kind of failure",
            self.failures.clone(),
        );
        registry.register_with_unit(
            "fork",
            "From the request until a child answered with its new identity",
            second(),
            self.forks.clone(),
        );
        registry.register_with_unit(
            "branch_pause",
            "How long a machine stood still to be branched",
            second(),
            self.pauses.clone(),
        );
        registry.register_with_unit(
            "branch_workload_pause",
            "How long a workload stood still to be branched",
            second(),
            self.workload_pauses.clone(),
        );
        registry.register(
            "sandboxes_killed",
            "Sandboxes that the kernel ended, by what for",
            self.killed.clone(),
        );
    }
}

impl Engine {
    /// Puts into `registry` what was counted and measured, and how things stand right now.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn figures(&self, registry: &mut Registry) -> Result<(), EngineError> {
        let figures = &self.shared.figures;
        figures.register(registry);
        level(registry, "snapshots_total", "Snapshots in the store", self.snapshots().await?.len() as u64);
        self.sandbox_levels(registry);
        let (waiting, wanted) = self.shared.launcher.pool_level();
        level(registry, "pool_waiting", "Monitors that were started ahead and wait for a fork", waiting);
        level(registry, "pool_size", "How many monitors are to wait", wanted);
        let free = self.shared.branching.available_permits();
        let under_way = MAX_AT_ONCE.saturating_sub(free) as u64;
        level(registry, "branches_in_flight", "Branches under way", under_way);
        level(registry, "branch_concurrency_cap", "How many branches may be under way", MAX_AT_ONCE as u64);
        self.room_levels(registry);
        let mut costly = figures.costly.lock().await;
        if costly.as_ref().is_none_or(Costly::is_old) {
            *costly = Some(Costly::look(self).await?);
        }
        costly.iter().for_each(|costly| costly.register(registry));
        Ok(())
    }

    fn sandbox_levels(&self, registry: &mut Registry) {
        let states = Family::<[(&'static str, String); 1], Gauge>::default();
        let mut active = 0;
        for info in self.sandboxes() {
            active += u64::from(info.ended.is_none() && info.state != "paused");
            states.get_or_create(&[("state", info.state)]).inc();
        }
        level(registry, "sandboxes_active", "Sandboxes that live, without paused ones", active);
        registry.register("sandboxes", "Sandboxes by state", states);
    }

    fn room_levels(&self, registry: &mut Registry) {
        let room = self.host_room();
        for (name, help, value) in [
            ("host_memory", "Memory of the host", room.memory_total_bytes),
            (
                "host_memory_available",
                "Memory of the host that is free or can be made so",
                room.memory_available_bytes,
            ),
            ("memory_promised", "Memory that is promised to sandboxes", room.memory_promised_bytes),
            ("memory_promisable", "How much memory may be promised", room.memory_promisable_bytes),
            ("store_free", "Free bytes of the store's file system", room.disk_free_bytes),
        ] {
            bytes(registry, name, help, value);
        }
    }
}

fn level(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge: Gauge = Gauge::default();
    gauge.set(signed(value));
    registry.register(name, help, gauge);
}

fn bytes(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge: Gauge = Gauge::default();
    gauge.set(signed(value));
    registry.register_with_unit(name, help, Unit::Bytes, gauge);
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;
    use crate::error::RequestError;

    #[tokio::test]
    async fn what_was_done_is_timed_and_what_failed_is_counted_by_class() {
        let figures = Figures::default();
        figures.timed("exec", async { Ok(()) }).await.unwrap();
        let failed = figures.timed("exec", async { Err::<(), _>(RequestError::Empty("args").into()) });
        assert!(failed.await.is_err());
        figures.forked(ForkTiming { answered_us: 2_000, ..ForkTiming::default() });
        figures.branched(BranchMode::Live, Duration::from_millis(3), Duration::from_millis(5));
        figures.ended("killed: memory");
        let mut registry = Registry::with_prefix("forkd");
        figures.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "forkd_operation_seconds_count{operation=\"exec\"} 1",
            "forkd_operation_failures_total{operation=\"exec\",class=\"caller\"} 1",
            "forkd_fork_seconds_bucket{le=\"0.002\"} 1",
            "forkd_fork_seconds_bucket{le=\"0.001\"} 0",
            "forkd_branch_pause_seconds_sum{mode=\"live\"} 0.003",
            "forkd_branch_workload_pause_seconds_sum{mode=\"live\"} 0.005",
            "forkd_sandboxes_killed_total{reason=\"memory\"} 1",
            "forkd_sandboxes_killed_total{reason=\"seccomp\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
