//! What branching cost, for machines and for people.

use std::time::Duration;

use forkd_protocol::rest::{BranchMode, SnapshotInfo};
use serde::Serialize;

use crate::bench::goal::{self, Goal};
use crate::bench::spread::Spread;
use crate::ui;

/// All of it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// What the sandboxes were forked from, with the times of its making.
    pub(crate) snapshot: SnapshotInfo,
    /// It was there already.
    pub(crate) reused: bool,
    /// Bytes of its pages that are not zero.
    pub(crate) listed_bytes: Option<u64>,
    /// How much was rewritten before each branch.
    pub(crate) changed_mib: u64,
    /// One branch in each way.
    pub(crate) modes: Vec<Branched>,
    /// A live branch that nobody waited for.
    pub(crate) no_wait: Option<Unwaited>,
    /// How soon a child of a branch answers.
    pub(crate) to_child: Option<ToChild>,
    /// Live branches of machines of several sizes.
    pub(crate) sizes: Vec<Sized>,
    /// Why there is no more.
    pub(crate) stopped: Option<String>,
    /// Filled by [`Report::judge`].
    pub(crate) goals: Vec<Goal>,
}

/// One branch, as its source and its caller saw it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Branched {
    /// How it was written.
    pub(crate) mode: BranchMode,
    /// The longest time between two ticks, milliseconds.
    pub(crate) gap_ms: f64,
    /// How long the virtual machine stood still.
    pub(crate) pause_ms: Option<f64>,
    /// How long the workload stood still.
    pub(crate) workload_pause_ms: Option<f64>,
    /// Bytes of memory that were stored.
    pub(crate) written_bytes: u64,
    /// How long the call took.
    pub(crate) call_us: u64,
    /// Ticks in the second before the longest gap.
    pub(crate) ticks_before: u64,
    /// Ticks in the second after it.
    pub(crate) ticks_after: u64,
}

/// A live branch that nobody waited for.
#[derive(Debug, Serialize)]
pub(crate) struct Unwaited {
    /// How long the call took.
    pub(crate) call_us: u64,
    /// How long the workload stood still.
    pub(crate) workload_pause_ms: Option<f64>,
    /// How long until it was written.
    pub(crate) ready_us: u64,
}

/// How soon a child answers, seen from here.
#[derive(Debug, Serialize)]
pub(crate) struct ToChild {
    /// How much the source had rewritten.
    pub(crate) changed_mib: u64,
    /// From asking for a live branch until a child of it had answered.
    pub(crate) branched: Spread,
    /// From asking for a child of the source's snapshot until it had answered.
    pub(crate) plain: Spread,
}

/// Live branches of machines of one size.
#[derive(Debug, Serialize)]
pub(crate) struct Sized {
    /// Memory of the machine.
    pub(crate) memory_mib: u64,
    /// One for each round.
    pub(crate) branched: Vec<Branched>,
}

impl Branched {
    /// In a few words.
    pub(super) fn in_short(&self) -> String {
        format!("longest gap {}", ms(self.gap_ms))
    }
}

impl Sized {
    /// The gap that half of its branches did not exceed, milliseconds.
    fn gap_ms(&self) -> f64 {
        let all = self.branched.iter().map(|branched| (branched.gap_ms * 1000.0) as u64).collect();
        Spread::of(all).p50_us as f64 / 1000.0
    }
}

impl Report {
    /// Nothing measured yet.
    pub(crate) fn new(snapshot: SnapshotInfo, reused: bool, changed_mib: u64) -> Self {
        Self {
            snapshot,
            reused,
            listed_bytes: None,
            changed_mib,
            modes: Vec::new(),
            no_wait: None,
            to_child: None,
            sizes: Vec::new(),
            stopped: None,
            goals: Vec::new(),
        }
    }

