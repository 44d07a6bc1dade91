//! Being started as a monitor is: what is started ends once the monitor is ready, and a reaper notes how that ended.
//!
//! Nobody is jailed here. Each of the three is this program anew, and knows from its surroundings which one it is.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio, exit};

use forkd_protocol::control::ProcessEnd;

use crate::Anyhow;

const ROLE: &str = "FAKE_MONITOR_ROLE";

/// Does what comes before; false in the monitor itself, which a test may also start right away.
pub(crate) fn before_it_is_the_monitor() -> Anyhow<bool> {
    match std::env::var(ROLE).as_deref() {
        Ok("reaper") => reap()?,
        Ok(_) => return Ok(false),
        Err(_) if std::env::args_os().len() == 1 => return Ok(false),
        Err(_) => start()?,
    }
    Ok(true)
}

/// Tells who started it that the monitor is there.
pub(crate) fn ready(listener: &UnixListener) -> Anyhow<()> {
    rustix::net::listen(listener, 16)?;
    if std::env::var_os(ROLE).is_some() {
        std::io::stdout().write_all(b"!")?;
        std::io::stdout().flush()?;
        // The end of the pipe is waited for.
        rustix::stdio::dup2_stdout(std::io::stderr().as_fd())?;
    }
    Ok(())
}

fn start() -> Anyhow<()> {
    let mut reaper = again("reaper", "reaper of a fake monitor").stdout(Stdio::piped()).spawn()?;
    let ready = reaper.stdout.take().is_some_and(|mut pipe| pipe.read_exact(&mut [0]).is_ok());
    exit(i32::from(!ready))
}

fn reap() -> Anyhow<()> {
    let mut ending = File::options().append(true).open(folder()?.join("ending"))?;
    let program = std::env::var("FAKE_MONITOR_PROGRAM")?;
    let mut monitor = again("monitor", &program).spawn()?;
    rustix::stdio::dup2_stdout(std::io::stderr().as_fd())?;
    let ended = monitor.wait()?;
    let end = match ended.code() {
        Some(code) => ProcessEnd::Exited { code },
        None => ProcessEnd::Killed { signal: ended.signal().unwrap_or_default() },
    };
    writeln!(ending, "{}", serde_json::to_string(&end)?)?;
    Ok(())
}

/// This program as `role`; what it is called tells tests which of their processes are monitors.
fn again(role: &str, name: &str) -> Command {
    let program = std::env::args().next().unwrap_or_default();
    let program = std::env::var("FAKE_MONITOR_PROGRAM").unwrap_or(program);
    let mut command = Command::new(&program);
    command.arg0(name).env(ROLE, role).env("FAKE_MONITOR_PROGRAM", &program);
    command
}

/// The run folder, by the name that it has at first.
fn folder() -> Anyhow<std::path::PathBuf> {
    let listener = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let path = listener.local_addr()?.as_pathname().ok_or("the socket has no path")?.to_owned();
    Ok(path.parent().ok_or("the socket is in no folder")?.to_owned())
}
