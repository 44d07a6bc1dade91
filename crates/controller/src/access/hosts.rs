//! Which names a plain loopback listener answers to.
//!
//! A page in a browser can have its own name point to 127.0.0.1 and then read what answers there as if it were its own
//! server. The name stands in `Host`, and the page's in `Origin`: both have to be ours. A page that a sandbox serves is
//! not ours, although the name it is reached by lies below one of ours.

use std::net::IpAddr;

use http::{HeaderMap, Uri, header};

use crate::traffic::is_of_sandbox;

/// Names beside `localhost` and loopback addresses.
#[derive(Debug, Clone, Default)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// With these names, and all below them.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    /// What is wrong with where a request was sent to, or from.
    pub(super) fn objection(&self, uri: &Uri, headers: &HeaderMap) -> Option<String> {
        let host = headers.get(header::HOST).map(|host| host.to_str().unwrap_or("?").to_owned());
        // No browser leaves it out, and HTTP/1.0 knows none.
        let host = host.or_else(|| uri.authority().map(ToString::to_string));
        if let Some(host) = host.filter(|host| !self.knows(host)) {
            return Some(format!("the host {:?} is not this controller", shortened(&host)));
        }
        let origin = headers.get(header::ORIGIN)?.to_str().unwrap_or("?");
        (!self.is_own_page(headers))
            .then(|| format!("pages of {:?} may not ask this controller", shortened(origin)))
    }

    /// Whether a page of ours asks, or no page at all: what a sandbox or anybody else serves is none.
    pub(crate) fn is_own_page(&self, headers: &HeaderMap) -> bool {
        headers.get(header::ORIGIN).is_none_or(|origin| {
            let origin = origin.to_str().unwrap_or("?");
            let from = origin.split_once("://").map_or(origin, |(_, host)| host);
            self.knows(from) && !is_of_sandbox(from)
        })
    }

    fn knows(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        if bare.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()) {
            return true;
        }
        let below = |known: &str| name == known || name.strip_suffix(known).is_some_and(|n| n.ends_with('.'));
        below("localhost") || self.0.iter().any(|known| below(known))
    }
}

fn without_port(host: &str) -> &str {
    match host.rfind(':') {
        Some(at) if !host.ends_with(']') => &host[..at],
        _ => host,
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objection(host: &str, origin: Option<&str>) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(header::ORIGIN, origin.parse().unwrap());
        }
        Hosts::new(["forkd.example".to_owned()]).objection(&Uri::from_static("/"), &headers)
    }

    #[test]
    fn loopback_by_any_of_its_names_is_ours() {
        for host in ["localhost:8889", "127.0.0.1", "127.5.4.3:1", "[::1]:8889", "49983-sb-1.localhost:80"] {
            assert_eq!(objection(host, None), None, "{host}");
        }
        assert_eq!(objection("x.forkd.example", Some("http://localhost:3000")), None);
        assert_eq!(Hosts::default().objection(&Uri::from_static("/"), &HeaderMap::new()), None);
    }

    #[test]
    fn names_that_only_point_here_and_pages_from_elsewhere_are_not() {
        for host in
            ["evil.example", "localhost.evil.example", "notlocalhost", "10.0.0.1", "", "evilforkd.example"]
        {
            assert!(objection(host, None).is_some(), "{host}");
        }
        for origin in [
            "https://evil.example",
            "null",
            "http://127.0.0.1.evil.example",
            "http://8000-sb-1.localhost:8889",
            "https://8000-sb-1.x.forkd.example",
        ] {
            assert!(objection("localhost", Some(origin)).is_some(), "{origin}");
        }
    }
}
