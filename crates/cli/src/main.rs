//! The `forkd` command: reads arguments, calls one verb, turns its outcome into an exit code.

#![forbid(unsafe_code)]

mod archive;
mod artifacts;
mod bench;
mod client;
mod commands;
mod config;
mod context;
mod dockerfile;
mod ensure;
mod envelope;
mod error;
mod host;
mod kept;
mod machine;
mod mcp;
mod parse;
mod process;
mod secrets;
mod session;
mod signals;
mod sse;
mod target;
mod terminal;
mod tls;
mod travel;
mod ui;
mod upload;

use std::process::ExitCode;

use clap::Parser;

use crate::context::Context;
use crate::ui::Ui;

/// What is common to every verb, and the verb.
#[derive(Debug, Parser)]
#[command(
    name = "forkd",
    version,
    about = "MicroVM sandboxes forked from a warmed parent",
    after_help = error::EXIT_CODES,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: commands::Command,
}

/// Flags that every verb takes.
#[derive(Debug, clap::Args)]
struct Global {
    /// Print the API's own JSON instead of text
    #[arg(long, global = true)]
    json: bool,
    /// Where the controller is: http://HOST:PORT or unix:/PATH (default: http://127.0.0.1:8889, started
    /// when it does not run)
    #[arg(long, global = true, env = "FORKD_URL", value_name = "URL")]
    url: Option<String>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ui = Ui::new(cli.global.json);
    let outcome = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_or_else(
        |e| Err(error::CliError::io("starting", e)),
        |runtime| {
            let context = Context::new(ui.clone(), cli.global.url);
            let outcome = runtime.block_on(commands::run(cli.command, &context));
            // A thread that still reads standard input would hold the process up.
            runtime.shutdown_background();
            outcome
        },
    );
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            ui.error(&e);
            ExitCode::from(e.exit_code())
        }
    }
}
