//! Who asks, and what of what there is that one may see and change.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{SandboxInfo, Scope, SnapshotInfo};
use http::StatusCode;
use http::request::Parts;

use crate::error::ApiError;

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// For the audit log: `owner`, `open`, `chosen-token`, or `token:<id>`.
    pub(crate) name: String,
    pub(crate) scope: Scope,
    /// Patterns of tags; none is no bound.
    pub(crate) tags: Vec<String>,
    pub(crate) tenant: Option<String>,
}

impl Caller {
    /// One who may do everything.
    pub(crate) fn trusted(name: &str) -> Self {
        Self { name: name.to_owned(), scope: Scope::Admin, tags: Vec::new(), tenant: None }
    }

    /// One who may see nothing that is anybody's.
    pub(crate) fn nobody() -> Self {
        let tenant = Some(String::new());
        Self { name: "nobody".to_owned(), scope: Scope::Read, tags: Vec::new(), tenant }
    }

    /// Whether it is bound to a tenant or to tags.
    pub(crate) fn is_bound(&self) -> bool {
        self.tenant.is_some() || !self.tags.is_empty()
    }

    pub(crate) fn sees(&self, sandbox: &SandboxInfo) -> bool {
        self.reaches(sandbox.tenant.as_deref(), &sandbox.snapshot_tag)
    }

    /// Whether it may look at what somebody's is and came of a snapshot with that tag.
    pub(crate) fn reaches(&self, owner: Option<&str>, tag: &str) -> bool {
        match &self.tenant {
            Some(tenant) => owner == Some(tenant),
            None => self.tags.is_empty() || self.names(tag),
        }
    }

    /// Whether it may look at and fork from a snapshot that is this tenant's, or shared.
    pub(crate) fn uses(&self, tag: &str, owner: Option<&str>) -> bool {
        match (&self.tenant, owner) {
            (None, _) => self.tags.is_empty() || self.names(tag),
            (Some(tenant), Some(owner)) => tenant == owner,
            (Some(_), None) => self.names(tag),
        }
    }

    /// Whether it may remove or replace it.
    pub(crate) fn changes(&self, tag: &str, owner: Option<&str>) -> bool {
        self.uses(tag, owner) && (self.tenant.is_none() || owner.is_some())
    }

    pub(crate) fn uses_snapshot(&self, snapshot: &SnapshotInfo) -> bool {
        self.uses(&snapshot.tag, snapshot.tenant.as_deref())
    }

    /// A new snapshot's tag, where this caller may make one of it. A tenant's own names are its own matter.
    pub(crate) fn check_new_tag(&self, tag: &Tag) -> Result<(), ApiError> {
        if self.tenant.is_some() || self.tags.is_empty() || self.names(tag.as_str()) {
            return Ok(());
        }
        let text = format!("this token is bound to tags like {}; {tag} is none", self.tags.join(", "));
        Err(ApiError::new(StatusCode::FORBIDDEN, "tag_not_allowed", text))
    }

    /// Whose something new is. Only an administrator may make it somebody else's.
    pub(crate) fn tenant_of_new(&self, asked: Option<String>) -> Result<Option<String>, ApiError> {
        match (asked, &self.tenant) {
            (None, own) => Ok(own.clone()),
            (Some(asked), Some(own)) if asked == *own => Ok(Some(asked)),
            (Some(asked), None) if self.scope == Scope::Admin && !self.is_bound() => {
                let name: forkd_protocol::names::TenantName = asked.parse()?;
                Ok(Some(name.to_string()))
            }
            _ => Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "tenant_not_allowed",
                "only an administrator may say whose it is; leave `tenant` out",
            )),
        }
    }

    fn names(&self, tag: &str) -> bool {
        self.tags.iter().any(|pattern| matches(pattern.as_bytes(), tag.as_bytes()))
    }
}

/// The guard has put it there; whoever comes past it without is nobody.
impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_else(Self::nobody))
    }
}

/// `*` is any rest in the middle, `?` any character. Linear but for one step back per star.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t, mut back) = (0, 0, None);
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            back = Some((p + 1, t));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == b'?' || pattern[p] == text[t]) {
            p += 1;
            t += 1;
        } else if let Some((after_star, from)) = back {
            back = Some((after_star, from + 1));
            p = after_star;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn caller(tenant: Option<&str>, tags: &[&str]) -> Caller {
        Caller {
            name: "t".into(),
            scope: Scope::Run,
            tags: tags.iter().map(|t| (*t).to_owned()).collect(),
            tenant: tenant.map(str::to_owned),
        }
    }

    #[test]
    fn patterns_match_as_shells_have_it() {
        for (pattern, text, wanted) in [
            ("py*", "pynp", true),
            ("py*", "p", false),
            ("*", "", true),
            ("a*b*c", "aXbXbc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("", "a", false),
            ("*x", "yxyx", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), wanted, "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn a_star_finds_what_was_put_for_it(before in "[a-c]{0,4}", middle in "[a-c]{0,6}", after in "[a-c]{0,4}") {
            let (pattern, text) = (format!("{before}*{after}"), format!("{before}{middle}{after}"));
            prop_assert!(matches(pattern.as_bytes(), text.as_bytes()));
        }
    }

    #[test]
    fn a_tenant_has_its_own_and_uses_of_the_shared_what_its_tags_name() {
        let acme = caller(Some("acme"), &["py*"]);
        assert!(acme.uses("mine", Some("acme")) && acme.changes("mine", Some("acme")));
        assert!(acme.uses("pynp", None) && !acme.changes("pynp", None));
        assert!(!acme.uses("base", None) && !acme.uses("pynp", Some("other")));
        assert!(!caller(Some("acme"), &[]).uses("pynp", None));
        let bound = caller(None, &["py*"]);
        assert!(bound.changes("pynp", None) && !bound.uses("base", None));
        assert!(bound.check_new_tag(&"py2".parse().unwrap()).is_ok());
        assert!(bound.check_new_tag(&"base".parse().unwrap()).is_err());
        assert!(Caller::trusted("owner").changes("base", Some("acme")));
    }

    #[test]
    fn only_an_administrator_says_whose_something_is() {
        let other = Some("other".to_owned());
        assert_eq!(Caller::trusted("owner").tenant_of_new(other.clone()).unwrap(), other);
        assert_eq!(caller(Some("acme"), &[]).tenant_of_new(None).unwrap().as_deref(), Some("acme"));
        assert!(caller(Some("acme"), &[]).tenant_of_new(other.clone()).is_err());
        assert!(caller(None, &[]).tenant_of_new(other).is_err());
    }
}
