//! `forkd-vmm`: serves the control socket that it was started with as standard input.
//!
//! `forkd-vmm probe` tells as one line of JSON whether KVM runs ordinary guests here. `forkd-vmm read-in` reads the file
//! that is its standard input into memory.
//!
//! Either enters first the cgroup that the environment names.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;

use forkd_kvm::probe;
use forkd_protocol::control::Exit;
use forkd_vmm::{Host, Monitor, MonitorError};
use serde::Serialize;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => serve(),
        (Some("probe"), None) => report_probe(),
        (Some("read-in"), None) => read_in(),
        (Some("--version"), None) => say(concat!("forkd-vmm ", env!("CARGO_PKG_VERSION"))),
        _ => {
            complain(
                "usage: forkd-vmm (with a listening Unix socket as standard input) | probe | read-in | --version",
            );
            ExitCode::from(2)
        }
    }
}

fn serve() -> ExitCode {
    // A panic is a bug: the machine's state is unknown, so nothing of this process may go on.
    std::panic::set_hook(Box::new(|panic| {
        complain(&panic.to_string());
        std::process::abort();
    }));
    match run() {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&forkd_vmm::error::refusal(&error).message);
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<Exit, MonitorError> {
    forkd_vmm::place::enter().map_err(MonitorError::Cgroup)?;
    forkd_vmm::place::dies_first();
    forkd_vmm::priority::starting();
    forkd_vmm::writer::never_wait();
    let listener = std::io::stdin().as_fd().try_clone_to_owned().map_err(MonitorError::Events)?;
    let mut monitor = Monitor::new(Host::open()?, UnixListener::from(listener))?;
    let exit = monitor.run()?;
    monitor.leave_last_words(&exit);
    // The kernel takes the machine apart faster than its threads could be told to end.
    std::process::exit(0)
}

fn read_in() -> ExitCode {
    let done =
        forkd_vmm::place::enter().and_then(|()| forkd_vmm::template::read_in(std::io::stdin().as_fd()));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("the template could not be read in: {error}"));
            ExitCode::FAILURE
        }
    }
}

#[derive(Serialize)]
struct ProbeReport {
    kvm: &'static str,
    detail: String,
    items: Vec<ProbeItem>,
}

#[derive(Serialize)]
struct ProbeItem {
    name: &'static str,
    ok: bool,
    detail: String,
}

fn report_probe() -> ExitCode {
    let report = match probe::probe() {
        Err(error) => {
            let detail = forkd_vmm::error::refusal(&error.into()).message;
            ProbeReport { kvm: "absent", detail, items: Vec::new() }
        }
        Ok(items) => {
            let lacking: Vec<_> = items.iter().filter(|item| !item.ok).map(|item| item.name).collect();
            let (kvm, detail) = match lacking.as_slice() {
                [] => ("usable", String::new()),
                lacking => ("unusable", format!("guests fail on: {}", lacking.join(", "))),
            };
            let items = items.into_iter().map(|i| ProbeItem { name: i.name, ok: i.ok, detail: i.detail });
            ProbeReport { kvm, detail, items: items.collect() }
        }
    };
    let code = if report.kvm == "usable" { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    say(&serde_json::to_string(&report).unwrap_or_default());
    code
}

/// One line to standard output.
fn say(line: &str) -> ExitCode {
    match writeln!(std::io::stdout(), "{line}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// One line to the monitor's log; with nobody to read it there is nothing to be done.
fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "forkd-vmm: {line}");
}
