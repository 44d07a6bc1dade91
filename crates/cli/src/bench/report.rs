//! What a benchmark of the product found, for machines and for people.

use std::time::Duration;

use forkd_protocol::rest::SnapshotInfo;
use serde::Serialize;

use super::goal::{self, Goal};
use super::spread::Spread;
use crate::ui;

/// All of it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// What the children were forked from, with the times of its making.
    pub(crate) snapshot: SnapshotInfo,
    /// It was there already.
    pub(crate) reused: bool,
    /// From few children to many.
    pub(crate) rounds: Vec<Round>,
    /// Why there are no more rounds.
    pub(crate) stopped: Option<String>,
    /// Round trips.
    pub(crate) eval: Option<EvalFigures>,
    /// Filled by [`Report::judge`].
    pub(crate) goals: Vec<Goal>,
}

/// One round. Times count from the request: the controller's own (`restored`, `answered`) from when it took it
/// up, the others as seen from here.
#[derive(Debug, Serialize)]
pub(crate) struct Round {
    /// How many children.
    pub(crate) n: u32,
    /// The vCPUs of all run.
    pub(crate) restored_us: u64,
    /// The agents of all have answered.
    pub(crate) answered_us: u64,
    /// The request was answered.
    pub(crate) returned_us: u64,
    /// The first eval of each has returned.
    pub(crate) evaluated_us: u64,
    /// How long those took each.
    pub(crate) first_eval: Spread,
    /// Private memory of a monitor outside its guest, mean.
    pub(crate) monitor_private_bytes: u64,
    /// Pages that a guest changed, mean.
    pub(crate) guest_private_bytes: u64,
    /// What the host had less per child, with everything the kernel keeps for it; where that can be seen.
    pub(crate) host_bytes: Option<u64>,
}

impl Round {
    /// What a child takes, by the larger of both ways of counting.
    pub(super) fn each_bytes(&self) -> u64 {
        let counted = self.monitor_private_bytes.saturating_add(self.guest_private_bytes);
        counted.max(self.host_bytes.unwrap_or_default())
    }
}

/// Asking the warm interpreter, and a new one.
#[derive(Debug, Serialize)]
pub(crate) struct EvalFigures {
    /// Round trips, each over a connection of its own.
    pub(crate) warm: Spread,
    /// What of it was spent in the interpreter.
    pub(crate) inside: Spread,
    /// The same question to a new interpreter.
    pub(crate) cold: Spread,
}

impl Report {
    /// Compares with what should be.
    pub(crate) fn judge(&mut self) {
        self.goals = Vec::new();
        let ms = |us: u64| us as f64 / 1000.0;
        if let Some(round) = self.rounds.last() {
            self.goals.push(Goal::monitor_memory(round.n, round.monitor_private_bytes));
        }
        self.goals.push(match &self.eval {
            Some(EvalFigures { warm, cold, .. }) => Goal::ratio(
                "a warm eval against a new interpreter with the same import",
                ms(warm.p50_us),
                ms(cold.p50_us),
                0.1,
                ["warm", "cold"],
            ),
            None => Goal::unknown("a warm eval against a new interpreter", "not measured"),
        });
        self.goals.extend(self.rounds.iter().map(|round| {
            Goal::ratio(
                format!("first results against answers, N={}", round.n),
                ms(round.evaluated_us),
                ms(round.answered_us),
                1.3,
                ["evaluated", "answered"],
            )
        }));
    }

    /// For people.
    pub(crate) fn render(&self) -> String {
        let mut text = self.snapshot_line();
        text.push_str("\nUntil all children are (in all, and per child):\n");
        text.push_str(&self.table());
        if let Some(eval) = &self.eval {
            text.push_str(&eval.render());
        }
        text.push_str(&goal::closing(self.stopped.as_deref(), &self.goals));
        text
    }

