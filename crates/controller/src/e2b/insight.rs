//! What a sandbox uses, and what it wrote.

use axum::extract::{Query, State};
use axum::response::IntoResponse;
use forkd_engine::Engine;
use forkd_protocol::names::SandboxId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::E2bError;
use super::shapes::{rfc3339, state_of};
use super::{Caller, Of, sandbox_id};

/// Most lines of one answer.
const MAX_LINES: usize = 1000;

/// How a guest is doing, as its agent says.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metric {
    timestamp: String,
    timestamp_unix: u64,
    cpu_count: u32,
    cpu_used_pct: f64,
    mem_used: u64,
    mem_total: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

/// As it is now: no history is kept. None of one that is paused.
pub(super) async fn metrics(
    State(engine): State<Engine>,
    Of(id): Of,
) -> Result<axum::Json<Vec<Metric>>, E2bError> {
    let info = engine.sandbox(&id)?;
    match state_of(&info) {
        Some("running") => Ok(axum::Json(vec![measure(&engine, &id).await?])),
        Some(_) => Ok(axum::Json(Vec::new())),
        None => Err(E2bError::no_sandbox(id.as_str())),
    }
}

async fn measure(engine: &Engine, id: &SandboxId) -> Result<Metric, E2bError> {
    let told = engine.guest_metrics(id).await?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    Ok(Metric {
        timestamp: rfc3339(now * 1000),
        timestamp_unix: now,
        cpu_count: told.cpu_count,
        cpu_used_pct: told.cpu_used_pct,
        mem_used: told.mem_used,
        mem_total: told.mem_total,
        mem_cache: told.mem_cache,
        disk_used: told.disk_used,
        disk_total: told.disk_total,
    })
}

#[derive(Debug, Deserialize)]
pub(super) struct Which {
    /// Joined by commas.
    sandbox_ids: String,
}

pub(super) async fn all_metrics(
    State(engine): State<Engine>,
    _: Caller,
    Query(Which { sandbox_ids }): Query<Which>,
) -> Result<axum::Json<Value>, E2bError> {
    let mut all = serde_json::Map::new();
    for text in sandbox_ids.split(',').filter(|text| !text.is_empty()).take(MAX_LINES) {
        let id = sandbox_id(text)?;
        // One that is gone has none.
        if let Ok(metric) = measure(&engine, &id).await {
            all.insert(text.to_owned(), json!(metric));
        }
    }
    Ok(axum::Json(json!({ "sandboxes": all })))
}

#[derive(Debug, Deserialize)]
pub(super) struct Lines {
    limit: Option<usize>,
}

/// What its console shows. No line has a time of its own: all have that of the fork.
pub(super) async fn logs(
    State(engine): State<Engine>,
    Of(id): Of,
    Query(Lines { limit }): Query<Lines>,
) -> Result<impl IntoResponse, E2bError> {
    let (timestamp, lines) = console(&engine, &id, limit).await?;
    let entries: Vec<_> = lines.iter().map(|line| entry(&timestamp, line)).collect();
    let logs: Vec<_> = lines.iter().map(|line| json!({ "timestamp": timestamp, "line": line })).collect();
    Ok(axum::Json(json!({ "logs": logs, "logEntries": entries })))
}

pub(super) async fn entries(
    State(engine): State<Engine>,
    Of(id): Of,
    Query(Lines { limit }): Query<Lines>,
) -> Result<impl IntoResponse, E2bError> {
    let (timestamp, lines) = console(&engine, &id, limit).await?;
    Ok(axum::Json(json!({ "logs": lines.iter().map(|line| entry(&timestamp, line)).collect::<Vec<_>>() })))
}

fn entry(timestamp: &str, line: &str) -> Value {
    json!({ "timestamp": timestamp, "message": line, "level": "info", "fields": {} })
}

async fn console(
    engine: &Engine,
    id: &SandboxId,
    limit: Option<usize>,
) -> Result<(String, Vec<String>), E2bError> {
    let info = engine.sandbox(id)?;
    let text = engine.console(id).await?;
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().take(limit.unwrap_or(MAX_LINES).min(MAX_LINES)).map(str::to_owned).collect();
    Ok((rfc3339(info.created_at_unix * 1000), lines))
}
