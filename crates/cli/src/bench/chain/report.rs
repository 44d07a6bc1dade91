//! What forks of a chain cost, for machines and for people.

use std::time::Duration;

use forkd_protocol::rest::{SnapshotInfo, SnapshotInfoDetail};
use serde::Serialize;

use crate::bench::goal::{self, Goal};
use crate::bench::spread::Spread;
use crate::ui;

/// How much longer a fork of the chain may take.
const LIMIT: f64 = 1.1;

/// All of it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// What the chain begins with, with the times of its making.
    pub(crate) snapshot: SnapshotInfo,
    /// It was there already.
    pub(crate) reused: bool,
    /// What was forked: the beginning of the chain, its end, and its end flattened.
    pub(crate) subjects: Vec<Subject>,
    /// Snapshots that were made and left.
    pub(crate) kept: Vec<String>,
    /// Why there is no more.
    pub(crate) stopped: Option<String>,
    /// Filled by [`Report::judge`].
    pub(crate) goals: Vec<Goal>,
}

/// One snapshot and its forks. Times count from when the controller took the request up, one for each child.
#[derive(Debug, Serialize)]
pub(crate) struct Subject {
    /// Which part of the chain.
    pub(crate) what: &'static str,
    /// Its name.
    pub(crate) tag: String,
    /// How many memory layers.
    pub(crate) depth: u32,
    /// Extents of the layers above the base.
    pub(crate) upper_extents: u64,
    /// Memory layers on disk.
    pub(crate) layers_bytes: u64,
    /// The merged file that children map, on disk.
    pub(crate) view_bytes: u64,
    /// The vCPUs of a child ran.
    pub(crate) restored: Spread,
    /// A child had answered.
    pub(crate) answered: Spread,
    #[serde(skip)]
    times: Vec<(u64, u64)>,
}

impl Subject {
    /// Not forked yet.
    pub(super) fn new(what: &'static str, detail: &SnapshotInfoDetail) -> Self {
        Self {
            what,
            tag: detail.tag.clone(),
            depth: detail.chain_depth,
            upper_extents: detail.memory_layers.iter().skip(1).map(|layer| layer.extents).sum(),
            layers_bytes: detail.memory_physical_bytes,
            view_bytes: detail.view_physical_bytes,
            restored: Spread::default(),
            answered: Spread::default(),
            times: Vec::new(),
        }
    }

    /// Children were forked: when each was restored and had answered.
    pub(super) fn add(&mut self, times: &[(u64, u64)]) {
        self.times.extend(times);
        self.restored = Spread::of(self.times.iter().map(|time| time.0).collect());
        self.answered = Spread::of(self.times.iter().map(|time| time.1).collect());
    }
}

impl Report {
    /// Nothing measured yet.
    pub(crate) fn new(snapshot: SnapshotInfo, reused: bool) -> Self {
        Self { snapshot, reused, subjects: Vec::new(), kept: Vec::new(), stopped: None, goals: Vec::new() }
    }

    /// Whether nothing was measured.
    pub(crate) fn is_empty(&self) -> bool {
        self.subjects.iter().all(|subject| subject.restored.count == 0)
    }

    /// Compares with what should be.
    pub(crate) fn judge(&mut self) {
        let measured = |subject: &&Subject| subject.restored.count > 0;
        let [first, end] = [0, 1].map(|place| self.subjects.get(place).filter(measured));
        self.goals = match (first, end) {
            (Some(first), Some(end)) => vec![
                compare("restored", first, end, |subject| subject.restored),
                compare("answered", first, end, |subject| subject.answered),
            ],
            _ => vec![Goal::unknown("forks of a chain against forks of its beginning", "not measured")],
        };
    }

    /// For people.
    pub(crate) fn render(&self) -> String {
        let mut text = format!(
            "A chain over {} ({}), and its forks, p50 and p90:\n",
            self.snapshot.tag,
            if self.reused { "made earlier" } else { "made now" }
        );
        let heading = ["", "DEPTH", "UPPER EXTENTS", "LAYERS", "VIEW", "CHILDREN", "RESTORED", "ANSWERED"];
        text.push_str(&ui::table(&heading, self.subjects.iter().map(row)));
        if !self.kept.is_empty() {
            text.push_str(&format!("\nKept: {}\n", self.kept.join(" ")));
        }
        text.push_str(&goal::closing(self.stopped.as_deref(), &self.goals));
        text
    }
}

