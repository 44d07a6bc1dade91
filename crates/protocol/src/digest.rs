//! The BLAKE3 hash that content is called by.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::names::NameError;

/// A BLAKE3 hash, written as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// What these bytes hash to.
    pub fn of(bytes: &[u8]) -> Self {
        blake3::hash(bytes).into()
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(hash.into())
    }
}

impl From<[u8; 32]> for Digest {
    fn from(hash: [u8; 32]) -> Self {
        Self(hash)
    }
}

impl FromStr for Digest {
    type Err = NameError;

    fn from_str(given: &str) -> Result<Self, NameError> {
        let refused = || NameError::new("hash", given, "64 of the characters 0-9 a-f");
        let digit = |c: u8| match c {
            b'0'..=b'9' => Ok(c - b'0'),
            b'a'..=b'f' => Ok(c - b'a' + 10),
            _ => Err(refused()),
        };
        let digits: &[u8; 64] = given.as_bytes().try_into().map_err(|_| refused())?;
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(hash))
    }
}

impl TryFrom<String> for Digest {
    type Error = NameError;

    fn try_from(given: String) -> Result<Self, NameError> {
        given.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_is_written_and_nothing_else_is_one() {
        let text = "00ff".repeat(16);
        let digest: Digest = text.parse().unwrap();
        assert_eq!(
            (digest.to_string(), digest),
            (text.clone(), Digest([[0, 0xff]; 16].concat().try_into().unwrap()))
        );
        for bad in
            ["", &text[1..], &text.to_uppercase(), &text.replace('f', "g"), &"é".repeat(32), "../../etc"]
        {
            assert!(bad.parse::<Digest>().is_err(), "{bad:?}");
        }
        assert!(serde_json::from_str::<Digest>("\"x\"").is_err());
    }
}
