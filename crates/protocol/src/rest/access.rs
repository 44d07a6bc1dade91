//! Who may do what: tokens, tenants, their quotas.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a token may do. Each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Look at what there is.
    Read,
    /// Fork, run, branch, pause and end sandboxes.
    Run,
    /// Make and remove images, kernels and snapshots; move them in and out; look after the store.
    Operate,
    /// Everything: tokens, tenants, the audit log.
    Admin,
}

impl Scope {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is written is no scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no scope: use read, run, operate or admin")]
pub struct ScopeError(String);

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(given: &str) -> Result<Self, ScopeError> {
        let all = [Self::Read, Self::Run, Self::Operate, Self::Admin];
        all.into_iter()
            .find(|scope| scope.name() == given)
            .ok_or_else(|| ScopeError(given.chars().take(40).collect()))
    }
}

/// Make a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateToken {
    /// What it may do.
    pub scope: Scope,
    /// Tags it may name, `*` for any rest, `?` for any character; none binds it to no tag. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 32)]
    pub tags: Vec<String>,
    /// Whose it is: it sees and spends that tenant's sandboxes and snapshots alone, besides shared snapshots that its
    /// tags name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// For people, at most 200 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 200)]
    pub note: Option<String>,
    /// Seconds until it is good for nothing, at most ten years; absent is for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315_360_000)]
    pub expires_in_secs: Option<u64>,
}

/// A token as everybody may see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TokenInfo {
    /// What it is called by.
    pub id: String,
    /// What it may do.
    pub scope: Scope,
    /// Tags it is bound to.
    pub tags: Vec<String>,
    /// Whose it is.
    pub tenant: Option<String>,
    /// For people.
    pub note: Option<String>,
    /// Seconds since the Unix epoch.
    pub created_at_unix: u64,
    /// When it ends to be good, seconds since the Unix epoch.
    pub expires_at_unix: Option<u64>,
    /// When it was revoked, seconds since the Unix epoch.
    pub revoked_at_unix: Option<u64>,
    /// When it was used last, to the minute, since this controller started.
    pub last_used_unix: Option<u64>,
}

/// A token in the moment it is made: its secret is shown this once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedToken {
    /// The token, as a client sends it.
    pub token: String,
    /// The rest.
    #[serde(flatten)]
    pub info: TokenInfo,
}

/// Largest bound of a quota: the largest number that every client's JSON can write.
pub const MAX_QUOTA: u64 = 9_007_199_254_740_991;

/// What a tenant may have at once; what is absent has no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Quota {
    /// Sandboxes, paused ones too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_i64)]
    pub sandboxes: Option<u64>,
    /// Memory of the guests of sandboxes that are not paused, MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_i64)]
    pub memory_mib: Option<u64>,
    /// Bytes of its snapshots on the disk, MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_i64)]
    pub disk_mib: Option<u64>,
    /// Children forked, in the mean of some seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 9_007_199_254_740_991_i64)]
    pub forks_per_second: Option<u64>,
}

/// What a tenant has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Usage {
    /// Sandboxes, paused ones too.
    pub sandboxes: u64,
    /// Memory of the guests of sandboxes that are not paused, MiB.
    pub memory_mib: u64,
    /// Bytes of its snapshots on the disk, MiB.
    pub disk_mib: u64,
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantInfo {
    /// Its name.
    pub name: String,
    /// What it may have.
    pub quota: Quota,
    /// What it has.
    pub used: Usage,
}
