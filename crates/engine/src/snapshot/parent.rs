//! The parent: a machine that is booted and warmed up in order to be written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_protocol::guest::{Evaluated, Health, PATH_HEALTH, PATH_WARM, Warm};
use forkd_protocol::names::KernelName;
use forkd_protocol::rest;
use forkd_store::ImageRecord;
use tracing::debug;

use super::{Plan, SnapshotError, Source, millis};
use crate::engine::{Shared, blocking};
use crate::error::EngineError;
use crate::fork::reach;
use crate::guest::{Guest, GuestError, Limits};
use crate::monitor::{Monitor, NOTICE_END_WITHIN, ParentPlan, Watch};
use crate::network::NetworkError;

/// Most bytes of an answer to a warm-up: what it printed comes with it.
const MAX_WARMED: usize = 64 << 20;
/// Most characters of the console that are repeated where a parent does not boot.
const MAX_CONSOLE: usize = 2000;

/// A machine that is warmed up in order to be written.
#[derive(Debug)]
pub(super) struct Parent {
    pub(super) monitor: Monitor,
    watch: Watch,
    started: Instant,
    guest: Guest,
    pub(super) image: ImageRecord,
    pub(super) kernel: KernelName,
}

/// A parent that is ready to be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Warmed {
    pub(super) boot_ms: u64,
    pub(super) warm_ms: u64,
    pub(super) writing_since: Instant,
    pub(super) agent_protocol: u32,
}

impl Parent {
    pub(super) async fn boot(shared: &Arc<Shared>, plan: &Plan) -> Result<Self, EngineError> {
        let started = Instant::now();
        let (store, launcher, agent) =
            (shared.store.clone(), Arc::clone(&shared.launcher), shared.config.agent());
        let (id, image, kernel) = (shared.ids.parent()?, plan.image.clone(), plan.kernel.clone());
        let (networks, network, usual) =
            (Arc::clone(&shared.networks), plan.asked.network.clone(), plan.network.clone());
        let (vcpus, memory_mib, cpu) = (plan.vcpus, plan.memory_mib, plan.asked.cpu);
        let booting = move || -> Result<_, EngineError> {
            let image = match image {
                Source::Named(name) => store.image(&name)?,
                Source::Recorded(image) => image,
            };
            let kernel = store.kernel(kernel.as_ref())?;
            let initrd = store.initrd(&kernel, &agent)?;
            let name: KernelName = kernel.info.name.parse()?;
            let disk = image.path.clone();
            let parent = ParentPlan { kernel: kernel.vmlinuz, initrd, disk, vcpus, memory_mib, cpu };
            let network = networks.settle(network.as_ref(), (Some(&usual), ""))?;
            let network = networks.lease(network.as_ref()).map_err(NetworkError::from)?;
            let mut monitor = launcher.start(&id, &rest::Limits::default())?;
            monitor.set_network(network);
            match launcher.boot(&mut monitor, &parent) {
                Ok(()) => Ok((monitor, image, name)),
                Err(e) => {
                    monitor.discard();
                    Err(e.into())
                }
            }
        };
        let (monitor, image, kernel) = blocking(booting).await??;
        shared.launcher.refill();
        let watch = monitor.watch()?;
        let guest = Guest::new(monitor.dir().vsock());
        Ok(Self { monitor, watch, started, guest, image, kernel })
    }

    /// From booting to a frozen workload.
    pub(super) async fn prepare(
        &self,
        plan: &Plan,
        shared: &Shared,
        tell: &impl Fn(String),
    ) -> Result<Warmed, EngineError> {
        let health = self.up(shared).await?;
        GuestError::check_version(health.protocol)?;
        let boot_ms = millis(self.started);
        tell(format!("up after {boot_ms} ms (agent {})", health.agent));
        let warm_ms = self.warm(plan, shared, tell).await?;
        tell("freezing".to_owned());
        let writing_since = Instant::now();
        self.freeze(shared).await?;
        Ok(Warmed { boot_ms, warm_ms, writing_since, agent_protocol: health.protocol })
    }

    /// Nothing of it is left.
    pub(super) async fn remove(self) {
        let monitor = self.monitor;
        // Where the runtime shuts down, the guard in the monitor does the same.
        let _ = blocking(move || monitor.discard()).await;
    }

    async fn up(&self, shared: &Shared) -> Result<Health, EngineError> {
        let after = shared.config.bounds.boot;
        let mut hindrance = None;
        let answered = async {
            loop {
                reach(&self.guest, &mut hindrance).await;
                match self.guest.get::<Health>(PATH_HEALTH, Limits::small(after)).await {
                    Ok(health) => return Ok(health),
                    Err(e) => hindrance = Some(e),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let late = GuestError::late("its health", after);
        let answered = async { tokio::time::timeout(after, answered).await.unwrap_or(Err(late)) };
        let up = self.unless_ended("it booted", answered).await?;
        Ok(up.map_err(|late| SnapshotError::NotUp {
            after,
            console: self.console(),
            source: hindrance.unwrap_or(late),
        })?)
    }

    async fn warm(&self, plan: &Plan, shared: &Shared, tell: &impl Fn(String)) -> Result<u64, EngineError> {
        let Some(code) = plan.asked.warm.clone() else { return Ok(0) };
        let started = Instant::now();
        tell("warming up".to_owned());
        let secs = plan.asked.warm_timeout_secs.max(1);
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

    async fn freeze(&self, shared: &Shared) -> Result<(), EngineError> {
        let freezing = self.guest.freeze(&shared.config.bounds);
        let frozen = self.unless_ended("it froze", freezing).await?.map_err(SnapshotError::NotFrozen)?;
        debug!(micros = frozen.micros, "frozen");
        // No connection of ours is part of the snapshot.
        self.guest.close();
        Ok(())
    }

    /// What the guest answers, unless the machine ends.
    async fn unless_ended<T>(
        &self,
        during: &'static str,
        asking: impl Future<Output = Result<T, GuestError>>,
    ) -> Result<Result<T, GuestError>, SnapshotError> {
        let answer = tokio::select! {
            biased;
            () = self.watch.ended() => return Err(self.ended(during)),
            answer = asking => answer,
        };
        let broken = answer.as_ref().is_err_and(GuestError::is_broken_connection);
        if broken && self.watch.ended_within(NOTICE_END_WITHIN).await {
            return Err(self.ended(during));
        }
        Ok(answer)
    }

    fn ended(&self, during: &'static str) -> SnapshotError {
        SnapshotError::Ended { during, reason: self.monitor.post_mortem(), console: self.console() }
    }

    fn console(&self) -> String {
        let bytes = self.monitor.dir().read_console().unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let text: String = text.chars().filter(|&c| c == '\n' || !c.is_control()).collect();
        let from = text.char_indices().rev().nth(MAX_CONSOLE).map_or(0, |(at, _)| at);
        text[from..].trim().to_owned()
    }
}
