//! `forkd-vmm --uid N`: a jailed monitor that is user N and serves the control socket which is standard input here.
//!
//! The process that was started ends once the monitor is ready, successfully; where it never will be, without success
//! and after a line in the log, which is standard error. On standard output a reaper notes how the monitor ended.
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
use forkd_vmm::jail::{Entrance, JailError};
use forkd_vmm::{Host, HostFiles, Monitor, MonitorError};
use serde::Serialize;

/// Least user that a monitor may become: those below are the host's.
const LEAST_UID: u32 = 65536;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match (arguments.next().as_deref(), arguments.next()) {
        (Some("--uid"), Some(id)) => match id.parse() {
            // Root and what the host's own users are is nobody's in a jail.
            Ok(id) if id >= LEAST_UID => serve(|| Entrance::new(id)),
            _ => usage(),
        },
        #[cfg(debug_assertions)]
        (Some("--unjailed"), None) => serve(Entrance::unjailed),
        (Some("probe"), None) => report_probe(),
        (Some("read-in"), None) => read_in(),
        (Some("--version"), None) => say(concat!("forkd-vmm ", env!("CARGO_PKG_VERSION"))),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    complain(
        "usage: forkd-vmm --uid N (from 65536, with a listening Unix socket as standard input) | probe | --version",
    );
    ExitCode::from(2)
}

fn serve(enter: impl FnOnce() -> Result<Entrance, JailError>) -> ExitCode {
    // A panic is a bug: the machine's state is unknown, so nothing of this process may go on.
    std::panic::set_hook(Box::new(|panic| {
        complain(&panic.to_string());
        std::process::abort();
    }));
    match run(enter) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&forkd_vmm::error::refusal(&error).message);
            ExitCode::FAILURE
        }
    }
}

fn run(enter: impl FnOnce() -> Result<Entrance, JailError>) -> Result<Exit, MonitorError> {
    forkd_vmm::place::enter().map_err(MonitorError::Cgroup)?;
    forkd_vmm::place::dies_first();
    forkd_vmm::priority::starting();
    let files = HostFiles::open()?;
    let entrance = enter()?;
    // From here on this is the monitor.
    forkd_vmm::writer::never_wait();
    let listener =
        UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(MonitorError::Events)?);
    let host = Host::new(files, entrance, &listener)?;
    let mut monitor = Monitor::new(host, listener)?;
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
