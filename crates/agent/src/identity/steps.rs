//! What a clone must not share, and what each fork does about it: one table, carried out from top to bottom.
//!
//! The workload stands still until `thaw`. Not in the table, because nothing has to be done: network addresses
//! (all guests have the same, each in a network of its own), vsock connections (reset by the device on restore), and generators that user
//! code made for itself (it registers them with `forkd.after_fork` or a hook). See docs/clones.md.

use std::fs::{File, OpenOptions};
use std::future::Future;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_settime};

use super::{Change, IdentityError, STEP_BOUND, hooks, names, tcp};
use crate::{network, sys};

/// One row.
pub(super) struct Step {
    pub(super) name: &'static str,
    /// Changes the machine, so it is left out where the agent is an ordinary process.
    pub(super) machine: bool,
    run: Run,
}

enum Run {
    Now(fn(&Change<'_>) -> Result<(), StepError>),
    Wait(for<'a> fn(&'a Change<'_>) -> Waiting<'a>),
    /// As `Wait`, with code of the user's.
    Hook(for<'a> fn(&'a Change<'_>) -> Waiting<'a>),
}

type Waiting<'a> = Pin<Box<dyn Future<Output = Result<(), StepError>> + 'a>>;

/// What went wrong in a step, for a person.
pub(super) type StepError = Box<dyn std::error::Error>;

/// What a new identity takes.
pub(super) const STEPS: &[Step] = &[
    Step { name: "entropy", machine: true, run: Run::Now(entropy) },
    Step { name: "clock", machine: true, run: Run::Now(clock) },
    Step { name: "hostname", machine: true, run: Run::Now(names::hostname) },
    Step { name: "machine_id", machine: true, run: Run::Now(names::machine_id) },
    Step { name: "boot_id", machine: true, run: Run::Now(names::boot_id) },
    Step { name: "tcp", machine: true, run: Run::Now(tcp::destroy_inherited) },
    Step { name: "name_servers", machine: true, run: Run::Now(name_servers) },
    Step { name: "environment", machine: false, run: Run::Now(environment) },
    Step { name: "secrets", machine: true, run: Run::Now(secrets) },
    Step {
        name: "ssh_host_keys",
        machine: true,
        run: Run::Wait(|change| Box::pin(hooks::ssh_host_keys(change))),
    },
    Step { name: "hooks", machine: true, run: Run::Hook(|change| Box::pin(hooks::after_fork(change))) },
    Step {
        name: "interpreter_told",
        machine: false,
        run: Run::Wait(|change| Box::pin(tell_interpreter(change))),
    },
    Step { name: "thaw", machine: false, run: Run::Now(thaw) },
    Step {
        name: "interpreter",
        machine: false,
        run: Run::Hook(|change| Box::pin(await_interpreter(change))),
    },
];

/// What going on after a pause takes: the machine lacks the time that passed and the randomness of a host that it has not
/// seen, and its connections lead nowhere any more. It is still who it was.
pub(super) const CONTINUE: &[Step] = &[
    Step { name: "entropy", machine: true, run: Run::Now(entropy) },
    Step { name: "clock", machine: true, run: Run::Now(clock) },
    Step { name: "tcp", machine: true, run: Run::Now(tcp::destroy_inherited) },
];

impl Step {
    pub(super) async fn perform(&self, change: &Change<'_>) -> Result<(), IdentityError> {
        let step = self.name;
        match self.run {
            Run::Now(run) => run(change).map_err(|e| IdentityError::Step { step, message: e.to_string() }),
            Run::Wait(run) => {
                run(change).await.map_err(|e| IdentityError::Step { step, message: e.to_string() })
            }
            Run::Hook(run) => {
                run(change).await.map_err(|e| IdentityError::Hook { step, message: e.to_string() })
            }
        }
    }
}

/// Credited in full, then used at once: without the reseed the generator would go on with its old key for minutes.
fn entropy(change: &Change<'_>) -> Result<(), StepError> {
    let urandom = File::open("/dev/urandom")?;
    sys::add_entropy(&urandom, &change.entropy)?;
    Ok(sys::reseed_crng(&urandom)?)
}

/// The host's time when it sent the request, plus what has passed here since.
fn clock(change: &Change<'_>) -> Result<(), StepError> {
    let now = Duration::from_nanos(change.realtime_ns).saturating_add(change.arrived.elapsed());
    Ok(clock_settime(ClockId::CLOCK_REALTIME, TimeSpec::from_duration(now))?)
}

fn name_servers(change: &Change<'_>) -> Result<(), StepError> {
    Ok(change.identity.network.as_ref().map_or(Ok(()), network::name_servers)?)
}

fn environment(change: &Change<'_>) -> Result<(), StepError> {
    change.agent.spawner.set_env(change.identity.env.clone());
    Ok(())
}

/// Before anything of the user's runs, hooks included.
fn secrets(change: &Change<'_>) -> Result<(), StepError> {
    Ok(change.agent.replace_secrets(&change.identity.secrets)?)
}

/// The request lies before the interpreter when it thaws, so it is the first thing that it handles.
async fn tell_interpreter(change: &Change<'_>) -> Result<(), StepError> {
    for interpreter in change.agent.contexts.interpreters() {
        let reseeded = tokio::time::timeout(STEP_BOUND, interpreter.reseed()).await?;
        let reseeded = reseeded.ok_or("an interpreter's task has ended")?;
        change.reseeded.borrow_mut().push(reseeded);
    }
    Ok(())
}

fn thaw(change: &Change<'_>) -> Result<(), StepError> {
    Ok(change.agent.let_run()?)
}

async fn await_interpreter(change: &Change<'_>) -> Result<(), StepError> {
    for reseeded in change.reseeded.take() {
        let answer = tokio::time::timeout(STEP_BOUND, reseeded).await;
        answer.map_err(|_| "an interpreter did not answer")???;
    }
    Ok(())
}

/// Replaces a file's text where it differs: what is not written costs a child no page and no block. Written over the
/// old text, not after emptying the file, since ext4 writes a file that was emptied to the disk at once; nobody who
/// could see a half of it is running.
pub(crate) fn write_if_changed(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let mut old = Vec::new();
    file.read_to_end(&mut old)?;
    if old == text.as_bytes() {
        return Ok(());
    }
    file.rewind()?;
    file.write_all(text.as_bytes())?;
    if old.len() > text.len() {
        file.set_len(text.len() as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_become_exactly_the_text() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for text in ["a longer text\n", "short\n", "", "long again\n", "long again\n"] {
            write_if_changed(file.path(), text).unwrap();
            assert_eq!(std::fs::read_to_string(file.path()).unwrap(), text);
        }
    }
}
