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
    owner: Option<ChosenToken>,
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
    /// `chosen` closes loopback to whoever has no token, as any other does; `owner` does not.
    pub(crate) fn new(rows: Vec<TokenRow>, chosen: Option<ChosenToken>, owner: Option<ChosenToken>) -> Self {
        let ring = Self { held: RwLock::default(), chosen, owner };
        rows.into_iter().for_each(|row| ring.put(row));
        ring
    }

    /// Whether a token is demanded of whoever is not the owner. Once there was one it stays so: that the last one
    /// expired or was revoked opens no door.
    pub(crate) fn demands(&self) -> bool {
        self.chosen.is_some() || !self.held.read().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Whether there is any token that is good.
    pub(crate) fn has_good(&self, now: u64) -> bool {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        self.chosen.is_some() || held.values().any(|held| held.is_good(now))
    }

    /// Who has this credential.
    pub(crate) fn find(&self, credential: &str, now: u64) -> Option<Caller> {
        if credential.len() > LONGEST {
            return None;
        }
        for (token, name) in [(&self.chosen, "chosen-token"), (&self.owner, "owner")] {
            if token.as_ref().is_some_and(|token| token.is(credential)) {
                return Some(Caller::trusted(name));
            }
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
        let ring = Keyring::new(vec![row(id.clone(), hash)], None, None);
        assert!(ring.demands() && ring.has_good(50));
        assert_eq!(ring.find(&token, 50).unwrap().name, format!("token:{id}"));
        assert!(ring.find(&token, 100).is_none() && !ring.has_good(100));
        let mut other = token.clone();
        other.pop();
        assert!(ring.find(&other, 50).is_none());
        assert!(ring.find(&mint().unwrap().1, 50).is_none());
        ring.revoke(&id, 60);
        assert!(ring.find(&token, 50).is_none());
        assert_eq!(ring.infos()[0].revoked_at_unix, Some(60));
        assert!(ring.demands() && !ring.has_good(50), "the last one's end opens no door");
    }

    #[test]
    fn the_owners_token_is_good_and_demands_none_of_others() {
        let text = "9f2c61d07be34a58c1aa0e7d6b5f4e38";
        let ring = Keyring::new(Vec::new(), None, Some(ChosenToken::new(text).unwrap()));
        assert!(!ring.demands() && !ring.has_good(1));
        assert_eq!(ring.find(text, 1).unwrap().name, "owner");
    }
}
