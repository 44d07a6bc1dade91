//! How a machine ended, told in one sentence.

use std::time::Duration;

use forkd_host::cgroup::Cgroup;
use forkd_host::process::Ending;
use forkd_host::seccomp::refused_call;
use forkd_protocol::control::{Exit, ProcessEnd};

use super::RunDir;
use super::rundir::tail;

/// How a sandbox ended whose monitor was killed by its filter of system calls; the call may follow.
pub(crate) const KILLED_BY_FILTER: &str = "killed: seccomp";
/// How a sandbox ended that took more memory than it may.
pub(crate) const KILLED_FOR_MEMORY: &str = "killed: memory";
/// How long a reaper may take to note how its monitor ended.
const NOTED_WITHIN: Duration = Duration::from_secs(2);
/// What a filter kills with.
const SIGSYS: i32 = rustix::process::Signal::SYS.as_raw();

/// Most bytes of what a monitor left behind that are repeated to people.
const MAX_WORDS: u64 = 4096;
/// Most bytes of the end of its log.
const MAX_LOG_TAIL: u64 = 400;
/// Most bytes of the end of a console.
const MAX_CONSOLE_TAIL: u64 = 2000;

/// Why the machine of this folder is gone. What the kernel kills has no last words, so that comes first.
pub(super) fn explain(dir: &RunDir, cgroup: Option<&Cgroup>, ending: Ending) -> String {
    if cgroup.is_some_and(|leaf| leaf.memory_kills() > 0) {
        return KILLED_FOR_MEMORY.to_owned();
    }
    let ending = match ending {
        Ending::Unknown => noted(dir),
        known => known,
    };
    if ending == Ending::Signalled(SIGSYS) {
        return killed_by_filter(dir.noted_user().and_then(|(uid, since)| refused_call(uid, since)));
    }
    match last_words(dir) {
        Some(Exit::Shutdown) => "the guest shut down".to_owned(),
        Some(Exit::Fault { detail }) => format!("the guest failed: {}", printable(&detail)),
        Some(Exit::Stopped) => "it was stopped".to_owned(),
        None => without_words(dir, ending),
    }
}

impl RunDir {
    /// Why a machine that nobody watched is gone.
    pub(crate) fn explain_after_the_fact(&self, cgroup: Option<&Cgroup>) -> String {
        explain(self, cgroup, Ending::Unknown)
    }
}

impl RunDir {
    /// The last line of the monitor's log.
    pub(crate) fn log_end(&self) -> Option<String> {
        let bytes = tail(&self.monitor_log(), MAX_LOG_TAIL).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(printable(line.trim()))
    }

    /// The end of what the guest printed, for a log: nothing of a discarded child is left to be looked at later.
    pub(crate) fn console_end(&self) -> String {
        let bytes = tail(&self.console(), MAX_CONSOLE_TAIL).unwrap_or_default();
        printable(&String::from_utf8_lossy(&bytes))
    }
}

/// What its reaper says, which is the monitor's parent in our place.
fn noted(dir: &RunDir) -> Ending {
    match dir.process_end(NOTED_WITHIN) {
        Some(ProcessEnd::Exited { code }) => Ending::Exited(code),
        Some(ProcessEnd::Killed { signal }) => Ending::Signalled(signal),
        None => Ending::Unknown,
    }
}

/// It asked the kernel for something that its filter does not allow: only a captured monitor does.
fn killed_by_filter(call: Option<u32>) -> String {
    let which = call.map(|number| format!(" (system call {number})"));
    format!("{KILLED_BY_FILTER}{}", which.unwrap_or_default())
}

fn last_words(dir: &RunDir) -> Option<Exit> {
    serde_json::from_slice(&tail(&dir.last_words(), MAX_WORDS).ok()?).ok()
}

fn without_words(dir: &RunDir, ending: Ending) -> String {
    let how = match ending {
        Ending::Exited(code) => format!("the monitor exited with code {code}"),
        Ending::Signalled(signal) => format!("the monitor was killed by signal {signal}"),
        Ending::Unknown => "the monitor is gone".to_owned(),
    };
    match dir.log_end() {
        Some(said) => format!("{how}; it said: {said}"),
        None => how,
    }
}

/// A monitor may be captured by its guest: what it left is shown without control characters.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn last_words_are_told_and_without_them_the_log() {
        let keep = tempfile::tempdir().unwrap();
        let dir = RunDir::new(keep.path().to_owned());
        assert_eq!(explain(&dir, None, Ending::Unknown), "the monitor is gone");
        fs::write(dir.monitor_log(), "first\nout of\u{1b}[31m luck\n\n").unwrap();
        let told = explain(&dir, None, Ending::Signalled(6));
        assert_eq!(told, "the monitor was killed by signal 6; it said: out of [31m luck");
        fs::write(dir.last_words(), "{\"how\":\"fault\",\"detail\":\"triple\\nfault\"}").unwrap();
        assert_eq!(explain(&dir, None, Ending::Exited(1)), "the guest failed: triple fault");
        fs::write(dir.last_words(), "{\"how\":\"shutdown\"}").unwrap();
        assert_eq!(explain(&dir, None, Ending::Exited(0)), "the guest shut down");
        let ending = keep.path().join("ending");
        fs::write(&ending, "{\"how\":\"killed\",\"signal\":31}\n").unwrap();
        assert_eq!(explain(&dir, None, Ending::Unknown), "killed: seccomp", "a filter's word counts more");
        assert_eq!(killed_by_filter(Some(41)), "killed: seccomp (system call 41)");
        fs::write(&ending, "{\"how\":\"exited\",\"code\":0}\n").unwrap();
        assert_eq!(explain(&dir, None, Ending::Unknown), "the guest shut down");
        fs::write(dir.last_words(), vec![b'x'; 100_000]).unwrap();
        assert!(explain(&dir, None, Ending::Exited(0)).starts_with("the monitor exited with code 0"));
    }
}
