//! Starting monitors and handing them what they need.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use forkd_host::cgroup::{Cgroup, Cgroups};
use forkd_host::process::Process;
use forkd_protocol::control::{
    Boot, CGROUP_DOOR, CpuModel, DiskPart, FdRole, MemoryMode, RefusalClass, Reply, Request, Restore,
    Snapshot, Snapshotted,
};
use forkd_protocol::error::chain;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::Limits;
use forkd_store::{DraftFiles, OpenSnapshot, Store};
use rustix::fs::{MemfdFlags, memfd_create};
use tokio::sync::Notify;
use tracing::warn;

use super::pool::{Pool, Waiting};
use super::process::Monitor;
use super::rundir::{RunDir, RunFiles};
use super::users::{User, Users};
use super::{MonitorError, process};
use crate::config::{Bounds, EngineConfig};
use crate::fault;

/// Everything that starting a monitor takes, opened once.
#[derive(Debug)]
pub(crate) struct Launcher {
    store: Store,
    cgroups: Cgroups,
    program: PathBuf,
    users: Arc<Users>,
    bounds: Bounds,
    /// The program that is known to speak our version, so that it is not asked at each fork.
    understood: Mutex<Option<ProgramId>>,
    /// The program is on nobody's account.
    program_read_in: Once,
    pool: Pool,
    /// Told when something may have been taken from the pool.
    refill: Arc<Notify>,
}

/// Which file a program is: device, inode, and when it was changed.
pub(super) type ProgramId = (u64, u64, i64, i64);

/// A parent to boot.
#[derive(Debug)]
pub(crate) struct ParentPlan {
    pub(crate) kernel: PathBuf,
    pub(crate) initrd: PathBuf,
    pub(crate) disk: PathBuf,
    pub(crate) vcpus: u8,
    pub(crate) memory_mib: u32,
    pub(crate) cpu: CpuModel,
}

/// Threads and processes that a monitor may have where nobody says otherwise: those of the largest guest, and writers.
const MAX_PIDS: u64 = 64;

/// The guest's whole command line: devices are found through ACPI. `tsc=reliable` and `no_timer_check`
/// because the guest's clock is KVM's and there is nothing to calibrate it against.
const CMDLINE: &str = "console=ttyS0 reboot=k panic=-1 quiet 8250.nr_uarts=1 pci=off \
                       random.trust_cpu=on tsc=reliable no_timer_check";