    /// Whether nothing was measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.modes.is_empty()
    }

    /// Compares with what should be.
    pub(crate) fn judge(&mut self) {
        self.goals = vec![
            self.against(BranchMode::Diff, 0.2),
            self.against(BranchMode::Full, 0.05),
            self.against_reported(),
            self.return_without_waiting(),
            self.answer_of_a_child(),
            self.storage(),
        ];
        self.goals.extend(self.independence());
    }

    fn of(&self, mode: BranchMode) -> Option<&Branched> {
        self.modes.iter().find(|branched| branched.mode == mode)
    }

    fn against(&self, other: BranchMode, limit: f64) -> Goal {
        let what = format!("longest gap, live against {}", name(other));
        match (self.of(BranchMode::Live), self.of(other)) {
            (Some(live), Some(of)) => Goal::ratio(what, live.gap_ms, of.gap_ms, limit, ["live", name(other)]),
            _ => Goal::unknown(what, "not measured"),
        }
    }

    fn against_reported(&self) -> Goal {
        let what = "longest gap of a live branch against the pause that it reports";
        match self.of(BranchMode::Live).and_then(|live| Some((live.gap_ms, live.workload_pause_ms?))) {
            Some((gap, pause)) => Goal::ratio(what, gap, pause, 2.0, ["gap", "workload_pause_ms"]),
            None => Goal::unknown(what, "not measured"),
        }
    }

    fn return_without_waiting(&self) -> Goal {
        let what = "the call that does not wait against the pause";
        match self.no_wait.as_ref().and_then(|call| Some((call.call_us, call.workload_pause_ms?))) {
            Some((call, pause)) => Goal::ratio(what, in_ms(call), pause, 1.5, ["call", "workload_pause_ms"]),
            None => Goal::unknown(what, "not measured"),
        }
    }

    fn answer_of_a_child(&self) -> Goal {
        let what = "a live branch and a child of it against a plain fork";
        match &self.to_child {
            Some(ToChild { changed_mib, branched, plain }) => Goal::ratio(
                format!("{what}, {changed_mib} MiB changed"),
                in_ms(branched.p50_us),
                in_ms(plain.p50_us),
                2.0,
                ["branch and fork", "fork"],
            ),
            None => Goal::unknown(what, "not measured"),
        }
    }

    /// 150 MiB that are not zero should take at most 160.
    fn storage(&self) -> Goal {
        let memory = self.snapshot.memory_mib;
        match self.listed_bytes {
            Some(listed) => Goal::bytes(
                format!("stored of {memory} MiB of which {} are not zero", ui::size(listed)),
                self.snapshot.memory_physical_bytes,
                listed.saturating_mul(160) / 150,
            ),
            None => Goal::unknown("stored of what is not zero", "not measured"),
        }
    }

    fn independence(&self) -> Option<Goal> {
        let small = self.sizes.iter().min_by_key(|size| size.memory_mib)?;
        let large = self.sizes.iter().max_by_key(|size| size.memory_mib)?;
        let names = [small, large].map(|size| format!("{} MiB", size.memory_mib));
        let [small, large] = [small.gap_ms(), large.gap_ms()];
        let what = format!("longest gap of a live branch, {} against {}", names[1], names[0]);
        Some(Goal::ratio(what, large, small, 1.5, [&names[1], &names[0]]))
    }

    /// For people.
    pub(crate) fn render(&self) -> String {
        let mut text = self.snapshot_line();
        if !self.modes.is_empty() {
            text.push_str(&format!("\nA sandbox that rewrote {} MiB, branched:\n", self.changed_mib));
            text.push_str(&table(self.modes.iter().map(|b| (name(b.mode).to_owned(), b))));
        }
        if let Some(Unwaited { call_us, ready_us, .. }) = self.no_wait {
            let [call, ready] = [call_us, ready_us].map(|us| ui::took(Duration::from_micros(us)));
            text.push_str(&format!("\nLive, without waiting: the call took {call}, ready after {ready}\n"));
        }
        if !self.sizes.is_empty() {
            text.push_str("\nLive branches of machines of several sizes:\n");
            let rows = self
                .sizes
                .iter()
                .flat_map(|s| s.branched.iter().map(|b| (format!("{} MiB", s.memory_mib), b)));
            text.push_str(&table(rows));
        }
        text.push_str(&goal::closing(self.stopped.as_deref(), &self.goals));
        text
    }

    fn snapshot_line(&self) -> String {
        let s = &self.snapshot;
        let listed = self.listed_bytes.map_or_else(String::new, |b| format!(", {} not zero", ui::size(b)));
        let made = if self.reused { "made earlier" } else { "made now" };
        format!(
            "{} ({made}): {} of {} MiB stored{listed}\n",
            s.tag,
            ui::size(s.memory_physical_bytes),
            s.memory_mib
        )
    }
}

