//! What is logged on behalf of a request says which one it is, and which sandbox it is about.

use http::Request;
use tracing::Span;
use tracing::field::Empty;

/// Longest path that is logged.
const LONGEST_PATH: usize = 256;
/// What stands before a sandbox's id in a path.
const SANDBOXES: &str = "sandboxes";

/// Method and path; never a query, which may carry a signature, and never a header.
pub(crate) fn of_request<B>(request: &Request<B>) -> Span {
    let path = request.uri().path();
    let path = &path[..path.floor_char_boundary(LONGEST_PATH)];
    let span = tracing::info_span!("request", method = %request.method(), path, sandbox = Empty);
    if let Some(id) = sandbox_in(path) {
        span.record("sandbox", id);
    }
    span
}

fn sandbox_in(path: &str) -> Option<&str> {
    let mut segments = path.split('/').skip_while(|segment| *segment != SANDBOXES).skip(1);
    segments.next().filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sandbox_is_found_in_both_apis() {
        assert_eq!(sandbox_in("/v1/sandboxes/sb-1/exec"), Some("sb-1"));
        assert_eq!(sandbox_in("/v2/sandboxes/sb-1/connect"), Some("sb-1"));
        for none in ["/v1/sandboxes", "/v1/sandboxes/", "/v1/snapshots/t/info"] {
            assert_eq!(sandbox_in(none), None, "{none}");
        }
    }
}
