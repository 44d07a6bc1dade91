//! Fault points: named steps of an operation, at which a test ends the process or does it some harm.
//!
//! A crate marks its steps with `fault::at!("crate::operation::step")`, which is compiled into the crate's own tests
//! (`cfg(test)`) and into nothing else. A feature would do the same for more crates at once, but its programs would be
//! built beside, and put in the place of, those that everything else runs.
//!
//! What happens at a point is up to the process, so tests send copies of their own program out on an errand
//! ([`send`]); other tests run in this one at the same time. A test first has one copy note every point that it passes
//! ([`note`]) and then sends one copy for each of them. [`points_of`] reads from a crate's source which there are, so
//! one that no operation passes does not stay unseen.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Signal, getpid, kill_process};

/// What a copy of a test program is told to do.
const ERRAND: &str = "FORKD_TEST_ERRAND";

type Hook = Box<dyn FnMut(&'static str) + Send>;

static HOOK: Mutex<Option<Hook>> = Mutex::new(None);

/// The process is at this point.
pub fn reached(point: &'static str) {
    if let Some(hook) = HOOK.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        hook(point);
    }
}

/// From now on this happens at each point.
pub fn on_each(hook: impl FnMut(&'static str) + Send + 'static) {
    *HOOK.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
}

/// From now on nothing happens at any.
pub fn disarm() {
    *HOOK.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// A point, the n-th time that it is passed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Passage {
    /// Name of the point.
    pub point: String,
    /// From 1.
    pub nth: usize,
}

impl std::fmt::Display for Passage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}", self.point, self.nth)
    }
}

impl Passage {
    /// What [`Passage`] is displayed as.
    fn parse(text: &str) -> Option<Self> {
        let (point, nth) = text.rsplit_once('#')?;
        Some(Self { point: point.to_owned(), nth: nth.parse().ok()? })
    }

    /// Does this once, when the point is passed for the n-th time.
    pub fn then(self, act: impl FnOnce() + Send + 'static) {
        let (mut passed, mut act) = (0, Some(act));
        on_each(move |point| {
            passed += usize::from(point == self.point);
            if passed == self.nth
                && let Some(act) = act.take()
            {
                act();
            }
        });
    }

    /// Kills this process there, as `kill -9` does.
    pub fn then_die(self) {
        self.then(|| {
            let _ = kill_process(getpid(), Signal::KILL);
        });
    }
}

/// Notes each point that is passed in a file.
///
/// # Errors
/// The file cannot be made.
pub fn note(file: &Path) -> std::io::Result<()> {
    let mut file = File::create(file)?;
    on_each(move |point| {
        let _ = writeln!(file, "{point}");
    });
    Ok(())
}

/// What [`note`] wrote.
///
/// # Errors
/// It cannot be read.
pub fn noted(file: &Path) -> std::io::Result<Vec<Passage>> {
    let mut passages: Vec<Passage> = Vec::new();
    for point in fs::read_to_string(file)?.lines() {
        let nth = 1 + passages.iter().filter(|passage| passage.point == point).count();
        passages.push(Passage { point: point.to_owned(), nth });
    }
    Ok(passages)
}

/// What a copy does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Errand {
    /// Which of the test's operations.
    pub operation: String,
    /// The folder that it works in.
    pub folder: PathBuf,
    /// Where it comes to harm; none where it only notes the points.
    pub harm: Option<Passage>,
}

/// What this process was sent for; none where it is no copy.
pub fn errand() -> Option<Errand> {
    let text = std::env::var(ERRAND).ok()?;
    let mut fields = text.split('\n');
    let (operation, folder) = (fields.next()?.to_owned(), fields.next()?.into());
    Some(Errand { operation, folder, harm: fields.next().and_then(Passage::parse) })
}

/// Runs one test of this program again, as a process of its own that is sent on an errand, and waits for it. `test` is
/// its full name.
///
/// # Errors
/// The copy cannot be started.
pub fn send(test: &str, errand: &Errand) -> std::io::Result<Output> {
    let harm = errand.harm.as_ref().map(Passage::to_string).unwrap_or_default();
    Command::new(std::env::current_exe()?)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ERRAND, format!("{}\n{}\n{harm}", errand.operation, errand.folder.display()))
        .stdin(Stdio::null())
        .output()
}

/// The points in the source of the crate at `manifest_dir`.
///
/// # Errors
/// The source cannot be read.
pub fn points_of(manifest_dir: &Path) -> std::io::Result<BTreeSet<String>> {
    let mut points = BTreeSet::new();
    let mut folders = vec![manifest_dir.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = fs::read_to_string(&path)?;
                let calls = source.lines().filter_map(|line| line.trim_start().strip_prefix("fault::at!(\""));
                points.extend(calls.filter_map(|rest| rest.split('"').next()).map(str::to_owned));
            }
        }
    }
    Ok(points)
}
