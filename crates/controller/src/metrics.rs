//! What the API counts by itself: requests by route, how long they took, errors by class.

use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::{Method, StatusCode};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::error::{ApiError, class_of};
use crate::service::Service;

/// What was built.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Every name begins with it.
const PREFIX: &str = "forkd";
/// Route of what no route has, and method of what is no method of HTTP: labels are bounded, whatever is asked.
const OTHER: &str = "other";

type Labels<const N: usize> = [(&'static str, String); N];

/// What was asked of the API since the controller began.
#[derive(Debug)]
pub(crate) struct Traffic {
    requests: Family<Labels<3>, Counter>,
    seconds: Family<Labels<2>, Histogram, fn() -> Histogram>,
    errors: Family<[(&'static str, &'static str); 1], Counter>,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 4.0, 11))),
            errors: Family::default(),
        }
    }
}

impl Traffic {
    fn note(&self, method: &Method, route: &str, status: StatusCode, began: Instant) {
        let method = || ("method", method_name(method).to_owned());
        let route = || ("route", route.to_owned());
        self.requests.get_or_create(&[method(), route(), ("status", status.as_str().to_owned())]).inc();
        self.seconds.get_or_create(&[method(), route()]).observe(began.elapsed().as_secs_f64());
        if let Some(class) = class_of(status) {
            self.errors.get_or_create(&[("class", class)]).inc();
        }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("http_requests", "Requests by route", self.requests.clone());
        let help = "How long requests took until their answer began";
        registry.register_with_unit("http_request", help, Unit::Seconds, self.seconds.clone());
        registry.register("errors", "Requests that were refused or failed, by class", self.errors.clone());
    }
}

/// Notes every request that is meant for the API.
pub(crate) async fn count(State(service): State<Service>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let route = route.as_ref().map_or(OTHER, MatchedPath::as_str);
    service.traffic().note(&method, route, response.status(), began);
    response
}

fn method_name(method: &Method) -> &str {
    match *method {
        Method::GET | Method::HEAD | Method::POST | Method::PUT | Method::DELETE | Method::PATCH => {
            method.as_str()
        }
        _ => OTHER,
    }
}

/// All figures as text, in the format that Prometheus and OpenMetrics share.
pub(crate) async fn text(service: &Service) -> Result<String, ApiError> {
    let mut registry = Registry::with_prefix(PREFIX);
    let build = Family::<Labels<1>, Gauge>::default();
    build.get_or_create(&[("version", VERSION.to_owned())]).set(1);
    registry.register("build_info", "Which forkd this is", build);
    service.engine().figures(&mut registry).await?;
    service.traffic().register(&mut registry);
    let mut text = String::new();
    // A string takes all that is written.
    let _ = encode(&mut text, &registry);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_does_not_make_labels() {
        let traffic = Traffic::default();
        let strange = Method::from_bytes(b"BREW").unwrap();
        for method in [&strange, &Method::OPTIONS] {
            traffic.note(method, OTHER, StatusCode::NOT_FOUND, Instant::now());
        }
        traffic.note(&Method::GET, "/v1/sandboxes", StatusCode::OK, Instant::now());
        let mut registry = Registry::with_prefix(PREFIX);
        traffic.register(&mut registry);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "forkd_http_requests_total{method=\"other\",route=\"other\",status=\"404\"} 2",
            "forkd_http_requests_total{method=\"GET\",route=\"/v1/sandboxes\",status=\"200\"} 1",
            "forkd_http_request_seconds_count{method=\"GET\",route=\"/v1/sandboxes\"} 1",
            "forkd_errors_total{class=\"not_found\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
