//! What a benchmark of monitors found, for machines and for people.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use crate::bench::goal::{self, Goal};
use crate::bench::spread::Spread;
use crate::ui;

/// All of it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// What the guest boots.
    pub(crate) kernel: PathBuf,
    /// Its ramdisk; gone where its folder was a temporary one.
    pub(crate) ramdisk: PathBuf,
    /// From the request until the guest said that it is up.
    pub(crate) boot_us: u64,
    /// Freezing and writing.
    pub(crate) snapshot_us: u64,
    /// Making one child, to learn which pages all of them change.
    pub(crate) scout_us: u64,
    /// Stored pages.
    pub(crate) memory_bytes: u64,
    /// In how many pieces.
    pub(crate) memory_extents: u64,
    /// Size of the machine's state.
    pub(crate) state_bytes: u64,
    /// From few children to many.
    pub(crate) rounds: Vec<Round>,
    /// Why there are no more rounds.
    pub(crate) stopped: Option<String>,
    /// As other monitors' figures are printed; filled by [`Report::judge`].
    pub(crate) lines: Vec<String>,
    /// Filled by [`Report::judge`].
    pub(crate) goals: Vec<Goal>,
}

/// How children were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    /// One after the other.
    InARow,
    /// The same with monitors that wait already, as the engine's pool has them: starting them is not counted.
    StartedAhead,
    /// As many at once as there are processors.
    SideBySide,
}

impl How {
    fn name(self) -> &'static str {
        match self {
            Self::InARow => "in a row",
            Self::StartedAhead => "started ahead",
            Self::SideBySide => "side by side",
        }
    }

    /// What comes before a line that the reference has no like of.
    fn prefix(self) -> &'static str {
        match self {
            Self::InARow => "",
            Self::StartedAhead => "started_ahead ",
            Self::SideBySide => "side_by_side ",
        }
    }
}

/// One round.
#[derive(Debug, Serialize)]
pub(crate) struct Round {
    /// How many children.
    pub(crate) n: u32,
    /// How they were made.
    pub(crate) how: How,
    /// All processes were started, where that was a step of its own.
    pub(crate) spawned_us: Option<u64>,
    /// The vCPUs of all run.
    pub(crate) restored_us: u64,
    /// All guests have answered.
    pub(crate) answered_us: u64,
    /// What a monitor says its part of restoring took.
    pub(crate) inside: Spread,
    /// All private memory of a monitor, guest and all, mean.
    pub(crate) private_bytes: u64,
    /// Its proportional share, mean.
    pub(crate) pss_bytes: u64,
    /// Private memory of a monitor outside its guest, mean.
    pub(crate) monitor_private_bytes: u64,
    /// Pages that a guest changed, mean.
    pub(crate) guest_private_bytes: u64,
    /// What the host had less per child; where that can be seen.
    pub(crate) host_bytes: Option<u64>,
}

/// Another monitor's figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Against {
    n: u32,
    restored_ms: f64,
    answered_ms: f64,
}

impl FromStr for Against {
    type Err = String;

    fn from_str(given: &str) -> Result<Self, Self::Err> {
        let wrong = || "N:RESTORED:ANSWERED, such as 30:3120:5440".to_owned();
        let parts: Vec<&str> = given.split(':').collect();
        let [n, restored, answered] = parts.as_slice() else { return Err(wrong()) };
        let ms = |text: &str| text.parse::<f64>().ok().filter(|ms| ms.is_finite() && *ms > 0.0);
        let n = n.parse().ok().filter(|n| *n > 0).ok_or_else(wrong)?;
        Ok(Self {
            n,
            restored_ms: ms(restored).ok_or_else(wrong)?,
            answered_ms: ms(answered).ok_or_else(wrong)?,
        })
    }
}

impl Round {
    /// What a child takes, by the larger of both ways of counting.
    pub(super) fn each_bytes(&self) -> u64 {
        self.private_bytes.max(self.host_bytes.unwrap_or_default())
    }

    /// As the reference prints it.
    fn line(&self) -> String {
        let ms = |us: u64| us as f64 / 1000.0;
        let prefix = self.how.prefix();
        format!(
            "{prefix}n {} restored_ms {:.0} all_pong_ms {:.0} per_child_ms {:.1} private_KiB_per_child {} pss_KiB {}",
            self.n,
            ms(self.restored_us),
            ms(self.answered_us),
            ms(self.answered_us) / f64::from(self.n.max(1)),
            self.private_bytes >> 10,
            self.pss_bytes >> 10
        )
    }

    fn row(&self) -> [String; 9] {
        let each = |us: u64| took(us / u64::from(self.n.max(1)));
        [
            self.n.to_string(),
            self.how.name().to_owned(),
            self.spawned_us.map_or_else(|| "-".to_owned(), each),
            each(self.restored_us),
            each(self.answered_us),
            took(self.inside.p50_us),
            ui::size(self.private_bytes),
            ui::size(self.monitor_private_bytes),
            format!("{} ({} pages)", ui::size(self.guest_private_bytes), self.guest_private_bytes / 4096),
        ]
    }
}

