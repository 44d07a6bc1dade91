//! Which sandboxes there are.

use std::collections::BTreeMap;

use axum::extract::{Query, State};
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use forkd_engine::Engine;
use forkd_protocol::rest::SandboxInfo;
use http::{HeaderMap, HeaderValue};
use serde::Deserialize;

use super::error::E2bError;
use super::shapes::{Detail, Listed, state_of};
use super::{Caller, Of};
use crate::access;

/// Most sandboxes, and most snapshots, of one page.
const PAGE: usize = 100;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Filter {
    metadata: Option<String>,
    /// Joined by commas.
    state: Option<String>,
    order: Option<String>,
    started_after: Option<String>,
    template: Option<String>,
    limit: Option<usize>,
    next_token: Option<String>,
}

pub(super) async fn list(
    State(engine): State<Engine>,
    Caller(caller): Caller,
    Query(filter): Query<Filter>,
) -> Result<impl IntoResponse, E2bError> {
    let mut all = filter.select(&engine, &caller)?;
    if filter.order.as_deref() != Some("asc") {
        all.reverse();
    }
    let (page, headers) = page(all, filter.limit, filter.next_token.as_deref(), |info| &info.id)?;
    let page: Vec<Listed> = page.into_iter().filter_map(|info| Listed::of(&engine, info)).collect();
    Ok((headers, axum::Json(page)))
}

/// The first version: those that run, all at once.
pub(super) async fn early(
    State(engine): State<Engine>,
    Caller(caller): Caller,
    Query(filter): Query<Filter>,
) -> Result<axum::Json<Vec<Listed>>, E2bError> {
    let state = Some(filter.state.unwrap_or_else(|| "running".to_owned()));
    let all = Filter { state, ..filter }.select(&engine, &caller)?;
    Ok(axum::Json(all.into_iter().filter_map(|info| Listed::of(&engine, info)).collect()))
}

pub(super) async fn one(State(engine): State<Engine>, Of(id): Of) -> Result<axum::Json<Detail>, E2bError> {
    let info = engine.sandbox(&id)?;
    Ok(axum::Json(Detail::of(&engine, info, &id)?))
}

impl Filter {
    /// Oldest first.
    fn select(&self, engine: &Engine, caller: &access::Caller) -> Result<Vec<SandboxInfo>, E2bError> {
        let wanted = self.metadata.as_deref().map(labels).unwrap_or_default();
        let states: Vec<&str> = self.state.as_deref().map(|s| s.split(',').collect()).unwrap_or_default();
        if let Some(unknown) = states.iter().find(|state| !matches!(**state, "running" | "paused")) {
            return Err(E2bError::bad_request(format!("{unknown:?} is no state: running or paused")));
        }
        let after = self.started_after.as_deref().map(humantime::parse_rfc3339_weak).transpose();
        let after = after.map_err(|e| E2bError::bad_request(format!("startedAfter: {e}")))?;
        let fits = |info: &SandboxInfo| {
            let Some(state) = state_of(info) else { return false };
            let started = std::time::UNIX_EPOCH + std::time::Duration::from_secs(info.created_at_unix);
            caller.sees(info)
                && (states.is_empty() || states.contains(&state))
                && wanted.iter().all(|(key, value)| info.settings.metadata.get(key) == Some(value))
                && after.is_none_or(|after| started > after)
                && self.template.as_ref().is_none_or(|template| *template == info.snapshot_tag)
        };
        Ok(engine.sandboxes().into_iter().filter(fits).collect())
    }
}

/// One page, and the header that says where the next begins. A token names the last one that was seen, which may be gone
/// by then.
pub(super) fn page<T>(
    mut all: Vec<T>,
    limit: Option<usize>,
    token: Option<&str>,
    name: impl Fn(&T) -> &String,
) -> Result<(Vec<T>, HeaderMap), E2bError> {
    let limit = limit.unwrap_or(PAGE);
    if !(1..=PAGE).contains(&limit) {
        return Err(E2bError::bad_request(format!("limit is from 1 to {PAGE}")));
    }
    if let Some(token) = token.filter(|token| !token.is_empty()) {
        let last = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let last = last.ok_or_else(|| E2bError::bad_request("nextToken is none that was given"))?;
        let next = all.iter().position(|item| *name(item) == last).map_or(all.len(), |at| at + 1);
        all.drain(..next);
    }
    let mut headers = HeaderMap::new();
    if all.len() > limit {
        all.truncate(limit);
        let token = all.last().map(|last| URL_SAFE_NO_PAD.encode(name(last))).unwrap_or_default();
        if let Ok(token) = HeaderValue::from_str(&token) {
            headers.insert("x-next-token", token);
        }
    }
    Ok((all, headers))
}

/// Labels that are to be there: `k=v&…`, whose keys and values were escaped once more on their own.
fn labels(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))).map(|(k, v)| (twice(k), twice(v))).collect()
}

fn twice(text: &str) -> String {
    unescape(&unescape(&text.replace('+', " ")))
}

fn unescape(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_as_often_as_clients_do() {
        // `metadata=a%252520b%3Dc%252526d`, after the query was taken apart.
        let wanted = labels("a%2520b=c%2526d&x=");
        assert_eq!(wanted, [("a b".to_owned(), "c&d".to_owned()), ("x".into(), String::new())].into());
        assert!(labels("").is_empty());
    }

    #[test]
    fn pages_follow_each_other_and_end() {
        let all = || (0..5).map(|n| n.to_string()).collect::<Vec<_>>();
        let (mut seen, mut token) = (Vec::new(), None);
        loop {
            let (page, headers) = page(all(), Some(2), token.as_deref(), |item| item).unwrap();
            seen.extend(page);
            token = headers.get("x-next-token").map(|token| token.to_str().unwrap().to_owned());
            if token.is_none() {
                break;
            }
        }
        assert_eq!(seen, all());
        assert!(page(all(), Some(0), None, |item| item).is_err());
        assert!(page(all(), Some(PAGE + 1), None, |item| item).is_err());
        assert!(page(all(), None, Some("%"), |item| item).is_err());
    }
}
