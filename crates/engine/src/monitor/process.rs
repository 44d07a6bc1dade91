//! A running monitor and everything on the host that is its own.

use std::fs::File;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forkd_host::cgroup::Cgroup;
use forkd_host::net::{Lease, Policing};
use forkd_host::process::Process;
use forkd_protocol::control::{
    CONTROL_VERSION, Connection, ControlError, ControlVersion, RefusalClass, Reply, Request, Snapshotted,
    Status,
};
use forkd_protocol::error::chain;
use forkd_protocol::names::SandboxId;
use forkd_store::Store;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::warn;

use super::users::User;
use super::{MonitorError, RunDir, ending};
use crate::network::NetworkNote;

/// The versions of the control protocol that are spoken here.
const VERSIONS: RangeInclusive<ControlVersion> = 1..=CONTROL_VERSION;

/// A dying process closes its sockets a moment before it is dead and what is left of it is looked at.
pub(crate) const NOTICE_END_WITHIN: Duration = Duration::from_secs(3);

/// One monitor: its process, run folder, cgroup leaf and network. Dropping it ends and removes all of that, so that a
/// step which fails leaves nothing; a sandbox that is up is [kept](Monitor::keep).
#[derive(Debug)]
pub(crate) struct Monitor {
    id: SandboxId,
    dir: RunDir,
    process: Arc<Process>,
    cgroup: Option<Cgroup>,
    /// Who it is; none that we know of for one of an older forkd.
    user: Option<User>,
    network: Option<Lease>,
    store: Store,
    /// How long the killed process may take to go.
    end_within: Duration,
    on_drop: OnDrop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnDrop {
    Remove,
    Keep,
}

impl Monitor {
    pub(super) fn new(
        id: SandboxId,
        process: Process,
        cgroup: Option<Cgroup>,
        store: Store,
        end_within: Duration,
    ) -> Self {
        let dir = RunDir::new(store.run_dir(&id));
        let process = Arc::new(process);
        Self {
            id,
            dir,
            process,
            cgroup,
            user: None,
            network: None,
            store,
            end_within,
            on_drop: OnDrop::Remove,
        }
    }

    /// One that was started before this controller.
    pub(crate) fn adopted(
        id: SandboxId,
        process: Process,
        cgroup: Option<Cgroup>,
        store: Store,
        end_within: Duration,
    ) -> Self {
        let mut monitor = Self::new(id, process, cgroup, store, end_within);
        monitor.on_drop = OnDrop::Keep;
        monitor
    }

    /// Where it is accounted for; `None` on a host that has no cgroup v2.
    pub(super) fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    pub(super) fn set_user(&mut self, user: Option<User>) {
        self.user = user;
    }

    /// What its guest's network device leads to.
    pub(crate) fn set_network(&mut self, network: Option<Lease>) {
        self.network = network;
    }

    /// The tap of its network, once.
    pub(super) fn take_tap(&mut self) -> Option<File> {
        self.network.as_mut().and_then(Lease::take_tap)
    }

    /// The name of its network namespace, where it has a network.
    pub(crate) fn netns(&self) -> Option<&str> {
        self.network.as_ref().map(Lease::name)
    }

    /// What is kept of its network.
    pub(crate) fn network_note(&self) -> Option<NetworkNote> {
        self.network.as_ref().map(NetworkNote::from)
    }

    /// By what the policy of its network is changed.
    pub(crate) fn policing(&self) -> Option<Policing> {
        self.network.as_ref().map(Lease::policing)
    }

    pub(super) fn id(&self) -> &SandboxId {
        &self.id
    }

    pub(crate) fn dir(&self) -> &RunDir {
        &self.dir
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// Makes one that waited that of a sandbox.
    pub(super) fn rename(&mut self, id: &SandboxId) -> Result<(), MonitorError> {
        self.store.rename_run_dir(&self.id, id)?;
        self.dir = RunDir::new(self.store.run_dir(id));
        self.id = id.clone();
        Ok(())
    }

    /// From now on it outlives this handle (and this controller).
    pub(crate) fn keep(&mut self) {
        self.on_drop = OnDrop::Keep;
        self.network.iter_mut().for_each(Lease::keep);
    }

    /// Notices its end.
    #[expect(
        deprecated,
        reason = "its successor is unsafe; the pidfd lives as long as the handle that is shared here"
    )]
    pub(crate) fn watch(&self) -> Result<Watch, MonitorError> {
        AsyncFd::with_interest(Arc::clone(&self.process), Interest::READABLE)
            .map(|fd| Watch { fd })
            .map_err(|e| MonitorError::file("watch", self.dir.path(), e))
    }

    /// Asks and waits; blocks. Every single read and write is bounded.
    pub(crate) fn call(
        &self,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        bound: Duration,
    ) -> Result<Reply, MonitorError> {
        ask(&self.dir, request, fds, bound).map_err(|e| match e {
            MonitorError::Control { source, .. } => MonitorError::Control { ended: self.ended(), source },
            e => e,
        })
    }

