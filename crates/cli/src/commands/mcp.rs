//! `forkd mcp`: tools for agents, over the Model Context Protocol.

use std::net::SocketAddr;
use std::path::PathBuf;

use rmcp::ServiceExt;
use rmcp::transport::stdio;
use tokio::signal::unix::{SignalKind, signal};

use super::serve::chosen_token;
use crate::context::Context;
use crate::error::CliError;
use crate::mcp::{Door, Server, serve_http};

/// Serve the verbs as tools to an agent (Model Context Protocol).
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  claude mcp add forkd -- forkd mcp\n  openssl rand -hex 32 >token && forkd mcp --http 127.0.0.1:8890 --token-file token\n\n\
                  Without --http it speaks over standard input and output, and ends with the former. It acts with the rights of\n\
                  whoever starts it, or of FORKD_TOKEN. docs/mcp.md tells the tools."
)]
pub(crate) struct Args {
    /// Serve streamable HTTP here, under /mcp; loopback only
    #[arg(long, value_name = "ADDRESS", requires = "token_file")]
    http: Option<SocketAddr>,
    /// The token that clients over HTTP have to send
    #[arg(long, value_name = "FILE", requires = "http")]
    token_file: Option<PathBuf>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let door = match args.http.zip(args.token_file) {
        Some((address, token)) => Some(Door::open(address, chosen_token(&token)?).await?),
        None => None,
    };
    let server = Server::new(context.client().await?);
    match door {
        Some(door) => {
            context.ui.note(&format!("tools are served at {}", door.url()));
            serve_http(server, door, interrupted()?).await?;
        }
        None => {
            let failed = |e: String| CliError::io("speaking over standard input", std::io::Error::other(e));
            let serving = server.serve(stdio()).await.map_err(|e| failed(e.to_string()))?;
            serving.waiting().await.map_err(|e| failed(e.to_string()))?;
        }
    }
    Ok(0)
}

fn interrupted() -> Result<impl Future<Output = ()> + Send + 'static, CliError> {
    let listen = |kind| signal(kind).map_err(|e| CliError::io("listening for signals", e));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
