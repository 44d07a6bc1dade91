//! `forkd fork`.

use std::time::Duration;

use forkd_protocol::names::{SandboxId, Tag};
use forkd_protocol::rest::{CreateSandboxes, MAX_CHILDREN, OnTimeout, Publish, SandboxInfo, SandboxSettings};
use tokio::signal::unix::{SignalKind, signal};

use super::kill::kill;
use super::limits::LimitArgs;
use super::net::NetArgs;
use crate::client::Client;
use crate::context::Context;
use crate::error::CliError;
use crate::parse::{self, KeyValue};
use crate::secrets::{self, Secret};
use crate::target::Target;
use crate::ui;

/// Fork children from a snapshot, or from a running sandbox.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd fork --tag pynp -n 20\n  forkd fork --tag pynp --env KEY=value --json | jq -r '.[].id'\n  forkd fork --tag pynp --secret API_KEY --secret CERT=@cert.der\n  forkd fork --tag web --publish 8080:80 --idle-timeout 600\n  forkd fork --from-sandbox ID -n 5"
)]
pub(crate) struct Args {
    /// Snapshot
    #[arg(long, required_unless_present = "from_sandbox", conflicts_with = "from_sandbox")]
    tag: Option<Tag>,
    /// Running sandbox: it is branched first, and runs on
    #[arg(long, value_name = "ID")]
    from_sandbox: Option<SandboxId>,
    /// How many children
    #[arg(short, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CHILDREN)))]
    n: u32,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    net: NetArgs,
    /// Environment of every process that is started in the children
    #[arg(long = "env", short = 'e', value_name = "KEY=VALUE", value_parser = parse::key_value)]
    env: Vec<KeyValue>,
    /// Secret of the children, a file in their /run/secrets that no snapshot has: its value from the variable NAME, or
    /// from a file
    #[arg(long = "secret", value_name = "NAME[=@FILE]", value_parser = secrets::secret)]
    secrets: Vec<Secret>,
    /// Also where the running sandbox holds secrets: the children have them, too, and the audit log says so
    #[arg(long, requires = "from_sandbox")]
    with_secrets: bool,
    /// Label of the children, shown and to filter by
    #[arg(long = "metadata", value_name = "KEY=VALUE", value_parser = parse::key_value)]
    metadata: Vec<KeyValue>,
    /// End the children (or pause them) after this long, unless that is changed meanwhile
    #[arg(long = "timeout", value_name = "SECONDS")]
    timeout_secs: Option<u64>,
    /// Pause the children at their timeout instead of ending them
    #[arg(long, requires = "timeout_secs")]
    pause_at_timeout: bool,
    /// Continue them when traffic arrives for them while they are paused
    #[arg(long)]
    auto_resume: bool,
    /// Pause a child once nobody has used it for this long: no call, no open connection, nothing that runs in it. The
    /// next use continues it
    #[arg(long = "idle-timeout", value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    idle_timeout_secs: Option<u64>,
    /// Make a port of the child reachable at one of the host that runs it, on loopback unless an address is given, until
    /// the child ends
    #[arg(long = "publish", value_name = "[IP:]HOST:GUEST")]
    publish: Vec<Publish>,
    /// Stay in the foreground this long, or until SIGTERM, then end the children. Meanwhile forkd's published Python
    /// client finds a child that is alone at the address in FORKD_TARGET
    #[arg(long, value_name = "SECONDS")]
    settle_secs: Option<u64>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    // Listened to before there are children, so that none outlives an early signal.
    let stop = args.settle_secs.map(Stop::after).transpose()?;
    let target = if stop.is_some() && args.n == 1 { Target::take().await? } else { None };
    let children = create(&client, &request(&args)).await?;
    context.ui.show(&children, |all| render(all));
    if args.net.policy.is_none() && children.iter().any(is_without_network) {
        context.ui.note("they run without a network, as their snapshot says, or as this host lacks something for one (`forkd doctor`)");
    }
    let Some(stop) = stop else { return Ok(0) };
    let first = children.first().and_then(|child| child.id.parse().ok());
    match target.zip(first) {
        Some((target, id)) => tokio::select! {
            () = stop.wait() => {}
            () = target.serve(&client, &id) => {}
        },
        None => stop.wait().await,
    }
    end_all(&client, &children).await
}

/// Forks children.
pub(crate) async fn create(client: &Client, request: &CreateSandboxes) -> Result<Vec<SandboxInfo>, CliError> {
    client.post("/v1/sandboxes", request).await
}

/// `n` children of a snapshot, without any wishes.
pub(crate) fn plainly(tag: &str, n: u32) -> CreateSandboxes {
    CreateSandboxes { n, ..CreateSandboxes::of(tag) }
}

fn request(args: &Args) -> CreateSandboxes {
    CreateSandboxes {
        limits: args.limits.limits(),
        network: args.net.policy.clone(),
        env: args.env.iter().cloned().map(KeyValue::into_pair).collect(),
        settings: SandboxSettings {
            metadata: args.metadata.iter().cloned().map(KeyValue::into_pair).collect(),
            // Also where nobody is left to end them.
            timeout_secs: args.timeout_secs.or(args.settle_secs),
            on_timeout: if args.pause_at_timeout { OnTimeout::Pause } else { OnTimeout::Kill },
            auto_resume: args.auto_resume || args.idle_timeout_secs.is_some(),
            idle_timeout_secs: args.idle_timeout_secs,
        },
        from_sandbox: args.from_sandbox.as_ref().map(ToString::to_string),
        secrets: secrets::values(&args.secrets),
        with_secrets: args.with_secrets,
        publish: args.publish.clone(),
        ..plainly(args.tag.as_ref().map_or("", Tag::as_str), args.n)
    }
}

fn is_without_network(child: &SandboxInfo) -> bool {
    child.network.as_ref().is_some_and(|policy| !policy.has_traffic())
}

fn render(children: &[SandboxInfo]) -> String {
    ui::table(
        &["ID", "ANSWERED", "PID"],
        children.iter().map(|c| {
            [
                c.id.clone(),
                ui::took(Duration::from_micros(c.timing.answered_us)),
                c.pid.map_or_else(|| "-".to_owned(), |p| p.to_string()),
            ]
        }),
    )
}

/// Ends children that this command made; one that ended by itself is fine.
pub(crate) async fn end_all(client: &Client, children: &[SandboxInfo]) -> Result<u8, CliError> {
    let ids: Vec<SandboxId> = children.iter().filter_map(|c| c.id.parse().ok()).collect();
    let (_, failed) = kill(client, ids).await;
    let gone = |e: &CliError| e.class() == Some(forkd_protocol::error::ErrorClass::NotFound);
    failed.into_iter().find(|e| !gone(e)).map_or(Ok(0), Err)
}

/// The end of a stay in the foreground.
struct Stop {
    after: Duration,
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    fn after(seconds: u64) -> Result<Self, CliError> {
        let listen = |kind| signal(kind).map_err(|e| CliError::io("listening for signals", e));
        Ok(Self {
            after: Duration::from_secs(seconds),
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn wait(mut self) {
        tokio::select! {
            () = tokio::time::sleep(self.after) => {}
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
