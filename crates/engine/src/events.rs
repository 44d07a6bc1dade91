//! What happens, told to whoever wants to know, and kept for a while.
//!
//! Whoever makes something happen only says so; one task numbers what it hears, writes it into the registry, and then
//! shows that there is news. Followers read the registry, so a slow one holds nobody up and misses nothing that is kept.

use forkd_protocol::error::chain;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{EventInfo, EventKind, SandboxInfo};
use forkd_store::Store;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::warn;

use crate::engine::{Engine, blocking};
use crate::error::EngineError;
use crate::settings::now_ms;

/// How many are kept.
pub const KEPT_EVENTS: u64 = 10_000;
/// Most that are written in one go.
const AT_ONCE: usize = 256;
/// Longest detail, bytes: some of it is a guest's last words.
const LONGEST_DETAIL: usize = 1024;

/// Where what happens is said.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    said: mpsc::UnboundedSender<Said>,
    newest: watch::Receiver<u64>,
}

#[derive(Debug)]
enum Said {
    Event(EventInfo),
    /// Answered when all that was said before is written.
    Written(oneshot::Sender<()>),
}

impl Events {
    /// Begins to write; ends when nobody can say anything any more.
    pub(crate) fn open(store: Store) -> Self {
        let (said, hear) = mpsc::unbounded_channel();
        let (show, newest) = watch::channel(0);
        tokio::spawn(keep(store, hear, show));
        Self { said, newest }
    }

    /// Something happened to a sandbox.
    pub(crate) fn sandbox(&self, kind: EventKind, info: &SandboxInfo, detail: Option<&str>) {
        self.say(EventInfo {
            tag: Some(info.snapshot_tag.clone()),
            tenant: info.tenant.clone(),
            detail: detail.map(bounded),
            ..event(kind, &info.id)
        });
    }

    /// A sandbox became a snapshot of this tag.
    pub(crate) fn branched(&self, info: &SandboxInfo, tag: &Tag) {
        let tag = Some(tag.to_string());
        self.say(EventInfo { tag, tenant: info.tenant.clone(), ..event(EventKind::Branched, &info.id) });
    }

    /// Something happened to a snapshot. `owner` is whose its tag is.
    pub(crate) fn snapshot(&self, kind: EventKind, tag: &str, owner: Option<String>, detail: Option<&str>) {
        let detail = detail.map(bounded);
        self.say(EventInfo { tag: Some(tag.to_owned()), tenant: owner, detail, ..event(kind, tag) });
    }

    /// There is a snapshot of this tag; blocks.
    pub(crate) fn made(&self, store: &Store, tag: &str) {
        // One whose owner cannot be read is told to the operator alone.
        let owner = tag.parse().ok().and_then(|tag| store.tag_owner(&tag).ok().flatten());
        self.snapshot(EventKind::SnapshotMade, tag, owner, None);
    }

    /// Something happened to an image or a kernel.
    pub(crate) fn artifact(&self, kind: EventKind, name: &str) {
        self.say(event(kind, name));
    }

    fn say(&self, event: EventInfo) {
        // Unheard where the controller is ending.
        let _ = self.said.send(Said::Event(event));
    }
}

fn event(kind: EventKind, subject: &str) -> EventInfo {
    EventInfo {
        seq: 0,
        at_unix_ms: now_ms(),
        kind,
        subject: subject.to_owned(),
        tag: None,
        tenant: None,
        detail: None,
    }
}

fn bounded(detail: &str) -> String {
    detail[..detail.floor_char_boundary(LONGEST_DETAIL)].to_owned()
}

async fn keep(store: Store, mut hear: mpsc::UnboundedReceiver<Said>, show: watch::Sender<u64>) {
    let mut said = Vec::with_capacity(AT_ONCE);
    while hear.recv_many(&mut said, AT_ONCE).await > 0 {
        let mut events = Vec::new();
        let mut waiting = Vec::new();
        for one in said.drain(..) {
            match one {
                Said::Event(event) => events.push(event),
                Said::Written(answer) => waiting.push(answer),
            }
        }
        let store = store.clone();
        let written = blocking(move || {
            store.put_events(&mut events, KEPT_EVENTS)?;
            Ok::<_, EngineError>(events.last().map(|event| event.seq))
        });
        match written.await.and_then(|written| written) {
            Ok(Some(newest)) => drop(show.send_replace(newest)),
            Ok(None) => {}
            Err(e) => warn!(error = %chain(&e), "events were not kept"),
        }
        for answer in waiting {
            // Whoever waited may have left.
            let _ = answer.send(());
        }
    }
}

impl Engine {
    /// What happened after number `after`, oldest first; at most [`KEPT_EVENTS`].
    ///
    /// # Errors
    /// The registry cannot be read.
    pub async fn events(&self, after: u64) -> Result<Vec<EventInfo>, EngineError> {
        let (answer, written) = oneshot::channel();
        let asked = self.shared.events.said.send(Said::Written(answer)).is_ok();
        if asked {
            // Unanswered where the controller is ending: what is written is written.
            let _ = written.await;
        }
        self.in_store(move |store| store.events(after)).await
    }

    /// Number of the newest event.
    ///
    /// # Errors
    /// The registry cannot be read.
    pub async fn newest_event(&self) -> Result<u64, EngineError> {
        self.in_store(|store| store.newest_event()).await
    }

    /// Changes whenever something has happened.
    pub fn news(&self) -> watch::Receiver<u64> {
        self.shared.events.newest.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_said_is_written_in_its_order_before_anybody_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let events = Events::open(store.clone());
        let mut news = events.newest.clone();
        let long = "ü".repeat(LONGEST_DETAIL);
        events.snapshot(EventKind::SnapshotFailed, "a", None, Some(&long));
        events.artifact(EventKind::ImageMade, "py");
        news.wait_for(|newest| *newest == 2).await.unwrap();
        let kept = store.events(0).unwrap();
        assert_eq!(kept.iter().map(|e| e.subject.as_str()).collect::<Vec<_>>(), ["a", "py"]);
        assert_eq!(kept[0].detail.as_ref().map(String::len), Some(LONGEST_DETAIL));
    }
}
