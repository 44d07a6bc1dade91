//! Tokens that let traffic into a sandbox.

use rand::TryRngCore;
use rand::rngs::OsRng;
use serde::{Deserialize, Serialize};

use crate::identity::EntropyError;

/// Bytes of randomness in a token.
const TOKEN_BYTES: usize = 32;

/// Who may reach a sandbox by its own addresses. A child has tokens of its own, whatever its source had.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Access {
    /// What its agent is reached with. Empty in one that no caller was told a token of: it is reached by the API alone.
    pub token: String,
    /// Whether the agent is reached without it, as clients do that ask for no security.
    pub open: bool,
    /// What its other ports are reached with; without it, they are open to whoever reaches the controller.
    pub traffic_token: Option<String>,
}

impl Access {
    /// With fresh tokens.
    pub(crate) fn renewed(&self) -> Result<Self, EntropyError> {
        let traffic_token = self.traffic_token.as_ref().map(|_| token()).transpose()?;
        Ok(Self { token: token()?, open: self.open, traffic_token })
    }

    /// Whether the agent may be reached with this.
    pub fn admits(&self, given: Option<&str>) -> bool {
        self.open || given.is_some_and(|given| !self.token.is_empty() && same(given, &self.token))
    }

    /// Whether its other ports may be reached with this.
    pub fn admits_traffic(&self, given: Option<&str>) -> bool {
        self.traffic_token.as_ref().is_none_or(|token| given.is_some_and(|given| same(given, token)))
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").field("open", &self.open).finish_non_exhaustive()
    }
}

fn token() -> Result<String, EntropyError> {
    let mut bytes = [0; TOKEN_BYTES];
    OsRng.try_fill_bytes(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Takes as long whichever character differs.
fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_one_sandbox_and_no_other() {
        let source = Access { traffic_token: Some(String::new()), ..Access::default() }.renewed().unwrap();
        let child = source.renewed().unwrap();
        assert!(child.admits(Some(&child.token)) && child.admits_traffic(child.traffic_token.as_deref()));
        for wrong in [Some(source.token.as_str()), Some(""), None, Some(&child.token[1..])] {
            assert!(!child.admits(wrong) && !child.admits_traffic(wrong));
        }
        assert!(!Access::default().admits(Some("")));
        assert!(Access { open: true, ..child }.admits(None));
        assert!(Access::default().admits_traffic(None));
    }

    #[test]
    fn tokens_are_not_logged() {
        let access = Access::default().renewed().unwrap();
        assert!(!format!("{access:?}").contains(&access.token));
    }
}