impl Report {
    /// Compares with what should be, and with another monitor's figures where there are some.
    pub(super) fn judge(&mut self, against: &[Against]) {
        self.lines = self.rounds.iter().map(Round::line).collect();
        self.goals = Vec::new();
        let in_a_row = || self.rounds.iter().filter(|r| r.how == How::InARow);
        if let Some(most) = in_a_row().next_back() {
            self.goals.push(Goal::monitor_memory(most.n, most.monitor_private_bytes));
        }
        for round in self.rounds.iter().filter(|r| r.how != How::SideBySide) {
            let Some(other) = against.iter().find(|a| a.n == round.n) else { continue };
            let ahead = if round.how == How::StartedAhead { ", monitors started ahead" } else { "" };
            let each = |us: u64| us as f64 / 1000.0 / f64::from(round.n.max(1));
            let goal = |what: &str, us: u64, other_ms: f64, limit: f64| {
                let other = other_ms / f64::from(round.n.max(1));
                Goal::ratio(
                    format!("{what} per child, N={}{}", round.n, ahead),
                    each(us),
                    other,
                    limit,
                    ["here", "there"],
                )
            };
            self.goals.push(goal("restored", round.restored_us, other.restored_ms, 1.0 / 3.0));
            self.goals.push(goal("answered", round.answered_us, other.answered_ms, 2.0 / 3.0));
        }
        if against.is_empty() {
            let why = "no other monitor's figures were given (--against)";
            self.goals.push(Goal::unknown("restored and answered per child against another monitor", why));
        }
    }

    /// For people.
    pub(crate) fn render(&self) -> String {
        let heading = [
            "N",
            "HOW",
            "STARTED",
            "RESTORED",
            "ANSWERED",
            "IN MONITOR",
            "PRIVATE",
            "WITHOUT GUEST",
            "GUEST CHANGED",
        ];
        let mut text = format!(
            "boot_to_ready_s {:.2}\nfull_snapshot_pause_ms {}\n{}\n\n",
            self.boot_us as f64 / 1e6,
            self.snapshot_us / 1000,
            self.lines.join("\n")
        );
        text.push_str(&format!(
            "boot {}; snapshot {} for {} in {} extents and {} of state; trying it {}\nPer child, until all are:\n",
            took(self.boot_us),
            took(self.snapshot_us),
            ui::size(self.memory_bytes),
            self.memory_extents,
            ui::size(self.state_bytes),
            took(self.scout_us)
        ));
        text.push_str(&ui::table(&heading, self.rounds.iter().map(Round::row)));
        text.push_str(&goal::closing(self.stopped.as_deref(), &self.goals));
        text
    }
}

fn took(us: u64) -> String {
    ui::took(Duration::from_micros(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(how: How) -> Round {
        Round {
            n: 30,
            how,
            spawned_us: Some(150_000),
            restored_us: 600_000,
            answered_us: 3_000_000,
            inside: Spread::of(vec![4000]),
            private_bytes: 3 << 20,
            pss_bytes: 4 << 20,
            monitor_private_bytes: 1 << 20,
            guest_private_bytes: 2 << 20,
            host_bytes: None,
        }
    }

    fn report(against: &[&str]) -> Report {
        let mut report = Report {
            kernel: "/k".into(),
            ramdisk: "/r".into(),
            boot_us: 4_000_000,
            snapshot_us: 700_000,
            scout_us: 100_000,
            memory_bytes: 50 << 20,
            memory_extents: 90,
            state_bytes: 9000,
            rounds: vec![round(How::InARow), round(How::SideBySide)],
            stopped: None,
            lines: Vec::new(),
            goals: Vec::new(),
        };
        report.judge(&against.iter().map(|a| a.parse().unwrap()).collect::<Vec<_>>());
        report
    }

    #[test]
    fn lines_are_those_of_the_reference() {
        let lines = report(&[]).lines;
        let line = "n 30 restored_ms 600 all_pong_ms 3000 per_child_ms 100.0 private_KiB_per_child 3072 pss_KiB 4096";
        assert_eq!(lines, [line.to_owned(), format!("side_by_side {line}")]);
    }

    #[test]
    fn another_monitor_is_what_it_is_measured_by() {
        let text = report(&["30:3000:4000", "10:1:1"]).render();
        assert!(text.contains("reached      restored per child, N=30: 0.200 (at most 0.333)"), "{text}");
        assert!(text.contains("NOT reached  answered per child, N=30: 0.75 (at most 0.67)"), "{text}");
        assert!(report(&[]).render().contains("not known    restored and answered"));
    }

    #[test]
    fn figures_to_compare_with_are_read_strictly() {
        for bad in ["", "30", "30:1", "30:1:2:3", "0:1:2", "30:x:2", "30:0:1", "30:inf:1"] {
            assert!(bad.parse::<Against>().is_err(), "{bad}");
        }
    }
}
