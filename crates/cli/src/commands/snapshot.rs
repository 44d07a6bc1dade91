//! `forkd snapshot`.

use std::path::PathBuf;

use forkd_protocol::control::CpuModel;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::{ImageName, KernelName, SandboxId, Tag};
use forkd_protocol::rest::{CreateSnapshot, SnapshotInfo};
use http::{Method, header};
use serde::Serialize;

use super::branch::{self, How};
use super::net::NetArgs;
use super::snapshot_refresh;

use crate::client::{self, Client};
use crate::context::Context;
use crate::error::CliError;
use crate::ui::{self, Step, Ui};
use crate::{artifacts, sse};

/// Boot an image, warm it up and freeze it, or freeze a running sandbox.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example:\n  forkd snapshot --image py --tag pynp --warm 'import numpy'\n  \
                  forkd snapshot --from-sandbox ID --tag pynp-b\n  forkd snapshot refresh pynp"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Image to boot
    #[arg(long, required_unless_present = "from_sandbox")]
    image: Option<ImageName>,
    /// A running sandbox in the place of an image: the same as `forkd branch`
    #[arg(long, value_name = "ID", conflicts_with_all = ["image", "warm", "warm_file", "warm_timeout", "vcpus", "mem", "cpu", "kernel", "policy"])]
    from_sandbox: Option<SandboxId>,
    /// How a sandbox is written, and whether that is waited for
    #[command(flatten)]
    how: How,
    /// Name of the snapshot
    #[arg(long, required_unless_present = "from_sandbox")]
    tag: Option<Tag>,
    #[command(flatten)]
    parent: Parent,
}

/// How a parent is booted and warmed up.
#[derive(Debug, clap::Args)]
pub(super) struct Parent {
    /// Python statements that warm the interpreter
    #[arg(long, value_name = "CODE")]
    warm: Option<String>,
    /// The same from a file
    #[arg(long, value_name = "FILE", conflicts_with = "warm")]
    warm_file: Option<PathBuf>,
    /// Give up the warm-up after this long
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    warm_timeout: u64,
    /// Virtual CPUs
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=8))]
    vcpus: u32,
    /// Memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(128..=16384))]
    mem: u64,
    /// CPU feature level shown to the guest: host, x86-64-v2 or x86-64-v3 (default: as high as travels)
    #[arg(long, value_parser = cpu_model)]
    cpu: Option<CpuModel>,
    /// Kernel (default: the newest in the store)
    #[arg(long, value_name = "NAME")]
    kernel: Option<KernelName>,
    #[command(flatten)]
    net: NetArgs,
}

/// What else is done with snapshots here.
#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make a snapshot again from its recorded image and warm-up, with the kernel, agent and monitor of now
    Refresh(snapshot_refresh::Args),
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    if let Some(Verb::Refresh(args)) = args.verb {
        return snapshot_refresh::run(args, context).await;
    }
    if let Some(id) = args.from_sandbox {
        return branch::run(branch::Args { id, tag: args.tag, how: args.how }, context).await;
    }
    if args.how.is_given() {
        return Err(CliError::usage("--mode and --no-wait go with --from-sandbox"));
    }
    let (tag, image) = (args.tag.map(String::from), args.image.map(String::from));
    let request = args.parent.request(&tag.unwrap_or_default(), &image.unwrap_or_default())?;
    from_request(&context.client().await?, context, &request).await
}

/// Makes the snapshot, with the kernel that it may need, and shows it.
pub(super) async fn from_request(
    client: &Client,
    context: &Context,
    request: &CreateSnapshot,
) -> Result<u8, CliError> {
    if request.kernel.is_none() {
        artifacts::ensure_kernel(client, &context.ui).await?;
    }
    let made = create(client, &context.ui, request).await?;
    context.ui.show(&made, render);
    Ok(0)
}

/// Makes a snapshot, showing how far it is.
pub(crate) async fn create(
    client: &Client,
    ui: &Ui,
    request: &CreateSnapshot,
) -> Result<SnapshotInfo, CliError> {
    let step = ui.step(format!("Making snapshot {}", request.tag));
    follow(client, "/v1/snapshots", request, step).await
}

/// Asks for a snapshot, and shows how far it is.
pub(super) async fn follow(
    client: &Client,
    path: &str,
    request: &impl Serialize,
    step: Step,
) -> Result<SnapshotInfo, CliError> {
    let body = serde_json::to_vec(request)
        .map_err(|e| CliError::caused(ErrorClass::Internal, "writing the request", e))?;
    let post = client
        .request(Method::POST, path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "text/event-stream");
    let answer = client.send(post.body(client::full(body))).await?;
    let made = sse::follow(answer.into_body(), &step).await?;
    step.done("");
    Ok(made)
}

/// A snapshot of an image with everything as it is by default.
pub(crate) fn plainly(tag: &str, image: &str, warm: Option<&str>) -> CreateSnapshot {
    CreateSnapshot {
        tag: tag.to_owned(),
        image: image.to_owned(),
        kernel: None,
        warm: warm.map(str::to_owned),
        vcpus: 1,
        memory_mib: 512,
        cpu: CpuModel::default(),
        warm_timeout_secs: 600,
        network: None,
    }
}

impl Parent {
    /// The snapshot that is to be made of it.
    pub(super) fn request(self, tag: &str, image: &str) -> Result<CreateSnapshot, CliError> {
        let warm = match self.warm_file {
            Some(path) => Some(
                std::fs::read_to_string(&path)
                    .map_err(|e| CliError::io(format!("reading the warm-up {}", path.display()), e))?,
            ),
            None => self.warm,
        };
        Ok(CreateSnapshot {
            kernel: self.kernel.map(String::from),
            vcpus: self.vcpus,
            memory_mib: self.mem,
            cpu: self.cpu.unwrap_or_default(),
            warm_timeout_secs: self.warm_timeout,
            network: self.net.policy,
            ..plainly(tag, image, warm.as_deref())
        })
    }
}

fn cpu_model(given: &str) -> Result<CpuModel, String> {
    // The names of the API, so that both stay the same.
    serde_json::from_value(serde_json::Value::String(given.to_owned()))
        .map_err(|_| "one of host, x86-64-v2, x86-64-v3".to_owned())
}

pub(super) fn render(made: &SnapshotInfo) -> String {
    let t = made.timing;
    let seconds = |ms: u64| ui::took(std::time::Duration::from_millis(ms));
    format!(
        "{}: {} of {} MiB stored; boot {}, warm-up {}, freezing and writing {}",
        made.tag,
        ui::size(made.memory_physical_bytes),
        made.memory_mib,
        seconds(t.boot_ms),
        seconds(t.warm_ms),
        seconds(t.write_ms)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_models_have_the_names_of_the_api() {
        assert!(cpu_model("host").is_ok());
        assert!(cpu_model("x86-64-v2").is_ok());
        assert!(cpu_model("x86-64-v3").is_ok());
        assert!(cpu_model("486").is_err());
    }
}
