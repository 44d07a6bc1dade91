//! Running the programs of the machine: which package has a missing one, and what a failed one said.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, ErrorKind};
use std::process::{Command, Stdio};

use super::MakeError;

const TAIL_LINES: usize = 12;
const MAX_LINE: usize = 400;

/// One invocation of a program.
#[derive(Debug)]
pub(super) struct Tool {
    name: &'static str,
    package: &'static str,
    command: Command,
}

impl Tool {
    /// `package` is the Debian package that has the program.
    pub(super) fn new(name: &'static str, package: &'static str) -> Self {
        let mut command = Command::new(name);
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        // Administration tools are not on the path of every shell.
        if let Some(path) = std::env::var_os("PATH") {
            let mut path = path;
            path.push(":/usr/sbin:/sbin");
            command.env("PATH", path);
        }
        Self { name, package, command }
    }

    pub(super) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(super) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    pub(super) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(super) fn dir(mut self, dir: &std::path::Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Runs it; each line of stderr goes to `line` as it comes.
    pub(super) fn run(mut self, line: &mut dyn FnMut(&str)) -> Result<(), MakeError> {
        self.command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.command.spawn().map_err(|e| self.not_started(e))?;
        let mut tail = VecDeque::new();
        if let Some(stderr) = child.stderr.take() {
            for text in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                let text = String::from_utf8_lossy(&text);
                let text: String = text.trim_end().chars().take(MAX_LINE).collect();
                line(&text);
                remember(&mut tail, text);
            }
        }
        let status = child.wait().map_err(|e| MakeError::io("wait for", self.name, e))?;
        if status.success() { Ok(()) } else { Err(self.failed(status.to_string(), tail)) }
    }

    /// Runs it and returns what it wrote to stdout.
    pub(super) fn output(mut self) -> Result<String, MakeError> {
        let output = self.command.output().map_err(|e| self.not_started(e))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let mut tail = VecDeque::new();
        for text in String::from_utf8_lossy(&output.stderr).lines() {
            remember(&mut tail, text.chars().take(MAX_LINE).collect());
        }
        Err(self.failed(output.status.to_string(), tail))
    }

    fn not_started(&self, error: std::io::Error) -> MakeError {
        match error.kind() {
            ErrorKind::NotFound => MakeError::ToolMissing { tool: self.name, package: self.package },
            _ => MakeError::io("start", self.name, error),
        }
    }

    fn failed(&self, status: String, tail: VecDeque<String>) -> MakeError {
        let tail = Vec::from(tail).join("\n");
        MakeError::ToolFailed { tool: self.name, status, tail }
    }
}

fn remember(tail: &mut VecDeque<String>, line: String) {
    if line.is_empty() {
        return;
    }
    if tail.len() == TAIL_LINES {
        tail.pop_front();
    }
    tail.push_back(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_names_its_package_and_a_failed_one_its_last_words() {
        let missing = Tool::new("forkd-no-such-tool", "some-package").output().unwrap_err();
        assert!(missing.to_string().ends_with("run: apt-get install some-package"), "{missing}");

        let mut lines = Vec::new();
        let script = "echo out; for i in $(seq 30); do echo line $i >&2; done; exit 3";
        let failed = Tool::new("sh", "dash").args(["-c", script]).run(&mut |l| lines.push(l.to_owned()));
        let text = failed.unwrap_err().to_string();
        assert!(text.contains("exit status: 3") && text.ends_with("line 30"), "{text}");
        assert!(!text.contains("line 18\n") && lines.len() == 30, "{text}");
    }

    #[test]
    fn output_is_stdout() {
        assert_eq!(Tool::new("sh", "dash").args(["-c", "echo a"]).output().unwrap(), "a\n");
    }
}
