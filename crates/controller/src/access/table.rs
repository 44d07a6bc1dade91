//! What each route demands: one table. A route that is not in it demands everything.

use forkd_protocol::rest::Scope;

/// How a token that is bound to a tenant or to tags meets what a route reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// No credential is asked for: nothing about anybody is said.
    Public,
    /// Nothing of anybody's is reached.
    Nothing,
    /// The sandbox that the first variable of the path names: looked at before.
    Sandbox,
    /// The snapshot that the first variable of the path names, to be used.
    Snapshot,
    /// The same, to be changed.
    SnapshotChange,
    /// The route itself looks at what its caller may reach.
    Own,
    /// All there is: bound tokens are refused.
    Whole,
}

/// What a route demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) scope: Scope,
    pub(crate) reach: Reach,
}

/// For what nobody thought of.
const STRICTEST: Rule = Rule { scope: Scope::Admin, reach: Reach::Whole };

/// Method (`*` is any), path as the router has it, rule.
pub(crate) const ROUTES: &[(&str, &str, Scope, Reach)] = {
    use Reach::{Nothing, Own, Public, Sandbox, Snapshot, SnapshotChange, Whole};
    use Scope::{Admin, Operate, Read, Run};
    &[
        ("GET", "/healthz", Read, Public),
        ("GET", "/version", Read, Public),
        ("GET", "/openapi.json", Read, Public),
        ("GET", "/docs", Read, Public),
        ("GET", "/metrics", Read, Whole),
        ("GET", "/v1/snapshots", Read, Own),
        ("POST", "/v1/snapshots", Operate, Own),
        ("DELETE", "/v1/snapshots/{tag}", Operate, SnapshotChange),
        ("GET", "/v1/snapshots/{tag}/info", Read, Snapshot),
        ("POST", "/v1/snapshots/{tag}/refresh", Operate, SnapshotChange),
        ("POST", "/v1/snapshots/{tag}/compact", Operate, Snapshot),
        ("POST", "/v1/snapshots/{tag}/image", Operate, Whole),
        ("GET", "/v1/snapshots/{tag}/export", Operate, Snapshot),
        ("GET", "/v1/snapshots/{tag}/objects/{hash}", Operate, Snapshot),
        ("POST", "/v1/imports", Operate, Whole),
        ("GET", "/v1/imports/{id}", Operate, Whole),
        ("DELETE", "/v1/imports/{id}", Operate, Whole),
        ("PUT", "/v1/imports/{id}/objects/{hash}", Operate, Whole),
        ("POST", "/v1/imports/{id}/commit", Operate, Whole),
        ("GET", "/v1/host", Read, Whole),
        ("GET", "/v1/stats", Read, Whole),
        ("POST", "/v1/gc", Operate, Whole),
        ("POST", "/v1/verify", Operate, Whole),
        ("GET", "/v1/sandboxes", Read, Own),
        ("POST", "/v1/sandboxes", Run, Own),
        ("GET", "/v1/sandboxes/{id}", Read, Sandbox),
        ("DELETE", "/v1/sandboxes/{id}", Run, Sandbox),
        ("POST", "/v1/sandboxes/{id}/branch", Run, Sandbox),
        ("POST", "/v1/sandboxes/{id}/pause", Run, Sandbox),
        ("POST", "/v1/sandboxes/{id}/secrets", Run, Sandbox),
        ("POST", "/v1/sandboxes/{id}/resume", Run, Sandbox),
        ("PUT", "/v1/sandboxes/{id}/network", Run, Sandbox),
        ("POST", "/v1/sandboxes/{id}/exec", Run, Sandbox),
        ("POST", "/v1/sandboxes/{id}/eval", Run, Sandbox),
        ("POST", "/v1/sandboxes/{id}/ping", Run, Sandbox),
        ("GET", "/v1/sandboxes/{id}/logs", Read, Sandbox),
        ("GET", "/v1/sandboxes/{id}/stats", Read, Sandbox),
        ("*", "/v1/sandboxes/{id}/agent/{*path}", Run, Sandbox),
        ("GET", "/v1/sandboxes/{id}/jail", Read, Sandbox),
        ("*", "/v1/sandboxes/{id}/ports/{port}", Run, Sandbox),
        ("*", "/v1/sandboxes/{id}/ports/{port}/", Run, Sandbox),
        ("*", "/v1/sandboxes/{id}/ports/{port}/{*path}", Run, Sandbox),
        ("*", "/v1/sandboxes/{id}/tunnel/{port}", Run, Sandbox),
        ("GET", "/v1/workspaces", Read, Own),
        ("POST", "/v1/workspaces", Run, Own),
        ("GET", "/v1/workspaces/{name}", Read, Own),
        ("DELETE", "/v1/workspaces/{name}", Run, Own),
        ("POST", "/v1/workspaces/{name}/suspend", Run, Own),
        ("POST", "/v1/workspaces/{name}/resume", Run, Own),
        ("GET", "/v1/events", Read, Own),
        ("GET", "/v1/images", Read, Nothing),
        ("GET", "/v1/images/{name}", Read, Nothing),
        ("PUT", "/v1/images/{name}", Operate, Whole),
        ("DELETE", "/v1/images/{name}", Operate, Whole),
        ("GET", "/v1/kernels", Read, Nothing),
        ("PUT", "/v1/kernels/{name}", Operate, Whole),
        ("DELETE", "/v1/kernels/{name}", Operate, Whole),
        ("GET", "/v1/tokens", Admin, Whole),
        ("POST", "/v1/tokens", Admin, Whole),
        ("GET", "/v1/tokens/{id}", Admin, Whole),
        ("DELETE", "/v1/tokens/{id}", Admin, Whole),
        ("GET", "/v1/tenants", Admin, Whole),
        ("PUT", "/v1/tenants/{name}", Admin, Whole),
        ("DELETE", "/v1/tenants/{name}", Admin, Whole),
        ("GET", "/v1/audit", Admin, Whole),
        ("GET", "/v1/audit/verify", Admin, Whole),
        // E2B's control plane.
        ("POST", "/sandboxes", Run, Own),
        ("GET", "/sandboxes", Read, Own),
        ("POST", "/v2/sandboxes", Run, Own),
        ("GET", "/v2/sandboxes", Read, Own),
        ("GET", "/sandboxes/{id}", Read, Sandbox),
        ("DELETE", "/sandboxes/{id}", Run, Sandbox),
        ("POST", "/sandboxes/{id}/timeout", Run, Sandbox),
        ("POST", "/sandboxes/{id}/refreshes", Run, Sandbox),
        ("POST", "/sandboxes/{id}/pause", Run, Sandbox),
        ("POST", "/sandboxes/{id}/resume", Run, Sandbox),
        ("POST", "/sandboxes/{id}/connect", Run, Sandbox),
        ("POST", "/v2/sandboxes/{id}/connect", Run, Sandbox),
        ("POST", "/sandboxes/{id}/fork", Run, Whole),
        ("POST", "/v2/sandboxes/{id}/fork", Run, Whole),
        ("POST", "/sandboxes/{id}/snapshots", Run, Whole),
        ("GET", "/snapshots", Read, Whole),
        ("DELETE", "/templates/{tag}", Operate, SnapshotChange),
        ("GET", "/templates/aliases/{tag}", Read, Snapshot),
        ("GET", "/sandboxes/{id}/metrics", Read, Sandbox),
        ("GET", "/sandboxes/metrics", Read, Whole),
        ("GET", "/sandboxes/{id}/logs", Read, Sandbox),
        ("GET", "/v2/sandboxes/{id}/logs", Read, Sandbox),
        ("PUT", "/sandboxes/{id}/network", Run, Sandbox),
    ]
};

