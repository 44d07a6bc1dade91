//! What was there before and after, and what of it grew.

use std::time::Duration;

use forkd_protocol::rest::HostCounts;
use serde::Serialize;

use super::Churn;
use crate::ui;

/// What a registry that is written to may keep on the disk: its log is cut back in large steps.
const DISK_SLACK: u64 = 8 << 20;
/// What an allocator may keep.
const MEMORY_SLACK: u64 = 20 << 20;

/// All of it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Snapshot that was forked.
    tag: String,
    /// How often.
    cycles: u32,
    /// Children of each.
    children: u32,
    /// How often the controller was killed meanwhile.
    controllers_killed: u32,
    /// How long all of that took, seconds.
    seconds: f64,
    /// What was there.
    before: HostCounts,
    /// What is there.
    after: HostCounts,
    /// What there is more of.
    grown: Vec<&'static str>,
}

/// One thing that is counted: what it is called, how many there are, how many more are no growth.
type Row = (&'static str, u64, u64);

fn rows(counts: &HostCounts) -> Vec<Row> {
    let mut rows = objects(counts);
    rows.push(("disk bytes", counts.disk_bytes, DISK_SLACK));
    rows.push(("controller bytes", counts.controller_bytes, MEMORY_SLACK));
    rows
}

/// What there is a whole number of.
pub(super) fn objects(counts: &HostCounts) -> Vec<Row> {
    vec![
        ("namespaces", counts.namespaces, 0),
        ("taps", counts.taps, 0),
        ("veths", counts.veths, 0),
        ("mounts", counts.mounts, 0),
        ("descriptors", counts.descriptors, 0),
        ("cgroups", counts.cgroups, 0),
        ("nft rules", counts.nft_rules.unwrap_or(0), 0),
        ("monitors", counts.processes, 0),
        ("zombies", counts.zombies, 0),
        ("run folders", counts.run_folders, 0),
    ]
}

/// What there is more of than before.
pub(super) fn grown(before: &HostCounts, after: &HostCounts) -> Vec<&'static str> {
    let pairs = rows(before).into_iter().zip(rows(after));
    let more = pairs.filter(|((_, before, slack), (_, after, _))| *after > before.saturating_add(*slack));
    more.map(|((name, ..), _)| name).collect()
}

impl Report {
    pub(super) fn new(
        churn: Churn<'_>,
        cycles: u32,
        controllers_killed: u32,
        took: Duration,
        before: &HostCounts,
        after: &HostCounts,
    ) -> Self {
        Self {
            tag: churn.tag.to_owned(),
            cycles,
            children: churn.n,
            controllers_killed,
            seconds: took.as_secs_f64(),
            before: *before,
            after: *after,
            grown: grown(before, after),
        }
    }

    /// Whether nothing grew.
    pub(crate) fn is_clean(&self) -> bool {
        self.grown.is_empty()
    }

    /// For people.
    pub(crate) fn render(&self) -> String {
        let pairs = rows(&self.before).into_iter().zip(rows(&self.after));
        let table = ui::table(
            &["WHAT", "BEFORE", "AFTER", ""],
            pairs.map(|((name, before, _), (_, after, _))| {
                let verdict = if self.grown.contains(&name) { "GROWN" } else { "" };
                let text = |count| if name.ends_with("bytes") { ui::size(count) } else { count.to_string() };
                [name.to_owned(), text(before), text(after), verdict.to_owned()]
            }),
        );
        let verdict = if self.is_clean() {
            "nothing is left behind".to_owned()
        } else {
            format!("left behind: {}", self.grown.join(", "))
        };
        format!(
            "{} cycles of {} children of {}, the controller killed in {} of them, {}\n\n{table}\n{verdict}",
            self.cycles,
            self.children,
            self.tag,
            self.controllers_killed,
            ui::took(Duration::from_secs_f64(self.seconds)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_more_of_anything_is_growth_and_a_little_disk_or_memory_is_not() {
        let before = HostCounts { cgroups: 3, disk_bytes: 1 << 30, ..HostCounts::default() };
        let after = HostCounts { disk_bytes: (1 << 30) + 4096, controller_bytes: 1 << 20, ..before };
        assert!(grown(&before, &after).is_empty());
        let leaked = HostCounts { cgroups: 4, zombies: 1, controller_bytes: 30 << 20, ..after };
        assert_eq!(grown(&before, &leaked), ["cgroups", "zombies", "controller bytes"]);
        let churn = Churn { tag: "t", cycles: 5, n: 2, kills: 1 };
        let report = Report::new(churn, 5, 1, Duration::from_secs(3), &before, &leaked);
        assert!(!report.is_clean());
        assert!(report.render().contains("left behind: cgroups, zombies, controller bytes"));
    }
}
