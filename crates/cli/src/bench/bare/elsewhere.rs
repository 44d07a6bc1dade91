//! The same command where there is KVM: in the machine.

use std::io::{self, IsTerminal};

use forkd_protocol::error::ErrorClass;
use tokio::task::block_in_place;

use crate::bench::room::Place;
use crate::client::Client;
use crate::error::CliError;
use crate::machine::programs::Programs;
use crate::machine::{Dirs, Record};
use crate::ui::Ui;

/// Where the machine has forkd's programs.
const PROGRAM: &str = "/usr/local/bin/forkd";

/// Runs this process's own command line there. Its output is that command's, and so is the exit code.
pub(crate) fn run(client: &Client, ui: &Ui) -> Result<u8, CliError> {
    let Place::Machine(ssh) = Place::of(client) else {
        let message = format!(
            "KVM is not usable here, and the controller at {} is not in the machine",
            client.endpoint()
        );
        return Err(CliError::local(ErrorClass::HostUnfit, message)
            .with_hint("run this where that controller runs, or unset FORKD_URL"));
    };
    if !programs_are_ours() {
        ui.note("the machine has other programs than the ones here; `forkd machine start` replaces them");
    }
    let own = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = std::iter::once(PROGRAM.to_owned()).chain(own).collect();
    let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    Ok(block_in_place(|| ssh.session(&words, terminal))?)
}

fn programs_are_ours() -> bool {
    let record = Record::running(&Dirs::from_env()).ok().flatten();
    record.is_some_and(|r| Programs::here().is_ok_and(|here| here.hashes == r.plan.programs))
}
