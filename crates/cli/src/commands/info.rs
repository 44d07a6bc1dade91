//! `forkd info`.

use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{OnTimeout, Published, SandboxInfo, ShownSecret};

use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// Show everything that is known of a sandbox.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd info ID\n  forkd info ID --json | jq .secrets")]
pub(crate) struct Args {
    /// Sandbox
    id: SandboxId,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let info: SandboxInfo = context.client().await?.get(&format!("/v1/sandboxes/{}", args.id)).await?;
    context.ui.show(&info, |info| render(info, ui::now_unix()));
    Ok(0)
}

fn render(info: &SandboxInfo, now: u64) -> String {
    let settings = &info.settings;
    let state =
        info.ended.as_ref().map_or_else(|| info.state.clone(), |why| format!("{}: {why}", info.state));
    let labels = settings.metadata.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>();
    let lines = [
        ("id", Some(info.id.clone())),
        ("snapshot", Some(info.snapshot_tag.clone())),
        ("state", Some(state)),
        ("age", Some(ui::age(info.created_at_unix, now))),
        ("pid", info.pid.map(|pid| pid.to_string())),
        ("memory limit", info.memory_limit_mib.map(|mib| format!("{mib} MiB"))),
        ("tenant", info.tenant.clone()),
        ("branches", Some(info.branch_count.to_string())),
        ("labels", (!labels.is_empty()).then(|| labels.join(", "))),
        ("idle timeout", settings.idle_timeout_secs.map(|secs| format!("{secs} s"))),
        ("ports", (!settings.published.is_empty()).then(|| ports(&settings.published))),
        ("ends", settings.ends_at_unix_ms.map(|ends| ending(ends / 1000, now, settings.on_timeout))),
    ];
    let known = lines.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let mut text: String = known.map(|(name, value)| format!("{name:<16}{}\n", ui::plain(&value))).collect();
    if !settings.secrets.is_empty() {
        text.push('\n');
        text.push_str(&secrets(&settings.secrets));
    }
    text
}

fn ending(at: u64, now: u64, how: OnTimeout) -> String {
    let how = match how {
        OnTimeout::Kill => "",
        OnTimeout::Pause => " (is paused then)",
    };
    format!("in {} s{how}", at.saturating_sub(now))
}

/// Published ports, in one line.
pub(super) fn ports(all: &[Published]) -> String {
    let one = |p: &Published| {
        let not = if p.listening { "" } else { " (not reachable: the address is taken)" };
        format!("{} -> {}{not}", p.port.host, p.port.guest)
    };
    all.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Secrets without their values.
pub(super) fn secrets(all: &[ShownSecret]) -> String {
    ui::table(
        &["SECRET", "FROM", "HELD"],
        all.iter().map(|secret| {
            let from = secret.inherited_from.clone().unwrap_or_else(|| "given to it".to_owned());
            let held = if secret.held { "yes" } else { "no" };
            [secret.name.clone(), ui::plain(&from), held.to_owned()]
        }),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_known_is_shown_and_nothing_else() {
        let mut value = json!({
            "id": "sb-1", "snapshot_tag": "py", "netns": null, "guest_addr": "", "created_at_unix": 100, "pid": 7,
            "memory_limit_mib": null, "has_branched": false, "last_branch_memory_path": null,
            "branch_count": 2, "state": "running", "ended": null,
            "timing": { "started_us": 1, "restored_us": 2, "answered_us": 3 }
        });
        let plain = render(&serde_json::from_value(value.clone()).unwrap(), 130);
        assert!(plain.contains("running") && plain.contains("30 s"), "{plain}");
        assert!(!plain.contains("SECRET") && !plain.contains("memory limit"), "{plain}");
        value["secrets"] = json!([{"name": "KEY", "inherited_from": "sb-0", "held": true}]);
        value["published"] = json!([{"host": "127.0.0.1:8080", "guest": 80, "listening": true}]);
        value["ends_at_unix_ms"] = json!(190_000);
        value["on_timeout"] = json!("pause");
        let all = render(&serde_json::from_value(value).unwrap(), 130);
        for part in ["KEY", "sb-0", "127.0.0.1:8080 -> 80", "in 60 s (is paused then)"] {
            assert!(all.contains(part), "{part}: {all}");
        }
    }
}
