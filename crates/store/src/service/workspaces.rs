//! Workspaces: sandboxes with a name.

use rusqlite::{ErrorCode, OptionalExtension, Row, params};

use crate::db::{from_sql, to_sql};
use crate::error::StoreError;
use crate::store::Store;

/// A workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkspaceRow {
    /// Its name, within its tenant.
    pub name: String,
    /// Whose it is; empty where it belongs to nobody but the operator.
    pub tenant: String,
    /// `ws-…`.
    pub id: String,
    /// Tag of the snapshot it began with.
    pub snapshot_tag: String,
    /// The sandbox that it is.
    pub sandbox: String,
    /// Seconds since the Unix epoch.
    pub created_at_unix: u64,
    /// When it was last made, suspended or resumed.
    pub last_active_unix: u64,
}

impl Store {
    /// Keeps a new workspace; on the disk when this returns.
    ///
    /// # Errors
    /// The tenant has one of that name.
    pub fn put_workspace(&self, row: &WorkspaceRow) -> Result<(), StoreError> {
        let insert = "INSERT INTO workspaces VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let db = &self.shared.db;
        db.commit(|t| {
            let columns = params![
                row.name,
                row.tenant,
                row.id,
                row.snapshot_tag,
                row.sandbox,
                to_sql(row.created_at_unix),
                to_sql(row.last_active_unix),
            ];
            t.execute(insert, columns).map(drop).map_err(|e| match e.sqlite_error_code() {
                Some(ErrorCode::ConstraintViolation) => {
                    StoreError::NameTaken { kind: "workspace", name: row.name.clone() }
                }
                _ => db.failed(e),
            })
        })
    }

    /// All workspaces, by name.
    pub fn workspaces(&self) -> Result<Vec<WorkspaceRow>, StoreError> {
        self.shared.db.run(|c| {
            c.prepare_cached("SELECT * FROM workspaces ORDER BY name, tenant")?
                .query_map([], workspace_of)?
                .collect()
        })
    }

    /// One workspace.
    pub fn workspace(&self, tenant: &str, name: &str) -> Result<WorkspaceRow, StoreError> {
        let query = "SELECT * FROM workspaces WHERE tenant = ?1 AND name = ?2";
        let found = self.shared.db.run(|c| c.query_row(query, [tenant, name], workspace_of).optional())?;
        found.ok_or_else(|| StoreError::NotFound { kind: "workspace", name: name.to_owned() })
    }

    /// Notes that something was done with a workspace.
    pub fn touch_workspace(&self, row: &WorkspaceRow, now: u64) -> Result<(), StoreError> {
        let update = "UPDATE workspaces SET last_active = ?2 WHERE id = ?1";
        self.shared.db.run(|c| c.execute(update, params![row.id, to_sql(now)]).map(drop))
    }

    /// Forgets a workspace; its sandbox is what it is.
    pub fn remove_workspace(&self, row: &WorkspaceRow) -> Result<(), StoreError> {
        self.shared
            .db
            .commit_removal(|t| t.execute("DELETE FROM workspaces WHERE id = ?1", [&row.id]).map(drop))
    }
}

fn workspace_of(row: &Row<'_>) -> rusqlite::Result<WorkspaceRow> {
    Ok(WorkspaceRow {
        name: row.get(0)?,
        tenant: row.get(1)?,
        id: row.get(2)?,
        snapshot_tag: row.get(3)?,
        sandbox: row.get(4)?,
        created_at_unix: from_sql(row.get(5)?),
        last_active_unix: from_sql(row.get(6)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_workspace_of_a_tenant() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let row = |tenant: &str| WorkspaceRow {
            name: "w".into(),
            tenant: tenant.into(),
            id: format!("ws-{tenant}"),
            snapshot_tag: "t".into(),
            sandbox: "sb-1".into(),
            created_at_unix: 1,
            last_active_unix: 1,
        };
        store.put_workspace(&row("")).unwrap();
        store.put_workspace(&row("acme")).unwrap();
        assert!(matches!(store.put_workspace(&row("acme")), Err(StoreError::NameTaken { .. })));
        store.touch_workspace(&row("acme"), 5).unwrap();
        assert_eq!(store.workspace("acme", "w").unwrap().last_active_unix, 5);
        store.remove_workspace(&row("acme")).unwrap();
        assert!(matches!(store.workspace("acme", "w"), Err(StoreError::NotFound { .. })));
        assert_eq!(store.workspaces().unwrap(), [row("")]);
    }
}
