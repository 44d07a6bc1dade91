//! Forks of a long chain of snapshots against forks of the one that it begins with, which lies on no other.
//!
//! The chain is made by branching a child of its head, step by step, each time with other pages changed here and there.

mod report;

use forkd_protocol::names::Tag;
use forkd_protocol::rest::{BranchMode, CompactSnapshot, SandboxInfo, SnapshotInfo};

pub(crate) use self::report::Report;
use self::report::Subject;
use super::session::{Session, Wanted, fresh_name};
use crate::error::CliError;

/// What is to be measured.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    /// Where.
    pub(crate) session: Session<'a>,
    /// Memory layers of the longest snapshot.
    pub(crate) depth: u32,
    /// How much memory the changes are scattered over.
    pub(crate) mib: u64,
    /// How many pages each step changes.
    pub(crate) pages: u64,
    /// How often each snapshot is forked.
    pub(crate) rounds: u32,
    /// Children of each fork.
    pub(crate) n: u32,
}

/// The snapshots that were made, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Made(Vec<Tag>);

impl Made {
    /// Their names.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    /// Removes all, also where one cannot be; the first failure.
    pub(crate) async fn remove(&self, session: Session<'_>) -> Result<(), CliError> {
        let mut outcome = Ok(());
        for tag in self.0.iter().rev() {
            outcome = outcome.and(session.remove(tag).await);
        }
        outcome
    }
}

impl Bench<'_> {
    /// Makes the chain and forks; what was measured before something broke stays in the report, what was made in
    /// `made`.
    pub(crate) async fn run(&self, report: &mut Report, made: &mut Made) -> Result<(), CliError> {
        let base = report.snapshot.clone();
        let name = fresh_name("chain");
        let head = self.chain(&base, &name, made).await?;
        let flat = self.flat(&head, &name, made).await?;
        report.subjects = vec![
            self.subject("where it begins", &base.tag).await?,
            self.subject("its end", &head.tag).await?,
            self.subject("its end, flattened", &flat.tag).await?,
        ];
        self.rounds(&mut report.subjects).await
    }

    async fn chain(
        &self,
        base: &SnapshotInfo,
        name: &str,
        made: &mut Made,
    ) -> Result<SnapshotInfo, CliError> {
        let step = self.session.ui.step(format!("a chain of {} layers over {}", self.depth, base.tag));
        let mut head = base.clone();
        for depth in base.chain_depth.saturating_add(1)..=self.depth {
            step.note(&format!("{depth} of {}", self.depth));
            let tag: Tag = format!("{name}-{depth}").parse()?;
            // Noted first: what fails half-way is removed as well.
            made.0.push(tag.clone());
            head = self.session.with_child(&head.tag, async |child, _| self.grow(child, &tag).await).await?;
        }
        step.done("");
        Ok(head)
    }

    /// Changes some pages of a child and makes a snapshot of that.
    async fn grow(&self, child: &SandboxInfo, tag: &Tag) -> Result<SnapshotInfo, CliError> {
        self.session.eval(child, &scatter(self.mib, self.pages)).await?;
        let wanted = Wanted { tag, mode: BranchMode::Diff, wait: true };
        Ok(self.session.branch(child, &wanted).await?.made)
    }

    async fn flat(&self, head: &SnapshotInfo, name: &str, made: &mut Made) -> Result<SnapshotInfo, CliError> {
        self.session.stop.check()?;
        let step = self.session.ui.step("the same in one layer");
        let tag: Tag = format!("{name}-flat").parse()?;
        made.0.push(tag.clone());
        let request = CompactSnapshot { to: tag.to_string() };
        let flat = self.session.client.post(&format!("/v1/snapshots/{}/compact", head.tag), &request).await?;
        step.done("");
        Ok(flat)
    }

    async fn subject(&self, what: &'static str, tag: &str) -> Result<Subject, CliError> {
        Ok(Subject::new(what, &self.session.detail(tag).await?))
    }

    /// Forks of each, taking turns; every second round the other way round, so that none is always the first.
    async fn rounds(&self, subjects: &mut [Subject]) -> Result<(), CliError> {
        let step = self.session.ui.step(format!("{} rounds of {} children each", self.rounds, self.n));
        // The first child of a snapshot tells which pages the later ones get ahead.
        for subject in subjects.iter() {
            self.fork(subject, 1).await?;
        }
        for round in 0..self.rounds {
            step.note(&format!("{} of {}", round + 1, self.rounds));
            for turn in 0..subjects.len() {
                let turn = if round % 2 == 0 { turn } else { subjects.len() - 1 - turn };
                if let Some(subject) = subjects.get_mut(turn) {
                    let times = self.fork(subject, self.n).await?;
                    subject.add(&times);
                }
            }
        }
        step.done("");
        Ok(())
    }

    /// When each of `n` children was restored and had answered, microseconds.
    async fn fork(&self, subject: &Subject, n: u32) -> Result<Vec<(u64, u64)>, CliError> {
        self.session
            .with_children(&subject.tag, n, async |children, _| {
                Ok(children.iter().map(|c| (c.timing.restored_us, c.timing.answered_us)).collect())
            })
            .await
    }
}

/// Python that changes pages here and there of memory which it makes where there is none yet.
fn scatter(mib: u64, pages: u64) -> String {
    format!(
        "import os, random\n\
         scattered = globals().get('scattered') or bytearray({mib} << 20)\n\
         for page in random.sample(range({mib} << 8), {pages}):\n    \
         scattered[page << 12:(page << 12) + 8] = os.urandom(8)\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_is_told_where_and_how_much() {
        let code = scatter(64, 512);
        assert!(code.contains("bytearray(64 << 20)") && code.contains("range(64 << 8), 512)"), "{code}");
        assert!(code.contains("\n    scattered[page"), "{code}");
    }
}
