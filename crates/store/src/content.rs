//! Content that loses its last name.
//!
//! A file stays as long as a row names it: that of an image, of a snapshot, or of a sandbox that runs from one. It
//! also stays while a snapshot is open that has it, since children are being forked then whose rows are still to
//! be written; such files are remembered and go when somebody removes something later, or with [`Store::gc`].

use std::sync::PoisonError;

use rusqlite::{Connection, OptionalExtension};

use crate::disk;
use crate::error::StoreError;
use crate::fault;
use crate::manifest::Manifest;
use crate::store::Store;

/// Something that lies under its hash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Content {
    Image(String),
    Layer(String),
}

impl Content {
    /// What a manifest names.
    pub(crate) fn of(manifest: &Manifest) -> Vec<Self> {
        let layers = manifest.layers().map(|layer| Self::Layer(layer.hash.clone()));
        layers.chain([Self::Image(manifest.image.hash.clone())]).collect()
    }

    fn from_row(kind: &str, hash: String) -> Self {
        if kind == "image" { Self::Image(hash) } else { Self::Layer(hash) }
    }

    pub(crate) fn hash(&self) -> &str {
        match self {
            Self::Image(hash) | Self::Layer(hash) => hash,
        }
    }

    fn named(&self, c: &Connection) -> rusqlite::Result<bool> {
        let (kind, image) = match self {
            Self::Image(_) => ("image", true),
            Self::Layer(_) => ("layer", false),
        };
        let query = "SELECT EXISTS (SELECT 1 FROM snapshot_content WHERE hash = ?1 AND kind = ?2)
            OR (?3 AND EXISTS (SELECT 1 FROM images WHERE hash = ?1))";
        c.prepare_cached(query)?.query_row((self.hash(), kind, image), |row| row.get(0))
    }
}

/// Rows of content whose owner is neither a snapshot, nor the template of a sandbox, nor a sandbox.
const UNKEPT: &str = "FROM snapshot_content AS content WHERE
    NOT EXISTS (SELECT 1 FROM snapshots WHERE id = content.snapshot) AND
    NOT EXISTS (SELECT 1 FROM templates WHERE templates.snapshot = content.snapshot) AND
    NOT EXISTS (SELECT 1 FROM sandboxes WHERE id = content.snapshot)";

/// Forgets templates that no sandbox was restored from.
pub(crate) fn forget_templates(c: &Connection) -> rusqlite::Result<()> {
    let unused =
        "DELETE FROM templates WHERE NOT EXISTS (SELECT 1 FROM sandboxes WHERE snapshot_id = snapshot)";
    c.execute(unused, []).map(drop)
}

/// Forgets what neither a snapshot nor a sandbox keeps any more; what may have lost its last name by that.
pub(crate) fn forget(c: &Connection) -> rusqlite::Result<Vec<Content>> {
    forget_templates(c)?;
    let tops = "DELETE FROM frozen_tops WHERE NOT EXISTS (SELECT 1 FROM sandboxes WHERE id = sandbox)";
    c.execute(tops, [])?;
    let doomed = c
        .prepare_cached(&format!("SELECT kind, hash {UNKEPT}"))?
        .query_map([], |row| Ok(Content::from_row(&row.get::<_, String>(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    c.execute(&format!("DELETE {UNKEPT}"), [])?;
    Ok(doomed)
}

impl Store {
    /// Removes files that nothing names any more. The content lock must be held.
    pub(crate) fn drop_content(&self, doomed: impl IntoIterator<Item = Content>) -> Result<(), StoreError> {
        let waiting = std::mem::take(&mut *self.deferred());
        for content in waiting.into_iter().chain(doomed) {
            if self.shared.open.uses(content.hash()) {
                self.deferred().push(content);
            } else if !self.shared.db.run(|c| content.named(c))? {
                self.remove_files(&content)?;
                fault::at!("store::content::dropped");
            }
        }
        Ok(())
    }

    /// Whether a row or an open snapshot names this.
    pub(crate) fn is_needed(&self, content: &Content) -> Result<bool, StoreError> {
        Ok(self.shared.open.uses(content.hash()) || self.shared.db.run(|c| content.named(c))?)
    }

    pub(crate) fn remove_files(&self, content: &Content) -> Result<(), StoreError> {
        match content {
            Content::Image(hash) => disk::remove_file(&self.image_path(hash)),
            Content::Layer(hash) => {
                disk::remove_file(&self.layer_path(hash))?;
                fault::at!("store::content::layer_removed");
                disk::remove_file(&self.layer_table_path(hash))
            }
        }
    }

    fn deferred(&self) -> std::sync::MutexGuard<'_, Vec<Content>> {
        self.shared.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether forgetting this sandbox would take content from the store.
    pub(crate) fn keeps_content(&self, sandbox: &str) -> Result<bool, StoreError> {
        let query = "SELECT EXISTS (SELECT 1 FROM frozen_tops WHERE sandbox = ?1) OR EXISTS (
                SELECT 1 FROM sandboxes s WHERE s.id = ?1 AND s.snapshot_id IS NOT NULL
                AND NOT EXISTS (SELECT 1 FROM snapshots WHERE id = s.snapshot_id)
                AND NOT EXISTS (SELECT 1 FROM sandboxes o WHERE o.snapshot_id = s.snapshot_id AND o.id <> s.id))";
        let kept = self.shared.db.run(|c| c.query_row(query, [sandbox], |row| row.get(0)).optional())?;
        Ok(kept.unwrap_or(false))
    }
}
