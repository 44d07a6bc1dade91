//! Tenants and their quotas, and the head of the audit log.

use forkd_protocol::names::TenantName;
use forkd_protocol::rest::Quota;
use rusqlite::{OptionalExtension, params};

use crate::db::{from_sql, to_sql};
use crate::error::StoreError;
use crate::store::Store;

/// How far the audit log is known to be on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditHead {
    /// Number of its last line.
    pub seq: u64,
    /// Hash of that line, hex.
    pub hash: String,
}

impl Store {
    /// Sets what a tenant may have.
    pub fn put_tenant(&self, name: &TenantName, quota: &Quota) -> Result<(), StoreError> {
        let quota = serde_json::to_string(quota).unwrap_or_default();
        let insert = "INSERT OR REPLACE INTO tenants VALUES (?1, ?2)";
        self.shared.db.run(|c| c.execute(insert, [name.as_str(), &quota]).map(drop))
    }

    /// What a tenant has no bound for any more; one that is not known is fine.
    pub fn remove_tenant(&self, name: &TenantName) -> Result<(), StoreError> {
        self.shared.db.run(|c| c.execute("DELETE FROM tenants WHERE name = ?1", [name.as_str()]).map(drop))
    }

    /// Tenants with quotas, by name. A quota that cannot be read is one that allows nothing.
    pub fn tenants(&self) -> Result<Vec<(String, Quota)>, StoreError> {
        let rows: Vec<(String, String)> = self.shared.db.run(|c| {
            c.prepare("SELECT name, quota FROM tenants ORDER BY name")?
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect()
        })?;
        let nothing =
            Quota { sandboxes: Some(0), memory_mib: Some(0), disk_mib: Some(0), forks_per_second: Some(0) };
        let read = |text: String| serde_json::from_str(&text).unwrap_or(nothing);
        Ok(rows.into_iter().map(|(name, quota)| (name, read(quota))).collect())
    }

    /// How far the audit log is known to be on the disk; `None` before its first line.
    pub fn audit_head(&self) -> Result<Option<AuditHead>, StoreError> {
        self.shared.db.run(|c| {
            c.query_row("SELECT seq, hash FROM audit_head", [], |row| {
                Ok(AuditHead { seq: from_sql(row.get(0)?), hash: row.get(1)? })
            })
            .optional()
        })
    }

    /// Notes how far the audit log is on the disk.
    pub fn set_audit_head(&self, head: &AuditHead) -> Result<(), StoreError> {
        let insert = "INSERT OR REPLACE INTO audit_head VALUES (1, ?1, ?2)";
        self.shared.db.run(|c| c.execute(insert, params![to_sql(head.seq), head.hash]).map(drop))
    }
}
