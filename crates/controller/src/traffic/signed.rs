//! Addresses of files that were signed with a sandbox's token: who has one may read or write that file without it.
//!
//! The signature is `v1_` and the unpadded base64 of SHA-256 over `path:operation:user:token[:expiration]`. On an origin
//! that all sandboxes share such an address names none, so the one whose token made it is looked for.

use axum::extract::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use forkd_engine::{Access, Engine};
use http::{Method, Uri};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::target::Target;
use super::{ACCESS_TOKEN, AGENT};

/// Put on a request whose signature is right.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verified;

#[derive(Debug, Default, Deserialize)]
struct Signed {
    #[serde(default)]
    path: String,
    #[serde(default)]
    username: String,
    signature: Option<String>,
    signature_expiration: Option<u64>,
}

/// The sandbox that a signed address without any is of.
pub(super) fn find(engine: &Engine, uri: &Uri) -> Option<Target> {
    let signed = of(uri)?;
    let made_it = |access: &Access| ["read", "write"].iter().any(|operation| signed.is_by(access, operation));
    let (id, _) = engine.accesses().into_iter().find(|(_, access)| made_it(access))?;
    Some(Target { id, port: AGENT })
}

/// Marks a request that is signed for what it does, now.
pub(super) fn verify(engine: &Engine, target: &Target, request: &mut Request) {
    if target.port != AGENT || request.headers().contains_key(ACCESS_TOKEN) {
        return;
    }
    let (Some(signed), Ok(access)) = (of(request.uri()), engine.access(&target.id)) else { return };
    let operation = if request.method() == Method::GET { "read" } else { "write" };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let in_time = signed.signature_expiration.is_none_or(|until| now <= until);
    if in_time && signed.is_by(&access, operation) {
        request.extensions_mut().insert(Verified);
    }
}

/// What an address of a file says of itself, where it is signed.
fn of(uri: &Uri) -> Option<Signed> {
    if uri.path() != "/files" {
        return None;
    }
    let axum::extract::Query(signed) = axum::extract::Query::<Signed>::try_from_uri(uri).ok()?;
    signed.signature.is_some().then_some(signed)
}

impl Signed {
    fn is_by(&self, access: &Access, operation: &str) -> bool {
        if access.token.is_empty() {
            return false;
        }
        let Self { path, username, signature, signature_expiration } = self;
        let until = signature_expiration.map(|until| format!(":{until}")).unwrap_or_default();
        let text = format!("{path}:{operation}:{username}:{}{until}", access.token);
        let right = format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)));
        signature.as_deref() == Some(right.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_for_one_file_one_way_and_one_token() {
        let access = Access { token: "t".into(), ..Access::default() };
        let digest = STANDARD_NO_PAD.encode(Sha256::digest("/a b:read::t:99"));
        let text: String = digest.bytes().map(|b| format!("%{b:02X}")).collect();
        let uri =
            format!("/files?path=%2Fa%20b&signature=v1_{text}&signature_expiration=99").parse().unwrap();
        let signed = of(&uri).unwrap();
        assert!(signed.is_by(&access, "read"));
        assert!(!signed.is_by(&access, "write"));
        assert!(!signed.is_by(&Access { token: "u".into(), ..access.clone() }, "read"));
        assert!(!signed.is_by(&Access::default(), "read"));
        assert!(!Signed { path: "/b".into(), ..signed }.is_by(&access, "read"));
        assert!(of(&"/files?path=%2Fa".parse().unwrap()).is_none());
    }
}
