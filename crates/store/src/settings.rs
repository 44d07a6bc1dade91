//! What sandboxes were given at their fork and may be changed later: one text per sandbox, which means nothing to the
//! store. It is kept beside the rows, since those are written anew by whoever moves a sandbox on; it goes with its row.

use std::collections::BTreeMap;

use forkd_protocol::names::SandboxId;
use rusqlite::params;

use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Writes settings, replacing older ones. Those of a sandbox that gets no row are removed when the store opens.
    pub fn put_settings(&self, all: &[(SandboxId, String)]) -> Result<(), StoreError> {
        self.shared.db.run(|c| {
            let writing = c.unchecked_transaction()?;
            for (id, text) in all {
                let insert = "INSERT OR REPLACE INTO sandbox_settings (sandbox, settings) VALUES (?1, ?2)";
                writing.prepare_cached(insert)?.execute(params![id.as_str(), text])?;
            }
            writing.commit()
        })
    }

    /// The settings of all sandboxes that have some.
    pub fn settings(&self) -> Result<BTreeMap<String, String>, StoreError> {
        self.shared.db.run(|c| {
            c.prepare_cached("SELECT sandbox, settings FROM sandbox_settings")?
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })
    }

    /// Removes the settings of sandboxes without a row.
    pub(crate) fn sweep_settings(&self) -> Result<(), StoreError> {
        let strays = "DELETE FROM sandbox_settings WHERE sandbox NOT IN (SELECT id FROM sandboxes)";
        self.shared.db.run(|c| c.execute(strays, []).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{image, sandbox, snapshot};

    #[test]
    fn settings_stay_as_long_as_their_sandbox() {
        let folder = tempfile::tempdir().unwrap();
        let (kept, stray): (SandboxId, SandboxId) = ("sb-1".parse().unwrap(), "sb-2".parse().unwrap());
        let known = |store: &Store| store.settings().unwrap().into_keys().collect::<Vec<_>>();
        {
            let store = Store::open(folder.path()).unwrap();
            store.put_settings(&[(kept.clone(), "a".into()), (stray, "b".into())]).unwrap();
            store.put_settings(&[(kept.clone(), "c".into())]).unwrap();
            let image = image(&store);
            let snapshot = snapshot(&store, &image, "t", None, &[(0, 1)]);
            store.put_sandbox(&sandbox("sb-1", &snapshot)).unwrap();
            assert_eq!(known(&store), ["sb-1", "sb-2"]);
        }
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.settings().unwrap()["sb-1"], "c");
        assert_eq!(known(&store), ["sb-1"]);
        store.remove_sandbox(&kept).unwrap();
        assert!(known(&store).is_empty());
    }
}