/// What a route demands; `HEAD` is a `GET`.
pub(crate) fn rule_of(method: &str, path: &str) -> Rule {
    let method = if method == "HEAD" { "GET" } else { method };
    let found = ROUTES.iter().find(|(m, p, ..)| (*m == method || *m == "*") && *p == path);
    found.map_or(STRICTEST, |(_, _, scope, reach)| Rule { scope: *scope, reach: *reach })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::openapi::as_routed;

    /// Every operation of the OpenAPI document has a line here, and every line an operation.
    #[test]
    fn every_route_has_a_rule_and_every_rule_a_route() {
        let document = crate::openapi();
        let mut described: BTreeSet<(String, String)> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                item.as_object().unwrap().keys().map(|m| (m.to_uppercase(), path.clone())).collect::<Vec<_>>()
            })
            .collect();
        // Not of the document: itself, and what E2B's documents describe.
        let beside = |path: &str| !path.starts_with("/v1/");
        described.retain(|(_, path)| !beside(path));
        // What any method may be used on is described with some.
        let any = |path: &str| ROUTES.iter().any(|(m, p, ..)| *m == "*" && *p == as_routed(path));
        for (_, path, ..) in ROUTES.iter().filter(|(m, ..)| *m == "*") {
            // With a slash at its end or without is the same to whoever reads.
            let same = path.trim_end_matches('/');
            assert!(described.iter().any(|(_, p)| as_routed(p) == same), "{path} is not described");
        }
        described.retain(|(_, path)| !any(path));
        let ruled: BTreeSet<(String, String)> = ROUTES
            .iter()
            .filter(|(m, p, ..)| *m != "*" && !beside(p))
            .map(|(m, p, ..)| ((*m).to_owned(), (*p).to_owned()))
            .collect();
        assert_eq!(ruled.difference(&described).collect::<Vec<_>>(), Vec::<&(String, String)>::new());
        assert_eq!(described.difference(&ruled).collect::<Vec<_>>(), Vec::<&(String, String)>::new());
        let all: BTreeSet<_> = ROUTES.iter().map(|(m, p, ..)| (m, p)).collect();
        assert_eq!(all.len(), ROUTES.len(), "no route twice");
    }

    #[test]
    fn what_is_not_in_the_table_demands_everything() {
        assert_eq!(rule_of("PATCH", "/v1/sandboxes/{id}"), STRICTEST);
        assert_eq!(rule_of("GET", "/v1/new"), STRICTEST);
        assert_eq!(rule_of("HEAD", "/healthz").reach, Reach::Public);
    }
}
