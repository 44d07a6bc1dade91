//! How a machine ended, told in one sentence.

use forkd_host::cgroup::Cgroup;
use forkd_host::process::Ending;
use forkd_protocol::control::Exit;

use super::RunDir;
use super::rundir::tail;

/// Most bytes of what a monitor left behind that are repeated to people.
const MAX_WORDS: u64 = 4096;
/// Most bytes of the end of its log.
const MAX_LOG_TAIL: u64 = 400;
/// Most bytes of the end of a console.
const MAX_CONSOLE_TAIL: u64 = 2000;

/// Why the machine of this folder is gone. Memory first: what the kernel kills has no last words.
pub(super) fn explain(dir: &RunDir, cgroup: Option<&Cgroup>, ending: Ending) -> String {
    if cgroup.is_some_and(|leaf| leaf.memory_kills() > 0) {
        return "killed: memory".to_owned();
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
    /// The end of what the guest printed, for a log: nothing of a discarded child is left to be looked at later.
    pub(crate) fn console_end(&self) -> String {
        let bytes = tail(&self.console(), MAX_CONSOLE_TAIL).unwrap_or_default();
        printable(&String::from_utf8_lossy(&bytes))
    }
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
    match log_end(dir) {
        Some(said) => format!("{how}; it said: {said}"),
        None => how,
    }
}

fn log_end(dir: &RunDir) -> Option<String> {
    let bytes = tail(&dir.monitor_log(), MAX_LOG_TAIL).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(printable(line.trim()))
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
        fs::write(dir.last_words(), vec![b'x'; 100_000]).unwrap();
        assert!(explain(&dir, None, Ending::Exited(0)).starts_with("the monitor exited with code 0"));
    }
}
