//! One file per verb: its arguments (`Args`) and what it does (`run`). This one only lists them.

mod attach;
mod audit;
mod bench;
mod bench_branch;
mod bench_chain;
mod bench_churn;
mod bench_exec;
pub(crate) mod branch;
mod cleanup;
mod completions;
mod cp;
mod doctor;
mod doctor_jail;
mod eval;
mod events;
mod exec;
pub(crate) mod fork;
mod from_image;
mod gc;
pub(crate) mod image;
mod images;
mod info;
mod kernel;
mod kill;
mod limits;
mod logs;
mod ls;
mod machine;
mod mcp;
mod net;
mod pack;
mod pause;
mod ping;
pub(crate) mod port_forward;
mod ps;
mod pull;
mod push;
mod quickstart;
mod removal;
mod rmi;
pub(crate) mod run;
mod secret;
pub(crate) mod serve;
mod shell;
pub(crate) mod snapshot;
mod snapshot_compact;
mod snapshot_diff;
mod snapshot_info;
mod snapshot_refresh;
mod stats;
mod tenant;
mod token;
mod tree;
mod unpack;
mod verify;
mod workspace;

use clap::Subcommand;
use tokio::signal::unix::{SignalKind, signal};

use crate::context::Context;
use crate::error::CliError;

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// From nothing to ten forked sandboxes: makes what is missing and shows what it can do
    Quickstart(quickstart::Args),
    /// Boot an image, warm it up and freeze it; or make a snapshot again
    Snapshot(snapshot::Args),
    /// Make a snapshot of a container image: `image build --from-oci` and `snapshot` in one
    FromImage(from_image::Args),
    /// Fork sandboxes from a snapshot or from a running sandbox
    Fork(fork::Args),
    /// Run a command in a sandbox
    Exec(exec::Args),
    /// Open a shell in a sandbox
    Shell(shell::Args),
    /// List what was started in a sandbox and runs
    Ps(ps::Args),
    /// Attach to a process that runs in a sandbox
    Attach(attach::Args),
    /// Copy files and folders into a sandbox or out of it
    Cp(cp::Args),
    /// Evaluate in the warm interpreter of a sandbox
    Eval(eval::Args),
    /// Run a command in a fresh sandbox of an image
    Run(run::Args),
    /// List sandboxes
    Ls(ls::Args),
    /// Show everything that is known of a sandbox
    Info(info::Args),
    /// Give a running sandbox secrets
    Secret(secret::Args),
    /// Ask the agent of a sandbox whether it answers
    Ping(ping::Args),
    /// Show what a guest wrote on its console
    Logs(logs::Args),
    /// Make ports of a sandbox reachable on this computer
    PortForward(port_forward::Args),
    /// Change what may leave a sandbox
    Net(net::Args),
    /// End sandboxes
    Kill(kill::Args),
    /// Take sandboxes to the disk: their memory is given back until they are resumed
    Pause(pause::PauseArgs),
    /// Continue paused sandboxes where they stood
    Resume(pause::ResumeArgs),
    /// Make, list, suspend, resume and remove sandboxes with a name
    Workspace(workspace::Args),
    /// Show what happened, or follow what happens
    Events(events::Args),
    /// Show what sandboxes use, and what there is room for
    Stats(stats::Args),
    /// List snapshots
    Images(images::Args),
    /// Make a snapshot of a running sandbox, which runs on
    Branch(branch::Args),
    /// Make a snapshot of another one and what a command changes in it
    SnapshotDiff(snapshot_diff::Args),
    /// Show which snapshot or sandbox comes from which snapshot
    Tree(tree::Args),
    /// Show what a snapshot consists of
    SnapshotInfo(snapshot_info::Args),
    /// Make a flat snapshot of one that lies on others
    SnapshotCompact(snapshot_compact::Args),
    /// Remove snapshots
    Rmi(rmi::Args),
    /// Write a snapshot, with all that it needs, into a file
    Pack(pack::Args),
    /// Take a snapshot in from a file
    Unpack(unpack::Args),
    /// Send a snapshot to a hub
    Push(push::Args),
    /// Take a snapshot in from a hub
    Pull(pull::Args),
    /// Remove stored content that nothing names
    Gc(gc::Args),
    /// Hash stored snapshots again
    Verify(verify::Args),
    /// Make, list and remove root file systems
    Image(image::Args),
    /// Fetch and list guest kernels
    Kernel(kernel::Args),
    /// Look at this computer: what forkd finds, and how to get what is missing
    Doctor(doctor::Args),
    /// The emulated host for computers without usable KVM
    #[command(
        after_help = "Example:\n  forkd machine start && forkd machine status\n  forkd machine shell -- uname -r"
    )]
    Machine(machine::Args),
    /// Serve the verbs as tools to an agent (Model Context Protocol)
    Mcp(mcp::Args),
    /// Measure how fast forks are and what they cost
    Bench(bench::Args),
    /// Run the controller
    Serve(serve::Args),
    /// Make, list and revoke tokens of the API
    Token(token::Args),
    /// Bound what tenants may have
    Tenant(tenant::Args),
    /// Show and check who changed what
    Audit(audit::Args),
    /// Remove what is left of sandboxes that no longer run, where no controller does
    Cleanup(cleanup::Args),
    /// Print the completion script of a shell
    Completions(completions::Args),
}

