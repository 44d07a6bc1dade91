//! Who may ask: the one place where a key is looked at.

use http::HeaderMap;
use http::header::AUTHORIZATION;

use super::error::E2bError;

/// Longest key.
const MAX_KEY: usize = 512;

/// Refuses a caller without a key. Where tokens are demanded the guard has looked at it before; where none is, any
/// well-formed key will do.
pub(super) fn check(headers: &HeaderMap) -> Result<(), E2bError> {
    let key = headers.get("x-api-key").and_then(|value| value.to_str().ok());
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let well_formed =
        |key: &str| (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic());
    match key.or(bearer) {
        Some(key) if well_formed(key) => Ok(()),
        Some(_) => Err(E2bError::unauthorized("the API key is not well-formed")),
        None => Err(E2bError::unauthorized("an API key is required: set E2B_API_KEY")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_required_in_one_header_or_the_other() {
        let with = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            check(&headers).is_ok()
        };
        assert!(with("x-api-key", "e2b_1"));
        assert!(with("authorization", "Bearer t"));
        assert!(!with("x-api-key", ""));
        assert!(!with("x-api-key", "a b"));
        assert!(!with("x-api-key", &"x".repeat(MAX_KEY + 1)));
        assert!(!with("authorization", "Basic dTo="));
        assert!(check(&HeaderMap::new()).is_err());
    }
}
