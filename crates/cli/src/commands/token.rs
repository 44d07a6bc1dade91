//! `forkd token`: who may ask the controller.

use forkd_protocol::rest::{CreateToken, CreatedToken, Scope, TokenInfo};

use crate::context::Context;
use crate::error::CliError;
use crate::parse::percent;
use crate::ui;

/// Tokens of the API.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd token create --scope run --tag 'py*' --note 'evaluations'\n  \
                        FORKD_TOKEN=forkd_… forkd fork --tag pynp\n  forkd token ls && forkd token revoke 5e0a9c31f2b7\n\n\
                        From the first token on, loopback demands one as well; the owner's Unix socket never does:\n  \
                        forkd --url unix:/var/lib/forkd/forkd.sock token ls")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make a token; it is printed this once
    Create(Create),
    /// List tokens, without their secrets
    Ls,
    /// Make tokens good for nothing
    Revoke(Revoke),
}

#[derive(Debug, clap::Args)]
struct Create {
    /// What it may do: read, run, operate or admin, each with what those before it may
    #[arg(long)]
    scope: Scope,
    /// Bind it to tags: a tag, or a pattern with * and ?
    #[arg(long = "tag", value_name = "PATTERN")]
    tags: Vec<String>,
    /// Whose it is: it sees and spends that tenant's sandboxes and snapshots alone
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// For people
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Good for so long
    #[arg(long, value_name = "SECONDS")]
    expires_in: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct Revoke {
    /// Tokens, as `forkd token ls` lists them
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    match args.verb {
        Verb::Create(Create { scope, tags, tenant, note, expires_in }) => {
            let asked = CreateToken { scope, tags, tenant, note, expires_in_secs: expires_in };
            let made: CreatedToken = client.post("/v1/tokens", &asked).await?;
            context.ui.show(&made, |made| made.token.clone());
        }
        Verb::Ls => {
            let all: Vec<TokenInfo> = client.get("/v1/tokens").await?;
            context.ui.show(&all, |all| render(all, ui::now_unix()));
        }
        Verb::Revoke(Revoke { ids }) => {
            for id in ids {
                client.delete(&format!("/v1/tokens/{}", percent(&id))).await?;
            }
        }
    }
    Ok(0)
}

fn render(all: &[TokenInfo], now: u64) -> String {
    if all.is_empty() {
        return "no tokens; make one: forkd token create --scope run".to_owned();
    }
    let dash = || "-".to_owned();
    ui::table(
        &["ID", "SCOPE", "TAGS", "TENANT", "STATE", "USED", "AGE", "NOTE"],
        all.iter().map(|t| {
            [
                t.id.clone(),
                t.scope.to_string(),
                if t.tags.is_empty() { dash() } else { t.tags.join(" ") },
                t.tenant.clone().unwrap_or_else(dash),
                state(t, now).to_owned(),
                t.last_used_unix.map_or_else(dash, |at| ui::age(at, now)),
                ui::age(t.created_at_unix, now),
                t.note.as_deref().map(ui::plain).unwrap_or_default(),
            ]
        }),
    )
}

fn state(token: &TokenInfo, now: u64) -> &'static str {
    match (token.revoked_at_unix, token.expires_at_unix) {
        (Some(_), _) => "revoked",
        (None, Some(end)) if end <= now => "expired",
        _ => "good",
    }
}
