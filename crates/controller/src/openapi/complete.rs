//! What all routes have in common: how names are written, who may ask, and how it is refused.

use forkd_protocol::names::{ImageName, KernelName, SandboxId, Tag, TenantName, TokenId, WorkspaceName};
use serde_json::{Map, Value, json};

use crate::access::{Reach, Rule, rule_of};
use crate::repeat::{CREATING, KEY, LONGEST_KEY, REPEATED};

/// What a path of the document can have.
const METHODS: [&str; 7] = ["get", "put", "post", "delete", "options", "head", "patch"];
/// Routes that quotas bound.
const BOUNDED: [&str; 7] = [
    "/v1/snapshots",
    "/v1/snapshots/{tag}/compact",
    "/v1/sandboxes",
    "/v1/sandboxes/{id}/branch",
    "/v1/sandboxes/{id}/resume",
    "/v1/workspaces",
    "/v1/workspaces/{name}/resume",
];
/// Variables that take all that follows.
const REST: &str = "path";

/// Adds it to every operation.
pub(super) fn complete(document: &mut Value) {
    document["components"]["securitySchemes"] = json!({
        "bearer": { "type": "http", "scheme": "bearer", "description": "a token of `forkd token create`" },
        "key": { "type": "apiKey", "in": "header", "name": "X-API-Key", "description": "the same, as E2B's clients send it" },
    });
    let common: Map<String, Value> =
        COMMON.iter().map(|(status, said)| (status.to_string(), shared(*status, said))).collect();
    document["components"]["responses"] = common.into();
    let Some(paths) = document["paths"].as_object_mut() else { return };
    for (path, item) in paths {
        let Some(item) = item.as_object_mut() else { continue };
        let several = METHODS.iter().filter(|m| item.contains_key(**m)).count() > 1;
        for (method, operation) in item.iter_mut().filter(|(m, _)| METHODS.contains(&m.as_str())) {
            let Some(operation) = operation.as_object_mut() else { continue };
            parameters(operation, path);
            let rule = rule_of(&method.to_uppercase(), &as_routed(path));
            access(operation, rule);
            refusals(operation, method, path, rule);
            if method == "post" && CREATING.contains(&path.as_str()) {
                key(operation);
            }
            if several && passes_on(operation) {
                let id = format!("{}_{method}", operation["operationId"].as_str().unwrap_or_default());
                operation["operationId"] = id.into();
            }
        }
    }
}

/// A path as the router writes it.
pub(crate) fn as_routed(path: &str) -> String {
    path.replace(&format!("{{{REST}}}"), &format!("{{*{REST}}}"))
}

/// Whether a sandbox decides how it is answered.
fn passes_on(operation: &Map<String, Value>) -> bool {
    operation["responses"].get("default").is_some()
}

/// How the names in the path are written.
fn parameters(operation: &mut Map<String, Value>, path: &str) {
    let Some(parameters) = operation.get_mut("parameters").and_then(Value::as_array_mut) else { return };
    for parameter in parameters.iter_mut().filter(|p| p["in"] == "path") {
        let name = parameter["name"].as_str().unwrap_or_default();
        if let Some(pattern) = pattern_of(path, name) {
            parameter["schema"] = json!({ "type": "string", "pattern": pattern });
        }
    }
}

fn pattern_of(path: &str, name: &str) -> Option<String> {
    let hash = || "^[0-9a-f]{64}$".to_owned();
    let of = |noun: &str| path.strip_prefix("/v1/").is_some_and(|rest| rest.starts_with(noun));
    match name {
        "tag" => Some(Tag::pattern()),
        "hash" => Some(hash()),
        "id" if of("imports") => Some(hash()),
        "id" if of("tokens") => Some(TokenId::pattern()),
        "id" => Some(SandboxId::pattern()),
        "name" if of("images") => Some(ImageName::pattern()),
        "name" if of("kernels") => Some(KernelName::pattern()),
        "name" if of("tenants") => Some(TenantName::pattern()),
        "name" => Some(WorkspaceName::pattern()),
        _ => None,
    }
}

/// Who may ask. Over the Unix socket, and over loopback before there is a token, nobody is asked for one.
fn access(operation: &mut Map<String, Value>, rule: Rule) {
    if rule.reach == Reach::Public {
        return;
    }
    operation.insert("security".to_owned(), json!([{ "bearer": [] }, { "key": [] }, {}]));
    operation.insert("x-forkd-scope".to_owned(), rule.scope.name().into());
}

