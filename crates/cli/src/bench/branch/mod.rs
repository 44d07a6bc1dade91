//! What branching costs the sandbox that is branched.
//!
//! A child holds memory and ticks every millisecond ([`TICKER`]). It is branched in each way, having rewritten all of
//! that memory before, and is asked for the longest gap between two ticks: what a workload notices.

mod report;

use forkd_protocol::names::Tag;
use forkd_protocol::rest::{BranchMode, SandboxInfo, SnapshotInfo};
use serde::Deserialize;

pub(crate) use self::report::Report;
use self::report::{Branched, Sized, ToChild, Unwaited};
use super::session::{Branching, Forking, Session, Wanted, fresh_name, wrong};
use super::spread::{Spread, micros};
use crate::error::CliError;

/// The guest's half.
const TICKER: &str = include_str!("ticker.py");
/// What the guest's system, its interpreter and the ticker need beside the memory that is rewritten.
const GUEST_MIB: u64 = 160;
/// Rewritten where it is measured how soon a child of a branch answers.
const TO_CHILD_MIB: u64 = 32;
/// How often that is done, and how often a machine of each size is branched.
const ROUNDS: u32 = 3;
/// In the order in which they are measured and shown.
const MODES: [BranchMode; 3] = [BranchMode::Live, BranchMode::Diff, BranchMode::Full];

/// What is to be measured.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    /// Where.
    pub(crate) session: Session<'a>,
    /// How much the source rewrites before each branch.
    pub(crate) changed_mib: u64,
}

/// What the ticker says.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Ticks {
    gap_ms: f64,
    ticks_before: u64,
    ticks_after: u64,
}

/// An error where a guest of that much memory cannot hold so much of it.
pub(crate) fn check_room(changed_mib: u64, memory_mib: u64) -> Result<(), CliError> {
    let most = memory_mib.saturating_sub(GUEST_MIB);
    if changed_mib <= most {
        return Ok(());
    }
    let why = format!("a guest of {memory_mib} MiB can rewrite {most} MiB, not {changed_mib}");
    Err(CliError::usage(why).with_hint("ask for less with --changed-mib, or name a larger snapshot"))
}

