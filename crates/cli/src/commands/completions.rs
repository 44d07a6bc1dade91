//! `forkd completions`.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::context::Context;
use crate::error::CliError;

/// Print the completion script of a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd completions bash > /etc/bash_completion.d/forkd")]
pub(crate) struct Args {
    /// Shell
    shell: Shell,
}

pub(crate) fn run(args: &Args, context: &Context) -> Result<u8, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "forkd", &mut script);
    context.ui.line(&String::from_utf8_lossy(&script));
    Ok(0)
}
