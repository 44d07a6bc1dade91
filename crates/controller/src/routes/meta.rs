//! The controller itself.

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use forkd_engine::Engine;
use forkd_protocol::rest::{Healthz, VersionInfo};
use http::header::CONTENT_TYPE;

use crate::error::ApiError;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Whether the controller answers
#[utoipa::path(get, path = "/healthz", tag = "controller", responses((status = 200, body = Healthz)))]
pub(crate) async fn healthz() -> Json<Healthz> {
    Json(Healthz { ok: true })
}

/// Which forkd this is
#[utoipa::path(get, path = "/version", tag = "controller", responses((status = 200, body = VersionInfo)))]
pub(crate) async fn version() -> Json<VersionInfo> {
    Json(VersionInfo { version: VERSION.to_owned(), api: "v1".to_owned() })
}

/// Figures for Prometheus
#[utoipa::path(
    get, path = "/metrics", tag = "controller",
    responses((status = 200, content_type = "text/plain", body = String))
)]
pub(crate) async fn metrics(State(engine): State<Engine>) -> Result<impl IntoResponse, ApiError> {
    let snapshots = engine.snapshots().await?.len();
    let active = engine.sandboxes().iter().filter(|s| s.ended.is_none() && s.state != "paused").count();
    let text = render(snapshots, active, engine.killed_by_filter());
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

fn render(snapshots: usize, active: usize, by_filter: u64) -> String {
    format!(
        "# HELP forkd_snapshots_total Snapshots in the store.\n# TYPE forkd_snapshots_total gauge\n\
         forkd_snapshots_total {snapshots}\n\
         # HELP forkd_sandboxes_active Sandboxes that live, without paused ones.\n# TYPE forkd_sandboxes_active gauge\n\
         forkd_sandboxes_active {active}\n\
         # HELP forkd_sandboxes_killed_total Sandboxes that the kernel ended, by what for.\n\
         # TYPE forkd_sandboxes_killed_total counter\n\
         forkd_sandboxes_killed_total{{reason=\"seccomp\"}} {by_filter}\n\
         # HELP forkd_build_info Which forkd this is.\n# TYPE forkd_build_info gauge\n\
         forkd_build_info{{version=\"{VERSION}\"}} 1\n"
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_names_are_those_that_dashboards_know() {
        let text = super::render(2, 3, 4);
        assert!(text.contains("\nforkd_snapshots_total 2\n"));
        assert!(text.contains("\nforkd_sandboxes_active 3\n"));
        assert!(text.contains("\nforkd_sandboxes_killed_total{reason=\"seccomp\"} 4\n"));
        assert!(text.ends_with("forkd_build_info{version=\"0.1.0\"} 1\n"), "{text}");
    }
}
