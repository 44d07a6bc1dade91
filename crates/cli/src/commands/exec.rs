//! `forkd exec`.

use std::io::IsTerminal;
use std::time::Duration;

use base64::Engine as _;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{ExecRequest, ExecResponse};
use tokio::io::AsyncReadExt;

use crate::client::Client;
use crate::context::Context;
use crate::error::{CliError, EXIT_TIMED_OUT};
use crate::parse::{self, KeyValue};
use crate::process::{self, Ending, Event, Process, Spec};
use crate::signals;
use crate::ui::Ui;

/// What `--json` passes as standard input at most, since it goes in one piece.
const INPUT_WHOLE: u64 = 8 << 20;

/// Run a command in a sandbox.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd exec sb-6a2f-0001 -- sh -c 'ls -l /; exit 3'\n  tar c . | forkd exec sb-6a2f-0001 -- tar x -C /srv\n\n\
                  Standard input is passed on where it is not a terminal; with --json it is read to its end first.\n\
                  The exit code is the command's."
)]
pub(crate) struct Args {
    /// Sandbox
    id: SandboxId,
    #[command(flatten)]
    how: How,
}

/// How a command is run; `run` takes the same.
#[derive(Debug, clap::Args)]
pub(crate) struct How {
    /// Pass standard input on though it is a terminal
    #[arg(short, long)]
    interactive: bool,
    /// Kill the command and everything it started after this long
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Add to the environment; KEY alone takes the value from here
    #[arg(long = "env", short = 'e', value_name = "KEY=VALUE", value_parser = parse::key_value)]
    env: Vec<KeyValue>,
    /// Working directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// User
    #[arg(long, value_name = "NAME", default_value = "root")]
    user: String,
    /// Program and arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl How {
    fn passes_stdin(&self) -> bool {
        self.interactive || !std::io::stdin().is_terminal()
    }
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let outcome = async {
        let client = context.client().await?;
        exec(&client, &context.ui, &args.id, args.how).await
    };
    outcome.await.map_err(CliError::around_command)
}

/// Runs a command in a sandbox and ends as it ends.
pub(crate) async fn exec(client: &Client, ui: &Ui, id: &SandboxId, how: How) -> Result<u8, CliError> {
    if ui.is_json() { whole(client, ui, id, how).await } else { streamed(client, ui, id, how).await }
}

async fn streamed(client: &Client, ui: &Ui, id: &SandboxId, how: How) -> Result<u8, CliError> {
    let spec = spec(how);
    let mut process = Process::start(client, id, &spec).await?;
    let mut feeding = None;
    while let Some(event) = process.next().await? {
        let written = match event {
            Event::Started { pid } => {
                if spec.stdin {
                    let (client, id) = (client.clone(), id.clone());
                    let feed = async move { process::feed(&client, &id, pid, tokio::io::stdin()).await };
                    feeding = Some(tokio::spawn(feed));
                }
                Ok(())
            }
            Event::Stdout(bytes) => ui.raw_out(&bytes),
            Event::Stderr(bytes) => ui.raw_err(&bytes),
        };
        // Nobody reads any more: leaving ends the command, as a broken pipe would.
        written.map_err(|e| CliError::io("writing the command's output", e))?;
    }
    // Input that the command did not want is no failure.
    if let Some(task) = feeding {
        task.abort();
    }
    Ok(exit_code(process.ending()?))
}

/// With `--json` the command runs to its end first, and the API's own answer is printed.
async fn whole(client: &Client, ui: &Ui, id: &SandboxId, how: How) -> Result<u8, CliError> {
    let stdin_base64 = if how.passes_stdin() { Some(read_stdin().await?) } else { None };
    let request = ExecRequest {
        args: how.command,
        timeout_secs: how.timeout.unwrap_or(0),
        env: how.env.into_iter().map(KeyValue::into_pair).collect(),
        cwd: how.cwd,
        user: Some(how.user),
        stdin_base64,
    };
    let answer: ExecResponse = client.post(&format!("/v1/sandboxes/{id}/exec"), &request).await?;
    ui.show(&answer, |_| String::new());
    Ok(exit_code(ending(&answer)))
}

async fn read_stdin() -> Result<String, CliError> {
    let mut bytes = Vec::new();
    let mut limited = tokio::io::stdin().take(INPUT_WHOLE + 1);
    limited.read_to_end(&mut bytes).await.map_err(|e| CliError::io("reading standard input", e))?;
    if bytes.len() as u64 > INPUT_WHOLE {
        return Err(CliError::usage(
            "with --json at most 8 MiB of standard input are passed on; leave --json out",
        ));
    }
    Ok(base64::engine::general_purpose::STANDARD.encode(bytes))
}

fn spec(how: How) -> Spec {
    Spec {
        stdin: how.passes_stdin(),
        args: how.command,
        env: how.env.into_iter().map(KeyValue::into_pair).collect(),
        cwd: how.cwd,
        user: how.user,
        timeout: how.timeout.map(Duration::from_secs),
    }
}

fn ending(answer: &ExecResponse) -> Ending {
    match &answer.signal {
        _ if answer.timed_out => Ending::TimedOut,
        Some(name) => Ending::Signalled(signals::number(name)),
        None => Ending::Exited(answer.exit_code.to_le_bytes()[0]),
    }
}

fn exit_code(ending: Ending) -> u8 {
    match ending {
        Ending::Exited(code) => code,
        Ending::Signalled(number) => 128u8.saturating_add(number),
        Ending::TimedOut => EXIT_TIMED_OUT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_the_commands_or_says_how_it_was_ended() {
        assert_eq!(exit_code(Ending::Exited(42)), 42);
        assert_eq!(exit_code(Ending::Signalled(9)), 137);
        assert_eq!(exit_code(Ending::TimedOut), 124);
    }
}