impl Launcher {
    pub(crate) fn new(config: &EngineConfig, store: Store) -> Self {
        let (program, bounds) = (config.monitor(), config.bounds);
        let (understood, pool, refill) = (Mutex::default(), Pool::new(config.waiting), Arc::default());
        let users = Users::new(config.users);
        let cgroups = Cgroups::detect(store.root());
        let program_read_in = Once::new();
        Self { store, cgroups, program, users, bounds, understood, program_read_in, pool, refill }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    pub(crate) fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    /// A process with its limits: one that waited, or a new one. It waits for a first message; blocks.
    pub(crate) fn start(&self, id: &SandboxId, limits: &Limits) -> Result<Monitor, MonitorError> {
        let mut monitor = match self.pool.take(self.program_id()?) {
            Some(monitor) => monitor,
            None => self.launch(id)?,
        };
        match self.assign(&mut monitor, id, limits) {
            Ok(()) => Ok(monitor),
            Err(e) => {
                monitor.discard();
                Err(e)
            }
        }
    }

    /// Starts one that is to wait, under a name that is no sandbox's; blocks until it is ready for a first message.
    pub(crate) fn start_waiting(&self, id: &SandboxId) -> Result<(), MonitorError> {
        let program = self.program_id()?;
        let monitor = self.launch(id)?;
        if let Err(e) = monitor.status(self.bounds.control) {
            monitor.discard();
            return Err(e);
        }
        if let Err(unwanted) = self.pool.put(Waiting { monitor, program }) {
            unwanted.discard();
        }
        Ok(())
    }

    /// Whether the pool wants another.
    pub(crate) fn lacks_waiting(&self) -> bool {
        self.pool.lacks()
    }

    /// How many monitors wait, and how many are wanted.
    pub(crate) fn pool_level(&self) -> (u64, u64) {
        let (waiting, wanted) = self.pool.level();
        (waiting as u64, wanted as u64)
    }

    /// Has the pool looked at soon.
    pub(crate) fn refill(&self) {
        self.refill.notify_one();
    }

    /// What is told when the pool is to be looked at.
    pub(crate) fn refill_wanted(&self) -> Arc<Notify> {
        Arc::clone(&self.refill)
    }

    /// Ends what waits; none will wait again. Blocks until nothing of them is left.
    pub(crate) fn end_waiting(&self) {
        let waiting = self.pool.close();
        // All of them before any is waited for.
        waiting.iter().for_each(|monitor| drop(monitor.kill()));
        waiting.into_iter().for_each(Monitor::discard);
    }

    /// Makes a child of a snapshot run; blocks. Opens nothing of the snapshot: its files are open already.
    pub(crate) fn restore(&self, monitor: &mut Monitor, snapshot: &OpenSnapshot) -> Result<(), MonitorError> {
        self.check_version(monitor)?;
        let files = monitor.dir().open_files(snapshot.disk_bytes)?;
        let tap = monitor.take_tap();
        let mut parcel = Parcel::default();
        for (role, fd) in &snapshot.files {
            parcel.add(*role, fd.as_fd());
        }
        if let Some(hot) = snapshot.hot() {
            parcel.add(FdRole::Hot, hot);
        }
        parcel.add_tap(tap.as_ref());
        self.add_own(&mut parcel, &files);
        let generation = *uuid::Uuid::new_v4().as_bytes();
        let request = Request::Restore(Restore { roles: parcel.roles, run: true, generation });
        done(monitor.call(&request, &parcel.fds, self.bounds.control)?)
    }

    /// Asks the monitor of a child that has just answered which pages it has changed so far, for all children of its
    /// snapshot that come later; blocks. A child that is gone meanwhile, or a monitor that cannot tell, is an error.
    pub(crate) fn learn_hot(&self, dir: &RunDir, snapshot: &OpenSnapshot) -> Result<(), MonitorError> {
        let told = memfd_create("changed pages", MemfdFlags::CLOEXEC)
            .map_err(|e| MonitorError::file("make a table for", dir.path(), e))?;
        let request = Request::Changed { roles: vec![FdRole::ChangedOut] };
        done(process::ask(dir, &request, &[told.as_fd()], self.bounds.control)?)?;
        Ok(self.store.put_hot(snapshot, &File::from(told))?)
    }

    /// Boots a parent; blocks.
    pub(crate) fn boot(&self, monitor: &mut Monitor, plan: &ParentPlan) -> Result<(), MonitorError> {
        monitor.status(self.bounds.control)?;
        let tap = monitor.take_tap();
        let (kernel, initrd, disk) = (open(&plan.kernel)?, open(&plan.initrd)?, open(&plan.disk)?);
        let disk_bytes = disk.metadata().map_err(|e| MonitorError::file("look at", &plan.disk, e))?.len();
        let files = monitor.dir().open_files(disk_bytes)?;
        let mut parcel = Parcel::default();
        parcel.add(FdRole::Kernel, kernel.as_fd());
        parcel.add(FdRole::Initrd, initrd.as_fd());
        parcel.add(FdRole::Disk { disk: 0, part: DiskPart::Base }, disk.as_fd());
        parcel.add_tap(tap.as_ref());
        self.add_own(&mut parcel, &files);
        let request = Request::Boot(Boot {
            vcpus: plan.vcpus,
            memory_mib: plan.memory_mib,
            cmdline: CMDLINE.to_owned(),
            cpu: plan.cpu,
            roles: parcel.roles,
        });
        match monitor.call(&request, &parcel.fds, self.bounds.control) {
            // What the caller chose, and the engine cannot judge: a kernel, a disk, how much memory.
            Err(MonitorError::Refused(refusal)) if refusal.class == RefusalClass::Caller => {
                Err(MonitorError::Unbuildable(refusal))
            }
            reply => done(reply?),
        }
    }

    /// Has a machine written into a draft, after which it stands still; blocks.
    pub(crate) fn snapshot(
        &self,
        monitor: &Monitor,
        draft: &DraftFiles,
    ) -> Result<Snapshotted, MonitorError> {
        let mut parcel = Parcel::default();
        parcel.add(FdRole::StateOut, draft.state.as_fd());
        parcel.add(FdRole::MemoryOut, draft.memory.as_fd());
        parcel.add(FdRole::MemoryExtentsOut, draft.memory_extents.as_fd());
        parcel.add(FdRole::DiskExtentsOut { disk: 0 }, draft.disk_extents.as_fd());
        let memory = MemoryMode::Flat;
        let request =
            Request::Snapshot(Snapshot { roles: parcel.roles, resume: false, memory, guarded: false });
        process::snapshotted(monitor.call(&request, &parcel.fds, self.bounds.write), &self.store)
    }

    /// Has a guest that is who it is to be send and be sent frames; blocks.
    pub(crate) fn open_network(&self, dir: &RunDir) -> Result<(), MonitorError> {
        done(process::ask(dir, &Request::OpenNetwork, &[], self.bounds.control)?)
    }

    /// Asks a monitor for its version where its program was replaced since one was asked.
    fn check_version(&self, monitor: &Monitor) -> Result<(), MonitorError> {
        let program = self.program_id()?;
        let known = || self.understood.lock().unwrap_or_else(PoisonError::into_inner);
        if *known() != Some(program) {
            monitor.status(self.bounds.control)?;
            *known() = Some(program);
        }
        Ok(())
    }

    /// Which program would be started now.
    fn program_id(&self) -> Result<ProgramId, MonitorError> {
        // Not to be found is the same failure as not to be started.
        let found = self.program.metadata();
        let found = found.map_err(|source| MonitorError::Start { program: self.program.clone(), source })?;
        Ok((found.dev(), found.ino(), found.mtime(), found.mtime_nsec()))
    }

    /// Starts a process in a run folder of its own; blocks.
    fn launch(&self, id: &SandboxId) -> Result<Monitor, MonitorError> {
        let dir = RunDir::new(self.store.create_run_dir(id)?);
        fault::at!("engine::launch::folder_made");
        let started = self.users.take().ok_or(MonitorError::NoUser);
        let (user, process, leaf) = match started.and_then(|user| self.spawn_in_leaf(&dir, id, user)) {
            Ok(started) => started,
            Err(e) => {
                self.store.remove_run_dir(id)?;
                return Err(e);
            }
        };
        fault::at!("engine::launch::spawned");
        let mut monitor = Monitor::new(id.clone(), process, leaf, self.store.clone(), self.bounds.end);
        monitor.set_user(Some(user));
        match monitor.dir().note_process(monitor.process()) {
            Ok(()) => Ok(monitor),
            Err(e) => {
                monitor.discard();
                Err(e)
            }
        }
    }

    /// Starts a monitor that enters a leaf of its own, where this host has any.
    fn spawn_in_leaf(
        &self,
        dir: &RunDir,
        id: &SandboxId,
        user: User,
    ) -> Result<(User, Process, Option<Cgroup>), MonitorError> {
        dir.note_cgroup(id.as_str())?;
        let leaf = self.cgroups.create(id.as_str())?;
        match self.spawn(dir, user, leaf.as_ref()) {
            Ok((user, process)) => Ok((user, process, leaf)),
            Err(e) => {
                leaf.map_or(Ok(()), |leaf| leaf.remove())?;
                Err(e)
            }
        }
    }

    /// Has a monitor made that is jailed and ready, and finds out which process it is.
    fn spawn(
        &self,
        dir: &RunDir,
        user: User,
        leaf: Option<&Cgroup>,
    ) -> Result<(User, Process), MonitorError> {
        let control = OwnedFd::from(dir.listen_control()?);
        let (log, ending) = (dir.create_log()?, dir.create_ending()?);
        // The command owns our copy of the control socket and drops it at the end of this statement: if the
        // monitor dies, the socket has no listener left and asking it fails at once.
        let made = Command::new(&self.program)
            .args(["--uid", &user.id().to_string()])
            .stdin(Stdio::from(control))
            .stdout(Stdio::from(ending))
            .stderr(Stdio::from(log))
            .env_clear()
            .envs(leaf.map(|leaf| (CGROUP_DOOR, leaf.door())))
            .process_group(0)
            .status()
            .map_err(|source| MonitorError::Start { program: self.program.clone(), source })?;
        if !made.success() {
            return Err(MonitorError::NotReady(dir.log_end().unwrap_or_else(|| made.to_string())));
        }
        let connected = UnixStream::connect(dir.control());
        let connection = connected.map_err(|e| MonitorError::file("connect to", &dir.control(), e))?;
        match Process::of_listener(&connection) {
            Ok(process) => Ok((user, process)),
            Err(e) => {
                stop_by_socket(dir, self.bounds.control);
                Err(e.into())
            }
        }
    }

    /// Who a monitor is that was found again.
    pub(crate) fn recognise(&self, monitor: &mut Monitor) -> Result<(), MonitorError> {
        let user = self.users.found(monitor.process().user()?);
        monitor.set_user(user);
        Ok(())
    }

    /// Gives a monitor its name and its limits.
    fn assign(&self, monitor: &mut Monitor, id: &SandboxId, limits: &Limits) -> Result<(), MonitorError> {
        if monitor.id() != id {
            monitor.rename(id)?;
        }
        match monitor.cgroup() {
            Some(leaf) => {
                let pids = limits.pids.or_else(|| self.cgroups.limits_processes().then_some(MAX_PIDS));
                Ok(self.cgroups.limit(leaf, &Limits { pids, ..*limits })?)
            }
            None => Ok(self.cgroups.check(limits)?),
        }
    }

    /// Has the pages of a snapshot's memory read into the host's before the first child touches them, on nobody's
    /// account: otherwise the first child would pay for what all of them share. Likewise, once, the program that every
    /// monitor runs. Blocks.
    pub(crate) fn read_in(&self, snapshot: &OpenSnapshot) {
        let memory = |role: &FdRole| matches!(role, FdRole::MemoryBase | FdRole::MemoryUpper);
        self.program_read_in.call_once(|| {
            if let Err(e) = open(&self.program).and_then(|program| self.read_in_file(program.into())) {
                warn!(error = %chain(&e), "the monitor's program was not read in");
            }
        });
        for (_, file) in snapshot.files.iter().filter(|(role, _)| memory(role)) {
            let file = file.try_clone().map_err(|e| MonitorError::file("open", "a layer".as_ref(), e));
            if let Err(e) = file.and_then(|file| self.read_in_file(file)) {
                // It costs the first child some of its limit, and nobody anything else.
                warn!(snapshot = %snapshot.record.info.tag, error = %chain(&e), "its memory was not read in");
                return;
            }
        }
    }

    fn read_in_file(&self, file: OwnedFd) -> Result<(), MonitorError> {
        let Some(holder) = self.cgroups.holder()? else { return Ok(()) };
        let reading = Command::new(&self.program)
            .arg("read-in")
            .stdin(Stdio::from(file))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .env_clear()
            .env(CGROUP_DOOR, holder.door())
            .status();
        let done = reading.map_err(|source| MonitorError::Start { program: self.program.clone(), source })?;
        if done.success() { Ok(()) } else { Err(MonitorError::Ended(done.to_string())) }
    }

    fn add_own<'a>(&'a self, parcel: &mut Parcel<'a>, files: &'a RunFiles) {
        parcel.add(FdRole::Disk { disk: 0, part: DiskPart::Top }, files.top.as_fd());
        parcel.add(FdRole::VsockListener, files.vsock.as_fd());
        parcel.add(FdRole::Console, files.console.as_fd());
        parcel.add(FdRole::LastWords, files.last_words.as_fd());
    }
}

