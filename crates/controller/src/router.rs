//! All routes, their limits, and the document that describes them.

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::response::IntoResponse;
use axum::routing::any;
use http::{Method, StatusCode, Uri};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::guard;
use crate::error::ApiError;
use crate::metrics::count;
use crate::openapi;
use crate::repeat::repeat;
use crate::routes::{
    agent, artifacts, audit, bundles, chains, events, host, jail, meta, network, pause, ports, sandboxes,
    secrets, snapshots, tenants, tokens, workspaces,
};
use crate::service::Service;

/// Longest JSON body: standard input of an exec travels in one.
const MAX_JSON: usize = 16 << 20;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "forkd",
        description = "MicroVM sandboxes, forked from a warmed parent.\n\nErrors have one shape: `error` is for people, \
                       `code` for programs. Names are checked before anything is looked at. Nothing that is asked for \
                       is left half done.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "sandboxes", description = "children of snapshots, and what is done in them"),
        (name = "snapshots", description = "what children are forked from"),
        (name = "workspaces", description = "sandboxes with a name, which survive"),
        (name = "images", description = "root file systems"),
        (name = "kernels", description = "kernels of guests"),
        (name = "bundles", description = "snapshots that leave and arrive"),
        (name = "events", description = "what happened, and what happens"),
        (name = "store", description = "looking after what is stored"),
        (name = "access", description = "tokens, tenants, the audit log"),
        (name = "controller", description = "the controller itself")
    ),
    // What a sandbox answers itself, on any method.
    paths(agent::pass, ports::root, ports::pass, ports::tunnel)
)]
struct Document;

impl Service {
    /// All routes, with what stands around them.
    pub fn router(&self) -> Router {
        let (router, _) = described().split_for_parts();
        router
            .route("/openapi.json", axum::routing::get(openapi::document))
            .route("/docs", axum::routing::get(openapi::docs))
            // Every method and body goes through to the agent; its own API says which there are.
            .route("/v1/sandboxes/{id}/agent/{*path}", any(agent::pass))
            .route("/v1/sandboxes/{id}/ports/{port}", any(ports::root))
            .route("/v1/sandboxes/{id}/ports/{port}/", any(ports::root))
            .route("/v1/sandboxes/{id}/ports/{port}/{*path}", any(ports::pass))
            .route("/v1/sandboxes/{id}/tunnel/{port}", any(ports::tunnel))
            .merge(crate::e2b::routes())
            .fallback(unknown)
            .method_not_allowed_fallback(not_allowed)
            .layer(DefaultBodyLimit::max(MAX_JSON))
            .layer(axum::middleware::from_fn_with_state(self.clone(), repeat))
            .layer(axum::middleware::from_fn_with_state(self.clone(), guard))
            .layer(axum::middleware::from_fn_with_state(self.clone(), count))
            // What is meant for a sandbox has the sandbox's tokens and needs none of the API's.
            .layer(axum::middleware::from_fn_with_state(self.clone(), crate::traffic::divert))
            .layer(tower_http::trace::TraceLayer::new_for_http().make_span_with(crate::span::of_request))
            .with_state(self.clone())
    }
}

/// The routes with what each says of itself.
pub(crate) fn described() -> OpenApiRouter<Service> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(meta::healthz))
        .routes(routes!(meta::version))
        .routes(routes!(meta::metrics))
        .routes(routes!(host::counts))
        .routes(routes!(snapshots::list, snapshots::create))
        .routes(routes!(snapshots::remove))
        .routes(routes!(snapshots::refresh))
        .routes(routes!(chains::info))
        .routes(routes!(chains::compact))
        .routes(routes!(artifacts::image_of_snapshot))
        .routes(routes!(chains::gc))
        .routes(routes!(chains::verify))
        .routes(routes!(bundles::export))
        .routes(routes!(bundles::object))
        .routes(routes!(bundles::begin))
        .routes(routes!(bundles::status, bundles::remove))
        .routes(routes!(bundles::put_object))
        .routes(routes!(bundles::commit))
        .routes(routes!(sandboxes::list, sandboxes::create))
        .routes(routes!(sandboxes::get, sandboxes::kill))
        .routes(routes!(sandboxes::branch))
        .routes(routes!(network::set))
        .routes(routes!(pause::pause))
        .routes(routes!(pause::resume))
        .routes(routes!(secrets::give))
        .routes(routes!(sandboxes::exec))
        .routes(routes!(sandboxes::eval))
        .routes(routes!(sandboxes::ping))
        .routes(routes!(sandboxes::logs))
        .routes(routes!(sandboxes::stats))
        .routes(routes!(jail::get))
        .routes(routes!(sandboxes::all_stats))
        .routes(routes!(workspaces::list, workspaces::create))
        .routes(routes!(workspaces::get, workspaces::remove))
        .routes(routes!(workspaces::suspend))
        .routes(routes!(workspaces::resume))
        .routes(routes!(events::list))
        .routes(routes!(artifacts::images))
        .routes(routes!(artifacts::image, artifacts::put_image, artifacts::remove_image))
        .routes(routes!(artifacts::kernels))
        .routes(routes!(artifacts::put_kernel, artifacts::remove_kernel))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::get, tokens::revoke))
        .routes(routes!(tenants::list))
        .routes(routes!(tenants::set, tenants::remove))
        .routes(routes!(audit::lines))
        .routes(routes!(audit::check))
}

/// A path that no route has. One with `..` in it was meant to go through a name, which is a wrong name.
async fn unknown(method: Method, uri: Uri) -> impl IntoResponse {
    if uri.path().split('/').any(|segment| segment == "..") {
        return ApiError::bad_request("a name cannot contain .. or /");
    }
    ApiError::new(StatusCode::NOT_FOUND, "no_such_route", format!("there is no {method} {}", uri.path()))
}

async fn not_allowed(method: Method, uri: Uri) -> impl IntoResponse {
    let text = format!("{} does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", text)
}
