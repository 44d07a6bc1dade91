//! Watching folders: a stream of events (`WatchDir`), or a list that is asked for (`CreateWatcher`).
//!
//! The kernel watches one folder at a time (inotify(7)), so a recursive watch adds what is below, also what is made
//! later; what was made in a new folder before it was watched is told as made.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::connect::{self, Code, ConnectError, Empty, STREAM, read_first, read_unary, unary};
use super::entry::{Entry, Names};
use super::filesystem::{clean, failed};
use super::process::keepalive;
use crate::agent::Agent;
use crate::http::{Body, Response};
use crate::users::User;

/// Folders of one watcher, events that wait for one, and watchers that are asked.
const FOLDERS_MAX: usize = 10_000;
const EVENTS_MAX: usize = 10_000;
const WATCHERS_MAX: usize = 256;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatchRequest {
    #[serde(default)]
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    include_entry: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    watcher_id: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Created {
    watcher_id: String,
}

/// What happened to a file, as clients read it.
#[derive(Debug, Serialize)]
struct Event {
    /// Relative to the folder that is watched.
    name: String,
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<Entry>,
}

#[derive(Debug, Serialize)]
struct Events {
    events: Vec<Event>,
}

/// Watchers whose events are asked for. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watchers(Arc<Mutex<BTreeMap<String, Watcher>>>);

/// Answers one of the four methods.
pub(super) async fn call(agent: Rc<Agent>, method: &str, request: Request<Incoming>, user: User) -> Response {
    match method {
        "WatchDir" => stream(request, user).await.unwrap_or_else(ConnectError::into_stream),
        "CreateWatcher" => unary(create(&agent.watchers, request, user).await),
        "GetWatcherEvents" => unary(events(&agent.watchers, request).await),
        _ => unary(remove(&agent.watchers, request).await),
    }
}

async fn stream(request: Request<Incoming>, user: User) -> Result<Response, ConnectError> {
    let keepalive = keepalive(request.headers());
    let watcher = Watcher::start(read_first(request).await?, user).await?;
    let view = View { watcher, keepalive, waiting: VecDeque::new(), stage: Stage::Start };
    let frames = futures::stream::unfold(view, |mut view| async {
        let frame = view.next().await?;
        Some((Ok(frame), view))
    });
    Ok(Body::pieces(frames).respond(StatusCode::OK, STREAM))
}

async fn create(
    watchers: &Watchers,
    request: Request<Incoming>,
    user: User,
) -> Result<Created, ConnectError> {
    let watcher = Watcher::start(read_unary(request).await?, user).await?;
    let mut table = watchers.0.lock().unwrap_or_else(PoisonError::into_inner);
    if table.len() >= WATCHERS_MAX {
        let message = format!("{WATCHERS_MAX} watchers are there already; remove some");
        return Err(ConnectError::new(Code::ResourceExhausted, message));
    }
    let watcher_id = format!("w-{:016x}", rand::random::<u64>());
    table.insert(watcher_id.clone(), watcher);
    Ok(Created { watcher_id })
}

async fn events(watchers: &Watchers, request: Request<Incoming>) -> Result<Events, ConnectError> {
    let Named { watcher_id } = read_unary(request).await?;
    let mut table = watchers.0.lock().unwrap_or_else(PoisonError::into_inner);
    let watcher = table.get_mut(&watcher_id).ok_or_else(|| unknown(&watcher_id))?;
    let events = watcher.read().map_err(|e| failed(&watcher.root, &e))?;
    Ok(Events { events })
}

async fn remove(watchers: &Watchers, request: Request<Incoming>) -> Result<Empty, ConnectError> {
    let Named { watcher_id } = read_unary(request).await?;
    let removed = watchers.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&watcher_id);
    removed.map(|_| Empty {}).ok_or_else(|| unknown(&watcher_id))
}

fn unknown(id: &str) -> ConnectError {
    ConnectError::new(Code::NotFound, format!("watcher {id:.40} not found"))
}

/// One client's stream of events.
struct View {
    watcher: Watcher,
    keepalive: Duration,
    waiting: VecDeque<Event>,
    stage: Stage,
}

enum Stage {
    Start,
    Events,
    Over,
}

impl View {
    async fn next(&mut self) -> Option<Bytes> {
        match self.stage {
            Stage::Start => {
                self.stage = Stage::Events;
                return Some(connect::message(&json!({ "start": {} })));
            }
            Stage::Events => {}
            Stage::Over => return None,
        }
        let silent = Instant::now() + self.keepalive;
        while self.waiting.is_empty() {
            match tokio::time::timeout_at(silent, self.watcher.wait()).await {
                Err(_) => return Some(connect::message(&json!({ "keepalive": {} }))),
                Ok(Ok(events)) => self.waiting.extend(events),
                Ok(Err(e)) => {
                    self.stage = Stage::Over;
                    return Some(connect::end(Some(&failed(&self.watcher.root, &e))));
                }
            }
        }
        let event = self.waiting.pop_front()?;
        Some(connect::message(&json!({ "filesystem": event })))
    }
}

