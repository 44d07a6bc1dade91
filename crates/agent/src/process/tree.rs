//! A process with everything it has started.

use std::collections::HashSet;
use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cgroup::Cgroup;
use crate::reaper::Reaper;

/// Rounds of looking for descendants that were made while others were being killed.
const ROUNDS: usize = 64;

/// Ends or signals a process tree. Dropping it ends nothing.
#[derive(Debug)]
pub(crate) struct Tree {
    pid: i32,
    /// Absent only where the agent may not make cgroups, as in tests on a development machine.
    cgroup: Option<Cgroup>,
    reaper: Reaper,
}

impl Tree {
    pub(crate) fn new(pid: i32, cgroup: Option<Cgroup>, reaper: Reaper) -> Self {
        Self { pid, cgroup, reaper }
    }

    /// SIGKILL to all of it, also to what has left the session.
    pub(crate) fn kill(&self) {
        match &self.cgroup {
            Some(cgroup) => {
                if let Err(e) = cgroup.kill() {
                    crate::log::warn(format_args!("cannot end the processes of {}: {e}", self.pid));
                }
            }
            None => self.kill_by_search(),
        }
    }

    /// A signal to the main process, as its parent may send it.
    pub(crate) fn signal(&self, signal: Signal) {
        self.reaper.signal(self.pid, signal, false);
    }

    /// As [`Self::signal`], for numbers that have no name.
    pub(crate) fn signal_number(&self, number: i32) {
        self.reaper.signal_number(self.pid, number);
    }

    /// A signal to the main process and those that share its process group, as a terminal would send it.
    pub(crate) fn signal_group(&self, signal: Signal) {
        self.reaper.signal(self.pid, signal, true);
    }

    fn kill_by_search(&self) {
        for _ in 0..ROUNDS {
            let victims = self.members();
            if victims.is_empty() {
                return;
            }
            // The main process first, so that it does not live to report the end of the others.
            self.reaper.signal(self.pid, Signal::SIGKILL, false);
            for pid in victims {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
    }

    /// Living members by session and by parent. What a double fork has hidden from both is not found.
    fn members(&self) -> HashSet<i32> {
        let table = process_table();
        let mut members: HashSet<i32> =
            table.iter().filter(|entry| entry.session == self.pid).map(|entry| entry.pid).collect();
        if self.reaper.knows(self.pid) {
            members.insert(self.pid);
        }
        loop {
            let before = members.len();
            members.extend(
                table
                    .iter()
                    .filter(|e| e.parent == self.pid || members.contains(&e.parent))
                    .map(|e| e.pid)
                    .collect::<Vec<_>>(),
            );
            if members.len() == before {
                break;
            }
        }
        let living: HashSet<i32> = table.iter().filter(|entry| entry.living).map(|entry| entry.pid).collect();
        members.retain(|pid| living.contains(pid));
        members
    }
}

struct Entry {
    pid: i32,
    parent: i32,
    session: i32,
    living: bool,
}

fn process_table() -> Vec<Entry> {
    let Ok(folder) = fs::read_dir("/proc") else { return Vec::new() };
    folder
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read(entry.path().join("stat")).ok()?;
            parse_stat(pid, &String::from_utf8_lossy(&stat))
        })
        .collect()
}

/// The name in the second field may contain anything, so fields count from its last bracket.
fn parse_stat(pid: i32, stat: &str) -> Option<Entry> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let living = !matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Entry { pid, parent, session, living })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_contain_brackets() {
        let entry = parse_stat(7, "7 (a) S b) S 3 4 5 0 -1").unwrap();
        assert_eq!((entry.parent, entry.session, entry.living), (3, 5, true));
        assert!(!parse_stat(7, "7 (a) Z 3 4 5").unwrap().living);
        assert!(parse_stat(7, "7 (a").is_none());
    }
}
