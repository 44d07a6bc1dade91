//! Puts the agent together and runs it.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use forkd_protocol::guest::AGENT_PORT;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio_vsock::{VMADDR_CID_ANY, VsockAddr, VsockListener};

use crate::agent::Agent;
use crate::cgroup::Cgroups;
use crate::contexts::Contexts;
use crate::e2b::watch::Watchers;
use crate::http::{self, Listener};
use crate::interpreter::{Interpreter, Language};
use crate::process::{Sessions, Spawner};
use crate::reaper::Reaper;
use crate::secrets::Secrets;
use crate::{boot, image, log, sys};

const CGROUP_ROOT: &str = "/sys/fs/cgroup";
/// Threads that wait for disks, and how long they stay: each is memory that children share.
const DISK_THREADS: usize = 8;
const DISK_THREAD_IDLE: Duration = Duration::from_secs(2);

/// What the command line says. In a guest nothing.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Options {
    /// Serve on this address in place of vsock.
    pub serve_tcp: Option<SocketAddr>,
    /// Where an agent that is not PID 1 makes its cgroups; without it, it has none.
    pub cgroup_root: Option<PathBuf>,
}

/// Why the agent does not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The command line was not understood.
    #[error("{0}; usage: forkd-agent [--serve-tcp ADDRESS:PORT [--cgroup-root FOLDER]]")]
    Usage(String),
    /// Outside a guest there is no host to serve on vsock.
    #[error("not PID 1 of a guest: only --serve-tcp is possible")]
    NotInGuest,
    /// The guest did not boot.
    #[error("boot: {0}")]
    Boot(String),
    /// Neither listening nor waiting for children is possible.
    #[error("{what}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl Options {
    /// Reads the arguments. In a guest the kernel passes on words of its command line that it does not know;
    /// they are not ours, and no reason not to boot.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, RunError> {
        let mut options = Self::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| RunError::Usage(format!("{arg} needs a value")));
            match arg.as_str() {
                "--serve-tcp" => {
                    let address = value()?;
                    let parsed = address.parse().map_err(|e| RunError::Usage(format!("{address}: {e}")))?;
                    options.serve_tcp = Some(parsed);
                }
                "--cgroup-root" => options.cgroup_root = Some(value()?.into()),
                _ if is_pid_1() => {}
                _ => return Err(RunError::Usage(format!("unknown argument {arg}"))),
            }
        }
        Ok(options)
    }
}

fn is_pid_1() -> bool {
    std::process::id() == 1
}

/// Runs until the guest or, in tests, the process ends.
pub fn main(options: &Options) -> ExitCode {
    let Err(error) = run(options);
    log::fatal(format_args!(
        "{error}{}",
        std::error::Error::source(&error).map(|e| format!(": {e}")).unwrap_or_default()
    ));
    if is_pid_1() {
        boot::power_off();
    }
    ExitCode::FAILURE
}

fn run(options: &Options) -> Result<std::convert::Infallible, RunError> {
    let in_guest = is_pid_1();
    let cgroups = if in_guest {
        boot::boot().map_err(|e| RunError::Boot(e.to_string()))?;
        Some(CGROUP_ROOT.into())
    } else {
        options.serve_tcp.ok_or(RunError::NotInGuest)?;
        sys::set_subreaper().map_err(doing("becoming the parent of orphans"))?;
        options.cgroup_root.clone()
    };
    let cgroups =
        cgroups.map(|root| Cgroups::create(&root, in_guest)).transpose().map_err(doing("making cgroups"))?;
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(DISK_THREADS)
        .thread_keep_alive(DISK_THREAD_IDLE)
        .build()
        .map_err(doing("starting the runtime"))?;
    LocalSet::new().block_on(&runtime, serve(options.serve_tcp, cgroups, in_guest))
}

async fn serve(
    tcp: Option<SocketAddr>,
    cgroups: Option<Cgroups>,
    owns_machine: bool,
) -> Result<std::convert::Infallible, RunError> {
    let reaper = Reaper::default();
    let reaping = tokio::task::spawn_local(reaper.clone().run(cgroups.clone()));
    let spawner = Spawner::new(reaper, cgroups, image::settings());
    let (interpreter, owner) = Interpreter::new(spawner.clone(), Language::Python, None);
    tokio::task::spawn_local(owner);
    let listener = match tcp {
        Some(address) => {
            let listener = TcpListener::bind(address).await.map_err(doing("listening on TCP"))?;
            let bound = listener.local_addr().map_err(doing("listening on TCP"))?;
            // Whoever started us with port 0 reads the port from here.
            let _ = writeln!(io::stdout(), "listening on {bound}");
            Listener::Tcp(listener)
        }
        None => {
            let address = VsockAddr::new(VMADDR_CID_ANY, AGENT_PORT);
            Listener::Vsock(VsockListener::bind(address).map_err(doing("listening on vsock"))?)
        }
    };
    let agent = Rc::new(Agent {
        sessions: Sessions::default(),
        contexts: Contexts::new(spawner.clone(), interpreter.clone()),
        interpreter,
        watchers: Watchers::default(),
        secrets: owns_machine.then(Secrets::of_guest),
        spawner,
        owns_machine,
        identity: tokio::sync::Mutex::default(),
    });
    log::info("ready");
    tokio::select! {
        never = http::serve(agent, listener) => Ok(never),
        ended = reaping => {
            let source = ended.map_err(io::Error::other).and_then(|ended| ended).err();
            Err(RunError::Io { what: "collecting children", source: source.unwrap_or(io::ErrorKind::BrokenPipe.into()) })
        }
    }
}

fn doing(what: &'static str) -> impl Fn(io::Error) -> RunError {
    move |source| RunError::Io { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Options, RunError> {
        Options::parse(args.iter().map(|&arg| arg.to_owned()))
    }

    #[test]
    fn arguments() {
        let options = parse(&["--serve-tcp", "127.0.0.1:0"]).unwrap();
        assert_eq!(options.serve_tcp.unwrap().port(), 0);
        assert!(parse(&["--serve-tcp"]).is_err());
        assert!(parse(&["--serve-tcp", "here"]).is_err());
        assert!(parse(&["quiet"]).is_err());
    }
}