    fn snapshot_line(&self) -> String {
        let (s, t) = (&self.snapshot, self.snapshot.timing);
        let ms = |ms: u64| ui::took(Duration::from_millis(ms));
        format!(
            "{} ({}): boot {}, warm-up {}, freezing and writing {}; {} of {} MiB stored\n",
            s.tag,
            if self.reused { "made earlier" } else { "made now" },
            ms(t.boot_ms),
            ms(t.warm_ms),
            ms(t.write_ms),
            ui::size(s.memory_physical_bytes),
            s.memory_mib
        )
    }

    fn table(&self) -> String {
        let heading =
            ["N", "RESTORED", "ANSWERED", "EVALUATED", "EVAL P50 P99", "MONITOR", "GUEST CHANGED", "HOST"];
        ui::table(
            &heading,
            self.rounds.iter().map(|r| {
                let all_and_each = |us: u64| {
                    let all = Duration::from_micros(us);
                    format!("{} {}", ui::took(all), ui::took(all / r.n.max(1)))
                };
                [
                    r.n.to_string(),
                    all_and_each(r.restored_us),
                    all_and_each(r.answered_us),
                    all_and_each(r.evaluated_us),
                    format!("{} {}", us(r.first_eval.p50_us), us(r.first_eval.p99_us)),
                    ui::size(r.monitor_private_bytes),
                    format!("{} ({} pages)", ui::size(r.guest_private_bytes), r.guest_private_bytes / 4096),
                    r.host_bytes.map_or_else(|| "-".to_owned(), ui::size),
                ]
            }),
        )
    }
}

impl EvalFigures {
    fn render(&self) -> String {
        let Self { warm, inside, cold } = self;
        format!(
            "\nA warm eval of 1+1, {} times: p50 {}, p90 {}, p99 {}; in the interpreter p50 {}\n\
             python3 -c 'import numpy; print(1+1)', {} times: p50 {}\n",
            warm.count,
            us(warm.p50_us),
            us(warm.p90_us),
            us(warm.p99_us),
            us(inside.p50_us),
            cold.count,
            us(cold.p50_us)
        )
    }
}

fn us(us: u64) -> String {
    ui::took(Duration::from_micros(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(n: u32) -> Round {
        Round {
            n,
            restored_us: 100_000,
            answered_us: 200_000,
            returned_us: 210_000,
            evaluated_us: 240_000,
            first_eval: Spread::of(vec![20_000]),
            monitor_private_bytes: 1 << 20,
            guest_private_bytes: 8 << 20,
            host_bytes: Some(12 << 20),
        }
    }

    fn report() -> Report {
        let snapshot = serde_json::from_value(serde_json::json!({
            "tag": "t", "dir": "/d", "created_at_unix": 1, "status": "ready", "bootable": true, "image": "py",
            "kernel": "k", "vcpus": 1, "memory_mib": 512, "memory_physical_bytes": 1 << 26, "memory_hash": "h",
            "timing": { "boot_ms": 4000, "warm_ms": 3000, "write_ms": 500 }
        }));
        let eval = EvalFigures {
            warm: Spread::of(vec![1000]),
            inside: Spread::of(vec![100]),
            cold: Spread::of(vec![90_000]),
        };
        Report {
            snapshot: snapshot.unwrap(),
            reused: true,
            rounds: vec![round(1), round(10)],
            stopped: Some("no room".to_owned()),
            eval: Some(eval),
            goals: Vec::new(),
        }
    }

    #[test]
    fn a_report_has_a_line_for_each_round_and_each_goal() {
        let mut report = report();
        report.judge();
        let text = report.render();
        for expected in [
            "boot 4.0 s, warm-up 3.0 s",
            "made earlier",
            "200 ms 20 ms",
            "8.00 MiB (2048 pages)",
            "p99 1.00 ms",
            "Stopped early: no room",
            "reached      private memory of a monitor outside its guest, N=10",
            "reached      a warm eval",
            "reached      first results against answers, N=1:",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }

    #[test]
    fn a_child_costs_what_the_larger_count_says() {
        assert_eq!(round(1).each_bytes(), 12 << 20);
        assert_eq!(Round { host_bytes: None, ..round(1) }.each_bytes(), 9 << 20);
    }
}
