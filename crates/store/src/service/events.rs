//! What happened, the newest of it.

use forkd_protocol::rest::{EventInfo, EventKind};
use rusqlite::types::Type;
use rusqlite::{Row, params};

use crate::db::{from_sql, to_sql};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Keeps events in their order, and forgets all but the newest `keep`. Their numbers are assigned here.
    pub fn put_events(&self, events: &mut [EventInfo], keep: u64) -> Result<(), StoreError> {
        let insert = "INSERT INTO events (at_ms, kind, subject, tag, tenant, detail)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        self.shared.db.run(|c| {
            let all = c.unchecked_transaction()?;
            for event in events.iter_mut() {
                let row = params![
                    to_sql(event.at_unix_ms),
                    event.kind.name(),
                    event.subject,
                    event.tag,
                    event.tenant,
                    event.detail,
                ];
                all.prepare_cached(insert)?.execute(row)?;
                event.seq = from_sql(all.last_insert_rowid());
            }
            if let Some(newest) = events.last() {
                let bound = to_sql(newest.seq.saturating_sub(keep));
                all.execute("DELETE FROM events WHERE seq <= ?1", [bound])?;
            }
            all.commit()
        })
    }

    /// Events after number `after`, oldest first.
    pub fn events(&self, after: u64) -> Result<Vec<EventInfo>, StoreError> {
        let query = "SELECT seq, at_ms, kind, subject, tag, tenant, detail FROM events WHERE seq > ?1
            ORDER BY seq";
        self.shared.db.run(|c| c.prepare_cached(query)?.query_map([to_sql(after)], event_of)?.collect())
    }

    /// Number of the newest event; 0 where there was none.
    pub fn newest_event(&self) -> Result<u64, StoreError> {
        let query = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'events'";
        self.shared.db.run(|c| c.query_row(query, [], |row| row.get(0)).map(from_sql))
    }
}

fn event_of(row: &Row<'_>) -> rusqlite::Result<EventInfo> {
    let kind: String = row.get(2)?;
    let kind: Result<EventKind, _> = serde_json::from_value(kind.into());
    Ok(EventInfo {
        seq: from_sql(row.get(0)?),
        at_unix_ms: from_sql(row.get(1)?),
        kind: kind.map_err(|e| rusqlite::Error::FromSqlConversionFailure(2, Type::Text, Box::new(e)))?,
        subject: row.get(3)?,
        tag: row.get(4)?,
        tenant: row.get(5)?,
        detail: row.get(6)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_are_kept_and_numbers_go_on() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let event = |subject: &str| EventInfo {
            seq: 0,
            at_unix_ms: 1,
            kind: EventKind::Ended,
            subject: subject.into(),
            tag: Some("t".into()),
            tenant: None,
            detail: Some("killed: memory".into()),
        };
        let mut first = [event("a"), event("b"), event("c")];
        store.put_events(&mut first, 2).unwrap();
        assert_eq!(first.each_ref().map(|e| e.seq), [1, 2, 3]);
        assert_eq!(store.events(0).unwrap(), first[1..]);
        assert_eq!(store.events(2).unwrap(), first[2..]);
        store.put_events(&mut [event("d")], 0).unwrap();
        assert_eq!((store.events(0).unwrap().len(), store.newest_event().unwrap()), (0, 4));
    }
}
