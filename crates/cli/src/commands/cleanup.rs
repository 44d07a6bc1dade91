//! `forkd cleanup`.

use std::path::PathBuf;

use forkd_engine::{Engine, EngineConfig};
use serde::Serialize;

use crate::config;
use crate::context::Context;
use crate::error::CliError;

/// Remove what is left of sandboxes that no longer run: processes, cgroups, run folders, rows.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd cleanup\n  forkd cleanup --root /srv/forkd\n\n\
                  Sandboxes that run are left alone, also those that a controller left to themselves.\n\
                  A controller does the same when it starts. While one runs it keeps the store to itself: then this\n\
                  changes nothing and ends with 4.")]
pub(crate) struct Args {
    /// Folder of images, snapshots and sandboxes (default: as configured, else /var/lib/forkd)
    #[arg(long, value_name = "DIR", env = "FORKD_ROOT")]
    root: Option<PathBuf>,
    /// Configuration (default: /etc/forkd/forkd.toml, where it exists)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What is left, all of which lives.
#[derive(Debug, Serialize)]
struct Report {
    /// Sandboxes that run or are paused.
    sandboxes: Vec<String>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let file = config::load(args.config.as_deref())?;
    let root = args.root.or(file.root).unwrap_or_else(|| super::serve::DEFAULT_ROOT.into());
    let config = EngineConfig { waiting: 0, ..EngineConfig::from_env(root)? };
    let engine = Engine::open(config).await?;
    let sandboxes: Vec<String> = engine.sandboxes().into_iter().map(|info| info.id).collect();
    engine.shutdown();
    context.ui.show(&Report { sandboxes }, |report| match report.sandboxes.len() {
        0 => "clean; no sandbox is left".to_owned(),
        n => format!("clean; {n} sandboxes live: {}", report.sandboxes.join(" ")),
    });
    Ok(0)
}
