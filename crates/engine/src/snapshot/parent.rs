//! The parent: a machine that is booted and warmed up in order to be written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_protocol::guest::{Evaluated, Frozen, Health, PATH_FREEZE, PATH_HEALTH, PATH_WARM, Warm};
use forkd_protocol::names::KernelName;
use forkd_store::ImageRecord;
use tracing::debug;

use super::{Plan, SnapshotError, millis};
use crate::engine::{Shared, blocking};
use crate::error::EngineError;
use crate::fork::reach;
use crate::guest::{Guest, Limits};
use crate::monitor::{Monitor, ParentPlan, Watch};

/// Most bytes of an answer to a warm-up: what it printed comes with it.
const MAX_WARMED: usize = 64 << 20;
/// Most characters of the console that are repeated where a parent does not boot.
const MAX_CONSOLE: usize = 2000;

/// A machine that is warmed up in order to be written.
#[derive(Debug)]
pub(super) struct Parent {
    pub(super) monitor: Monitor,
    watch: Watch,
    guest: Guest,
    pub(super) image: ImageRecord,
    pub(super) kernel: KernelName,
}

impl Parent {
    pub(super) async fn boot(shared: &Arc<Shared>, plan: &Plan) -> Result<Self, EngineError> {
        let (store, launcher, agent) =
            (shared.store.clone(), Arc::clone(&shared.launcher), shared.config.agent());
        let (id, image, kernel) = (shared.ids.parent()?, plan.image.clone(), plan.kernel.clone());
        let (vcpus, memory_mib, cpu) = (plan.vcpus, plan.memory_mib, plan.asked.cpu);
        let booting = move || -> Result<_, EngineError> {
            let image = store.image(&image)?;
            let kernel = store.kernel(kernel.as_ref())?;
            let initrd = store.initrd(&kernel, &agent)?;
            let name: KernelName = kernel.info.name.parse()?;
            let disk = image.path.clone();
            let parent = ParentPlan { kernel: kernel.vmlinuz, initrd, disk, vcpus, memory_mib, cpu };
            let monitor = launcher.start(&id, None)?;
            match launcher.boot(&monitor, &parent) {
                Ok(()) => Ok((monitor, image, name)),
                Err(e) => {
                    monitor.discard();
                    Err(e.into())
                }
            }
        };
        let (monitor, image, kernel) = blocking(booting).await??;
        let watch = monitor.watch()?;
        let guest = Guest::new(monitor.dir().vsock());
        Ok(Self { monitor, watch, guest, image, kernel })
    }

    pub(super) async fn up(&self, shared: &Shared) -> Result<Health, EngineError> {
        let bound = shared.config.bounds.boot;
        let answered = async {
            loop {
                reach(&self.guest).await;
                if let Ok(health) = self.guest.get::<Health>(PATH_HEALTH, Limits::small(bound)).await {
                    return health;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        match self.unless_ended("it booted", tokio::time::timeout(bound, answered)).await? {
            Ok(health) => Ok(health),
            Err(_) => Err(SnapshotError::NotUp { after: bound, console: self.console() }.into()),
        }
    }

    pub(super) async fn warm(
        &self,
        plan: &Plan,
        shared: &Shared,
        tell: &impl Fn(String),
    ) -> Result<u64, EngineError> {
        let Some(code) = plan.asked.warm.clone() else { return Ok(0) };
        let started = Instant::now();
        tell("warming up".to_owned());
        let secs = plan.asked.warm_timeout_secs.clamp(1, 24 * 3600);
        let limits = Limits {
            time: Some(Duration::from_secs(secs) + shared.config.bounds.guest_grace),
            bytes: MAX_WARMED,
        };
        let question = Warm { code, timeout_ms: secs * 1000 };
        let warming = self.guest.post::<_, Evaluated>(PATH_WARM, &question, limits);
        let done = self.unless_ended("it warmed up", warming).await?.map_err(SnapshotError::WarmUpRefused)?;
        match (done.timed_out, done.error) {
            (true, _) => return Err(SnapshotError::WarmUpLate(secs).into()),
            (false, Some(e)) => return Err(SnapshotError::WarmUp(e).into()),
            (false, None) => {}
        }
        let warm_ms = millis(started);
        tell(format!("warm after {warm_ms} ms"));
        Ok(warm_ms)
    }

    pub(super) async fn freeze(&self, shared: &Shared) -> Result<(), EngineError> {
        let limits = Limits::small(shared.config.bounds.freeze);
        let nothing = serde_json::Map::new();
        let freezing = self.guest.post::<_, Frozen>(PATH_FREEZE, &nothing, limits);
        let frozen = self.unless_ended("it froze", freezing).await?.map_err(SnapshotError::NotFrozen)?;
        debug!(micros = frozen.micros, "frozen");
        // No connection of ours is part of the snapshot.
        self.guest.close();
        Ok(())
    }

    /// What `work` gives, unless the machine ends before.
    async fn unless_ended<T>(
        &self,
        during: &'static str,
        work: impl Future<Output = T>,
    ) -> Result<T, SnapshotError> {
        tokio::select! {
            biased;
            () = self.watch.ended() => {
                let reason = self.monitor.post_mortem();
                Err(SnapshotError::Ended { during, reason, console: self.console() })
            }
            done = work => Ok(done),
        }
    }

    fn console(&self) -> String {
        let bytes = self.monitor.dir().read_console().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let text: String = text.chars().filter(|&c| c == '\n' || !c.is_control()).collect();
        let from = text.char_indices().rev().nth(MAX_CONSOLE).map_or(0, |(at, _)| at);
        text[from..].trim().to_owned()
    }
}
