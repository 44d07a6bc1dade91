//! Which sandbox and port a request is for.

use axum::extract::Request;
use forkd_protocol::names::SandboxId;
use http::header::HOST;

use super::gone::Gone;
use crate::e2b::sandbox_id;

/// A port of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) id: SandboxId,
    pub(super) port: u16,
}

impl Target {
    /// None where the request is for the API.
    pub(super) fn of(request: &Request) -> Result<Option<Self>, Gone> {
        let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or_default());
        // Early clients send a sandbox's headers to the control plane, too; no path of the agent's begins like those.
        let of_api = header("x-api-key").is_some() && crate::e2b::is_control(request.uri().path());
        if let Some(id) = header("e2b-sandbox-id").filter(|_| !of_api) {
            let id = sandbox_id(id).map_err(|_| Gone::bad_request("E2b-Sandbox-Id is no id of a sandbox"))?;
            let port = header("e2b-sandbox-port").and_then(port_of);
            let port = port.ok_or_else(|| Gone::bad_request("E2b-Sandbox-Port is missing or no port"))?;
            return Ok(Some(Self { id, port }));
        }
        let host = request.uri().host().or_else(|| header(HOST.as_str()));
        Ok(host.and_then(Self::of_host))
    }

    /// Whether a host name, with or without a port, is a sandbox's.
    pub(super) fn names(host: &str) -> bool {
        Self::of_host(host).is_some()
    }

    /// Of `<port>-<id>.<domain>`, whatever the domain is: no other host begins like that.
    fn of_host(host: &str) -> Option<Self> {
        let (label, _) = host.split_once('.')?;
        let (port, id) = label.split_once('-')?;
        let id = id.starts_with("sb-").then(|| sandbox_id(id).ok()).flatten()?;
        Some(Self { id, port: port_of(port)? })
    }
}

fn port_of(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn of(headers: &[(&str, &str)]) -> Result<Option<(String, u16)>, u16> {
        let mut request = Request::builder().uri("/health");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let target = Target::of(&request.body(Body::empty()).unwrap());
        target.map(|t| t.map(|t| (t.id.to_string(), t.port))).map_err(|gone| gone.status())
    }

    #[test]
    fn headers_say_where_to_on_any_host() {
        let host = ("Host", "127.0.0.1:8889");
        let is = Ok(Some(("sb-1-2".to_owned(), 49983)));
        assert_eq!(of(&[host, ("E2b-Sandbox-Id", "sb-1-2"), ("E2b-Sandbox-Port", "49983")]), is);
        // Early clients join the id of sandbox and client.
        assert_eq!(of(&[host, ("E2b-Sandbox-Id", "sb-1-2-forkd"), ("E2b-Sandbox-Port", "49983")]), is);
        assert_eq!(of(&[host]), Ok(None));
        for bad in [("E2b-Sandbox-Port", "0"), ("E2b-Sandbox-Port", "x"), ("X", "y")] {
            assert_eq!(of(&[("E2b-Sandbox-Id", "sb-1"), bad]), Err(400));
        }
        assert_eq!(of(&[("E2b-Sandbox-Id", "../x"), ("E2b-Sandbox-Port", "1")]), Err(400));
    }

    #[test]
    fn calls_of_the_control_plane_stay_there() {
        let of = |path: &str, name: &str| {
            let request = Request::builder().uri(path).header("E2b-Sandbox-Id", "sb-1").header(name, "k");
            Target::of(&request.header("E2b-Sandbox-Port", "49983").body(Body::empty()).unwrap()).unwrap()
        };
        assert_eq!(of("/v2/sandboxes/sb-1/connect", "X-API-Key"), None);
        assert_eq!(of("/sandboxes", "X-API-Key"), None);
        assert!(of("/sandboxes", "X-Other").is_some());
        for path in ["/files", "/sandboxesque", "/process.Process/Start"] {
            assert!(of(path, "X-API-Key").is_some(), "{path}");
        }
    }

    #[test]
    fn so_do_host_names_of_any_domain() {
        assert_eq!(
            of(&[("Host", "8000-sb-6a-1.sandboxes.example:8443")]),
            Ok(Some(("sb-6a-1".to_owned(), 8000)))
        );
        for other in
            ["8000-sb-6a-1", "localhost:8889", "0-sb-1.x", "x-sb-1.x", "80-example.com", "1-2.3", "[::1]:1"]
        {
            assert_eq!(of(&[("Host", other)]), Ok(None), "{other}");
        }
    }
}
