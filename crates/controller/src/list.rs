//! Lists: what is filtered by, and pages.

use axum::response::IntoResponse;
use forkd_protocol::rest::{SandboxInfo, SnapshotInfo, WorkspaceInfo};
use http::{HeaderMap, HeaderValue, header};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use crate::error::ApiError;

/// Longest page.
const MOST: usize = 1000;

/// Which sandboxes.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SandboxFilter {
    /// At most so many, 1 to 1000; absent is all
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only what comes after this id, as `Link` has it
    after: Option<String>,
    /// Of the snapshot with this tag
    tag: Option<String>,
    /// In this state
    state: Option<String>,
    /// With this label, `KEY=VALUE`; several joined by commas
    label: Option<String>,
}

impl SandboxFilter {
    /// One page of those that fit, each as `shown` has it.
    pub(crate) fn page(
        &self,
        mut all: Vec<SandboxInfo>,
        shown: &dyn Fn(SandboxInfo) -> SandboxInfo,
    ) -> Result<impl IntoResponse + use<>, ApiError> {
        let mut labels = Vec::new();
        for label in self.label.iter().flat_map(|labels| labels.split(',')) {
            let pair = label.split_once('=');
            labels.push(pair.ok_or_else(|| ApiError::bad_request("a label is written KEY=VALUE"))?);
        }
        all.retain(|info| {
            self.tag.as_ref().is_none_or(|tag| *tag == info.snapshot_tag)
                && self.state.as_ref().is_none_or(|state| *state == info.state)
                && labels
                    .iter()
                    .all(|(key, value)| info.settings.metadata.get(*key).is_some_and(|has| has == value))
        });
        let all = all.into_iter().map(shown).collect();
        let query = [("tag", &self.tag), ("state", &self.state), ("label", &self.label)];
        cut(all, "/v1/sandboxes", (self.limit, self.after.as_ref()), &query, |info| &info.id)
    }
}

/// Which snapshots.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SnapshotFilter {
    /// At most so many, 1 to 1000; absent is all
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only what comes after this tag, as `Link` has it
    after: Option<String>,
    /// In this status
    status: Option<String>,
    /// Taken of this sandbox
    branched_from: Option<String>,
}

impl SnapshotFilter {
    /// One page of those that fit.
    pub(crate) fn page(&self, mut all: Vec<SnapshotInfo>) -> Result<impl IntoResponse + use<>, ApiError> {
        all.retain(|info| {
            self.status.as_ref().is_none_or(|status| *status == info.status)
                && (self.branched_from.is_none() || self.branched_from == info.branched_from)
        });
        let query = [("status", &self.status), ("branched_from", &self.branched_from)];
        cut(all, "/v1/snapshots", (self.limit, self.after.as_ref()), &query, |info| &info.tag)
    }
}

/// Which workspaces.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WorkspaceFilter {
    /// At most so many, 1 to 1000; absent is all
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Only what comes after this name, as `Link` has it
    after: Option<String>,
    /// In this status
    status: Option<String>,
    /// Begun with the snapshot of this tag
    tag: Option<String>,
}

impl WorkspaceFilter {
    /// One page of those that fit.
    pub(crate) fn page(&self, mut all: Vec<WorkspaceInfo>) -> Result<impl IntoResponse + use<>, ApiError> {
        all.retain(|info| {
            self.status.as_ref().is_none_or(|status| *status == info.status)
                && self.tag.as_ref().is_none_or(|tag| *tag == info.source_snapshot_tag)
        });
        let query = [("status", &self.status), ("tag", &self.tag)];
        cut(all, "/v1/workspaces", (self.limit, self.after.as_ref()), &query, |info| &info.name)
    }
}

/// The page of a list in its order. What `after` names may be gone by now: then the page begins with the first name that
/// is greater.
fn cut<T: Serialize>(
    mut all: Vec<T>,
    path: &str,
    (limit, after): (Option<usize>, Option<&String>),
    query: &[(&str, &Option<String>)],
    name: impl Fn(&T) -> &String,
) -> Result<(HeaderMap, axum::Json<Vec<T>>), ApiError> {
    if limit.is_some_and(|limit| !(1..=MOST).contains(&limit)) {
        return Err(ApiError::bad_request(format!("limit must be 1 to {MOST}")));
    }
    if let Some(after) = after {
        let at = all.iter().position(|one| name(one) == after);
        let from = at.map_or_else(|| all.iter().position(|one| name(one) > after), |at| Some(at + 1));
        all.drain(..from.unwrap_or(all.len()));
    }
    let mut headers = HeaderMap::new();
    if let Some(limit) = limit.filter(|limit| *limit < all.len()) {
        all.truncate(limit);
        let mut link = format!("<{path}?limit={limit}");
        let last = all.last().map(&name).cloned();
        for (key, value) in query.iter().copied().chain([("after", &last)]) {
            if let Some(value) = value {
                link.push_str(&format!("&{key}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
            }
        }
        link.push_str(">; rel=\"next\"");
        headers.extend(HeaderValue::try_from(link).ok().map(|link| (header::LINK, link)));
    }
    Ok((headers, axum::Json(all)))
}
