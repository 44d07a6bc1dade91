//! All tokens of this controller. They are few, and looked at by every request: they lie in memory, and in the
//! registry for the next controller.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use forkd_protocol::names::TokenId;
use forkd_protocol::rest::TokenInfo;
use forkd_store::TokenRow;

use super::Caller;
use super::secret::{ChosenToken, LONGEST, hash_of, parse};

/// Tokens, and the one that a person chose.
#[derive(Debug, Default)]
pub(crate) struct Keyring {
    held: RwLock<BTreeMap<TokenId, Held>>,
    chosen: Option<ChosenToken>,
}

#[derive(Debug)]
struct Held {
    row: TokenRow,
    last_used: AtomicU64,
}

impl Held {
    fn is_good(&self, now: u64) -> bool {
        self.row.revoked_at_unix.is_none() && self.row.expires_at_unix.is_none_or(|end| now < end)
    }
}

impl Keyring {
    pub(crate) fn new(rows: Vec<TokenRow>, chosen: Option<ChosenToken>) -> Self {
        let ring = Self { held: RwLock::default(), chosen };
        rows.into_iter().for_each(|row| ring.put(row));
        ring
    }

    /// Whether there is any token that is good: then one is demanded of whoever is not the owner.
    pub(crate) fn demands(&self, now: u64) -> bool {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        self.chosen.is_some() || held.values().any(|held| held.is_good(now))
    }

    /// Who has this credential.
    pub(crate) fn find(&self, credential: &str, now: u64) -> Option<Caller> {
        if credential.len() > LONGEST {
            return None;
        }
        if self.chosen.as_ref().is_some_and(|chosen| chosen.is(credential)) {
            return Some(Caller::trusted("chosen-token"));
        }
        let (id, secret) = parse(credential)?;
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        // Hashed also where there is none: how long it takes says nothing.
        let hash = hash_of(secret);
        let held = held.get(&id)?;
        if hash != held.row.hash || !held.is_good(now) {
            return None;
        }
        held.last_used.store(now - now % 60, Ordering::Relaxed);
        Some(Caller {
            name: format!("token:{id}"),
            scope: held.row.scope,
            tags: held.row.tags.clone(),
            tenant: held.row.tenant.clone(),
        })
    }

    pub(crate) fn put(&self, row: TokenRow) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        held.insert(row.id.clone(), Held { row, last_used: AtomicU64::new(0) });
    }

    pub(crate) fn revoke(&self, id: &TokenId, now: u64) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = held.get_mut(id) {
            held.row.revoked_at_unix.get_or_insert(now);
        }
    }

    /// All, oldest first.
    pub(crate) fn infos(&self) -> Vec<TokenInfo> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let mut infos: Vec<_> = held.values().map(info_of).collect();
        infos.sort_by(|a, b| (a.created_at_unix, &a.id).cmp(&(b.created_at_unix, &b.id)));
        infos
    }

    /// One.
    pub(crate) fn info(&self, id: &TokenId) -> Option<TokenInfo> {
        self.held.read().unwrap_or_else(PoisonError::into_inner).get(id).map(info_of)
    }
}

fn info_of(held: &Held) -> TokenInfo {
    let row = &held.row;
    let last_used = held.last_used.load(Ordering::Relaxed);
    TokenInfo {
        id: row.id.to_string(),
        scope: row.scope,
        tags: row.tags.clone(),
        tenant: row.tenant.clone(),
        note: row.note.clone(),
        created_at_unix: row.created_at_unix,
        expires_at_unix: row.expires_at_unix,
        revoked_at_unix: row.revoked_at_unix,
        last_used_unix: (last_used > 0).then_some(last_used),
    }
}

#[cfg(test)]
mod tests {
    use forkd_protocol::rest::Scope;

    use super::super::mint;
    use super::*;

    fn row(id: TokenId, hash: [u8; 32]) -> TokenRow {
        TokenRow {
            id,
            hash,
            scope: Scope::Run,
            tags: vec![],
            tenant: None,
            note: None,
            created_at_unix: 1,
            expires_at_unix: Some(100),
            revoked_at_unix: None,
        }
    }

    #[test]
    fn a_token_is_good_until_it_expires_or_is_revoked() {
        let (id, token, hash) = mint().unwrap();
        let ring = Keyring::new(vec![row(id.clone(), hash)], None);
        assert!(ring.demands(50));
        assert_eq!(ring.find(&token, 50).unwrap().name, format!("token:{id}"));
        assert!(ring.find(&token, 100).is_none() && !ring.demands(100));
        let mut other = token.clone();
        other.pop();
        assert!(ring.find(&other, 50).is_none());
        assert!(ring.find(&mint().unwrap().1, 50).is_none());
        ring.revoke(&id, 60);
        assert!(ring.find(&token, 50).is_none());
        assert_eq!(ring.infos()[0].revoked_at_unix, Some(60));
    }
}
