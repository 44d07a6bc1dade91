//! `forkd mcp`: the controller's verbs as tools of the Model Context Protocol, for agents.
//!
//! ```text
//!   snapshots, sandboxes, files     the tools: one call of the API each, or a few
//!   arguments                       what the tools take; the schemas come from here
//!   answer                          what they give back, bounded
//!   http                            streamable HTTP; stdio needs nothing of ours
//! ```
//!
//! Names and results are those of the published `forkd-mcp`, where it has them. Both eras of the protocol are served:
//! the SDK tells them apart request by request.

mod answer;
mod arguments;
mod files;
mod http;
mod sandboxes;
mod snapshots;

use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::tool::ToolCallContext;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, Implementation, ServerCapabilities, ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, tool_handler};

pub(crate) use self::http::{Door, serve as serve_http};
use crate::client::Client;

const INSTRUCTIONS: &str = "Sandboxes are microVMs that are forked, in milliseconds, from a snapshot: a machine that was \
    booted and warmed up once. list_snapshots tells what can be forked; spawn_sandboxes forks; exec_command and \
    eval_code (in the interpreter that was warm in the snapshot) run in a sandbox; branch_sandbox makes a snapshot of \
    one that runs, from which several continuations can be spawned. Kill what is no longer needed.";

/// The tools, and the controller that they ask.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    client: Client,
    tools: ToolRouter<Self>,
}

impl Server {
    /// Tools that ask this controller.
    pub(crate) fn new(client: Client) -> Self {
        let tools = Self::snapshot_tools() + Self::sandbox_tools() + Self::file_tools();
        Self { client, tools }
    }
}

#[tool_handler(router = self.tools)]
impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("forkd", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = request.name.to_string();
        match self.tools.call(ToolCallContext::new(self, request, context)).await? {
            CallToolResponse::Complete(result) => Ok(answer::named(&name, result).into()),
            other => Ok(other),
        }
    }
}
