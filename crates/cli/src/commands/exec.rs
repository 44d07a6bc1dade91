//! `forkd exec`.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use base64::Engine as _;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{ExecRequest, ExecResponse};
use tokio::io::AsyncReadExt;

use crate::client::Client;
use crate::context::Context;
use crate::error::{CliError, EXIT_TIMED_OUT};
use crate::parse::{self, KeyValue};
use crate::process::{Ending, Event, Process, Spec};
use crate::session::{self, Left, Wiring};
use crate::ui::Ui;
use crate::{signals, terminal};

/// What `--json` passes as standard input at most, since it goes in one piece.
const INPUT_WHOLE: u64 = 8 << 20;

/// Run a command in a sandbox.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd exec sb-6a2f-0001 -- sh -c 'ls -l /; exit 3'\n  forkd exec -t sb-6a2f-0001 -- top\n  \
                  tar c . | forkd exec sb-6a2f-0001 -- tar x -C /srv\n\n\
                  Standard input is passed on where it is not a terminal, or with -t or -i; with --json it is read to its\n\
                  end first. Signals are passed on; told twice to end, forkd ends itself and the command with it.\n\
                  The exit code is the command's."
)]
pub(crate) struct Args {
    /// Sandbox
    id: SandboxId,
    /// Start the command, print its process id and leave it running
    #[arg(short, long, conflicts_with_all = ["tty", "interactive"])]
    detach: bool,
    #[command(flatten)]
    how: How,
}

/// How a command is run; `run` takes the same.
#[derive(Debug, clap::Args)]
pub(crate) struct How {
    /// Pass standard input on though it is a terminal
    #[arg(short, long)]
    interactive: bool,
    /// Give the command a terminal: this one, where there is one
    #[arg(short, long)]
    tty: bool,
    /// Kill the command and everything it started after this long
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Add to the environment; KEY alone takes the value from here
    #[arg(long = "env", short = 'e', value_name = "KEY=VALUE", value_parser = parse::key_value)]
    env: Vec<KeyValue>,
    /// Working directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// User (default: the image's, else root)
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Program and arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl How {
    /// A command with a terminal.
    pub(super) fn in_terminal<const N: usize>(user: Option<String>, command: [&str; N]) -> Self {
        Self {
            interactive: false,
            tty: true,
            timeout: None,
            env: Vec::new(),
            cwd: None,
            user,
            command: command.map(str::to_owned).to_vec(),
        }
    }

    fn passes_stdin(&self) -> bool {
        self.interactive || self.tty || !std::io::stdin().is_terminal()
    }
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let outcome = async {
        let client = context.client().await?;
        if args.how.command.is_empty() {
            return Err(CliError::usage("a command is needed after --"));
        }
        if args.detach {
            return detach(&client, &context.ui, &args.id, args.how).await;
        }
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
    let process = Process::start(client, id, &spec).await?;
    let wiring = Wiring { stdin: spec.stdin, terminal: spec.terminal.is_some(), lasting: false };
    exit_code_of(session::connect(client, ui, id, process, wiring).await?)
}

/// A command that was left running.
#[derive(Debug, serde::Serialize)]
struct Detached {
    pid: u32,
}

async fn detach(client: &Client, ui: &Ui, id: &SandboxId, how: How) -> Result<u8, CliError> {
    let spec = Spec { stdin: false, lasting: true, ..spec(how) };
    let mut process = Process::start(client, id, &spec).await?;
    match process.next().await? {
        Some(Event::Started { pid }) => {
            ui.show(&Detached { pid }, |started| started.pid.to_string());
            Ok(0)
        }
        _ => Err(CliError::local(ErrorClass::GuestFault, "the agent did not say which process it started")),
    }
}

/// What this process exits with.
pub(super) fn exit_code_of(left: Left) -> Result<u8, CliError> {
    Ok(match left {
        Left::Ended(ending) => exit_code(ending),
        Left::Running => 0,
        Left::Interrupted => 130,
    })
}

/// With `--json` the command runs to its end first, and the API's own answer is printed.
async fn whole(client: &Client, ui: &Ui, id: &SandboxId, how: How) -> Result<u8, CliError> {
    let stdin_base64 = if how.passes_stdin() { Some(read_stdin().await?) } else { None };
    let request = ExecRequest {
        args: how.command,
        timeout_secs: how.timeout.unwrap_or(0),
        env: how.env.into_iter().map(KeyValue::into_pair).collect(),
        cwd: how.cwd,
        user: how.user,
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
    let mut env: BTreeMap<String, String> = how.env.iter().cloned().map(KeyValue::into_pair).collect();
    if how.tty {
        let term = std::env::var("TERM").unwrap_or_else(|_| "xterm-256color".to_owned());
        env.entry("TERM".to_owned()).or_insert(term);
    }
    Spec {
        stdin: how.passes_stdin(),
        terminal: how.tty.then(terminal::size),
        lasting: false,
        args: how.command,
        env,
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
