//! Tokens.

use forkd_protocol::names::TokenId;
use forkd_protocol::rest::Scope;
use rusqlite::types::Type;
use rusqlite::{Row, params};

use crate::db::{from_sql, to_sql};
use crate::error::StoreError;
use crate::store::Store;

/// A token: everything but its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    /// What it is called by.
    pub id: TokenId,
    /// BLAKE3 of its secret.
    pub hash: [u8; 32],
    /// What it may do.
    pub scope: Scope,
    /// Patterns of tags it may name; none binds it to no tag.
    pub tags: Vec<String>,
    /// Whose it is.
    pub tenant: Option<String>,
    /// For people.
    pub note: Option<String>,
    /// Seconds since the Unix epoch.
    pub created_at_unix: u64,
    /// When it ends to be good.
    pub expires_at_unix: Option<u64>,
    /// When it was revoked.
    pub revoked_at_unix: Option<u64>,
}

impl Store {
    /// Keeps a token; on the disk when this returns.
    pub fn put_token(&self, row: &TokenRow) -> Result<(), StoreError> {
        let insert = "INSERT INTO tokens VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let db = &self.shared.db;
        db.commit(|t| {
            let tags = serde_json::to_string(&row.tags).unwrap_or_default();
            let row = params![
                row.id.as_str(),
                row.hash,
                row.scope.name(),
                tags,
                row.tenant,
                row.note,
                to_sql(row.created_at_unix),
                row.expires_at_unix.map(to_sql),
                row.revoked_at_unix.map(to_sql),
            ];
            t.execute(insert, row).map(drop).map_err(|e| db.failed(e))
        })
    }

    /// All tokens, also those that are good for nothing any more; oldest first.
    pub fn tokens(&self) -> Result<Vec<TokenRow>, StoreError> {
        self.shared.db.run(|c| {
            c.prepare("SELECT * FROM tokens ORDER BY created_at, id")?.query_map([], token_of)?.collect()
        })
    }

    /// From now on a token is good for nothing; on the disk when this returns. One that was revoked before stays so.
    pub fn revoke_token(&self, id: &TokenId, now: u64) -> Result<(), StoreError> {
        let update = "UPDATE tokens SET revoked_at = coalesce(revoked_at, ?2) WHERE id = ?1";
        let changed =
            self.shared.db.commit_removal(|t| t.execute(update, params![id.as_str(), to_sql(now)]))?;
        match changed {
            0 => Err(StoreError::NotFound { kind: "token", name: id.to_string() }),
            _ => Ok(()),
        }
    }
}

fn token_of(row: &Row<'_>) -> rusqlite::Result<TokenRow> {
    let text = |n: usize| row.get::<_, String>(n);
    let damaged = |n, e: Box<dyn std::error::Error + Send + Sync>| {
        rusqlite::Error::FromSqlConversionFailure(n, Type::Text, e)
    };
    Ok(TokenRow {
        id: text(0)?.parse().map_err(|e| damaged(0, Box::new(e)))?,
        hash: row.get(1)?,
        scope: text(2)?.parse().map_err(|e| damaged(2, Box::new(e)))?,
        tags: serde_json::from_str(&text(3)?).map_err(|e| damaged(3, Box::new(e)))?,
        tenant: row.get(4)?,
        note: row.get(5)?,
        created_at_unix: from_sql(row.get(6)?),
        expires_at_unix: row.get::<_, Option<i64>>(7)?.map(from_sql),
        revoked_at_unix: row.get::<_, Option<i64>>(8)?.map(from_sql),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was_and_is_revoked_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let row = TokenRow {
            id: "k1".parse().unwrap(),
            hash: [7; 32],
            scope: Scope::Run,
            tags: vec!["py*".into()],
            tenant: Some("acme".into()),
            note: None,
            created_at_unix: 5,
            expires_at_unix: Some(9),
            revoked_at_unix: None,
        };
        store.put_token(&row).unwrap();
        assert_eq!(store.tokens().unwrap(), std::slice::from_ref(&row));
        store.revoke_token(&row.id, 6).unwrap();
        store.revoke_token(&row.id, 8).unwrap();
        assert_eq!(store.tokens().unwrap()[0].revoked_at_unix, Some(6));
        assert!(matches!(store.revoke_token(&"k2".parse().unwrap(), 6), Err(StoreError::NotFound { .. })));
    }
}
