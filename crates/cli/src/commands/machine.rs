//! `forkd machine`.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use forkd_protocol::error::ErrorClass;
use serde::Serialize;
use tokio::task::block_in_place;

use crate::context::Context;
use crate::error::CliError;
use crate::machine::programs::Programs;
use crate::machine::{self, Dirs, MachineError, Record, Ssh, StartOptions, Until};
use crate::ui::{self, Ui};

/// Exit code of `status` where no machine runs.
const EXIT_NOT_RUNNING: u8 = 3;

/// The emulated host for computers without usable KVM.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Start it, or bring the one that runs up to date; ends when its controller answers
    Start(StartArgs),
    /// End its sandboxes and switch it off
    Stop,
    /// Say whether it runs and where it is reached
    Status,
    /// Open a shell in it, or run a command there
    #[command(after_help = "Example:\n  forkd machine shell\n  forkd machine shell -- ls -l /dev/kvm")]
    Shell {
        /// The command and its arguments, as they are
        #[arg(last = true, value_name = "CMD")]
        command: Vec<String>,
    },
    /// Show its console and the controller's log
    Logs(LogsArgs),
    /// Stop it and remove it with its data disk: images, snapshots and all
    Rm {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, clap::Args)]
struct StartArgs {
    /// Memory (default: 6144, or half of this computer's)
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1024..=1 << 20))]
    memory_mib: Option<u64>,
    /// Be content when it is up, whether or not the controller answers
    #[arg(long)]
    only_boot: bool,
}

#[derive(Debug, clap::Args)]
struct LogsArgs {
    /// Only the console
    #[arg(long, conflicts_with = "controller")]
    serial: bool,
    /// Only the controller's log
    #[arg(long)]
    controller: bool,
    /// How many lines of each
    #[arg(short = 'n', long, default_value_t = 200)]
    lines: usize,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    block_in_place(|| match args.verb {
        Verb::Start(args) => start(args, &context.ui),
        Verb::Stop => stop(&context.ui),
        Verb::Status => status(&context.ui),
        Verb::Shell { command } => shell(&command),
        Verb::Logs(args) => logs(&args, &context.ui),
        Verb::Rm { yes } => remove(yes, &context.ui),
    })
}

fn start(args: StartArgs, ui: &Ui) -> Result<u8, CliError> {
    let mut options = StartOptions::from_env();
    options.memory_mib = args.memory_mib.or(options.memory_mib);
    if args.only_boot {
        options.until = Until::Booted;
    }
    let endpoint = machine::start(ui, &options)?;
    ui.show(&endpoint, |e| format!("the machine runs; its API is at {}", e.url));
    Ok(0)
}

fn stop(ui: &Ui) -> Result<u8, CliError> {
    if !machine::stop(ui)? {
        ui.note("no machine runs");
    }
    Ok(0)
}

/// What `status` says.
#[derive(Debug, Serialize)]
struct Status {
    running: bool,
    answers: bool,
    /// The programs in it are the ones that lie here.
    current: bool,
    url: Option<String>,
    state_dir: PathBuf,
    data_disk_bytes: u64,
    #[serde(flatten)]
    record: Option<Record>,
}

fn status(ui: &Ui) -> Result<u8, CliError> {
    use std::os::unix::fs::MetadataExt;
    let dirs = Dirs::from_env();
    let record = Record::running(&dirs)?;
    let plan = record.as_ref().map(|r| &r.plan);
    let status = Status {
        running: record.is_some(),
        answers: plan.is_some_and(|p| machine::answers(p.api_port)),
        current: plan.is_some_and(|p| Programs::here().is_ok_and(|here| here.hashes == p.programs)),
        url: record.as_ref().map(Record::url),
        state_dir: dirs.state().to_owned(),
        data_disk_bytes: dirs.data_disk().metadata().map_or(0, |m| m.blocks() * 512),
        record,
    };
    ui.show(&status, render);
    Ok(if status.running { 0 } else { EXIT_NOT_RUNNING })
}

fn render(status: &Status) -> String {
    let mut rows = vec![
        ["state".to_owned(), if status.running { "running" } else { "stopped" }.to_owned()],
        ["folder".to_owned(), status.state_dir.display().to_string()],
        ["data on disk".to_owned(), ui::size(status.data_disk_bytes)],
    ];
    let mut row = |name: &str, value: String| rows.push([name.to_owned(), value]);
    if let Some(Record { process, started_at_unix, plan, .. }) = &status.record {
        let api = if status.answers { "answers" } else { "does not answer" };
        row("api", format!("http://127.0.0.1:{} ({api})", plan.api_port));
        row("ssh port", plan.ssh_port.to_string());
        row("up", ui::age(*started_at_unix, ui::now_unix()));
        row("pid", process.pid.to_string());
        row("processors", plan.cpus.to_string());
        row("memory", format!("{} MiB", plan.memory_mib));
        row("kernel", plan.kernel.clone());
        row("qemu", plan.qemu.clone());
        let current =
            if status.current { "as here" } else { "others than here (`forkd machine start` replaces them)" };
        row("programs", current.to_owned());
    }
    rows.iter().map(|[name, value]| format!("{name:<13} {value}\n")).collect()
}

fn running() -> Result<(Dirs, Record), CliError> {
    let dirs = Dirs::from_env();
    let record = Record::running(&dirs)?.ok_or(MachineError::NotRunning)?;
    Ok((dirs, record))
}

fn shell(command: &[String]) -> Result<u8, CliError> {
    let (dirs, record) = running()?;
    let terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    Ok(Ssh::to(&dirs, &record)?.session(command, terminal)?)
}

fn logs(args: &LogsArgs, ui: &Ui) -> Result<u8, CliError> {
    let dirs = Dirs::from_env();
    let both = !args.serial && !args.controller;
    let mut shown = false;
    for (wanted, path) in
        [(both || args.serial, dirs.serial_log()), (both || args.controller, dirs.controller_log())]
    {
        if !wanted || !path.exists() {
            continue;
        }
        if both {
            ui.note(&format!("==> {}", path.display()));
        }
        shown = true;
        let text = machine::tail(&path, args.lines);
        ui.line(&text.lines().map(ui::plain).collect::<Vec<_>>().join("\n"));
    }
    if shown { Ok(0) } else { Err(MachineError::NotRunning.into()) }
}

fn remove(yes: bool, ui: &Ui) -> Result<u8, CliError> {
    let dirs = Dirs::from_env();
    if !yes && dirs.state().exists() && !confirmed(&dirs, ui)? {
        return Err(
            CliError::local(ErrorClass::Caller, "nothing was removed").with_hint("add --yes to go ahead")
        );
    }
    if !machine::remove(ui)? {
        ui.note("there is no machine");
    }
    Ok(0)
}

/// Asks the person, where there is one.
fn confirmed(dirs: &Dirs, ui: &Ui) -> Result<bool, CliError> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    ui.note(&format!(
        "All images, snapshots and sandboxes in {} will be gone. Type yes:",
        dirs.state().display()
    ));
    let _ = io::stderr().flush();
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|e| CliError::io("reading the answer", e))?;
    Ok(answer.trim() == "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_machine_says_so_and_what_it_takes() {
        let status = Status {
            running: false,
            answers: false,
            current: false,
            url: None,
            state_dir: "/s".into(),
            data_disk_bytes: 5 << 20,
            record: None,
        };
        let text = render(&status);
        assert!(text.contains("stopped") && text.contains("5.00 MiB") && !text.contains("api"), "{text}");
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["running"], false);
        assert!(json.get("pid").is_none());
    }
}
