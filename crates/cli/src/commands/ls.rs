//! `forkd ls`.

use forkd_protocol::rest::SandboxInfo;

use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// List sandboxes.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd ls\n  forkd ls --json | jq -r '.[].id'")]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, context: &Context) -> Result<u8, CliError> {
    let sandboxes: Vec<SandboxInfo> = context.client().await?.get("/v1/sandboxes").await?;
    context.ui.show(&sandboxes, |all| render(all, ui::now_unix()));
    Ok(0)
}

fn render(all: &[SandboxInfo], now: u64) -> String {
    if all.is_empty() {
        return "no sandboxes; make some: forkd fork --tag TAG -n 3".to_owned();
    }
    let dash = || "-".to_owned();
    ui::table(
        &["ID", "SNAPSHOT", "STATE", "AGE", "PID", "MEMORY LIMIT", "PORTS"],
        all.iter().map(|s| {
            let state = s.ended.as_ref().map_or_else(|| s.state.clone(), |why| format!("{}: {why}", s.state));
            [
                s.id.clone(),
                s.snapshot_tag.clone(),
                state,
                ui::age(s.created_at_unix, now),
                s.pid.map_or_else(dash, |p| p.to_string()),
                s.memory_limit_mib.map_or_else(dash, |m| format!("{m} MiB")),
                Some(&s.settings.published)
                    .filter(|all| !all.is_empty())
                    .map_or_else(dash, |all| super::info::ports(all)),
            ]
        }),
    )
}

#[cfg(test)]
mod tests {
    use forkd_protocol::rest::{ForkTiming, ShownSettings};

    use super::*;

    #[test]
    fn a_sandbox_that_ended_says_why() {
        let info = SandboxInfo {
            id: "sb-1".into(),
            snapshot_tag: "py".into(),
            snapshot_id: None,
            netns: None,
            guest_addr: String::new(),
            created_at_unix: 100,
            pid: Some(7),
            memory_limit_mib: None,
            limits: Default::default(),
            guest_memory_mib: 512,
            has_branched: false,
            last_branch_memory_path: None,
            branch_count: 0,
            state: "ended".into(),
            ended: Some("killed: memory".into()),
            timing: ForkTiming::default(),
            network: None,
            tenant: None,
            settings: ShownSettings::default(),
        };
        let text = render(&[info], 130);
        assert!(text.contains("ended: killed: memory") && text.contains("30 s"), "{text}");
        assert!(render(&[], 0).contains("forkd fork"));
    }
}
