//! Tokens: `forkd_<id>_<secret>`. The secret has 256 random bits, so that its plain hash is as good as any slow one.

use std::collections::HashSet;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forkd_protocol::names::{NameError, TokenId};

/// What tokens begin with, so that scanners of leaked secrets know them.
const PREFIX: &str = "forkd_";
/// What the hash is for: no other use of the same bytes gives the same hash.
const CONTEXT: &str = "forkd 2026 token of the API";
/// Longest credential that is looked at.
pub(super) const LONGEST: usize = 512;
/// Shortest token that a person may choose.
const SHORTEST_CHOSEN: usize = 24;
/// Fewest different characters of one.
const FEWEST_DIFFERENT: usize = 10;
/// What examples have in the place of a token.
const PLACEHOLDERS: &[&str] = &[
    "changeme",
    "change-me",
    "change_me",
    "placeholder",
    "example",
    "your-token",
    "yourtoken",
    "your_token",
];
const PLACEHOLDERS_TOO: &[&str] =
    &["replace", "secret-token", "insert", "todo", "dummy", "password", "0123456789", "abcdefgh"];

/// A new token: what it is called by, the token itself, and what is kept of it.
pub(crate) fn mint() -> Result<(TokenId, String, [u8; 32]), NameError> {
    let id: TokenId = format!("{:012x}", rand::random::<u64>() >> 16).parse()?;
    let secret = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    let hash = *hash_of(&secret).as_bytes();
    let token = format!("{PREFIX}{id}_{secret}");
    Ok((id, token, hash))
}

/// The id and the secret of a token that this made; `None` for anything else.
pub(super) fn parse(token: &str) -> Option<(TokenId, &str)> {
    let (id, secret) = token.strip_prefix(PREFIX)?.split_once('_')?;
    Some((id.parse().ok()?, secret))
}

/// What is kept of a secret. Comparing two of these takes the same time wherever they differ.
pub(super) fn hash_of(secret: &str) -> blake3::Hash {
    blake3::Hash::from(blake3::derive_key(CONTEXT, secret.as_bytes()))
}

/// A token that a person chose; it may do everything. Shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct ChosenToken(blake3::Hash);

impl fmt::Debug for ChosenToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChosenToken")
    }
}

/// Why a token that a person chose is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WeakToken {
    /// Too few characters. Make one with `openssl rand -hex 32`.
    #[error(
        "it has {0} characters, and needs at least {SHORTEST_CHOSEN}; make one with `openssl rand -hex 32`"
    )]
    Short(usize),
    /// Too few different characters.
    #[error("it repeats {0} characters over and over; make one with `openssl rand -hex 32`")]
    Monotonous(usize),
    /// It stands in for a token.
    #[error("it is a placeholder (it contains {0:?}); make one with `openssl rand -hex 32`")]
    Placeholder(&'static str),
    /// It cannot be sent in a header.
    #[error("it has characters that no header can carry, or more than {LONGEST}")]
    Unsendable,
}

impl ChosenToken {
    /// Takes a token that somebody chose.
    ///
    /// # Errors
    /// It is short, monotonous, a placeholder, or no header can carry it.
    pub fn new(token: &str) -> Result<Self, WeakToken> {
        if token.len() > LONGEST || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(WeakToken::Unsendable);
        }
        if token.len() < SHORTEST_CHOSEN {
            return Err(WeakToken::Short(token.len()));
        }
        let different: HashSet<u8> = token.bytes().collect();
        if different.len() < FEWEST_DIFFERENT {
            return Err(WeakToken::Monotonous(different.len()));
        }
        let plain = token.to_ascii_lowercase();
        let found = PLACEHOLDERS.iter().chain(PLACEHOLDERS_TOO).find(|word| plain.contains(**word));
        found.map_or_else(|| Ok(Self(hash_of(token))), |word| Err(WeakToken::Placeholder(word)))
    }

    /// Whether it is this one; how long that takes says nothing of either.
    pub fn is(&self, token: &str) -> bool {
        self.0 == hash_of(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_itself_and_only_its_hash_is_kept() {
        let (id, token, hash) = mint().unwrap();
        let (read, secret) = parse(&token).unwrap();
        assert_eq!(read, id);
        assert_eq!(hash_of(secret), hash);
        assert_eq!(secret.len(), 43);
        assert_ne!(mint().unwrap().1, token);
        for bad in ["", "forkd_", "forkd_a", "forkd__x", "other_a_b", "forkd_../_x"] {
            assert!(parse(bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn short_and_placeholder_tokens_are_refused_and_random_ones_are_not() {
        for weak in [
            "short",
            &"x".repeat(64),
            "abababababababababababababab",
            "please-ChangeMe-0123456789-now",
            "your-token-goes-here-1234567",
            "has a space in it 1234567890abc",
        ] {
            assert!(ChosenToken::new(weak).is_err(), "{weak:?}");
        }
        let good = "9f2c61d07be34a58c1aa0e7d6b5f4e38";
        let chosen = ChosenToken::new(good).unwrap();
        assert!(chosen.is(good) && !chosen.is("9f2c61d07be34a58c1aa0e7d6b5f4e39"));
        assert_eq!(format!("{chosen:?}"), "ChosenToken");
    }
}
