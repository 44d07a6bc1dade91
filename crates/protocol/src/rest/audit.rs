//! The audit log.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditLine {
    /// Its number; the first is 1.
    pub seq: u64,
    /// When the call came, milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Who: `owner` (the Unix socket), `open` (loopback before there are tokens), `token:<id>`, `chosen-token`, `nobody`.
    pub who: String,
    /// The tenant of the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// From where.
    pub from: String,
    /// What: method and route.
    pub what: String,
    /// To what: the path, at most 256 characters.
    pub to: String,
    /// Ids and tags of what came of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub made: Vec<String>,
    /// Names of secrets that go on into a snapshot or into children, where `what` says so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// `done`, `refused` (4xx), `failed` (5xx), or `abandoned` (the client left before the answer); `asked` where what
    /// came of it has a line of its own.
    pub outcome: String,
    /// HTTP status; 0 where there was no answer.
    pub status: u16,
    /// How long it took, microseconds.
    pub micros: u64,
    /// BLAKE3 of the line before, without its line break.
    pub prev: String,
}

/// What became of checking the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditReport {
    /// Whether every line is there and as it was written.
    pub sound: bool,
    /// Files that were read.
    pub files: u64,
    /// Lines that were read.
    pub lines: u64,
    /// Hash of the newest line.
    pub head: String,
    /// What is wrong, and where; at most 100.
    #[schema(max_items = 100)]
    pub problems: Vec<String>,
}
