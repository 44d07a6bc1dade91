//! Tools for snapshots.

use forkd_protocol::rest::{BranchMode, BranchRequest, CreateSnapshot, SnapshotInfo, SnapshotInfoDetail};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::CallToolResult;
use rmcp::{tool, tool_router};
use serde_json::json;

use super::{Server, answer, arguments};
use crate::commands::snapshot::plainly;
use crate::error::CliError;
use crate::parse::percent;

#[tool_router(router = snapshot_tools, vis = "pub(super)")]
impl Server {
    #[tool(
        description = "List the snapshots that sandboxes can be spawned from.",
        annotations(read_only_hint = true),
        output_schema = answer::list()
    )]
    async fn list_snapshots(&self) -> CallToolResult {
        answer::many(self.client.get::<Vec<SnapshotInfo>>("/v1/snapshots").await)
    }

    #[tool(
        description = "Tell what a snapshot lies on, what depends on it, and how large it is.",
        annotations(read_only_hint = true),
        output_schema = answer::object()
    )]
    async fn snapshot_info(&self, Parameters(asked): Parameters<arguments::OfSnapshot>) -> CallToolResult {
        let path = format!("/v1/snapshots/{}/info", percent(&asked.tag));
        answer::one(self.client.get::<SnapshotInfoDetail>(&path).await)
    }

    #[tool(
        description = "Boot an image, warm its Python up, and keep that as a snapshot.",
        annotations(destructive_hint = false),
        output_schema = answer::object()
    )]
    async fn create_snapshot(
        &self,
        Parameters(asked): Parameters<arguments::CreateSnapshot>,
    ) -> CallToolResult {
        let plain = plainly(&asked.tag, &asked.image, asked.warm.as_deref());
        let (kernel, vcpus, memory_mib) = (asked.kernel, asked.vcpus, asked.memory_mib);
        let request = CreateSnapshot { kernel, vcpus, memory_mib, ..plain };
        answer::one(self.client.post::<_, SnapshotInfo>("/v1/snapshots", &request).await)
    }

    #[tool(
        description = "Make a snapshot of a running sandbox, which runs on: spawn several continuations of it.",
        annotations(destructive_hint = false),
        output_schema = answer::object()
    )]
    async fn branch_sandbox(&self, Parameters(asked): Parameters<arguments::Branch>) -> CallToolResult {
        answer::one(self.branch(asked).await)
    }

    #[tool(
        description = "Remove a snapshot that no other depends on.",
        annotations(destructive_hint = true, idempotent_hint = true),
        output_schema = answer::object()
    )]
    async fn delete_snapshot(&self, Parameters(asked): Parameters<arguments::OfSnapshot>) -> CallToolResult {
        let path = format!("/v1/snapshots/{}", percent(&asked.tag));
        let gone = self.client.delete(&path).await;
        answer::one(gone.map(|()| json!({ "tag": asked.tag, "deleted": true })))
    }
}

impl Server {
    async fn branch(&self, asked: arguments::Branch) -> Result<SnapshotInfo, CliError> {
        let mode = match asked.mode.as_deref() {
            None => None,
            Some("full") => Some(BranchMode::Full),
            Some("diff") => Some(BranchMode::Diff),
            Some("live") => Some(BranchMode::Live),
            Some(other) => return Err(CliError::usage(format!("{other:?} is no mode: full, diff or live"))),
        };
        let request = BranchRequest {
            tag: asked.tag,
            mode,
            diff: asked.diff.then_some(true),
            measure_diff: asked.measure_diff.then_some(true),
            wait: (!asked.wait).then_some(false),
            ..BranchRequest::default()
        };
        self.client.post(&format!("/v1/sandboxes/{}/branch", percent(&asked.sandbox_id)), &request).await
    }
}