/// Runs a verb; the exit code where it did what was asked.
pub(crate) async fn run(command: Command, context: &Context) -> Result<u8, CliError> {
    match command {
        Command::Quickstart(args) => quickstart::run(args, context).await,
        Command::Snapshot(args) => snapshot::run(args, context).await,
        Command::FromImage(args) => from_image::run(args, context).await,
        Command::Fork(args) => fork::run(args, context).await,
        Command::Exec(args) => exec::run(args, context).await,
        Command::Shell(args) => shell::run(args, context).await,
        Command::Ps(args) => ps::run(args, context).await,
        Command::Attach(args) => attach::run(args, context).await,
        Command::Cp(args) => cp::run(args, context).await,
        Command::Eval(args) => eval::run(args, context).await,
        Command::Run(args) => run::run(args, context).await,
        Command::Ls(args) => ls::run(args, context).await,
        Command::Info(args) => info::run(args, context).await,
        Command::Secret(args) => secret::run(args, context).await,
        Command::Ping(args) => ping::run(args, context).await,
        Command::Logs(args) => logs::run(args, context).await,
        Command::PortForward(args) => port_forward::run(args, context).await,
        Command::Net(args) => net::run(args, context).await,
        Command::Kill(args) => kill::run(args, context).await,
        Command::Pause(args) => pause::pause(args, context).await,
        Command::Resume(args) => pause::resume(args, context).await,
        Command::Events(args) => events::run(args, context).await,
        Command::Workspace(args) => workspace::run(args, context).await,
        Command::Stats(args) => stats::run(args, context).await,
        Command::Images(args) => images::run(args, context).await,
        Command::Tree(args) => tree::run(args, context).await,
        Command::Branch(args) => branch::run(args, context).await,
        Command::SnapshotDiff(args) => snapshot_diff::run(args, context).await,
        Command::SnapshotInfo(args) => snapshot_info::run(args, context).await,
        Command::SnapshotCompact(args) => snapshot_compact::run(args, context).await,
        Command::Pack(args) => pack::run(args, context).await,
        Command::Unpack(args) => unpack::run(args, context).await,
        Command::Push(args) => push::run(args, context).await,
        Command::Pull(args) => pull::run(args, context).await,
        Command::Gc(args) => gc::run(args, context).await,
        Command::Verify(args) => verify::run(args, context).await,
        Command::Rmi(args) => rmi::run(args, context).await,
        Command::Image(args) => image::run(args, context).await,
        Command::Kernel(args) => kernel::run(args, context).await,
        Command::Doctor(args) => doctor::run(args, context).await,
        Command::Machine(args) => machine::run(args, context).await,
        Command::Mcp(args) => mcp::run(args, context).await,
        Command::Bench(args) => bench::run(args, context).await,
        Command::Token(args) => token::run(args, context).await,
        Command::Tenant(args) => tenant::run(args, context).await,
        Command::Audit(args) => audit::run(args, context).await,
        Command::Serve(args) => serve::run(args, context).await,
        Command::Cleanup(args) => cleanup::run(args, context).await,
        Command::Completions(args) => completions::run(&args, context),
    }
}

/// Root of the store where a controller is started by itself.
pub(crate) fn default_root() -> std::path::PathBuf {
    let given = std::env::var_os("FORKD_ROOT").filter(|r| !r.is_empty());
    given.unwrap_or_else(|| serve::DEFAULT_ROOT.into()).into()
}

/// Resolves when this process is asked to end: 128 plus the signal.
pub(crate) async fn interrupted() -> Result<u8, CliError> {
    let listen = |kind| signal(kind).map_err(|e| CliError::io("listening for signals", e));
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => Ok(130),
        _ = terminate.recv() => Ok(143),
    }
}
