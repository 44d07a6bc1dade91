//! The tag of a snapshot that is being made.

use forkd_protocol::names::Tag;
use rusqlite::{ErrorCode, Transaction, params};

use crate::chain::name_content;
use crate::content::{Content, forget};
use crate::db::to_sql;
use crate::disk;
use crate::error::StoreError;
use crate::fault;
use crate::manifest::Manifest;
use crate::service::{keep_owner, owner_in};
use crate::store::{Store, now};

/// Frees the tag of a draft, unless it was published.
const FREE_TAG: &str = "DELETE FROM snapshots WHERE draft = ?1 AND status = 'writing'";

/// A tag whose row says `writing`; the row goes away with this, unless it was made `ready`.
#[derive(Debug)]
pub(crate) struct ReservedTag {
    store: Store,
    tag: Tag,
    /// Tells this reservation from a later one of the same tag.
    draft: String,
    /// Id of the snapshot that has the tag until then.
    replaces: Option<String>,
}

/// A snapshot that has lost its tag to another.
#[derive(Debug)]
pub(crate) struct Replaced {
    id: String,
    doomed: Vec<Content>,
}

impl ReservedTag {
    /// Takes a tag that is free.
    pub(crate) fn new(store: &Store, tag: &Tag) -> Result<Self, StoreError> {
        let draft = uuid::Uuid::new_v4().to_string();
        insert(store, tag.as_str(), &draft)?;
        Ok(Self { store: store.clone(), tag: tag.clone(), draft, replaces: None })
    }

    /// Is to take a tag from the snapshot of this id. Its row has a name meanwhile that no tag can have.
    pub(super) fn beside(store: &Store, tag: &Tag, old: &str) -> Result<Self, StoreError> {
        let draft = uuid::Uuid::new_v4().to_string();
        insert(store, &format!("~{draft}"), &draft)?;
        Ok(Self { store: store.clone(), tag: tag.clone(), draft, replaces: Some(old.to_owned()) })
    }

    pub(crate) fn tag(&self) -> &Tag {
        &self.tag
    }

    /// Makes the snapshot exist, and one that it replaces not, once the transaction is committed.
    pub(crate) fn fulfil(
        &self,
        t: &Transaction<'_>,
        id: &str,
        text: &str,
        manifest: &Manifest,
    ) -> Result<Option<Replaced>, StoreError> {
        let failed = |e| self.store.shared.db.failed(e);
        name_content(t, id, manifest).map_err(failed)?;
        let owner = owner_in(t, &self.tag).map_err(failed)?;
        let replaced = self.replaces.as_deref().map(|old| self.untag(t, old)).transpose()?;
        let update =
            "UPDATE snapshots SET status = 'ready', id = ?1, manifest = ?2, tag = ?3 WHERE draft = ?4";
        match t.execute(update, [id, text, self.tag.as_str(), &self.draft]).map_err(failed)? {
            1 => {}
            // The registry was changed by somebody else.
            _ => return Err(failed(rusqlite::Error::QueryReturnedNoRows)),
        }
        keep_owner(t, &self.tag, owner).map_err(failed)?;
        let doomed = || forget(t).map_err(failed);
        replaced.map(|id| Ok(Replaced { id, doomed: doomed()? })).transpose()
    }

    fn untag(&self, t: &Transaction<'_>, old: &str) -> Result<String, StoreError> {
        let delete = "DELETE FROM snapshots WHERE tag = ?1 AND id = ?2";
        match t.execute(delete, [self.tag.as_str(), old]).map_err(|e| self.store.shared.db.failed(e))? {
            1 => Ok(old.to_owned()),
            _ => Err(StoreError::Overtaken { tag: self.tag.to_string() }),
        }
    }
}

fn insert(store: &Store, name: &str, draft: &str) -> Result<(), StoreError> {
    let row = params![name, draft, to_sql(now())];
    let insert = "INSERT INTO snapshots (tag, draft, status, created_at) VALUES (?1, ?2, 'writing', ?3)";
    let db = &store.shared.db;
    let mut abandoned = store.abandoned();
    db.commit(|t| {
        for gone in abandoned.iter() {
            t.execute(FREE_TAG, [gone]).map_err(|e| db.failed(e))?;
        }
        t.execute(insert, row).map_err(|e| match e.sqlite_error_code() {
            Some(ErrorCode::ConstraintViolation) => StoreError::TagTaken { tag: name.to_owned() },
            _ => db.failed(e),
        })
    })?;
    abandoned.clear();
    Ok(())
}

impl Store {
    /// Removes what only a replaced snapshot had. The content lock must be held.
    pub(super) fn drop_replaced(&self, replaced: Replaced) -> Result<(), StoreError> {
        fault::at!("store::replace::named");
        self.shared.open.forget(&replaced.id);
        disk::remove_folder(&self.snapshot_folder(&replaced.id))?;
        fault::at!("store::replace::folder_removed");
        self.drop_content(replaced.doomed)
    }
}

impl Drop for ReservedTag {
    fn drop(&mut self) {
        let freed = self.store.shared.db.run(|c| c.execute(FREE_TAG, [&self.draft]));
        if freed.is_err() {
            self.store.abandoned().push(std::mem::take(&mut self.draft));
        }
    }
}
