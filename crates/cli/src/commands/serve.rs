//! `forkd serve`.

use std::io::IsTerminal;
use std::path::PathBuf;

use forkd_controller::{Listen, ServeError};
use forkd_engine::{ConfigError, DEFAULT_WAITING, Engine, EngineConfig, EngineError};
use forkd_protocol::error::ErrorClass;
use tracing_subscriber::EnvFilter;

use crate::context::{Context, DEFAULT_LISTEN};
use crate::error::CliError;

/// Run the controller.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd serve\n  forkd serve --listen unix:/run/forkd.sock --root /srv/forkd\n\n\
                  SIGTERM ends it; sandboxes run on, and the next controller finds them again."
)]
pub(crate) struct Args {
    /// Where to listen: a loopback address with port, or unix:/PATH
    #[arg(long, value_name = "ADDRESS", default_value = DEFAULT_LISTEN)]
    listen: Listen,
    /// Folder of images, snapshots and sandboxes
    #[arg(long, value_name = "DIR", env = "FORKD_ROOT", default_value = DEFAULT_ROOT)]
    root: PathBuf,
    /// How many monitors are started ahead of time for the next forks; 0 is none
    #[arg(long, value_name = "N", env = "FORKD_WAITING", default_value_t = DEFAULT_WAITING, value_parser = waiting)]
    waiting: usize,
    /// Log lines as JSON
    #[arg(long)]
    log_json: bool,
    /// Leave the session of whoever started it
    #[arg(long, hide = true)]
    detach: bool,
}

/// Root of the store where nobody says otherwise.
pub(crate) const DEFAULT_ROOT: &str = "/var/lib/forkd";

pub(crate) async fn run(args: Args, _context: &Context) -> Result<u8, CliError> {
    if args.detach {
        // Signals to that session's groups are not meant for the controller. Fails only for a group leader,
        // which nobody who passes this flag starts.
        let _ = rustix::process::setsid();
    }
    log(args.log_json);
    let config = EngineConfig { waiting: args.waiting, ..EngineConfig::from_env(args.root)? };
    let bound = args.listen.bind().await?;
    let engine = Engine::open(config).await?;
    bound.serve(engine).await?;
    Ok(0)
}

/// More would be a sign of a mistake: forks that find none start their own.
fn waiting(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n <= 256).ok_or_else(|| "a number from 0 to 256".to_owned())
}

fn log(json: bool) {
    let filter = EnvFilter::try_from_env("FORKD_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let to_stderr = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second subscriber is impossible: this is the only place that sets one.
    let _ = if json {
        to_stderr.json().try_init()
    } else {
        to_stderr.with_ansi(std::io::stderr().is_terminal()).try_init()
    };
}

impl From<ConfigError> for CliError {
    fn from(e: ConfigError) -> Self {
        Self::usage(e.to_string())
    }
}

impl From<EngineError> for CliError {
    fn from(e: EngineError) -> Self {
        Self::local(e.class(), e.body().error)
    }
}

impl From<ServeError> for CliError {
    fn from(e: ServeError) -> Self {
        let class = match e {
            ServeError::Refused { .. } => ErrorClass::Caller,
            ServeError::Taken { .. } => ErrorClass::Conflict,
            ServeError::Io { .. } => ErrorClass::Internal,
        };
        Self::caused(class, "the controller does not listen", e)
    }
}
