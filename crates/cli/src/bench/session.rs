//! Children and snapshots that are there for as long as something is measured with them, whatever comes of it.

use std::time::{Duration, Instant};

use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::{SandboxId, Tag};
use forkd_protocol::rest::{
    BranchMode, BranchRequest, EvalRequest, EvalResponse, SandboxInfo, SnapshotInfo, SnapshotInfoDetail,
};

use super::stop::Stop;
use crate::client::Client;
use crate::commands::{branch, fork};
use crate::error::CliError;
use crate::ui::{Ui, now_unix};

/// Bound of one question; an emulated host is slow.
pub(super) const TIMEOUT_SECS: u64 = 300;
/// Bound of a snapshot that nobody waited for.
const WRITING: Duration = Duration::from_secs(900);
/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A controller, and the wish to stop.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session<'a> {
    /// The controller.
    pub(super) client: &'a Client,
    /// Where progress is shown.
    pub(super) ui: &'a Ui,
    /// Looked at before each step.
    pub(super) stop: &'a Stop,
}

/// A fork as it was seen from here.
#[derive(Debug)]
pub(super) struct Forking {
    /// The request was sent.
    pub(super) began: Instant,
    /// How long until it was answered: by then every child had.
    pub(super) took: Duration,
}

/// A branch as it was seen from here.
#[derive(Debug, Clone)]
pub(super) struct Branching {
    /// What was made.
    pub(super) made: SnapshotInfo,
    /// The request was sent.
    pub(super) began: Instant,
    /// How long until it was answered.
    pub(super) took: Duration,
}

/// What is asked of a branch.
#[derive(Debug)]
pub(super) struct Wanted<'a> {
    /// Its name.
    pub(super) tag: &'a Tag,
    /// How it is written.
    pub(super) mode: BranchMode,
    /// Whether the call returns when it is written; else when the sandbox runs on.
    pub(super) wait: bool,
}

impl<'a> Session<'a> {
    /// Against the controller of `client`.
    pub(crate) fn new(client: &'a Client, ui: &'a Ui, stop: &'a Stop) -> Self {
        Self { client, ui, stop }
    }

    /// Forks `n` children for `work`, and ends them whatever comes of it.
    pub(super) async fn with_children<T>(
        &self,
        tag: &str,
        n: u32,
        work: impl AsyncFnOnce(&[SandboxInfo], &Forking) -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        let began = Instant::now();
        // Where this is dropped, the controller notices that nobody waits and gives the children up.
        let children = self.stop.bound(fork::create(self.client, &fork::plainly(tag, n))).await?;
        let forking = Forking { began, took: began.elapsed() };
        let worked = work(&children, &forking).await;
        fork::end_all(self.client, &children).await?;
        worked
    }

    /// The same with one child.
    pub(super) async fn with_child<T>(
        &self,
        tag: &str,
        work: impl AsyncFnOnce(&SandboxInfo, &Forking) -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        self.with_children(tag, 1, async |children, forking| match children.first() {
            Some(child) => work(child, forking).await,
            None => Err(CliError::local(ErrorClass::Internal, "the controller named no sandbox")),
        })
        .await
    }

    /// Branches a child for `work`, and removes the snapshot whatever comes of it.
    pub(super) async fn with_branch<T>(
        &self,
        child: &SandboxInfo,
        wanted: &Wanted<'_>,
        work: impl AsyncFnOnce(&Branching) -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        let worked = match self.branch(child, wanted).await {
            Ok(branching) => work(&branching).await,
            Err(e) => Err(e),
        };
        let removed = self.remove(wanted.tag).await;
        let worked = worked?;
        removed.map(|()| worked)
    }

    /// Branches a child. Goes on to its end where it is asked to stop meanwhile: the controller would as well.
    pub(super) async fn branch(
        &self,
        child: &SandboxInfo,
        wanted: &Wanted<'_>,
    ) -> Result<Branching, CliError> {
        self.stop.check()?;
        let id: SandboxId = child.id.parse()?;
        let request = BranchRequest {
            tag: Some(wanted.tag.to_string()),
            mode: Some(wanted.mode),
            wait: Some(wanted.wait),
            ..BranchRequest::default()
        };
        let began = Instant::now();
        let made = branch::branch(self.client, &id, &request).await?;
        Ok(Branching { made, began, took: began.elapsed() })
    }

    /// Runs code in the warm interpreter of a child; an error where it raises something.
    pub(super) async fn eval(&self, child: &SandboxInfo, code: &str) -> Result<EvalResponse, CliError> {
        let request = EvalRequest { code: code.to_owned(), timeout_secs: TIMEOUT_SECS };
        let path = format!("/v1/sandboxes/{}/eval", child.id);
        let answer: EvalResponse = self.stop.bound(self.client.post(&path, &request)).await?;
        match &answer.error {
            Some(error) => Err(wrong(child, error)),
            None => Ok(answer),
        }
    }

    /// What a snapshot consists of.
    pub(super) async fn detail(&self, tag: &str) -> Result<SnapshotInfoDetail, CliError> {
        self.client.get(&format!("/v1/snapshots/{tag}/info")).await
    }

    /// Removes a snapshot, and what descends from it, once it is written; one that is not there is fine.
    pub(super) async fn remove(&self, tag: &Tag) -> Result<(), CliError> {
        self.written(tag).await?;
        match self.client.delete(&format!("/v1/snapshots/{tag}?cascade=true")).await {
            Err(e) if e.class() == Some(ErrorClass::NotFound) => Ok(()),
            other => other,
        }
    }

    /// Waits until a snapshot is not being written any more; what became of it.
    pub(super) async fn written(&self, tag: &Tag) -> Result<Option<SnapshotInfo>, CliError> {
        let writing = async {
            loop {
                let all: Vec<SnapshotInfo> = self.client.get("/v1/snapshots").await?;
                let snapshot = all.into_iter().find(|s| s.tag == tag.as_str());
                if snapshot.as_ref().is_none_or(|s| s.status != "writing") {
                    return Ok(snapshot);
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        tokio::time::timeout(WRITING, writing).await.unwrap_or_else(|_| {
            let waited = format!("{tag} is still being written after {} s", WRITING.as_secs());
            Err(CliError::local(ErrorClass::Internal, waited)
                .with_hint(format!("`forkd images` shows when it is ready; then `forkd rmi {tag}`")))
        })
    }
}

/// A child did not do what it was asked.
pub(super) fn wrong(child: &SandboxInfo, what: &str) -> CliError {
    CliError::local(ErrorClass::GuestFault, format!("in {}: {what}", child.id))
}

/// The beginning of names of snapshots that no other run uses, such as `bench-chain-1796090000-7`.
pub(super) fn fresh_name(about: &str) -> String {
    format!("bench-{about}-{}-{}", now_unix(), std::process::id())
}
