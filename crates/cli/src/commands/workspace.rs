//! `forkd workspace`: sandboxes with a name, which survive.

use forkd_protocol::rest::{CreateWorkspace, SuspendWorkspace, WorkspaceInfo};

use crate::context::Context;
use crate::error::CliError;
use crate::parse::percent;
use crate::ui;

/// Sandboxes with a name.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd workspace create mine --tag code-interpreter-v1\n  forkd workspace suspend mine\n  \
                  forkd workspace resume mine\n\n\
                  A suspended workspace lies on the disk: it survives a restart of the controller and of the host."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Fork a sandbox that has a name
    Create {
        /// Its name
        name: String,
        /// Snapshot that it begins with
        #[arg(long, short, value_name = "TAG")]
        tag: String,
        /// Memory limit
        #[arg(long, value_name = "MIB")]
        memory_limit_mib: Option<u64>,
    },
    /// List workspaces
    Ls,
    /// Take one to the disk: its memory is given back until it is resumed
    Suspend {
        /// Workspace
        name: String,
    },
    /// Continue a suspended one where it stood
    Resume {
        /// Workspace
        name: String,
    },
    /// Remove one, with its sandbox and all that is in it
    Rm {
        /// Workspace
        name: String,
    },
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let path = |name: &str| format!("/v1/workspaces/{}", percent(name));
    let show = |info: WorkspaceInfo| context.ui.show(&info, say);
    match args.verb {
        Verb::Create { name, tag, memory_limit_mib } => {
            let asked = CreateWorkspace { name, snapshot_tag: tag, per_child_netns: true, memory_limit_mib };
            show(client.post("/v1/workspaces", &asked).await?);
        }
        Verb::Ls => {
            let all: Vec<WorkspaceInfo> = client.get("/v1/workspaces").await?;
            context.ui.show(&all, |all| render(all, ui::now_unix()));
        }
        Verb::Suspend { name } => {
            let asked = SuspendWorkspace::default();
            show(client.post(&format!("{}/suspend", path(&name)), &asked).await?);
        }
        Verb::Resume { name } => show(client.post_empty(&format!("{}/resume", path(&name))).await?),
        Verb::Rm { name } => client.delete(&path(&name)).await?,
    }
    Ok(0)
}

fn say(info: &WorkspaceInfo) -> String {
    let sandbox = info.live_sandbox_id.as_deref().unwrap_or("-");
    format!("{} is {}: sandbox {sandbox}", info.name, info.status)
}

fn render(all: &[WorkspaceInfo], now: u64) -> String {
    if all.is_empty() {
        return "no workspaces; make one: forkd workspace create NAME --tag TAG".to_owned();
    }
    ui::table(
        &["WORKSPACE", "STATUS", "SANDBOX", "SNAPSHOT", "AGE", "ACTIVE"],
        all.iter().map(|w| {
            [
                w.name.clone(),
                w.status.clone(),
                w.live_sandbox_id.clone().unwrap_or_else(|| "-".to_owned()),
                w.source_snapshot_tag.clone(),
                ui::age(w.created_at_unix, now),
                ui::age(w.last_active_unix, now),
            ]
        }),
    )
}
