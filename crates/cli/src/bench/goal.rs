//! What is to be reached, and whether it was.

use serde::Serialize;

/// Private memory of a monitor outside the guest's mappings, at most.
pub(super) const MONITOR_BYTES: u64 = 1_258_291; // 1.2 MiB

/// One goal and its figures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Goal {
    /// What it is about.
    pub(crate) what: String,
    /// Whether it was reached; `None` where nothing was measured that could tell.
    pub(crate) reached: Option<bool>,
    /// What was measured, and against what.
    pub(crate) figures: String,
}

impl Goal {
    /// `value` should be at most `limit` times `of`.
    pub(super) fn ratio(what: impl Into<String>, value: f64, of: f64, limit: f64, names: [&str; 2]) -> Self {
        let [value_name, of_name] = names;
        let ratio = if of > 0.0 { value / of } else { f64::INFINITY };
        let digits = if limit < 0.5 { 3 } else { 2 };
        Self {
            what: what.into(),
            reached: Some(ratio <= limit),
            figures: format!(
                "{ratio:.digits$} (at most {limit:.digits$}): {value_name} {value:.2} ms, {of_name} {of:.2} ms"
            ),
        }
    }

    /// `bytes` should be at most [`MONITOR_BYTES`].
    pub(super) fn monitor_memory(n: u32, bytes: u64) -> Self {
        Self::bytes(format!("private memory of a monitor outside its guest, N={n}"), bytes, MONITOR_BYTES)
    }

    /// `bytes` should be at most `limit`.
    pub(super) fn bytes(what: impl Into<String>, bytes: u64, limit: u64) -> Self {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        Self {
            what: what.into(),
            reached: Some(bytes <= limit),
            figures: format!("{:.2} MiB (at most {:.2})", mib(bytes), mib(limit)),
        }
    }

    /// Nothing was measured that could tell.
    pub(super) fn unknown(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { what: what.into(), reached: None, figures: why.into() }
    }
}

/// The end of a report: why there is no more, where it stopped early, and the goals.
pub(super) fn closing(stopped: Option<&str>, goals: &[Goal]) -> String {
    let early = stopped.map_or_else(String::new, |why| format!("\nStopped early: {why}\n"));
    format!("{early}\n{}", render(goals))
}

/// One line for each.
fn render(goals: &[Goal]) -> String {
    goals
        .iter()
        .map(|goal| {
            let verdict = match goal.reached {
                Some(true) => "reached",
                Some(false) => "NOT reached",
                None => "not known",
            };
            format!("{verdict:<12} {}: {}\n", goal.what, goal.figures)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_says_whether_it_was_reached_and_why() {
        let goals = [
            Goal::ratio("warm", 1.0, 20.0, 0.1, ["warm", "cold"]),
            Goal::ratio("late", 3.0, 2.0, 1.3, ["first", "answered"]),
            Goal::monitor_memory(30, 1 << 20),
            Goal::unknown("ratio", "nothing to compare with"),
        ];
        let text = render(&goals);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "reached      warm: 0.050 (at most 0.100): warm 1.00 ms, cold 20.00 ms");
        assert!(lines[1].starts_with("NOT reached") && lines[1].contains("1.50 (at most 1.30)"));
        assert!(lines[2].starts_with("reached") && lines[2].contains("1.00 MiB (at most 1.20)"));
        assert!(lines[3].starts_with("not known"));
        assert_eq!(Goal::ratio("x", 1.0, 0.0, 1.0, ["", ""]).reached, Some(false));
    }
}
