//! Sandboxes and snapshots that do not outlive their test.

use std::ops::Deref;

use forkd_protocol::rest::{EvalResponse, SandboxInfo, SandboxStats};
use serde_json::Value;

use super::world::hangs;
use super::{IMAGE, Ran, delete, forkd, get};

/// A sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Child {
    pub(crate) id: String,
    pub(crate) info: SandboxInfo,
}

/// Sandboxes of one fork; ended when dropped.
#[derive(Debug)]
pub(crate) struct Children(Vec<Child>);

impl Children {
    /// Forks.
    #[track_caller]
    pub(crate) fn fork(tag: &str, n: usize) -> Self {
        Self::fork_with(tag, n, &[])
    }

    /// Forks with more arguments.
    #[track_caller]
    pub(crate) fn fork_with(tag: &str, n: usize, more: &[&str]) -> Self {
        let n = n.to_string();
        let infos = forkd(&[&["--json", "fork", "--tag", tag, "-n", &n], more].concat()).ok();
        Self::of(infos.parsed())
    }

    /// Takes on what was forked otherwise.
    pub(crate) fn of(infos: Vec<SandboxInfo>) -> Self {
        Self(infos.into_iter().map(|info| Child { id: info.id.clone(), info }).collect())
    }
}

impl Deref for Children {
    type Target = [Child];

    fn deref(&self) -> &[Child] {
        &self.0
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        // A test that fails because the controller is gone must say that, not this.
        let _ = std::panic::catch_unwind(|| self.0.iter().for_each(|child| drop(delete(&child.path("")))));
    }
}

impl Child {
    /// Its place in the API, or that of one of its verbs.
    pub(crate) fn path(&self, verb: &str) -> String {
        let slash = if verb.is_empty() { "" } else { "/" };
        format!("/v1/sandboxes/{}{slash}{verb}", self.id)
    }

    /// `forkd exec` without a bound of its own.
    pub(crate) fn exec(&self, command: &[&str]) -> Ran {
        forkd(&[&["exec", &self.id, "--"], command].concat())
    }

    /// What a shell script prints; it has to end well.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> String {
        self.exec(&["sh", "-c", script]).ok().text().trim_end().to_owned()
    }

    /// What code gives in the warm interpreter.
    #[track_caller]
    pub(crate) fn eval(&self, code: &str) -> EvalResponse {
        let bound = hangs().as_secs().to_string();
        forkd(&["--json", "eval", &self.id, "--timeout", &bound, "--", code]).parsed()
    }

    /// The value of an expression that JSON can carry.
    #[track_caller]
    pub(crate) fn value(&self, expression: &str) -> Value {
        let answer = self.eval(expression);
        let json = answer.result_json.as_deref().unwrap_or_else(|| panic!("{answer:?}"));
        serde_json::from_str(json).unwrap()
    }

    /// What it uses.
    #[track_caller]
    pub(crate) fn stats(&self) -> SandboxStats {
        get(&self.path("stats")).parsed()
    }

    /// How the controller sees it, where it still does.
    pub(crate) fn seen(&self) -> Option<SandboxInfo> {
        let all: Vec<SandboxInfo> = get("/v1/sandboxes").parsed();
        all.into_iter().find(|s| s.id == self.id)
    }
}

/// The same in every child, side by side.
pub(crate) fn each<T: Send>(children: &[Child], work: impl Fn(&Child) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let running: Vec<_> = children.iter().map(|child| scope.spawn(|| work(child))).collect();
        running.into_iter().map(|one| one.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    })
}

/// A snapshot of one test, removed when dropped.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) tag: String,
}

impl Snapshot {
    /// Boots the image, with more arguments.
    #[track_caller]
    pub(crate) fn make(tag: &str, more: &[&str]) -> Self {
        let snapshot = Self::named(tag);
        forkd(&[&["snapshot", "--image", IMAGE, "--tag", tag], more].concat()).ok();
        snapshot
    }

    /// One that is made otherwise. What an earlier run left goes first.
    pub(crate) fn named(tag: &str) -> Self {
        delete(&format!("/v1/snapshots/{tag}?cascade=true"));
        Self { tag: tag.to_owned() }
    }

    /// One that is there.
    pub(crate) fn made(tag: &str) -> Self {
        Self { tag: tag.to_owned() }
    }

    /// Its place in the API.
    pub(crate) fn path(&self) -> String {
        format!("/v1/snapshots/{}", self.tag)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let _ = std::panic::catch_unwind(|| drop(delete(&format!("{}?cascade=true", self.path()))));
    }
}