/// Asks whatever monitor listens in this folder to end; false where none does. Blocks.
pub(crate) fn stop_by_socket(dir: &RunDir, bound: Duration) -> bool {
    process::converse(dir, &Request::Stop, &[], bound).is_ok()
}

/// Descriptors and what each is for, in one order.
#[derive(Debug, Default)]
pub(super) struct Parcel<'a> {
    pub(super) roles: Vec<FdRole>,
    pub(super) fds: Vec<BorrowedFd<'a>>,
}

impl<'a> Parcel<'a> {
    pub(super) fn add(&mut self, role: FdRole, fd: BorrowedFd<'a>) {
        self.roles.push(role);
        self.fds.push(fd);
    }

    /// What the guest's network device leads to, where it leads anywhere.
    fn add_tap(&mut self, tap: Option<&'a File>) {
        if let Some(tap) = tap {
            self.add(FdRole::Tap, tap.as_fd());
        }
    }
}

/// Nothing but that it was done.
pub(super) fn done(reply: Reply) -> Result<(), MonitorError> {
    if let Reply::Done { .. } = reply { Ok(()) } else { Err(MonitorError::WrongAnswer) }
}

fn open(path: &Path) -> Result<File, MonitorError> {
    File::open(path).map_err(|e| MonitorError::file("open", path, e))
}
