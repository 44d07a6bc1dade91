//! The threads that run vCPUs, and standing still.
//!
//! One thread per vCPU. It waits for commands while the machine stands still; told to run, it stays in the guest
//! until it is kicked with the pause flag set, completes the I/O it was in, and reports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use forkd_kvm::{End, IoHandler, Kicker, KvmError, Outcome, Vcpu, VcpuState};
use vmm_sys_util::eventfd::EventFd;

use crate::jail::Filter;
use crate::priority;

/// How long a vCPU may take to come out of the guest. Nothing but a host that does not schedule it takes long.
const PAUSE_PATIENCE: Duration = Duration::from_secs(30);
/// The stack of a vCPU thread: it handles exits and formats an error at worst.
const STACK_BYTES: usize = 256 << 10;

/// vCPUs that do not do what they are told.
#[derive(Debug, thiserror::Error)]
pub enum VcpuError {
    /// A thread could not be made.
    #[error("a vCPU thread could not be started")]
    Spawn(#[source] std::io::Error),
    /// A thread did not answer in time.
    #[error("vCPU {0} did not come out of the guest within {limit} s", limit = PAUSE_PATIENCE.as_secs())]
    Stuck(usize),
    /// A thread is gone.
    #[error("the thread of vCPU {0} is gone")]
    Gone(usize),
    /// Saving its state failed.
    #[error(transparent)]
    Save(#[from] KvmError),
}

enum Command {
    Run,
    Save,
}

enum Report {
    Stopped,
    Saved(Result<Box<VcpuState>, KvmError>),
}

#[derive(Debug)]
struct Thread {
    commands: Sender<Command>,
    reports: Receiver<Report>,
    kicker: Kicker,
    running: bool,
}

/// What all threads share.
#[derive(Debug)]
struct Shared {
    pause: AtomicBool,
    end: Mutex<Option<End>>,
    ended: EventFd,
}

/// All vCPUs of a machine. They are made standing still.
#[derive(Debug)]
pub struct Vcpus {
    threads: Vec<Thread>,
    shared: Arc<Shared>,
}

impl Vcpus {
    /// Gives each vCPU a thread that is bound by `filter`; `ended` is signalled when one cannot go on.
    ///
    /// # Errors
    /// A thread could not be made.
    pub fn start<H>(
        vcpus: Vec<Vcpu>,
        io: &Arc<H>,
        ended: EventFd,
        filter: Option<Arc<Filter>>,
    ) -> Result<Self, VcpuError>
    where
        H: IoHandler + Send + Sync + 'static,
    {
        let shared = Arc::new(Shared { pause: AtomicBool::new(true), end: Mutex::new(None), ended });
        let mut threads = Vec::with_capacity(vcpus.len());
        for (index, vcpu) in vcpus.into_iter().enumerate() {
            let (commands, inbox) = channel();
            let (outbox, reports) = channel();
            let kicker = vcpu.kicker();
            let (io, shared, filter) = (io.clone(), shared.clone(), filter.clone());
            let body = move || {
                priority::guest();
                // Nothing of a guest runs on a thread that is not bound: its end is noticed when it is told to run.
                if filter.is_none_or(|filter| filter.bind().is_ok()) {
                    serve(vcpu, &*io, &shared, &inbox, &outbox);
                }
            };
            let builder = thread::Builder::new().name(format!("vcpu{index}")).stack_size(STACK_BYTES);
            builder.spawn(body).map_err(VcpuError::Spawn)?;
            threads.push(Thread { commands, reports, kicker, running: false });
        }
        Ok(Self { threads, shared })
    }

    /// Lets all vCPUs run.
    ///
    /// # Errors
    /// A thread is gone.
    pub fn run(&mut self) -> Result<(), VcpuError> {
        self.shared.pause.store(false, Ordering::SeqCst);
        for (index, thread) in self.threads.iter_mut().enumerate().filter(|(_, thread)| !thread.running) {
            thread.commands.send(Command::Run).map_err(|_| VcpuError::Gone(index))?;
            thread.running = true;
        }
        Ok(())
    }

    /// Makes all vCPUs stand still, between two instructions and with no I/O half done.
    ///
    /// # Errors
    /// A vCPU does not come out of the guest; the others are let run again.
    pub fn pause(&mut self) -> Result<(), VcpuError> {
        self.shared.pause.store(true, Ordering::SeqCst);
        self.threads.iter().filter(|thread| thread.running).for_each(|thread| thread.kicker.kick());
        let stopped = self.wait_until_stopped();
        if stopped.is_err() {
            self.run()?;
        }
        stopped
    }

    fn wait_until_stopped(&mut self) -> Result<(), VcpuError> {
        for (index, thread) in self.threads.iter_mut().enumerate().filter(|(_, thread)| thread.running) {
            thread.reports.recv_timeout(PAUSE_PATIENCE).map_err(|e| lost(index, e))?;
            thread.running = false;
        }
        Ok(())
    }

    /// Saves all vCPUs, which stand still.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn save(&self) -> Result<Vec<VcpuState>, VcpuError> {
        let mut saved = Vec::with_capacity(self.threads.len());
        for (index, thread) in self.threads.iter().enumerate() {
            thread.commands.send(Command::Save).map_err(|_| VcpuError::Gone(index))?;
            match thread.reports.recv_timeout(PAUSE_PATIENCE).map_err(|e| lost(index, e))? {
                Report::Saved(state) => saved.push(*state?),
                Report::Stopped => return Err(VcpuError::Gone(index)),
            }
        }
        Ok(saved)
    }

    /// Why a vCPU cannot go on, once one cannot.
    pub fn end(&self) -> Option<End> {
        self.shared.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn lost(index: usize, error: RecvTimeoutError) -> VcpuError {
    match error {
        RecvTimeoutError::Timeout => VcpuError::Stuck(index),
        RecvTimeoutError::Disconnected => VcpuError::Gone(index),
    }
}

fn serve(
    mut vcpu: Vcpu,
    io: &impl IoHandler,
    shared: &Shared,
    inbox: &Receiver<Command>,
    outbox: &Sender<Report>,
) {
    vcpu.attach();
    while let Ok(command) = inbox.recv() {
        let report = match command {
            Command::Run => {
                vcpu.clear_kick();
                vcpu.forgive_pause();
                run_until_paused(&mut vcpu, io, shared);
                Report::Stopped
            }
            Command::Save => Report::Saved(vcpu.save().map(Box::new)),
        };
        if outbox.send(report).is_err() {
            return;
        }
    }
}

fn run_until_paused(vcpu: &mut Vcpu, io: &impl IoHandler, shared: &Shared) {
    // The flag is looked at after every kick was forgotten, and set before every kick: none is missed.
    while !shared.pause.load(Ordering::SeqCst) {
        match vcpu.run(io) {
            Ok(Outcome::Handled) => {}
            // The pause that the kick was for may have been given up.
            Ok(Outcome::Interrupted) => vcpu.clear_kick(),
            Ok(Outcome::Ended(end)) => return report_end(shared, end),
            Err(error) => return report_end(shared, End::Fault(error.to_string())),
        }
    }
    if let Err(error) = vcpu.complete_io(io) {
        report_end(shared, End::Fault(error.to_string()));
    }
}

fn report_end(shared: &Shared, end: End) {
    shared.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(end);
    let _ = shared.ended.write(1);
}