fn table<'a>(rows: impl Iterator<Item = (String, &'a Branched)>) -> String {
    let heading =
        ["", "LONGEST GAP", "VM PAUSE", "WORKLOAD PAUSE", "WRITTEN", "CALL", "TICKS/S BEFORE", "AFTER"];
    let pause = |pause: Option<f64>| pause.map_or_else(|| "-".to_owned(), ms);
    ui::table(
        &heading,
        rows.map(|(name, b)| {
            [
                name,
                ms(b.gap_ms),
                pause(b.pause_ms),
                pause(b.workload_pause_ms),
                ui::size(b.written_bytes),
                ui::took(Duration::from_micros(b.call_us)),
                b.ticks_before.to_string(),
                b.ticks_after.to_string(),
            ]
        }),
    )
}

/// As the API has it.
pub(super) fn name(mode: BranchMode) -> &'static str {
    match mode {
        BranchMode::Live => "live",
        BranchMode::Diff => "diff",
        BranchMode::Full => "full",
    }
}

fn in_ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

/// Milliseconds that a guest or a controller named.
fn ms(ms: f64) -> String {
    Duration::try_from_secs_f64(ms / 1000.0).map_or_else(|_| format!("{ms} ms"), ui::took)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branched(mode: BranchMode, gap_ms: f64) -> Branched {
        Branched {
            mode,
            gap_ms,
            pause_ms: Some(gap_ms / 4.0),
            workload_pause_ms: Some(gap_ms / 2.0),
            written_bytes: 32 << 20,
            call_us: 400_000,
            ticks_before: 800,
            ticks_after: 600,
        }
    }

    fn report() -> Report {
        let snapshot = serde_json::from_value(serde_json::json!({
            "tag": "t", "dir": "/d", "created_at_unix": 1, "status": "ready", "bootable": true, "image": "py",
            "kernel": "k", "vcpus": 1, "memory_mib": 512, "memory_physical_bytes": 155 << 20, "memory_hash": "h",
            "timing": { "boot_ms": 1, "warm_ms": 2, "write_ms": 3 }
        }));
        let mut report = Report::new(snapshot.unwrap(), false, 32);
        report.listed_bytes = Some(150 << 20);
        report
    }

    #[test]
    fn each_goal_is_judged_by_its_own_figures() {
        let mut report = report();
        let gaps = [(BranchMode::Live, 20.0), (BranchMode::Diff, 100.0), (BranchMode::Full, 399.0)];
        report.modes = gaps.map(|(mode, gap)| branched(mode, gap)).to_vec();
        report.no_wait = Some(Unwaited { call_us: 16_000, workload_pause_ms: Some(10.0), ready_us: 300_000 });
        let spread = |us| Spread::of(vec![us]);
        report.to_child = Some(ToChild { changed_mib: 32, branched: spread(100_000), plain: spread(50_000) });
        report.sizes = [(2048, 31.0), (512, 20.0)]
            .map(|(memory_mib, gap)| Sized { memory_mib, branched: vec![branched(BranchMode::Live, gap)] })
            .into();
        report.judge();
        let reached: Vec<_> = report.goals.iter().map(|goal| goal.reached).collect();
        // Live against diff, full, and its own pause; the call; the child; what is stored; the sizes.
        assert_eq!(reached, [true, false, true, false, true, true, false].map(Some), "{:#?}", report.goals);
        let text = report.render();
        for expected in [
            "t (made now): 155.00 MiB of 512 MiB stored, 150.00 MiB not zero",
            "A sandbox that rewrote 32 MiB",
            "live  20 ms  ",
            "the call took 16 ms, ready after 300 ms",
            "2048 MiB",
            "reached      longest gap, live against diff: 0.200",
            "NOT reached  longest gap, live against full: 0.050",
            "NOT reached  longest gap of a live branch, 2048 MiB against 512 MiB: 1.55",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }

    #[test]
    fn what_was_not_measured_is_not_judged() {
        let mut report = report();
        report.listed_bytes = None;
        report.stopped = Some("no room".to_owned());
        report.judge();
        assert_eq!(report.goals.len(), 6);
        assert!(report.is_empty() && report.goals.iter().all(|goal| goal.reached.is_none()));
        assert!(report.render().contains("Stopped early: no room"));
    }

    #[test]
    fn a_duration_that_is_none_is_shown_as_it_came() {
        assert_eq!((ms(1500.0), ms(-1.0), ms(f64::NAN)), ("1.5 s".into(), "-1 ms".into(), "NaN ms".into()));
    }
}
