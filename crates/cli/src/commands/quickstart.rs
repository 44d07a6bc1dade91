//! `forkd quickstart`: from nothing to ten forked sandboxes. What is there already is reused.

use std::time::{Duration, Instant};

use forkd_protocol::rest::{
    EvalRequest, EvalResponse, ExecRequest, ExecResponse, ImageInfo, SandboxInfo, SandboxStats, SnapshotInfo,
};
use futures::StreamExt;
use serde::Serialize;

use super::{fork, image, snapshot};
use crate::artifacts;
use crate::client::Client;
use crate::context::Context;
use crate::error::CliError;
use crate::ui::{self, Ui};

/// The image, and what it has beside Debian's essential packages.
pub(super) const IMAGE: &str = "py";
const SUITE: &str = "bookworm";
const PACKAGES: [&str; 3] = ["python3-minimal", "python3-numpy", "bash"];
/// The snapshots, and what warms them. E2B's clients ask for templates of these names.
const BARE_TAG: &str = "base";
const WARM_TAG: &str = "code-interpreter-v1";
pub(super) const WARM: &str = "import numpy";
/// What is asked of each child: random, so that anyone sees that the children differ.
const EXPRESSION: &str = "numpy.random.rand(2).round(3).tolist()";
const COMMAND: [&str; 2] = ["uname", "-n"];
/// How many children are asked side by side.
const SIDE_BY_SIDE: usize = 4;
/// Bound of one question; an emulated host is slow.
const TIMEOUT_SECS: u64 = 120;

/// From nothing to forked sandboxes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd quickstart\n  forkd quickstart -n 3 --keep")]
pub(crate) struct Args {
    /// How many children
    #[arg(short, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    n: u32,
    /// Leave the children running
    #[arg(long)]
    keep: bool,
}

/// One child and what it answered.
#[derive(Debug, Serialize)]
struct Child {
    sandbox: SandboxInfo,
    eval: EvalResponse,
    exec: ExecResponse,
    stats: SandboxStats,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let began = Instant::now();
    let (client, ui) = (context.client().await?, &context.ui);
    prepare(&client, ui).await?;
    let prepared = began.elapsed();

    let forking = Instant::now();
    let children = fork::create(&client, &fork::plainly(WARM_TAG, args.n)).await?;
    let forked = forking.elapsed();
    let answers = tokio::select! {
        answers = ask_all(&client, &children) => answers,
        signal = super::interrupted() => signal.map(|_| Vec::new()),
    };
    if !args.keep {
        fork::end_all(&client, &children).await?;
    }
    let answers = answers?;
    let times = Times { prepared, forked, all: began.elapsed() };
    ui.show(&answers, |all| render(all, &times, args.keep));
    Ok(u8::from(
        answers.is_empty() || answers.iter().any(|c| c.eval.error.is_some() || c.exec.exit_code != 0),
    ))
}

/// Kernel and image, each where it is missing.
pub(super) async fn ensure_image(client: &Client, ui: &Ui) -> Result<(), CliError> {
    artifacts::ensure_kernel(client, ui).await?;
    let images: Vec<ImageInfo> = client.get("/v1/images").await?;
    if !images.iter().any(|i| i.name == IMAGE) {
        let packages = PACKAGES.map(str::to_owned).to_vec();
        let wanted = image::debian(SUITE.to_owned(), packages, image::DEFAULT_SIZE_MIB);
        artifacts::debian_image(client, ui, IMAGE, wanted).await?;
    }
    Ok(())
}

/// Kernel, image and snapshots, each where it is missing.
async fn prepare(client: &Client, ui: &Ui) -> Result<(), CliError> {
    ensure_image(client, ui).await?;
    let snapshots: Vec<SnapshotInfo> = client.get("/v1/snapshots").await?;
    for (tag, warm) in [(BARE_TAG, None), (WARM_TAG, Some(WARM))] {
        if !snapshots.iter().any(|s| s.tag == tag) {
            let made = snapshot::create(client, ui, &snapshot::plainly(tag, IMAGE, warm)).await?;
            ui.note(&snapshot::render(&made));
        }
    }
    Ok(())
}

/// Asks every child, a few at a time, in their order.
async fn ask_all(client: &Client, children: &[SandboxInfo]) -> Result<Vec<Child>, CliError> {
    let asked = futures::stream::iter(children).map(|child| ask(client, child)).buffered(SIDE_BY_SIDE);
    asked.collect::<Vec<_>>().await.into_iter().collect()
}