/// How it is refused by what stands around all routes.
fn refusals(operation: &mut Map<String, Value>, method: &str, path: &str, rule: Rule) {
    let mut statuses = vec![403, 500];
    if rule.reach != Reach::Public {
        statuses.push(401);
    }
    if has_parameters(operation) {
        statuses.push(400);
    }
    if path.contains('{') {
        statuses.push(404);
    }
    if let Some(content) = operation.get("requestBody").map(|body| &body["content"]) {
        statuses.extend([400, 413]);
        if content.get("application/json").is_some() {
            statuses.push(415);
        }
    }
    if method == "post" && BOUNDED.contains(&path) {
        statuses.push(429);
    }
    if method != "get" {
        statuses.push(503);
    }
    let responses = &mut operation["responses"];
    for status in statuses {
        if responses.get(status.to_string()).is_none() {
            responses[status.to_string()] = refusal(status);
        }
    }
    for (status, response) in responses.as_object_mut().into_iter().flatten() {
        let Ok(status) = status.parse::<u16>() else { continue };
        if response["description"].as_str().is_some_and(|said| !said.is_empty()) {
            continue;
        }
        if COMMON.iter().any(|(common, _)| *common == status) {
            *response = refusal(status);
        } else if response.get("$ref").is_none() {
            response["description"] = done(status).into();
        }
    }
}

fn has_parameters(operation: &Map<String, Value>) -> bool {
    operation.get("parameters").and_then(Value::as_array).is_some_and(|all| !all.is_empty())
}

/// What a refusal is where a route says no more.
fn refusal(status: u16) -> Value {
    json!({ "$ref": format!("#/components/responses/{status}") })
}

fn shared(status: u16, said: &str) -> Value {
    let mut response = json!({
        "description": said,
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/ErrorBody" } } },
    });
    if matches!(status, 429 | 503) {
        response["headers"] = json!({ "Retry-After": {
            "schema": { "type": "integer", "minimum": 1 },
            "description": "seconds after which to ask again, where that is known",
        } });
    }
    response
}

/// What refusals mean.
const COMMON: [(u16, &str); 15] = [
    (400, "the request is wrong; the error says what"),
    (401, "a token is needed, or this one is not good"),
    (403, "the token's scope is too small, or the request comes from elsewhere"),
    (404, "it is not there, or not for this token"),
    (405, "not with this method"),
    (409, "it is taken, or not in a state for this"),
    (413, "the body is too long"),
    (415, "the body is not said to be JSON"),
    (422, "the key was used for another request"),
    (429, "beyond the tenant's quota; the error has the figures"),
    (500, "a fault of forkd or its surroundings"),
    (501, "this host cannot do it"),
    (502, "the guest failed, or did not answer in time"),
    (503, "there is no room, or the controller is ending"),
    (507, "the disk is full"),
];

/// What a success is where a route says no more.
fn done(status: u16) -> &'static str {
    match status {
        201 => "made",
        202 => "begun",
        204 => "done; there is nothing to tell",
        _ => "done",
    }
}

/// That it may be asked for again.
fn key(operation: &mut Map<String, Value>) {
    let parameters = operation.entry("parameters").or_insert_with(|| json!([]));
    if let Some(parameters) = parameters.as_array_mut() {
        parameters.push(json!({
            "name": header_name(KEY.as_str()), "in": "header", "required": false,
            "description": "whoever asks again with the same key gets the first answer, and nothing is made twice",
            "schema": { "type": "string", "pattern": "^[!-~]+$", "minLength": 1, "maxLength": LONGEST_KEY },
        }));
    }
    let responses = &mut operation["responses"];
    responses["422"] = refusal(422);
    if responses.get("409").is_none() {
        responses["409"] = refusal(409);
    }
    let replayed = json!({ "schema": { "type": "string" }, "description": "true where it was given before" });
    for status in ["201", "202"] {
        if let Some(response) = responses.get_mut(status) {
            response["headers"] = json!({ header_name(REPEATED.as_str()): replayed });
        }
    }
}

/// `idempotency-key` as people write it.
fn header_name(name: &str) -> String {
    let words = name.split('-').map(|word| {
        let (first, rest) = word.split_at(1);
        first.to_uppercase() + rest
    });
    words.collect::<Vec<_>>().join("-")
}