impl Bench<'_> {
    /// Everything of one snapshot; what was measured before something broke stays in the report.
    pub(crate) async fn run(&self, report: &mut Report) -> Result<(), CliError> {
        let tag = report.snapshot.tag.clone();
        report.listed_bytes = Some(self.listed(&tag).await?);
        self.modes(&tag, report).await?;
        report.to_child = Some(self.to_child(&tag).await?);
        Ok(())
    }

    /// Live branches of machines of several sizes, taking turns.
    pub(crate) async fn sizes(
        &self,
        snapshots: &[SnapshotInfo],
        report: &mut Report,
    ) -> Result<(), CliError> {
        for round in 1..=ROUNDS {
            for snapshot in snapshots {
                let step = self.session.ui.step(format!("{} MiB, round {round}", snapshot.memory_mib));
                let branched = self
                    .session
                    .with_child(&snapshot.tag, async |child, _| {
                        self.hold(child, self.changed_mib).await?;
                        self.one(child, BranchMode::Live).await
                    })
                    .await?;
                step.done(&branched.in_short());
                match report.sizes.iter_mut().find(|size| size.memory_mib == snapshot.memory_mib) {
                    Some(size) => size.branched.push(branched),
                    None => {
                        report.sizes.push(Sized { memory_mib: snapshot.memory_mib, branched: vec![branched] })
                    }
                }
            }
        }
        Ok(())
    }

    /// Bytes of the pages of a snapshot that are not zero.
    async fn listed(&self, tag: &str) -> Result<u64, CliError> {
        let layers = self.session.detail(tag).await?.memory_layers;
        Ok(layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.logical_bytes)))
    }

    /// One source, branched in each way.
    async fn modes(&self, tag: &str, report: &mut Report) -> Result<(), CliError> {
        let ui = self.session.ui;
        self.session
            .with_child(tag, async |child, _| {
                let step = ui.step(format!("a sandbox that holds {} MiB", self.changed_mib));
                self.hold(child, self.changed_mib).await?;
                step.done("");
                for mode in MODES {
                    let step = ui.step(format!("branching it, {}", report::name(mode)));
                    let branched = self.one(child, mode).await?;
                    step.done(&branched.in_short());
                    report.modes.push(branched);
                }
                let step = ui.step("branching it, live, without waiting");
                report.no_wait = Some(self.unwaited(child).await?);
                step.done("");
                Ok(())
            })
            .await
    }

    /// Gives a child its memory and its ticker.
    async fn hold(&self, child: &SandboxInfo, mib: u64) -> Result<(), CliError> {
        self.session.eval(child, &format!("{TICKER}\n\nticker = Ticker({mib})\n")).await.map(drop)
    }

    async fn one(&self, child: &SandboxInfo, mode: BranchMode) -> Result<Branched, CliError> {
        self.session.eval(child, "ticker.rewrite()").await?;
        self.session.eval(child, "ticker.begin()").await?;
        let tag = fresh_tag()?;
        let wanted = Wanted { tag: &tag, mode, wait: true };
        let (ticks, branching) = self
            .session
            .with_branch(child, &wanted, async |branching| Ok((self.ticks(child).await?, branching.clone())))
            .await?;
        Ok(branched(mode, ticks, &branching))
    }

    async fn ticks(&self, child: &SandboxInfo) -> Result<Ticks, CliError> {
        let answer = self.session.eval(child, "ticker.end()").await?;
        let ticks = answer.result_json.as_deref().and_then(|json| serde_json::from_str(json).ok());
        ticks.ok_or_else(|| wrong(child, "the ticker said nothing that can be read"))
    }

    /// A live branch that nobody waits for.
    async fn unwaited(&self, child: &SandboxInfo) -> Result<Unwaited, CliError> {
        self.session.eval(child, "ticker.rewrite()").await?;
        let tag = fresh_tag()?;
        let wanted = Wanted { tag: &tag, mode: BranchMode::Live, wait: false };
        self.session
            .with_branch(child, &wanted, async |branching| {
                let written = self.session.written(&tag).await?;
                if written.is_none_or(|snapshot| snapshot.status != "ready") {
                    return Err(wrong(child, "the branch that nobody waited for failed"));
                }
                Ok(Unwaited {
                    call_us: micros(branching.took),
                    workload_pause_ms: branching.made.workload_pause_ms,
                    ready_us: micros(branching.began.elapsed()),
                })
            })
            .await
    }

    /// From asking for a live branch until a child of it has answered, and a fork without a branch, taking turns.
    async fn to_child(&self, tag: &str) -> Result<ToChild, CliError> {
        let changed_mib = self.changed_mib.min(TO_CHILD_MIB);
        let step =
            self.session.ui.step(format!("until a child of a branch answers, {changed_mib} MiB changed"));
        let (mut branched, mut plain) = (Vec::new(), Vec::new());
        self.session
            .with_child(tag, async |child, _| {
                self.hold(child, changed_mib).await?;
                for _ in 0..ROUNDS {
                    plain.push(
                        self.session.with_child(tag, async |_, forking| Ok(micros(forking.took))).await?,
                    );
                    self.session.eval(child, "ticker.rewrite()").await?;
                    branched.push(self.branch_and_fork(child).await?);
                }
                Ok(())
            })
            .await?;
        step.done("");
        Ok(ToChild { changed_mib, branched: Spread::of(branched), plain: Spread::of(plain) })
    }

    async fn branch_and_fork(&self, child: &SandboxInfo) -> Result<u64, CliError> {
        let tag = fresh_tag()?;
        let wanted = Wanted { tag: &tag, mode: BranchMode::Live, wait: true };
        let fork = async |branching: &Branching| {
            let began = branching.began;
            let until = async |_: &SandboxInfo, forking: &Forking| {
                Ok(micros((forking.began + forking.took).duration_since(began)))
            };
            self.session.with_child(tag.as_str(), until).await
        };
        self.session.with_branch(child, &wanted, fork).await
    }
}

fn branched(mode: BranchMode, ticks: Ticks, branching: &Branching) -> Branched {
    let made = &branching.made;
    Branched {
        mode,
        gap_ms: ticks.gap_ms,
        pause_ms: made.pause_ms,
        workload_pause_ms: made.workload_pause_ms,
        written_bytes: made.diff_physical_bytes.unwrap_or(made.memory_physical_bytes),
        call_us: micros(branching.took),
        ticks_before: ticks.ticks_before,
        ticks_after: ticks.ticks_after,
    }
}

fn fresh_tag() -> Result<Tag, CliError> {
    Ok(fresh_name("branch").parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_without_room_is_refused_with_figures() {
        assert!(check_room(256, 512).is_ok());
        let e = check_room(400, 512).unwrap_err();
        assert_eq!(e.exit_code(), 2);
        assert!(e.to_string().contains("512 MiB can rewrite 352 MiB, not 400"), "{e}");
        assert!(check_room(1, 100).is_err());
    }
}
