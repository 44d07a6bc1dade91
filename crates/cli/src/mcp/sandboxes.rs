//! Tools for sandboxes, and for what runs in them.

use std::time::{Duration, Instant};

use forkd_protocol::rest::{
    CreateSandboxes, EvalRequest, EvalResponse, ExecRequest, ExecResponse, PingResponse, SandboxInfo,
    SandboxSettings,
};
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::CallToolResult;
use rmcp::{tool, tool_router};
use serde_json::{Value, json};

use super::{Server, answer, arguments};
use crate::commands::fork::create;
use crate::error::CliError;
use crate::parse::percent;

/// Longest wait for a text.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// Bound of one look at a file, seconds.
const LOOK_SECS: u64 = 5;
/// What is looked at, and how much of it is told.
const TAIL: &str = "tail -c 4096 -- \"$1\"";
const EXCERPT: usize = 256;

#[tool_router(router = sandbox_tools, vis = "pub(super)")]
impl Server {
    #[tool(
        description = "Fork sandboxes from a snapshot: all or none.",
        annotations(destructive_hint = false),
        output_schema = answer::list()
    )]
    async fn spawn_sandboxes(&self, Parameters(asked): Parameters<arguments::Spawn>) -> CallToolResult {
        let request = CreateSandboxes {
            n: asked.n,
            memory_limit_mib: asked.memory_limit_mib,
            env: asked.env,
            settings: SandboxSettings { timeout_secs: asked.timeout_secs, ..SandboxSettings::default() },
            ..CreateSandboxes::of(asked.snapshot_tag)
        };
        answer::many(create(&self.client, &request).await)
    }

    #[tool(
        description = "Fork children that continue the state of a running sandbox, which runs on.",
        annotations(destructive_hint = false),
        output_schema = answer::list()
    )]
    async fn fork_sandbox(&self, Parameters(asked): Parameters<arguments::ForkSandbox>) -> CallToolResult {
        let request = CreateSandboxes {
            from_sandbox: Some(asked.sandbox_id),
            n: asked.n,
            ..CreateSandboxes::of(String::new())
        };
        answer::many(create(&self.client, &request).await)
    }

    #[tool(
        description = "List the sandboxes.",
        annotations(read_only_hint = true),
        output_schema = answer::list()
    )]
    async fn list_sandboxes(&self) -> CallToolResult {
        answer::many(self.client.get::<Vec<SandboxInfo>>("/v1/sandboxes").await)
    }

    #[tool(
        description = "Tell about one sandbox.",
        annotations(read_only_hint = true),
        output_schema = answer::object()
    )]
    async fn get_sandbox(&self, Parameters(asked): Parameters<arguments::OfSandbox>) -> CallToolResult {
        answer::one(self.client.get::<SandboxInfo>(&of(&asked.sandbox_id, "")).await)
    }

    #[tool(
        description = "Run a command in a sandbox to its end; its output, exit code, and whether it timed out.",
        output_schema = answer::object()
    )]
    async fn exec_command(&self, Parameters(asked): Parameters<arguments::Exec>) -> CallToolResult {
        let plain = ExecRequest::of(asked.args, asked.timeout_secs);
        let request = ExecRequest { env: asked.env, cwd: asked.cwd, ..plain };
        answer::one(self.exec(&asked.sandbox_id, &request).await)
    }

    #[tool(
        description = "Evaluate Python in the interpreter that was warm in the snapshot; names stay defined.",
        output_schema = answer::object()
    )]
    async fn eval_code(&self, Parameters(asked): Parameters<arguments::Eval>) -> CallToolResult {
        let request = EvalRequest { code: asked.code, timeout_secs: asked.timeout_secs };
        let path = of(&asked.sandbox_id, "/eval");
        answer::one(self.client.post::<_, EvalResponse>(&path, &request).await)
    }

    #[tool(
        description = "Ask whether a sandbox answers, and how warm it is.",
        annotations(read_only_hint = true),
        output_schema = answer::object()
    )]
    async fn ping_sandbox(&self, Parameters(asked): Parameters<arguments::OfSandbox>) -> CallToolResult {
        let path = of(&asked.sandbox_id, "/ping");
        answer::one(self.client.post_empty::<PingResponse>(&path).await)
    }

    #[tool(
        description = "Wait until a file in a sandbox ends with text that has a marker in it.",
        annotations(read_only_hint = true),
        output_schema = answer::object()
    )]
    async fn wait_for_text(&self, Parameters(asked): Parameters<arguments::WaitForText>) -> CallToolResult {
        answer::one(self.watch(&asked).await)
    }

    #[tool(
        description = "Freeze a sandbox to disk: it takes no memory until it is resumed.",
        annotations(destructive_hint = false, idempotent_hint = true),
        output_schema = answer::object()
    )]
    async fn pause_sandbox(&self, Parameters(asked): Parameters<arguments::OfSandbox>) -> CallToolResult {
        let path = of(&asked.sandbox_id, "/pause");
        answer::one(self.client.post_empty::<SandboxInfo>(&path).await)
    }

    #[tool(
        description = "Continue a paused sandbox.",
        annotations(destructive_hint = false, idempotent_hint = true),
        output_schema = answer::object()
    )]
    async fn resume_sandbox(&self, Parameters(asked): Parameters<arguments::OfSandbox>) -> CallToolResult {
        let path = of(&asked.sandbox_id, "/resume");
        answer::one(self.client.post_empty::<SandboxInfo>(&path).await)
    }

    #[tool(
        description = "End a sandbox and all that is in it.",
        annotations(destructive_hint = true, idempotent_hint = true),
        output_schema = answer::object()
    )]
    async fn kill_sandbox(&self, Parameters(asked): Parameters<arguments::OfSandbox>) -> CallToolResult {
        let gone = self.client.delete(&of(&asked.sandbox_id, "")).await;
        answer::one(gone.map(|()| json!({ "id": asked.sandbox_id, "killed": true })))
    }
}

impl Server {
    async fn exec(&self, id: &str, request: &ExecRequest) -> Result<ExecResponse, CliError> {
        self.client.post(&of(id, "/exec"), request).await
    }

    async fn watch(&self, asked: &arguments::WaitForText) -> Result<Value, CliError> {
        if asked.marker.is_empty() {
            return Err(CliError::usage("the marker is empty"));
        }
        let began = Instant::now();
        // What is no number waits for nothing.
        let within = Duration::try_from_secs_f64(asked.timeout_secs.clamp(0.0, LONGEST_WAIT.as_secs_f64()));
        let within = within.unwrap_or_default();
        let pause = Duration::from_millis(asked.poll_interval_ms.clamp(10, 60_000));
        let request = ExecRequest::of(["sh", "-c", TAIL, "sh", &asked.path], LOOK_SECS);
        loop {
            // A file that is not there yet is one without the marker.
            let seen = self.exec(&asked.sandbox_id, &request).await?.stdout;
            let found = seen.contains(&asked.marker);
            if found || began.elapsed() + pause > within {
                let from = seen.len().saturating_sub(EXCERPT);
                let excerpt = &seen[seen.ceil_char_boundary(from)..];
                let elapsed_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                return Ok(json!({ "found": found, "elapsed_ms": elapsed_ms, "last_excerpt": excerpt }));
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// The path of a sandbox's verb.
pub(super) fn of(id: &str, verb: &str) -> String {
    format!("/v1/sandboxes/{}{verb}", percent(id))
}
