//! Children of a warm Python, through the controller: what a user of forkd gets.

use std::time::Instant;

use forkd_protocol::rest::{EvalResponse, ExecRequest, ExecResponse, SandboxInfo, SandboxStats};
use futures::StreamExt;
use tokio::task::block_in_place;

use super::report::{EvalFigures, Round};
use super::room::{self, Place};
use super::session::{Forking, Session, TIMEOUT_SECS, wrong};
use super::spread::{Spread, mean, micros};
use crate::error::CliError;

/// The first thing every child is asked: it takes numpy, which is warm, and each must answer rightly.
const FIRST: (&str, &str) = ("int(numpy.arange(10).sum())", "45");
/// What the round trip is measured with.
const SMALLEST: (&str, &str) = ("1+1", "2");
/// The same without a warm interpreter.
const COLD: [&str; 3] = ["python3", "-c", "import numpy; print(1+1)"];
const COLD_RUNS: usize = 3;
/// Round trips before those that count.
const UNCOUNTED: u32 = 5;
/// How many round trips pass without a word.
const NOTED: u32 = 100;
/// How many children are asked side by side.
const SIDE_BY_SIDE: usize = 8;

/// A benchmark against one controller.
#[derive(Debug)]
pub(crate) struct Product<'a> {
    session: Session<'a>,
    tag: &'a str,
    place: Place,
}

impl<'a> Product<'a> {
    /// Of children of snapshot `tag`.
    pub(crate) fn new(session: Session<'a>, tag: &'a str) -> Self {
        Self { session, tag, place: Place::of(session.client) }
    }

    /// Rounds of that many children each, until one does not work; and why it did not.
    pub(crate) async fn rounds(&self, counts: &[u32]) -> (Vec<Round>, Option<CliError>) {
        let mut rounds: Vec<Round> = Vec::new();
        for &n in counts {
            let round = match self.refusal(n, rounds.last()) {
                Some(why) => Err(CliError::local(forkd_protocol::error::ErrorClass::Exhausted, why)),
                None => self.round(n).await,
            };
            match round {
                Ok(round) => rounds.push(round),
                Err(e) => return (rounds, Some(e)),
            }
        }
        (rounds, None)
    }

    /// Round trips of the smallest eval, and the same question to a cold interpreter.
    pub(crate) async fn evals(&self, calls: u32) -> Result<EvalFigures, CliError> {
        self.with_children(1, async |children, _| {
            let Some(child) = children.first() else { return Err(CliError::usage("no child")) };
            let step = self.session.ui.step(format!("{calls} warm evals"));
            for _ in 0..UNCOUNTED {
                self.eval(child, SMALLEST).await?;
            }
            let (mut trips, mut inside) = (Vec::new(), Vec::new());
            for call in 0..calls {
                if call > 0 && call % NOTED == 0 {
                    step.note(&format!("{call} done"));
                }
                let (took, answer) = self.eval(child, SMALLEST).await?;
                trips.push(took);
                inside.push(answer.micros);
            }
            step.done("");
            let step = self.session.ui.step("the same in a new interpreter");
            let mut cold = Vec::new();
            for _ in 0..COLD_RUNS {
                cold.push(self.cold(child).await?);
            }
            step.done("");
            Ok(EvalFigures { warm: Spread::of(trips), inside: Spread::of(inside), cold: Spread::of(cold) })
        })
        .await
    }

    /// One round: fork, ask each child, look at each, end all.
    async fn round(&self, n: u32) -> Result<Round, CliError> {
        let free_before = self.available_mib();
        let step = self.session.ui.step(format!("{n} children"));
        let round = self
            .with_children(n, async |children, forking| {
                let evals = self.first_evals(children).await?;
                let evaluated_us = micros(forking.began.elapsed());
                let free_after = self.available_mib();
                let stats = self.all_stats(children).await?;
                let last = |of: fn(&SandboxInfo) -> u64| children.iter().map(of).max().unwrap_or_default();
                Ok(Round {
                    n,
                    restored_us: last(|c| c.timing.restored_us),
                    answered_us: last(|c| c.timing.answered_us),
                    returned_us: micros(forking.took),
                    evaluated_us,
                    first_eval: Spread::of(evals),
                    monitor_private_bytes: mean(stats.iter().map(|s| s.monitor_private_bytes)),
                    guest_private_bytes: mean(stats.iter().map(|s| s.guest_private_bytes)),
                    host_bytes: room::used(free_before, free_after, n),
                })
            })
            .await?;
        step.done("");
        Ok(round)
    }

    /// Forks `n` children for `work`, and ends them whatever comes of it.
    async fn with_children<T>(
        &self,
        n: u32,
        work: impl AsyncFnOnce(&[SandboxInfo], &Forking) -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        let stop = self.session.stop;
        let bound =
            async |children: &[SandboxInfo], forking: &Forking| stop.bound(work(children, forking)).await;
        self.session.with_children(self.tag, n, bound).await
    }

    async fn first_evals(&self, children: &[SandboxInfo]) -> Result<Vec<u64>, CliError> {
        let asked = futures::stream::iter(children).map(async |child| Ok(self.eval(child, FIRST).await?.0));
        let answers: Vec<Result<u64, CliError>> = asked.buffer_unordered(SIDE_BY_SIDE).collect().await;
        answers.into_iter().collect()
    }

    async fn all_stats(&self, children: &[SandboxInfo]) -> Result<Vec<SandboxStats>, CliError> {
        let mut all = Vec::new();
        for child in children {
            all.push(self.session.client.get(&format!("/v1/sandboxes/{}/stats", child.id)).await?);
        }
        Ok(all)
    }

    /// Asks a warm interpreter; how long until the answer was there, and the answer.
    async fn eval(
        &self,
        child: &SandboxInfo,
        (code, expected): (&str, &str),
    ) -> Result<(u64, EvalResponse), CliError> {
        let began = Instant::now();
        let answer = self.session.eval(child, code).await?;
        let took = micros(began.elapsed());
        if answer.result.as_deref() != Some(expected) {
            let said = answer.result.as_deref().unwrap_or("nothing");
            return Err(wrong(child, &format!("{code} gave {said} where {expected} is right")));
        }
        Ok((took, answer))
    }

    /// Asks a new interpreter; how long that took.
    async fn cold(&self, child: &SandboxInfo) -> Result<u64, CliError> {
        let request = ExecRequest::of(COLD, TIMEOUT_SECS);
        let began = Instant::now();
        let answer: ExecResponse =
            self.session.client.post(&format!("/v1/sandboxes/{}/exec", child.id), &request).await?;
        let took = micros(began.elapsed());
        if answer.stdout.trim() != SMALLEST.1 {
            return Err(wrong(child, &format!("{} gave {:?}", COLD.join(" "), answer.stderr)));
        }
        Ok(took)
    }

    /// Why `n` children are not even tried.
    fn refusal(&self, n: u32, last: Option<&Round>) -> Option<String> {
        room::refusal(n, last?.each_bytes(), self.available_mib()?)
    }

    fn available_mib(&self) -> Option<u64> {
        block_in_place(|| self.place.available_mib())
    }
}
