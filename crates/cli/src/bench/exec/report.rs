//! What round trips took, and how fast it streamed.

use std::time::Duration;

use serde::Serialize;

use super::Trip;
use crate::bench::goal::{self, Goal};
use crate::bench::spread::Spread;
use crate::ui;

/// What forkd may add to a call on real hardware, microseconds.
const OWN_SHARE_US: u64 = 1000;
/// How much slower than a plain copy output may stream.
const SLOWER: f64 = 2.0;

/// Round trips, as they came.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) evals: Vec<Trip>,
    pub(super) execs: Vec<Trip>,
    pub(super) echoes: Vec<u64>,
}

/// Something that was streamed.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Stream {
    /// How much.
    pub(super) bytes: u64,
    /// In what time.
    pub(super) micros: u64,
}

/// Output, and the same without anybody who makes or carries it as output.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Streams {
    /// What a command wrote.
    pub(super) output: Stream,
    /// What the agent wrote into a bare connection.
    pub(super) copy: Stream,
}

/// Round trips of one kind.
#[derive(Debug, Clone, Copy, Serialize)]
struct Figures {
    /// Whole, as the client saw them.
    round_trip: Spread,
    /// In the guest's program.
    inside: Spread,
    /// The rest: forkd's share, of each trip by itself.
    own: Spread,
    /// How many times an echo the share is, both at the median.
    per_echo: f64,
}

/// All of it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Snapshot that was forked.
    tag: String,
    /// Evaluations in the warm interpreter.
    eval: Figures,
    /// Of `true`.
    exec: Figures,
    /// 64 bytes to the agent and back.
    echo: Spread,
    /// Absent where it was asked to stop before.
    streams: Option<Streams>,
    /// What is to be reached.
    goals: Vec<Goal>,
}

impl Stream {
    fn mib_per_second(&self) -> f64 {
        let seconds = Duration::from_micros(self.micros.max(1)).as_secs_f64();
        self.bytes as f64 / f64::from(1 << 20) / seconds
    }
}

impl Figures {
    fn of(trips: &[Trip], echo: &Spread) -> Self {
        let own = Spread::of(trips.iter().map(|(all, inside)| all.saturating_sub(*inside)).collect());
        Self {
            round_trip: Spread::of(trips.iter().map(|trip| trip.0).collect()),
            inside: Spread::of(trips.iter().map(|trip| trip.1).collect()),
            own,
            per_echo: own.p50_us as f64 / echo.p50_us.max(1) as f64,
        }
    }
}

impl Report {
    pub(super) fn new(tag: &str, calls: Calls, streams: Option<Streams>) -> Self {
        let echo = Spread::of(calls.echoes);
        let (eval, exec) = (Figures::of(&calls.evals, &echo), Figures::of(&calls.execs, &echo));
        let goals = vec![
            share("eval", &eval),
            share("exec", &exec),
            streams.map_or_else(|| Goal::unknown(STREAMS, "nothing was streamed"), |s| fast(&s)),
        ];
        Self { tag: tag.to_owned(), eval, exec, echo, streams, goals }
    }

    /// For people.
    pub(crate) fn render(&self) -> String {
        let rows = [
            ("eval", &self.eval.round_trip, String::new()),
            ("  in the guest", &self.eval.inside, String::new()),
            ("  forkd's share", &self.eval.own, format!("{:.2}", self.eval.per_echo)),
            ("exec true", &self.exec.round_trip, String::new()),
            ("  in the guest", &self.exec.inside, String::new()),
            ("  forkd's share", &self.exec.own, format!("{:.2}", self.exec.per_echo)),
            ("echo", &self.echo, "1.00".to_owned()),
        ];
        let took = |us| ui::took(Duration::from_micros(us));
        let table = ui::table(
            &["ROUND TRIP", "P50", "P90", "P99", "LONGEST", "ECHOES"],
            rows.into_iter().map(|(name, s, echoes)| {
                [name.to_owned(), took(s.p50_us), took(s.p90_us), took(s.p99_us), took(s.max_us), echoes]
            }),
        );
        let streams = self.streams.map_or_else(String::new, |s| {
            format!(
                "\n{} of output at {:.1} MiB/s, a plain copy at {:.1} MiB/s\n",
                ui::size(s.output.bytes),
                s.output.mib_per_second(),
                s.copy.mib_per_second()
            )
        });
        let head = format!("{} calls of each kind in a child of {}", self.echo.count, self.tag);
        format!("{head}\n\n{table}\n{streams}{}", goal::closing(None, &self.goals))
    }
}

const STREAMS: &str = "output, against a plain copy";

fn share(what: &str, figures: &Figures) -> Goal {
    let millis = |us: u64| us as f64 / 1000.0;
    let what = format!("forkd's share of an {what}, at the median");
    if figures.own.count == 0 {
        return Goal::unknown(what, "nothing was measured");
    }
    Goal::ratio(what, millis(figures.own.p50_us), millis(OWN_SHARE_US), 1.0, ["it is", "on real hardware"])
}

fn fast(streams: &Streams) -> Goal {
    let millis = |stream: &Stream| stream.micros as f64 / 1000.0;
    Goal::ratio(STREAMS, millis(&streams.output), millis(&streams.copy), SLOWER, ["output", "copy"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_took_is_not_forkds_share() {
        let calls = Calls {
            evals: vec![(900, 400); 100],
            execs: vec![(5000, 2000), (5000, 9000)],
            echoes: vec![250; 100],
        };
        let stream = |micros| Stream { bytes: 10 << 20, micros };
        let streams = Streams { output: stream(1_000_000), copy: stream(600_000) };
        let report = Report::new("t", calls, Some(streams));
        assert_eq!((report.eval.own.p50_us, report.eval.per_echo), (500, 2.0));
        // A guest that claims more than the whole trip took is believed no further than that.
        assert_eq!((report.exec.own.p50_us, report.exec.own.max_us), (0, 3000));
        let reached: Vec<_> = report.goals.iter().map(|goal| goal.reached).collect();
        assert_eq!(reached, [Some(true), Some(true), Some(true)]);
        let text = report.render();
        for part in ["10.0 MiB/s", "16.7 MiB/s", "2.00", "100 calls"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn slow_streams_and_shares_are_said() {
        let calls = Calls { evals: vec![(5000, 1000)], execs: vec![(1, 0)], echoes: vec![100] };
        let stream = |micros| Stream { bytes: 1 << 20, micros };
        let report = Report::new("t", calls, Some(Streams { output: stream(300), copy: stream(100) }));
        assert_eq!((report.goals[0].reached, report.goals[2].reached), (Some(false), Some(false)));
        let none = Report::new("t", Calls::default(), None);
        assert!(none.goals.iter().all(|goal| goal.reached.is_none()));
    }
}
