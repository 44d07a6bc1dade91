//! Snapshots of sandboxes, which are templates, too.

use axum::extract::{Path, Query, State};
use axum::response::IntoResponse;
use forkd_engine::Engine;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{BranchRequest, RemoveSnapshot, SnapshotInfo};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::error::E2bError;
use super::list::page;
use super::{Caller, Json, Of, sandbox_id};

#[derive(Debug, Deserialize)]
pub(super) struct New {
    name: Option<String>,
    memory: Option<bool>,
}

#[derive(Debug, Serialize)]
pub(super) struct Snapshot {
    #[serde(rename = "snapshotID")]
    snapshot_id: String,
    names: Vec<String>,
}

impl From<SnapshotInfo> for Snapshot {
    fn from(info: SnapshotInfo) -> Self {
        Self { names: vec![info.tag.clone()], snapshot_id: info.tag }
    }
}

/// The sandbox runs on.
pub(super) async fn create(
    State(engine): State<Engine>,
    Of(id): Of,
    Json(New { name, memory }): Json<New>,
) -> Result<impl IntoResponse, E2bError> {
    if memory == Some(false) {
        return Err(E2bError::not_served("a snapshot without memory"));
    }
    let made = engine.branch(&id, BranchRequest { tag: name, ..BranchRequest::default() }).await?;
    Ok((StatusCode::CREATED, axum::Json(Snapshot::from(made))))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Filter {
    #[serde(rename = "sandboxID")]
    sandbox_id: Option<String>,
    name: Option<String>,
    limit: Option<usize>,
    next_token: Option<String>,
}

/// Those that were made of sandboxes.
pub(super) async fn list(
    State(engine): State<Engine>,
    _: Caller,
    Query(filter): Query<Filter>,
) -> Result<impl IntoResponse, E2bError> {
    let source =
        filter.sandbox_id.as_deref().map(|id| sandbox_id(id).map(|id| id.to_string())).transpose()?;
    let fits = |info: &SnapshotInfo| {
        info.branched_from.is_some()
            && source.as_ref().is_none_or(|source| info.branched_from.as_ref() == Some(source))
            && filter.name.as_ref().is_none_or(|name| info.tag == *name)
    };
    let all: Vec<_> = engine.snapshots().await?.into_iter().filter(fits).collect();
    let (page, headers) = page(all, filter.limit, filter.next_token.as_deref(), |info| &info.tag)?;
    Ok((headers, axum::Json(page.into_iter().map(Snapshot::from).collect::<Vec<_>>())))
}

/// Sandboxes that run keep what they need.
pub(super) async fn remove(
    State(engine): State<Engine>,
    _: Caller,
    Path(tag): Path<String>,
) -> Result<StatusCode, E2bError> {
    engine.remove_snapshot(known(&tag)?, RemoveSnapshot::default()).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Serialize)]
pub(super) struct Alias {
    #[serde(rename = "templateID")]
    template_id: String,
    public: bool,
}

pub(super) async fn alias(
    State(engine): State<Engine>,
    _: Caller,
    Path(tag): Path<String>,
) -> Result<axum::Json<Alias>, E2bError> {
    let info = engine.snapshot(known(&tag)?).await?;
    Ok(axum::Json(Alias { template_id: info.tag, public: false }))
}

/// What cannot be a tag is the tag of no snapshot.
fn known(tag: &str) -> Result<Tag, E2bError> {
    tag.parse().map_err(|_| E2bError::new(StatusCode::NOT_FOUND, format!("there is no snapshot {tag:?}")))
}
