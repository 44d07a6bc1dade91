//! `forkd stats`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{AllStats, HostRoom, SandboxStats};

use crate::client::Client;
use crate::context::Context;
use crate::error::CliError;
use crate::ui;

/// Show what sandboxes use, and what there is room for.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  forkd stats\n  forkd stats ID --json | jq .cpu.used_us\n  forkd stats --watch 5\n\n\
                  PRIVATE is what a sandbox changed of its snapshot, SHARED what it uses of it together with others,\n\
                  TABLES its page tables, CHARGED what its memory limit is held against."
)]
pub(crate) struct Args {
    /// One sandbox (default: all that run)
    #[arg(value_name = "ID")]
    id: Option<SandboxId>,
    /// Show it again and again, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
}

pub(crate) async fn run(args: Args, context: &Context) -> Result<u8, CliError> {
    let client = context.client().await?;
    let Some(every) = args.watch.map(Duration::from_secs) else {
        let seen = Seen::look(&client, args.id.as_ref()).await?;
        show(context, &seen, None);
        return Ok(0);
    };
    let mut interrupted = std::pin::pin!(super::interrupted());
    let mut before: Option<Seen> = None;
    loop {
        let seen = Seen::look(&client, args.id.as_ref()).await?;
        show(context, &seen, before.as_ref());
        before = Some(seen);
        tokio::select! {
            code = &mut interrupted => return code,
            () = tokio::time::sleep(every) => {}
        }
    }
}

/// What was seen, and when.
struct Seen {
    at: Instant,
    room: Option<HostRoom>,
    sandboxes: Vec<SandboxStats>,
}

impl Seen {
    async fn look(client: &Client, id: Option<&SandboxId>) -> Result<Self, CliError> {
        let (room, sandboxes) = match id {
            Some(id) => (None, vec![client.get(&format!("/v1/sandboxes/{id}/stats")).await?]),
            None => {
                let all: AllStats = client.get("/v1/stats").await?;
                (Some(all.room), all.sandboxes)
            }
        };
        Ok(Self { at: Instant::now(), room, sandboxes })
    }
}

fn show(context: &Context, seen: &Seen, before: Option<&Seen>) {
    match (&seen.room, seen.sandboxes.as_slice()) {
        (None, [one]) => context.ui.show(one, |_| render(seen, before)),
        (room, sandboxes) => {
            let all = AllStats { room: room.unwrap_or_default(), sandboxes: sandboxes.to_vec() };
            context.ui.show(&all, |_| render(seen, before));
        }
    }
}

fn render(seen: &Seen, before: Option<&Seen>) -> String {
    let earlier: BTreeMap<&str, &SandboxStats> =
        before.map_or_else(BTreeMap::new, |b| b.sandboxes.iter().map(|s| (s.id.as_str(), s)).collect());
    let between = before.map(|b| seen.at.saturating_duration_since(b.at));
    let rows = seen.sandboxes.iter().map(|s| {
        [
            s.id.clone(),
            processor(s, earlier.get(s.id.as_str()).copied().zip(between)),
            ui::size(s.guest_private_bytes),
            ui::size(s.guest_shared_bytes),
            ui::size(s.page_table_bytes),
            charged(s),
            pair(s.io.map(|io| (io.read_bytes, io.write_bytes))),
            s.pids.map_or_else(dash, |pids| pids.to_string()),
            pair(s.net.map(|net| (net.rx_bytes, net.tx_bytes))),
        ]
    });
    let heading =
        ["ID", "CPU", "PRIVATE", "SHARED", "TABLES", "CHARGED", "READ / WRITTEN", "PIDS", "RECEIVED / SENT"];
    let table = if seen.sandboxes.is_empty() { String::new() } else { ui::table(&heading, rows) };
    match &seen.room {
        Some(room) => format!("{table}{}", in_all(room)),
        None => table,
    }
}

/// Used time, or where there is something to compare with, the share of one processor.
fn processor(now: &SandboxStats, earlier: Option<(&SandboxStats, Duration)>) -> String {
    let Some(cpu) = now.cpu else { return dash() };
    match earlier.and_then(|(before, between)| Some((before.cpu?, between))) {
        Some((before, between)) if !between.is_zero() => {
            let used = cpu.used_us.saturating_sub(before.used_us) as f64 / 1e6;
            format!("{:.0} %", used / between.as_secs_f64() * 100.0)
        }
        _ => ui::took(Duration::from_micros(cpu.used_us)),
    }
}

fn charged(s: &SandboxStats) -> String {
    match (s.memory_charged_bytes, s.memory_limit_bytes) {
        (Some(charged), Some(limit)) => format!("{} of {}", ui::size(charged), ui::size(limit)),
        (Some(charged), None) => ui::size(charged),
        (None, _) => dash(),
    }
}

fn pair(both: Option<(u64, u64)>) -> String {
    both.map_or_else(dash, |(one, other)| format!("{} / {}", ui::size(one), ui::size(other)))
}

fn in_all(room: &HostRoom) -> String {
    format!(
        "{} of at most {} sandboxes; memory: {} of {} available, {} promised of {}; disk: {} free\n",
        room.sandboxes,
        room.max_sandboxes,
        ui::size(room.memory_available_bytes),
        ui::size(room.memory_total_bytes),
        ui::size(room.memory_promised_bytes),
        ui::size(room.memory_promisable_bytes),
        ui::size(room.disk_free_bytes),
    )
}

fn dash() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use forkd_protocol::rest::CpuStats;

    use super::*;

    fn seen(used_us: u64, at: Instant) -> Seen {
        let cpu = Some(CpuStats { used_us, throttled_us: 0 });
        let one =
            SandboxStats { id: "sb-1".into(), guest_private_bytes: 3 << 20, cpu, ..SandboxStats::default() };
        Seen {
            at,
            room: Some(HostRoom { sandboxes: 1, max_sandboxes: 9, ..HostRoom::default() }),
            sandboxes: vec![one],
        }
    }

    #[test]
    fn time_used_becomes_a_share_once_there_are_two_looks() {
        let now = Instant::now();
        let (first, second) = (seen(1_000_000, now), seen(1_500_000, now + Duration::from_secs(2)));
        let text = render(&first, None);
        assert!(
            text.contains("1.0 s") && text.contains("3.00 MiB") && text.contains("1 of at most 9"),
            "{text}"
        );
        assert!(render(&second, Some(&first)).contains("25 %"));
        let none = SandboxStats { id: "sb-2".into(), ..SandboxStats::default() };
        let bare = Seen { at: now, room: None, sandboxes: vec![none] };
        assert!(render(&bare, Some(&first)).contains('-'), "no accounts, no figures");
    }
}
