//! Restoring many at once.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forkd_host::memory::{MemoryUse, memory_use};

use super::monitor::{Monitor, Workshop};
use super::report::{How, Round};
use super::{Saved, guest};
use crate::bench::room::{Place, used};
use crate::bench::spread::{Spread, mean, micros};
use crate::error::CliError;

/// What rounds are made of.
#[derive(Debug)]
pub(super) struct Rounds<'a> {
    workshop: &'a Workshop,
    saved: &'a Saved,
    /// Mappings of files in here are guests' memory.
    folder: &'a Path,
}

/// Children that run, and when they did.
struct Restored<'a> {
    began: Instant,
    spawned: Option<Duration>,
    restored: Duration,
    children: Vec<Monitor<'a>>,
    /// What each monitor says its part took.
    inside: Vec<u64>,
    free_before: Option<u64>,
}

impl<'a> Rounds<'a> {
    pub(super) fn new(workshop: &'a Workshop, saved: &'a Saved, folder: &'a Path) -> Self {
        Self { workshop, saved, folder }
    }

    /// All are started, then all are restored, then all are pinged, one after the other.
    pub(super) fn in_a_row(&self, n: u32) -> Result<Round, CliError> {
        let free_before = Place::Here.available_mib();
        let began = Instant::now();
        let mut children = (0..n).map(|i| self.start(i)).collect::<Result<Vec<_>, _>>()?;
        let spawned = Some(began.elapsed());
        let inside = children.iter_mut().map(|c| c.restore(self.saved)).collect::<Result<_, _>>()?;
        let restored = began.elapsed();
        self.ping(How::InARow, Restored { began, spawned, restored, children, inside, free_before })
    }

    /// The same with monitors that wait already: the clock starts when they do.
    pub(super) fn started_ahead(&self, n: u32) -> Result<Round, CliError> {
        let free_before = Place::Here.available_mib();
        let mut children = (0..n).map(|i| self.start(i)).collect::<Result<Vec<_>, _>>()?;
        children.iter_mut().try_for_each(Monitor::ready)?;
        let began = Instant::now();
        let inside = children.iter_mut().map(|c| c.restore(self.saved)).collect::<Result<_, _>>()?;
        let restored = began.elapsed();
        let how = How::StartedAhead;
        self.ping(how, Restored { began, spawned: None, restored, children, inside, free_before })
    }

    /// Each is started and restored by one of as many threads as there are processors.
    pub(super) fn side_by_side(&self, n: u32) -> Result<Round, CliError> {
        let free_before = Place::Here.available_mib();
        let threads = thread::available_parallelism().map_or(1, usize::from).min(n as usize);
        let (next, done) = (AtomicU32::new(0), Mutex::new(Vec::new()));
        let began = Instant::now();
        thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= n {
                            return;
                        }
                        let born = self.bear(number);
                        done.lock().unwrap_or_else(PoisonError::into_inner).push(born);
                    }
                });
            }
        });
        let restored = began.elapsed();
        let born = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        let born = born.into_iter().collect::<Result<Vec<_>, _>>()?;
        let (children, inside) = born.into_iter().unzip();
        self.ping(How::SideBySide, Restored { began, spawned: None, restored, children, inside, free_before })
    }

    fn start(&self, number: u32) -> Result<Monitor<'a>, CliError> {
        self.workshop.start(&format!("c{number}"))
    }

    fn bear(&self, number: u32) -> Result<(Monitor<'a>, u64), CliError> {
        let mut child = self.start(number)?;
        let inside = child.restore(self.saved)?;
        Ok((child, inside))
    }

    /// Waits until all have answered, looks at them while they live, and ends them.
    fn ping(&self, how: How, restored: Restored<'a>) -> Result<Round, CliError> {
        let Restored { began, spawned, restored, mut children, inside, free_before } = restored;
        for child in &mut children {
            child.ping()?;
        }
        for child in &mut children {
            child.await_word(guest::PONG)?;
        }
        let answered = began.elapsed();
        let free_after = Place::Here.available_mib();
        let n = u32::try_from(children.len()).unwrap_or(u32::MAX);
        let rollups = children.iter().map(|c| rollup(c.pid())).collect::<Result<Vec<_>, _>>()?;
        let uses = children.iter().map(|c| self.memory_use(c.pid())).collect::<Result<Vec<_>, _>>()?;
        // All of them before any is waited for: they take apart their machines side by side.
        children.iter_mut().for_each(Monitor::kill);
        drop(children);
        Ok(Round {
            n,
            how,
            spawned_us: spawned.map(micros),
            restored_us: micros(restored),
            answered_us: micros(answered),
            inside: Spread::of(inside),
            private_bytes: mean(rollups.iter().map(|r| r.private_bytes)),
            pss_bytes: mean(rollups.iter().map(|r| r.pss_bytes)),
            monitor_private_bytes: mean(uses.iter().map(|u| u.monitor_private)),
            guest_private_bytes: mean(uses.iter().map(|u| u.guest_private)),
            host_bytes: used(free_before, free_after, n),
        })
    }

    fn memory_use(&self, pid: u32) -> Result<MemoryUse, CliError> {
        memory_use(pid, self.folder).map_err(|e| CliError::io("reading the memory of a monitor", e))
    }
}

/// What the kernel sums up of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Rollup {
    private_bytes: u64,
    pss_bytes: u64,
}

fn rollup(pid: u32) -> Result<Rollup, CliError> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"));
    text.map(|text| parse(&text)).map_err(|e| CliError::io("reading the memory of a monitor", e))
}

fn parse(text: &str) -> Rollup {
    let mut sum = Rollup::default();
    for (key, value) in text.lines().filter_map(|line| line.split_once(':')) {
        let kib = value.trim().strip_suffix(" kB").and_then(|v| v.trim().parse::<u64>().ok());
        let bytes = kib.unwrap_or_default().saturating_mul(1024);
        match key {
            "Private_Clean" | "Private_Dirty" => sum.private_bytes = sum.private_bytes.saturating_add(bytes),
            "Pss" => sum.pss_bytes = bytes,
            _ => {}
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollup_is_read_as_the_reference_reads_it() {
        let text = "55d0-7ffe ---p 00000000 00:00 0    [rollup]\nRss:    2000 kB\nPss:     700 kB\n\
                    Pss_Anon:  100 kB\nPrivate_Clean:  12 kB\nPrivate_Dirty:  88 kB\nPrivate_Hugetlb: 0 kB\n";
        assert_eq!(parse(text), Rollup { private_bytes: 100 << 10, pss_bytes: 700 << 10 });
        assert_eq!(parse("nothing"), Rollup::default());
        assert!(rollup(std::process::id()).unwrap().private_bytes > 0);
    }
}
