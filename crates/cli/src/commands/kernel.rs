//! `forkd kernel`.

use std::path::PathBuf;

use forkd_protocol::names::KernelName;
use forkd_protocol::rest::KernelInfo;
use forkd_store::make::KernelSource;

use super::removal;
use crate::artifacts;
use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// Guest kernels.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Fetch Debian's cloud kernel, or take one from a file; done by itself where one is needed
    #[command(
        after_help = "Example:\n  forkd kernel fetch\n  forkd kernel fetch --kernel /boot/vmlinuz-6.1.0-40-cloud-amd64 --modules /lib/modules/6.1.0-40-cloud-amd64"
    )]
    Fetch(Fetch),
    /// List kernels
    #[command(after_help = "Example:\n  forkd kernel ls")]
    Ls,
    /// Remove kernels; snapshots made with them do not need them
    #[command(after_help = "Example:\n  forkd kernel rm 6.1.0-40-cloud-amd64")]
    Rm(Remove),
}

#[derive(Debug, clap::Args)]
struct Remove {
    /// Kernels
    #[arg(required = true)]
    names: Vec<KernelName>,
}

#[derive(Debug, clap::Args)]
struct Fetch {
    /// Take this kernel (bzImage or ELF) instead of Debian's
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Folder of its modules (lib/modules/RELEASE); without one it has all that guests need built in
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
    /// The kernel of Debian's stable release rather than the newest
    #[arg(long, conflicts_with = "kernel")]
    stable: bool,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    match args.verb {
        Verb::Fetch(Fetch { kernel: Some(file), modules, .. }) => {
            let made = artifacts::kernel_file(&client, &context.ui, file, modules).await?;
            context.ui.show(&made, |kernel| render(std::slice::from_ref(kernel), ui::now_unix()));
        }
        Verb::Fetch(fetch) => {
            let source = if fetch.stable { KernelSource::Stable } else { KernelSource::Newest };
            let made = artifacts::fetch_kernel(&client, &context.ui, source).await?;
            context.ui.show(&made, |kernel| render(std::slice::from_ref(kernel), ui::now_unix()));
        }
        Verb::Ls => {
            let kernels: Vec<KernelInfo> = client.get("/v1/kernels").await?;
            context.ui.show(&kernels, |all| render(all, ui::now_unix()));
        }
        Verb::Rm(remove) => {
            return removal::remove(&client, &context.ui, "/v1/kernels", &remove.names, "").await;
        }
    }
    Ok(0)
}

fn render(all: &[KernelInfo], now: u64) -> String {
    if all.is_empty() {
        return "no kernels; fetch Debian's: forkd kernel fetch".to_owned();
    }
    ui::table(
        &["NAME", "AGE", "HASH"],
        all.iter().map(|k| {
            [k.name.clone(), ui::age(k.created_at_unix, now), k.hash.chars().take(16).collect::<String>()]
        }),
    )
}
