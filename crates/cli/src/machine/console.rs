//! What the machine says on its console while it starts (packaging/machine writes these lines).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Lines longer than this are not ours.
const LONGEST: usize = 4096;

/// A line that means something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// What it does now.
    Stage(String),
    /// It gives up.
    Failed(String),
    /// Something did not go as wished; it goes on.
    Note(String),
    /// The controller was started.
    ControllerStarts,
    /// The controller ended.
    ControllerEnded,
    /// Its kernel says that one of its processors stands still.
    Stalled,
}

/// What Linux says where a processor has lost its timer.
const STALL: &str = "rcu_preempt detected stalls on CPUs/tasks";

/// What `line` means, if it is one of ours.
fn parse(line: &str) -> Option<Event> {
    if line.contains(STALL) {
        return Some(Event::Stalled);
    }
    let said = line.trim().strip_prefix("forkd-machine: ")?;
    let owned = str::to_owned;
    let stage = said.strip_prefix("stage ").map(|s| Event::Stage(doing(s)));
    stage
        .or_else(|| said.strip_prefix("failed: ").map(owned).map(Event::Failed))
        .or_else(|| said.strip_prefix("note: ").map(owned).map(Event::Note))
        .or_else(|| (said == "controller starts").then_some(Event::ControllerStarts))
        .or_else(|| said.starts_with("controller ended").then_some(Event::ControllerEnded))
}

fn doing(stage: &str) -> String {
    match stage {
        "modules" => "loading modules",
        "disks" => "opening its disks",
        "system" => "setting up the system",
        "network" => "setting up the network",
        "data disk" => "checking the data disk",
        "ready" => "starting the controller",
        "halt" => "halting",
        other => other,
    }
    .to_owned()
}

/// Reads the console's log as it grows.
#[derive(Debug)]
pub(crate) struct Console {
    file: File,
    partial: Vec<u8>,
}

impl Console {
    /// From the first line on.
    pub(crate) fn from_start(log: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(log)?, partial: Vec::new() })
    }

    /// What is said from now on.
    pub(crate) fn from_now(log: &Path) -> io::Result<Self> {
        let mut console = Self::from_start(log)?;
        console.file.seek(SeekFrom::End(0))?;
        Ok(console)
    }

    /// What was said since the last call.
    pub(crate) fn events(&mut self) -> io::Result<Vec<Event>> {
        let mut events = Vec::new();
        let mut chunk = [0u8; 8192];
        loop {
            let count = self.file.read(&mut chunk)?;
            if count == 0 {
                return Ok(events);
            }
            for &byte in &chunk[..count] {
                if byte == b'\n' {
                    events.extend(parse(&String::from_utf8_lossy(&self.partial)));
                    self.partial.clear();
                } else if self.partial.len() < LONGEST {
                    self.partial.push(byte);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_are_understood_however_they_arrive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("serial.log");
        let mut log = File::create(&path).unwrap();
        let mut console = Console::from_start(&path).unwrap();
        log.write_all(b"[ 0.1] kernel\r\nforkd-machine: stage mod").unwrap();
        assert_eq!(console.events().unwrap(), []);
        log.write_all(b"ules\r\nforkd-machine: failed: no root disk\r\n\xff\n").unwrap();
        let said = console.events().unwrap();
        assert_eq!(said, [Event::Stage("loading modules".into()), Event::Failed("no root disk".into())]);
        let mut later = Console::from_now(&path).unwrap();
        log.write_all(b"forkd-machine: controller starts\nforkd-machine: controller ended with 1\n").unwrap();
        assert_eq!(later.events().unwrap(), [Event::ControllerStarts, Event::ControllerEnded]);
        log.write_all(b"[   24.161714] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\r\n").unwrap();
        assert_eq!(later.events().unwrap(), [Event::Stalled]);
        log.write_all(&[b'x'; 10_000]).unwrap();
        log.write_all(b"\nforkd-machine: note: a\n").unwrap();
        assert_eq!(later.events().unwrap(), [Event::Note("a".into())]);
    }

    #[test]
    fn every_stage_of_the_scripts_has_words_for_people() {
        let scripts = [
            include_str!("../../../../packaging/machine/ramdisk-init"),
            include_str!("../../../../packaging/machine/boot"),
            include_str!("../../../../packaging/machine/halt"),
        ];
        let stages: Vec<_> = scripts
            .iter()
            .flat_map(|s| s.lines())
            .filter_map(|l| l.split_once("stage ").map(|(_, s)| s.split('"').next().unwrap()))
            .collect();
        assert!(stages.len() >= 6, "{stages:?}");
        for stage in stages {
            assert_ne!(doing(stage), stage);
        }
    }
}
