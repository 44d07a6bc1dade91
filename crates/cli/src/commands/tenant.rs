//! `forkd tenant`: what those who share a controller may have.

use forkd_protocol::rest::{Quota, TenantInfo};
use http::Method;

use crate::client::full;
use crate::context::Context;
use crate::error::CliError;
use crate::parse::percent;
use crate::ui;

/// What tenants may have.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd tenant set team-a --sandboxes 100 --memory-mib 65536 --forks-per-second 20\n  \
                        forkd token create --scope run --tenant team-a\n  forkd tenant ls"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Set all bounds of a tenant; those left out are none
    Set(Set),
    /// List tenants: what each has, and may have
    Ls,
    /// Remove a tenant's bounds; what it has stays
    Rm {
        /// Tenant
        name: String,
    },
}

#[derive(Debug, clap::Args)]
struct Set {
    /// Tenant
    name: String,
    /// Sandboxes at once, paused ones too
    #[arg(long, value_name = "N")]
    sandboxes: Option<u64>,
    /// Memory of their guests
    #[arg(long, value_name = "MIB")]
    memory_mib: Option<u64>,
    /// Its snapshots on the disk
    #[arg(long, value_name = "MIB")]
    disk_mib: Option<u64>,
    /// Children forked, in the mean of some seconds
    #[arg(long, value_name = "N")]
    forks_per_second: Option<u64>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let path = |name: &str| format!("/v1/tenants/{}", percent(name));
    match args.verb {
        Verb::Set(Set { name, sandboxes, memory_mib, disk_mib, forks_per_second }) => {
            let quota = Quota { sandboxes, memory_mib, disk_mib, forks_per_second };
            let body = serde_json::to_vec(&quota).unwrap_or_default();
            let request = client.request(Method::PUT, &path(&name));
            let request = request.header(http::header::CONTENT_TYPE, "application/json").body(full(body));
            client.send(request).await?;
        }
        Verb::Ls => {
            let all: Vec<TenantInfo> = client.get("/v1/tenants").await?;
            context.ui.show(&all, |all| render(all));
        }
        Verb::Rm { name } => client.delete(&path(&name)).await?,
    }
    Ok(0)
}

fn render(all: &[TenantInfo]) -> String {
    if all.is_empty() {
        return "no tenants; bound one: forkd tenant set NAME --sandboxes 100".to_owned();
    }
    let of = |used: u64, most: Option<u64>| {
        most.map_or_else(|| used.to_string(), |most| format!("{used} of {most}"))
    };
    ui::table(
        &["TENANT", "SANDBOXES", "MEMORY MIB", "DISK MIB", "FORKS/S"],
        all.iter().map(|t| {
            [
                t.name.clone(),
                of(t.used.sandboxes, t.quota.sandboxes),
                of(t.used.memory_mib, t.quota.memory_mib),
                of(t.used.disk_mib, t.quota.disk_mib),
                t.quota.forks_per_second.map_or_else(|| "-".to_owned(), |n| n.to_string()),
            ]
        }),
    )
}
