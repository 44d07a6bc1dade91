//! One file per verb: its arguments (`Args`) and what it does (`run`). This one only lists them.

mod kill;
mod ls;
mod ping;

use clap::Subcommand;

use crate::context::Context;
use crate::error::CliError;

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List running sandboxes
    Ls(ls::Args),
    /// Ask the agent of a sandbox whether it answers
    Ping(ping::Args),
    /// End sandboxes
    Kill(kill::Args),
}

/// Runs a verb; the exit code where it did what was asked.
pub(crate) async fn run(command: Command, context: &Context) -> Result<u8, CliError> {
    match command {
        Command::Ls(args) => ls::run(args, context).await,
        Command::Ping(args) => ping::run(args, context).await,
        Command::Kill(args) => kill::run(args, context).await,
    }
}
