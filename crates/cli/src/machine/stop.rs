//! Stopping the machine, and removing it.

use std::fs;
use std::io;
use std::time::Duration;

use super::dirs::Dirs;
use super::error::MachineError;
use super::record::Record;
use super::ssh::Ssh;
use crate::ui::Ui;

/// So long a machine may take to end its sandboxes and write its data disk.
const HALT_BOUND: Duration = Duration::from_secs(60);
/// So long a QEMU may take to end when it is told to.
pub(super) const KILL_GRACE: Duration = Duration::from_secs(10);

/// Stops the machine; whether there was one.
pub(crate) fn stop(ui: &Ui) -> Result<bool, MachineError> {
    let dirs = Dirs::from_env();
    if !dirs.state().exists() {
        return Ok(false);
    }
    let _lock = dirs.lock(ui)?;
    let running = Record::running(&dirs)?;
    if let Some(record) = &running {
        stop_running(ui, &dirs, record)?;
    }
    Ok(running.is_some())
}

/// Stops the machine and removes all that is its own, the data disk included.
pub(crate) fn remove(ui: &Ui) -> Result<bool, MachineError> {
    let dirs = Dirs::from_env();
    if !dirs.state().exists() {
        return Ok(false);
    }
    let _lock = dirs.lock(ui)?;
    // A note that cannot be read must not make the machine irremovable; its QEMU then holds its files open.
    if let Some(record) = Record::running(&dirs).unwrap_or_default() {
        stop_running(ui, &dirs, &record)?;
    }
    fs::remove_dir_all(dirs.state()).map_err(|e| MachineError::io("remove", dirs.state(), e))?;
    Ok(true)
}

/// Asks first; ends it by force where it does not answer in time.
pub(super) fn stop_running(ui: &Ui, dirs: &Dirs, record: &Record) -> Result<(), MachineError> {
    let failed = |e: io::Error| MachineError::io("stop", "the machine", e);
    let step = ui.step("stopping the machine");
    if let Some(process) = record.process.open().map_err(failed)? {
        let ssh = Ssh::to(dirs, record);
        let asked = ssh.and_then(|ssh| {
            let asked = ssh.run("busybox poweroff");
            ssh.disconnect();
            asked
        });
        if let Err(e) = &asked {
            step.note(&format!("it does not listen: {e}"));
        }
        if asked.is_err() || !process.wait(HALT_BOUND).map_err(failed)? {
            process.end(KILL_GRACE).map_err(failed)?;
        }
    }
    Record::forget(dirs)?;
    step.done("");
    Ok(())
}