/// A folder that is watched, perhaps with all below it.
#[derive(Debug)]
struct Watcher {
    root: PathBuf,
    recursive: bool,
    with_entries: bool,
    inotify: Inotify,
    ready: AsyncFd<OwnedFd>,
    folders: HashMap<WatchDescriptor, PathBuf>,
}

impl Watcher {
    async fn start(request: WatchRequest, user: User) -> Result<Self, ConnectError> {
        let root = clean(&request.path, &user)?;
        let metadata = std::fs::metadata(&root).map_err(|e| failed(&root, &e))?;
        if !metadata.is_dir() {
            return Err(ConnectError::invalid(format!("path {} is not a directory", root.display())));
        }
        let made = Self::new(root.clone(), request.recursive, request.include_entry);
        let mut watcher = made.map_err(|e| failed(&root, &e))?;
        watcher.add(&root, &mut Vec::new()).map_err(|e| failed(&root, &e))?;
        Ok(watcher)
    }

    fn new(root: PathBuf, recursive: bool, with_entries: bool) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let ready = crate::sys::watch(std::os::fd::AsFd::as_fd(&inotify).try_clone_to_owned()?)?;
        Ok(Self { root, recursive, with_entries, inotify, ready, folders: HashMap::new() })
    }

    /// Watches a folder, and what is below it where that is wanted; `found` gets what is in there already.
    fn add(&mut self, folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
        let wanted = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_ONLYDIR
            | AddWatchFlags::IN_DONT_FOLLOW;
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            if self.folders.len() >= FOLDERS_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::QuotaExceeded,
                    format!("more than {FOLDERS_MAX} folders to watch"),
                ));
            }
            // The folder that was named may be a link; those below are not followed.
            let flags = if folder == self.root { wanted - AddWatchFlags::IN_DONT_FOLLOW } else { wanted };
            match self.inotify.add_watch(&folder, flags) {
                Ok(descriptor) => drop(self.folders.insert(descriptor, folder.clone())),
                // Gone again, or no folder any more.
                Err(Errno::ENOENT | Errno::ENOTDIR) if folder != self.root => continue,
                Err(e) => return Err(e.into()),
            }
            if self.recursive {
                for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
                    found.push(entry.path());
                    if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                        folders.push(entry.path());
                    }
                }
            }
        }
        Ok(())
    }

    /// What happened since the last time; waits until something has.
    async fn wait(&mut self) -> io::Result<Vec<Event>> {
        loop {
            let events = self.read()?;
            if !events.is_empty() {
                return Ok(events);
            }
            let mut ready = self.ready.readable().await?;
            ready.clear_ready();
            drop(ready);
        }
    }

    /// What happened since the last time.
    fn read(&mut self) -> io::Result<Vec<Event>> {
        let mut events = Vec::new();
        while events.len() < EVENTS_MAX {
            match self.inotify.read_events() {
                Ok(raw) => {
                    for event in raw {
                        self.take(&event, &mut events)?;
                    }
                }
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(events)
    }

    fn take(&mut self, raw: &InotifyEvent, events: &mut Vec<Event>) -> io::Result<()> {
        if raw.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            return Err(io::Error::other("more happened than could be kept; watch anew"));
        }
        if raw.mask.contains(AddWatchFlags::IN_IGNORED) {
            self.folders.remove(&raw.wd);
            return Ok(());
        }
        let (Some(folder), Some(name)) = (self.folders.get(&raw.wd), &raw.name) else { return Ok(()) };
        let path = folder.join(name);
        let Some(kind) = kind_of(raw.mask) else { return Ok(()) };
        let appeared = raw.mask.intersects(AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO);
        events.push(self.event(&path, kind));
        if appeared && self.recursive && raw.mask.contains(AddWatchFlags::IN_ISDIR) {
            let mut found = Vec::new();
            self.add(&path, &mut found)?;
            events.extend(found.iter().map(|path| self.event(path, CREATE)));
        }
        Ok(())
    }

    fn event(&self, path: &Path, kind: &'static str) -> Event {
        let name = path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy().into_owned();
        let entry = self.with_entries.then(|| Entry::of(path, &Names::read()).ok()).flatten();
        Event { name, r#type: kind, entry }
    }
}

const CREATE: &str = "EVENT_TYPE_CREATE";

/// What an event is called. A file that is moved away is renamed, one that is moved here is made.
fn kind_of(mask: AddWatchFlags) -> Option<&'static str> {
    let kinds = [
        (AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO, CREATE),
        (AddWatchFlags::IN_MODIFY, "EVENT_TYPE_WRITE"),
        (AddWatchFlags::IN_DELETE, "EVENT_TYPE_REMOVE"),
        (AddWatchFlags::IN_MOVED_FROM, "EVENT_TYPE_RENAME"),
        (AddWatchFlags::IN_ATTRIB, "EVENT_TYPE_CHMOD"),
    ];
    kinds.into_iter().find(|(flags, _)| mask.intersects(*flags)).map(|(_, kind)| kind)
}
