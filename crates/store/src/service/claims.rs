//! Whose a tag is.
//!
//! A tag is claimed before its snapshot is begun, so that no snapshot is ever there without its owner; a trigger ends
//! the claim with the snapshot, however that goes. Shared snapshots have no claim.

use std::collections::HashMap;

use forkd_protocol::names::Tag;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Claims a tag that nothing has.
    ///
    /// # Errors
    /// There is a snapshot of that tag, it is being made, or another tenant claimed the tag.
    pub fn claim_tag(&self, tag: &Tag, tenant: &str) -> Result<(), StoreError> {
        let insert = "INSERT INTO claims SELECT ?1, ?2
            WHERE NOT EXISTS (SELECT 1 FROM snapshots WHERE tag = ?1)
              AND NOT EXISTS (SELECT 1 FROM claims WHERE tag = ?1)";
        let claimed = self.shared.db.run(|c| c.execute(insert, params![tag.as_str(), tenant]))?;
        if claimed == 0 {
            return Err(StoreError::TagTaken { tag: tag.to_string() });
        }
        Ok(())
    }

    /// Gives a tag back where no snapshot came of it.
    pub fn free_claim(&self, tag: &Tag) -> Result<(), StoreError> {
        let delete = "DELETE FROM claims WHERE tag = ?1
            AND NOT EXISTS (SELECT 1 FROM snapshots WHERE tag = ?1)";
        self.shared.db.run(|c| c.execute(delete, [tag.as_str()]).map(drop))
    }

    /// Whose a tag is; `None` for a shared one.
    pub fn tag_owner(&self, tag: &Tag) -> Result<Option<String>, StoreError> {
        self.shared.db.run(|c| owner_in(c, tag))
    }

    /// Whose all tags are that are not shared.
    pub fn tag_owners(&self) -> Result<HashMap<String, String>, StoreError> {
        self.shared.db.run(|c| {
            c.prepare_cached("SELECT tag, tenant FROM claims")?
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })
    }

    /// Ends claims that a crash left without a snapshot. Nothing may be on its way.
    pub fn sweep_claims(&self) -> Result<(), StoreError> {
        let delete = "DELETE FROM claims WHERE tag NOT IN (SELECT tag FROM snapshots)";
        self.shared.db.run(|c| c.execute(delete, []).map(drop))
    }
}

/// Whose a tag is.
pub(crate) fn owner_in(c: &Connection, tag: &Tag) -> rusqlite::Result<Option<String>> {
    c.query_row("SELECT tenant FROM claims WHERE tag = ?1", [tag.as_str()], |row| row.get(0)).optional()
}

/// Whose a tag was before its snapshot was replaced by another.
pub(crate) fn keep_owner(c: &Connection, tag: &Tag, owner: Option<String>) -> rusqlite::Result<()> {
    let Some(owner) = owner else { return Ok(()) };
    c.execute("INSERT OR REPLACE INTO claims VALUES (?1, ?2)", [tag.as_str(), &owner]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{image, snapshot};

    #[test]
    fn a_claim_lasts_as_long_as_its_snapshot_and_no_two_have_one() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let tag: Tag = "a".parse().unwrap();
        store.claim_tag(&tag, "acme").unwrap();
        assert!(matches!(store.claim_tag(&tag, "other"), Err(StoreError::TagTaken { .. })));
        store.free_claim(&tag).unwrap();
        store.claim_tag(&tag, "other").unwrap();
        let image = image(&store);
        snapshot(&store, &image, "a", None, &[(1, 1)]);
        store.free_claim(&tag).unwrap();
        assert_eq!(store.tag_owner(&tag).unwrap().as_deref(), Some("other"));
        store.remove_snapshot(&tag, crate::Removal::default()).unwrap();
        assert!(store.tag_owners().unwrap().is_empty());
        snapshot(&store, &image, "a", None, &[(1, 1)]);
        assert!(matches!(store.claim_tag(&tag, "acme"), Err(StoreError::TagTaken { .. })));
    }
}
