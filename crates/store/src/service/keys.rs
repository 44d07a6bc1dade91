//! Answers that are given again to whoever asks with the same key.

use rusqlite::{OptionalExtension, params};

use crate::db::to_sql;
use crate::error::StoreError;
use crate::store::{Store, now};

/// An answer, as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    /// HTTP status.
    pub status: u16,
    /// Type of the body.
    pub content_type: Option<String>,
    /// The body.
    pub body: Vec<u8>,
}

/// What a key stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyState {
    /// Nothing before: it is this request's now.
    New,
    /// Another request with it has no answer yet.
    InFlight,
    /// It was used for another request.
    Other,
    /// It was answered.
    Answered(Answered),
}

impl Store {
    /// Takes a key for a request, or says what it stands for. `request` is a hash of what is asked for.
    pub fn take_key(&self, owner: &str, key: &str, request: &str) -> Result<KeyState, StoreError> {
        self.shared.db.run(|c| {
            let insert =
                "INSERT OR IGNORE INTO idempotency (owner, key, request, created_at) VALUES (?1, ?2, ?3, ?4)";
            if c.execute(insert, params![owner, key, request, to_sql(now())])? == 1 {
                return Ok(KeyState::New);
            }
            let query =
                "SELECT request, status, content_type, body FROM idempotency WHERE owner = ?1 AND key = ?2";
            let found = c.query_row(query, [owner, key], |row| {
                let status: Option<u16> = row.get(1)?;
                if row.get::<_, String>(0)? != request {
                    return Ok(KeyState::Other);
                }
                let Some(status) = status else { return Ok(KeyState::InFlight) };
                let (content_type, body) = (row.get(2)?, row.get(3)?);
                Ok(KeyState::Answered(Answered { status, content_type, body }))
            });
            // Given back in between: whoever asks again gets it.
            Ok(found.optional()?.unwrap_or(KeyState::InFlight))
        })
    }

    /// Keeps the answer of a key; on the disk when this returns.
    pub fn answer_key(&self, owner: &str, key: &str, answer: &Answered) -> Result<(), StoreError> {
        let update = "UPDATE idempotency SET status = ?3, content_type = ?4, body = ?5, size = length(?5)
                WHERE owner = ?1 AND key = ?2";
        let db = &self.shared.db;
        db.commit(|t| {
            let row = params![owner, key, answer.status, answer.content_type, answer.body];
            t.execute(update, row).map(drop).map_err(|e| db.failed(e))
        })
    }

    /// Gives a key back: what was asked for was not done, and may be asked for again.
    pub fn free_key(&self, owner: &str, key: &str) -> Result<(), StoreError> {
        let delete = "DELETE FROM idempotency WHERE owner = ?1 AND key = ?2 AND size IS NULL";
        self.shared.db.run(|c| c.execute(delete, [owner, key]).map(drop))
    }

    /// Forgets answers that are older than `seconds`, and of the others all but the newest `most`, with at most `bytes`.
    pub fn forget_keys(&self, seconds: u64, most: u64, bytes: u64) -> Result<(), StoreError> {
        let aged = "DELETE FROM idempotency WHERE size IS NOT NULL AND created_at < ?1";
        let many = "DELETE FROM idempotency WHERE rowid IN (SELECT rowid FROM
            (SELECT rowid, row_number() OVER newest AS place, sum(size) OVER newest AS total FROM idempotency
                WHERE size IS NOT NULL WINDOW newest AS (ORDER BY created_at DESC, rowid DESC))
            WHERE place > ?1 OR total > ?2)";
        self.shared.db.run(|c| {
            c.execute(aged, [to_sql(now().saturating_sub(seconds))])?;
            c.execute(many, [to_sql(most), to_sql(bytes)]).map(drop)
        })
    }

    /// Forgets keys whose work ended with the controller that did it. Nothing may be on its way.
    pub fn forget_unanswered_keys(&self) -> Result<(), StoreError> {
        self.shared.db.run(|c| c.execute("DELETE FROM idempotency WHERE size IS NULL", []).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_request_and_one_answer() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let take = |owner: &str, request: &str| store.take_key(owner, "k", request).unwrap();
        assert_eq!(take("a", "r"), KeyState::New);
        assert_eq!(take("a", "r"), KeyState::InFlight);
        assert_eq!(take("a", "s"), KeyState::Other);
        assert_eq!(take("b", "s"), KeyState::New);
        store.free_key("b", "k").unwrap();
        assert_eq!(take("b", "t"), KeyState::New);
        let answer = Answered { status: 201, content_type: None, body: b"[]".to_vec() };
        store.answer_key("a", "k", &answer).unwrap();
        store.free_key("a", "k").unwrap();
        store.forget_unanswered_keys().unwrap();
        assert_eq!(take("a", "r"), KeyState::Answered(answer));
        assert_eq!(take("b", "u"), KeyState::New);
        store.forget_keys(3600, 2, 2).unwrap();
        assert!(matches!(take("a", "r"), KeyState::Answered(_)));
        store.forget_keys(3600, 2, 1).unwrap();
        assert_eq!(take("a", "r"), KeyState::New);
        assert_eq!(take("b", "u"), KeyState::InFlight, "what is under way is not forgotten");
    }
}
