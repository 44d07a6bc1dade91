//! Other programs for a machine that runs, without booting it again.

use super::console::Console;
use super::dirs::Dirs;
use super::error::MachineError;
use super::programs::Programs;
use super::record::Record;
use super::ssh::{Ssh, push};
use super::wait::{Until, wait};
use crate::ui::Ui;

/// Ends the controller and its sandboxes, replaces what changed, starts the controller again.
pub(crate) fn swap(
    ui: &Ui,
    dirs: &Dirs,
    record: &Record,
    programs: &Programs,
    until: Until,
) -> Result<Record, MachineError> {
    let step = ui.step("replacing forkd in the machine");
    let ssh = Ssh::to(dirs, record)?;
    step.note("ending the controller");
    ssh.run("/etc/forkd-machine/stop-forkd")?;
    for name in programs.changed_since(&record.plan.programs) {
        step.note(name);
        push(&ssh, &programs.path(name), &format!("/usr/local/bin/{name}"))?;
    }
    let mut record = record.clone();
    record.plan.programs = programs.hashes.clone();
    record.save(dirs)?;
    let log = dirs.serial_log();
    let console = Console::from_now(&log).map_err(|e| MachineError::io("open", &log, e))?;
    ssh.run("rm -f /run/forkd-hold")?;
    wait(dirs, &record, console, until, &step)?;
    step.done("");
    Ok(record)
}
