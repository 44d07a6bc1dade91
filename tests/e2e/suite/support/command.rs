//! The `forkd` command.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use serde::de::DeserializeOwned;

use super::world::{hangs, program, url};

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ran {
    /// It has to have gone well.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        self.ends_with(0)
    }

    /// It has to have ended with this code.
    #[track_caller]
    pub(crate) fn ends_with(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.text(), self.stderr);
        self
    }

    /// What it printed.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// What it printed, as what it stands for.
    #[track_caller]
    pub(crate) fn parsed<T: DeserializeOwned>(&self) -> T {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|e| panic!("{e} in stdout: {}\nstderr: {}", self.text(), self.stderr))
    }
}

/// Runs the command with an empty standard input.
pub(crate) fn forkd(args: &[&str]) -> Ran {
    forkd_fed(args, b"")
}

/// Runs the command with a standard input.
pub(crate) fn forkd_fed(args: &[&str], input: &[u8]) -> Ran {
    let mut child = Command::new(program())
        .args(args)
        .env("FORKD_URL", url())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{}: {e}", program().display()));
    let mut stdin = child.stdin.take().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (ended, watch) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        // A command need not read its input.
        scope.spawn(move || drop(stdin.write_all(input)));
        let stdout = scope.spawn(move || all(&mut out));
        let stderr = scope.spawn(move || all(&mut err));
        let pid = child.id().to_string();
        scope.spawn(move || {
            if watch.recv_timeout(hangs()) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-KILL", &pid]).status();
            }
        });
        let code = child.wait().unwrap().code();
        drop(ended);
        let stderr = String::from_utf8_lossy(&stderr.join().unwrap()).into_owned();
        Ran { code, stdout: stdout.join().unwrap(), stderr }
    })
}

fn all(from: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    bytes
}
