//! `forkd attach`.

use std::io::IsTerminal;

use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::SandboxId;

use super::exec::exit_code_of;
use crate::context::Context;
use crate::error::CliError;
use crate::process::{self, Process};
use crate::session::{self, Wiring};
use crate::terminal;

/// Attach to a process that runs in a sandbox.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd exec -d sb-6a2f-0001 -- sh -c 'while date; do sleep 1; done'\n  forkd attach sb-6a2f-0001 431\n\n\
                  What nobody has read yet comes first (the last MiB of it). Where the process has a terminal, Ctrl-] leaves it\n\
                  running. The exit code is the process's."
)]
pub(crate) struct Args {
    /// Sandbox
    id: SandboxId,
    /// Process, as `forkd ps` lists it
    pid: u32,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let outcome = async {
        let client = context.client().await?;
        let running = process::list(&client, &args.id).await?;
        let found = running.iter().find(|p| p.pid == args.pid).ok_or_else(|| {
            let message =
                format!("no process {} runs in {}; `forkd ps` lists those that do", args.pid, args.id);
            CliError::local(ErrorClass::NotFound, message)
        })?;
        let terminal = found.terminal;
        let process = Process::attach(&client, &args.id, args.pid).await?;
        if terminal {
            let _ = process::resize(&client, &args.id, args.pid, terminal::size()).await;
        }
        let stdin = terminal || !std::io::stdin().is_terminal();
        let wiring = Wiring { stdin, terminal, lasting: true };
        exit_code_of(session::connect(&client, &context.ui, &args.id, process, wiring).await?)
    };
    outcome.await.map_err(CliError::around_command)
}
