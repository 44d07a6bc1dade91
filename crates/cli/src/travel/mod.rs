//! Snapshots between controllers, files and hubs: what `pack`, `unpack`, `push` and `pull` have in common.
//!
//! ```text
//!   export   a controller's snapshot: its document, its objects
//!   import   a controller that takes a bundle in: what it lacks, object by object, and the end
//! ```

mod export;
mod import;

use std::sync::atomic::{AtomicBool, Ordering};

use forkd_hub::HubError;
use forkd_protocol::digest::Digest;
use forkd_protocol::rest::{Bundle, Fate, Transfer};
use forkd_store::StoreError;
use futures::{StreamExt, future, stream};

pub(crate) use self::export::Exported;
pub(crate) use self::import::Importing;
use crate::error::{BoxError, CliError};
use crate::ui;

/// Objects on their way at once: enough to keep both ends busy, and a few tens of MiB of memory.
pub(crate) const AT_ONCE: usize = 4;

/// Does `work` for each, a few at a time. After a failure nothing more is begun, and what is under way is done to its
/// end: whoever goes on need not do it again.
pub(crate) async fn each<I, T, F>(
    items: impl IntoIterator<Item = I>,
    work: impl FnMut(I) -> F,
    mut done: impl FnMut(T),
) -> Result<(), CliError>
where
    F: Future<Output = Result<T, CliError>>,
{
    let failed = AtomicBool::new(false);
    let begun = stream::iter(items).take_while(|_| future::ready(!failed.load(Ordering::Relaxed)));
    let mut ended = std::pin::pin!(begun.map(work).buffer_unordered(AT_ONCE));
    let mut failure = None;
    while let Some(outcome) = ended.next().await {
        match outcome {
            Ok(one) => done(one),
            Err(e) => {
                failed.store(true, Ordering::Relaxed);
                failure.get_or_insert(e);
            }
        }
    }
    failure.map_or(Ok(()), Err)
}

/// What a bundle is called by.
pub(crate) fn digest_of(document: &[u8]) -> Digest {
    Digest::of(document)
}

/// Reads a document.
pub(crate) fn parse(document: &[u8]) -> Result<Bundle, CliError> {
    serde_json::from_slice(document).map_err(|e| {
        CliError::caused(forkd_protocol::error::ErrorClass::Caller, "reading the bundle's document", e)
    })
}

/// How much of a transfer was done.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Moved {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

impl Moved {
    pub(crate) fn add(&mut self, object: &[u8]) {
        self.objects += 1;
        self.bytes += object.len() as u64;
    }

    /// The outcome of a verb.
    pub(crate) fn transfer(self, bundle: &Bundle, tag: &str, id: String, place: String) -> Transfer {
        Transfer {
            tag: tag.to_owned(),
            id,
            place,
            objects: bundle.objects().len() as u64,
            objects_moved: self.objects,
            bytes_moved: self.bytes,
            snapshots: Vec::new(),
        }
    }
}

/// An outcome in words.
pub(crate) fn render(done: &Transfer) -> String {
    let there = done.objects.saturating_sub(done.objects_moved);
    let mut text = format!(
        "{}: {} of {} objects moved ({}), {there} were there\n",
        done.tag,
        done.objects_moved,
        done.objects,
        ui::size(done.bytes_moved)
    );
    for ancestor in done.snapshots.iter().rev().skip(1) {
        let what = match ancestor.fate {
            Fate::New => "taken in, too",
            Fate::Present => "was there",
            Fate::Unnamed => "left without a tag: that tag names another snapshot here",
        };
        text.push_str(&ui::plain(&format!("ancestor {}: {what}", ancestor.tag)));
        text.push('\n');
    }
    text
}

impl From<StoreError> for CliError {
    fn from(e: StoreError) -> Self {
        local(e.class(), &e)
    }
}

impl From<HubError> for CliError {
    fn from(e: HubError) -> Self {
        local(e.class(), &e)
    }
}

fn local(class: forkd_protocol::error::ErrorClass, e: &dyn std::error::Error) -> CliError {
    let source = e.source().map(|s| BoxError::from(forkd_protocol::error::chain(s)));
    CliError::Local { class, message: e.to_string(), source, hint: None }
}