fn compare(what: &str, first: &Subject, end: &Subject, of: fn(&Subject) -> Spread) -> Goal {
    let ms = |subject| of(subject).p50_us as f64 / 1000.0;
    let names = [first, end].map(|subject| format!("depth {}", subject.depth));
    let goal = format!("{what}, {} against {}", names[1], names[0]);
    Goal::ratio(goal, ms(end), ms(first), LIMIT, [&names[1], &names[0]])
}

fn row(subject: &Subject) -> [String; 8] {
    let both = |spread: Spread| {
        let [p50, p90] = [spread.p50_us, spread.p90_us].map(|us| ui::took(Duration::from_micros(us)));
        format!("{p50} {p90}")
    };
    [
        subject.what.to_owned(),
        subject.depth.to_string(),
        subject.upper_extents.to_string(),
        ui::size(subject.layers_bytes),
        ui::size(subject.view_bytes),
        subject.restored.count.to_string(),
        both(subject.restored),
        both(subject.answered),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(depth: u32, times: &[(u64, u64)]) -> Subject {
        let layer = |extents| serde_json::json!({ "hash": "h", "logical_bytes": 1, "physical_bytes": 1, "extents": extents });
        let layers: Vec<_> = (1..=u64::from(depth)).map(|number| layer(number * 10)).collect();
        let detail = serde_json::from_value(serde_json::json!({
            "tag": format!("t-{depth}"), "id": "i", "dir": "/d", "created_at_unix": 1,
            "memory_logical_bytes": 1 << 29, "memory_physical_bytes": 64 << 20, "view_physical_bytes": 2 << 20,
            "disk_logical_bytes": 0, "disk_physical_bytes": 0, "vmstate_bytes": 1, "chain_depth": depth,
            "ancestors": [], "dependents": [], "memory_layers": layers, "disk_layers": [], "image": "py",
            "image_hash": "h", "kernel": "k", "agent_protocol": 1
        }));
        let mut subject = Subject::new("x", &detail.unwrap());
        subject.add(times);
        subject
    }

    fn report(subjects: Vec<Subject>) -> Report {
        let snapshot = serde_json::from_value(serde_json::json!({
            "tag": "t", "dir": "/d", "created_at_unix": 1, "status": "ready", "bootable": true, "image": "py",
            "kernel": "k", "vcpus": 1, "memory_mib": 512, "memory_physical_bytes": 1, "memory_hash": "h",
            "timing": { "boot_ms": 1, "warm_ms": 2, "write_ms": 3 }
        }));
        let mut report = Report { subjects, ..Report::new(snapshot.unwrap(), true) };
        report.judge();
        report
    }

    #[test]
    fn the_end_of_a_chain_is_held_against_its_beginning() {
        let first = subject(1, &[(10_000, 50_000), (12_000, 50_000), (90_000, 51_000)]);
        let report = report(vec![first, subject(3, &[(13_000, 56_000)]), subject(1, &[(1, 1)])]);
        assert_eq!(report.goals[0].reached, Some(true), "{:?}", report.goals);
        assert_eq!(report.goals[1].reached, Some(false), "{:?}", report.goals);
        assert_eq!(report.subjects[1].upper_extents, 20 + 30);
        let text = report.render();
        for expected in [
            "A chain over t (made earlier)",
            "restored, depth 3 against depth 1: 1.08 (at most 1.10): depth 3 13.00 ms, depth 1 12.00 ms",
            "NOT reached  answered, depth 3 against depth 1: 1.12",
            "12 ms 90 ms",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }

    #[test]
    fn what_was_not_forked_is_not_judged() {
        let report = report(vec![subject(1, &[(1, 1)]), subject(3, &[])]);
        assert!(report.goals.iter().all(|goal| goal.reached.is_none()) && !report.is_empty());
        assert!(self::report(Vec::new()).is_empty());
    }
}