async fn ask(client: &Client, sandbox: &SandboxInfo) -> Result<Child, CliError> {
    let path = |verb: &str| format!("/v1/sandboxes/{}/{verb}", sandbox.id);
    let code = EvalRequest { code: EXPRESSION.to_owned(), timeout_secs: TIMEOUT_SECS };
    let command = ExecRequest::of(COMMAND, TIMEOUT_SECS);
    let eval = client.post(&path("eval"), &code).await?;
    let exec = client.post(&path("exec"), &command).await?;
    let stats = client.get(&path("stats")).await?;
    Ok(Child { sandbox: sandbox.clone(), eval, exec, stats })
}

struct Times {
    prepared: Duration,
    forked: Duration,
    all: Duration,
}

fn render(children: &[Child], times: &Times, keep: bool) -> String {
    let rows = children.iter().map(|c| {
        let result = c.eval.result.clone().or_else(|| c.eval.error.clone()).unwrap_or_default();
        [
            c.sandbox.id.clone(),
            ui::took(Duration::from_micros(c.sandbox.timing.answered_us)),
            result,
            c.exec.stdout.trim_end().to_owned(),
            ui::size(private(&c.stats)),
        ]
    });
    let eval = format!("eval {EXPRESSION}");
    let command = COMMAND.join(" ");
    let table = ui::table(&["CHILD", "ANSWERED", &eval, &command, "PRIVATE"], rows);
    format!("{table}\n{}\n{}", totals(children, times), next(children, keep))
}

/// What a child has for itself alone.
fn private(stats: &SandboxStats) -> u64 {
    stats.monitor_private_bytes.saturating_add(stats.guest_private_bytes)
}

fn totals(children: &[Child], times: &Times) -> String {
    let n = children.len().max(1);
    let memory: u64 = children.iter().map(|c| private(&c.stats)).sum();
    format!(
        "{} children forked from a warmed parent in {} ({} each), {} of private memory in all.\n\
         Preparing took {}, everything {}.",
        children.len(),
        ui::took(times.forked),
        ui::took(times.forked / u32::try_from(n).unwrap_or(1)),
        ui::size(memory),
        ui::took(times.prepared),
        ui::took(times.all),
    )
}

fn next(children: &[Child], keep: bool) -> String {
    let id = match children.first() {
        Some(child) if keep => child.sandbox.id.as_str(),
        _ => "ID",
    };
    format!(
        "\nNext:\n  forkd fork --tag {WARM_TAG} -n 3                 # three sandboxes; prints their IDs\n  \
         forkd eval {id} -- 'numpy.arange(5).sum()'\n  \
         forkd exec {id} -- sh -c 'uname -a; df -h /'\n  \
         forkd snapshot --image {IMAGE} --tag mine --warm 'import json, numpy'\n  \
         forkd run --image {IMAGE} -- python3 -c 'print(6*7)'\n  \
         forkd ls; forkd kill --all; forkd images"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_shows_each_child_and_what_to_type_next() {
        let sandbox = serde_json::from_value(serde_json::json!({
            "id": "sb-1", "snapshot_tag": WARM_TAG, "netns": null, "guest_addr": "", "created_at_unix": 1,
            "pid": 5, "memory_limit_mib": null, "has_branched": false, "last_branch_memory_path": null,
            "branch_count": 0, "state": "running", "ended": null,
            "timing": { "started_us": 1, "restored_us": 2, "answered_us": 34_000 }
        }));
        let eval = serde_json::from_value(serde_json::json!({
            "result": "[0.1, 0.2]", "error": null, "exit_code": 0, "result_json": null, "traceback": null,
            "stdout": "", "stderr": "", "timed_out": false, "truncated": false, "micros": 1
        }));
        let exec = serde_json::from_value(serde_json::json!({
            "stdout": "sb-1\n", "stderr": "", "exit_code": 0, "truncated": false, "timed_out": false
        }));
        let stats = SandboxStats {
            monitor_private_bytes: 1 << 20,
            guest_private_bytes: 3 << 20,
            guest_shared_bytes: 0,
            ..SandboxStats::default()
        };
        let child = Child { sandbox: sandbox.unwrap(), eval: eval.unwrap(), exec: exec.unwrap(), stats };
        let times = Times {
            prepared: Duration::from_secs(1),
            forked: Duration::from_millis(80),
            all: Duration::from_secs(2),
        };
        let text = render(&[child], &times, true);
        for expected in ["34 ms", "[0.1, 0.2]", "4.00 MiB", "forkd eval sb-1", "1 children"] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }
}