    /// What it says about itself, where it speaks a version that is understood here; blocks.
    pub(crate) fn status(&self, bound: Duration) -> Result<Status, MonitorError> {
        match self.call(&Request::Status, &[], bound)? {
            Reply::Status(status) if VERSIONS.contains(&status.version) => Ok(status),
            Reply::Status(status) => {
                Err(MonitorError::Version { found: status.version, program: status.program, known: VERSIONS })
            }
            _ => Err(MonitorError::WrongAnswer),
        }
    }

    /// How it ended, where it did.
    fn ended(&self) -> Option<String> {
        let gone = self.process.ended_within(NOTICE_END_WITHIN).unwrap_or(false);
        gone.then(|| self.post_mortem())
    }

    /// Reaps the process, which has ended, and tells why it did; blocks.
    pub(crate) fn post_mortem(&self) -> String {
        let ending = self.process.reap().unwrap_or(forkd_host::process::Ending::Unknown);
        ending::explain(&self.dir, self.cgroup.as_ref(), ending)
    }

    /// Sends SIGKILL, which does not block.
    pub(crate) fn kill(&self) -> Result<(), MonitorError> {
        Ok(self.process.kill()?)
    }

    /// Ends the process and waits until it is gone; blocks.
    pub(crate) fn end(&self) -> Result<(), MonitorError> {
        self.process.kill()?;
        if !self.process.ended_within(self.end_within)? {
            return Err(MonitorError::Stuck(self.process.pid()));
        }
        self.process.reap()?;
        Ok(())
    }

    /// Frees what a machine that has ended still holds, all but its logs; blocks.
    pub(crate) fn bury(&mut self) -> Result<(), MonitorError> {
        self.release()?;
        self.dir.keep_logs_only()
    }

    /// Ends the process and removes everything that was its own; blocks. May be repeated.
    pub(crate) fn remove(&mut self) -> Result<(), MonitorError> {
        self.on_drop = OnDrop::Keep;
        self.release()?;
        Ok(self.store.remove_run_dir(&self.id)?)
    }

    /// The same where nothing can be done about a failure but say so.
    pub(crate) fn discard(mut self) {
        if let Err(e) = self.remove() {
            warn!(sandbox = %self.id, error = %chain(&e), "leftovers of a monitor could not be removed");
        }
    }

    fn release(&mut self) -> Result<(), MonitorError> {
        self.end()?;
        if let Some(leaf) = &self.cgroup {
            leaf.remove()?;
            self.cgroup = None;
        }
        // Nothing has the tap any more.
        if let Some(network) = self.network.take() {
            network.give_back();
        }
        Ok(())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        if self.on_drop == OnDrop::Keep {
            return;
        }
        // Dropped by a request that was given up, maybe on a thread of the runtime, which must not wait.
        let _ = self.process.kill();
        let leftover = Self {
            id: self.id.clone(),
            dir: self.dir.clone(),
            process: Arc::clone(&self.process),
            cgroup: self.cgroup.take(),
            user: self.user.take(),
            network: self.network.take(),
            store: self.store.clone(),
            end_within: self.end_within,
            on_drop: OnDrop::Keep,
        };
        thread::spawn(move || leftover.discard());
    }
}

/// Resolves when a process has ended.
#[derive(Debug)]
pub(crate) struct Watch {
    fd: AsyncFd<Arc<Process>>,
}

impl Watch {
    /// Waits for the end; returns at once ever after.
    pub(crate) async fn ended(&self) {
        while let Ok(mut ready) = self.fd.readable().await {
            if !self.fd.get_ref().is_alive() {
                return;
            }
            ready.clear_ready();
        }
    }

    /// Waits for the end, at most `bound`; false where the process goes on.
    pub(crate) async fn ended_within(&self, bound: Duration) -> bool {
        tokio::time::timeout(bound, self.ended()).await.is_ok()
    }
}

/// Asks whatever monitor listens in this folder; a refusal is an error.
pub(super) fn ask(
    dir: &RunDir,
    request: &Request,
    fds: &[BorrowedFd<'_>],
    bound: Duration,
) -> Result<Reply, MonitorError> {
    match converse(dir, request, fds, bound) {
        Ok(Reply::Refused(refusal)) => Err(MonitorError::Refused(refusal)),
        Ok(reply) => Ok(reply),
        Err(source) => Err(MonitorError::Control { ended: None, source }),
    }
}

/// What was written of a machine, where that was asked, into files of this store.
pub(super) fn snapshotted(
    answer: Result<Reply, MonitorError>,
    store: &Store,
) -> Result<Snapshotted, MonitorError> {
    match answer {
        Ok(Reply::Snapshotted(told)) => Ok(told),
        Ok(_) => Err(MonitorError::WrongAnswer),
        // All that writing takes is room for the files.
        Err(MonitorError::Refused(refusal)) if refusal.class == RefusalClass::Exhausted => {
            Err(MonitorError::NoRoom(refusal, store.room()))
        }
        Err(e) => Err(e),
    }
}

/// One question over a connection of its own.
pub(super) fn converse(
    dir: &RunDir,
    request: &Request,
    fds: &[BorrowedFd<'_>],
    bound: Duration,
) -> Result<Reply, ControlError> {
    let stream = UnixStream::connect(dir.control())?;
    let mut connection = Connection::new(stream);
    connection.set_timeout(Some(bound))?;
    connection.call(request, fds)
}
