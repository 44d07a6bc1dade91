//! What tools give back: text for a model, and the same structured. Both are bounded, for a model reads all of it.

use std::sync::Arc;

use forkd_protocol::error::chain;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject};
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::CliError;

/// Longest text within an answer, bytes.
pub(super) const LONGEST_TEXT: usize = 64 << 10;
/// Most elements of a list.
const MOST_ELEMENTS: usize = 200;

/// Schema of an answer that is one object.
pub(super) fn object() -> Arc<JsonObject> {
    schema(json!({ "type": "object", "additionalProperties": true }))
}

/// Schema of an answer that is a list.
pub(super) fn list() -> Arc<JsonObject> {
    let elements = json!({ "type": "array", "items": { "type": "object", "additionalProperties": true } });
    schema(json!({ "type": "object", "properties": { "result": elements }, "required": ["result"] }))
}

fn schema(value: Value) -> Arc<JsonObject> {
    match value {
        Value::Object(object) => Arc::new(object),
        _ => Arc::default(),
    }
}

/// The answer of a tool that gives an object.
pub(super) fn one<T: Serialize>(outcome: Result<T, CliError>) -> CallToolResult {
    match outcome.and_then(to_value) {
        Ok(mut value) => {
            shorten(&mut value);
            let mut result = CallToolResult::success(vec![block(&value)]);
            result.structured_content = Some(value);
            result
        }
        Err(e) => failed(&e),
    }
}

/// The answer of a tool that gives a list: a text for each element.
pub(super) fn many<T: Serialize>(outcome: Result<Vec<T>, CliError>) -> CallToolResult {
    let elements = outcome.and_then(|all| all.into_iter().map(to_value).collect::<Result<Vec<_>, _>>());
    match elements {
        Ok(mut all) => {
            let left_off = all.len().saturating_sub(MOST_ELEMENTS);
            all.truncate(MOST_ELEMENTS);
            all.iter_mut().for_each(shorten);
            let mut texts: Vec<_> = all.iter().map(block).collect();
            if left_off > 0 {
                texts.push(ContentBlock::text(format!("{left_off} more were left off")));
            }
            let mut result = CallToolResult::success(texts);
            result.structured_content = Some(json!({ "result": all }));
            result
        }
        Err(e) => failed(&e),
    }
}

/// A failure names the tool, also where it was the arguments and the tool never ran.
pub(super) fn named(tool: &str, mut result: CallToolResult) -> CallToolResult {
    if result.is_error == Some(true) {
        let why: Vec<&str> = result.content.iter().filter_map(|c| Some(c.as_text()?.text.as_str())).collect();
        result.content = vec![ContentBlock::text(format!("Error executing tool {tool}: {}", why.join("\n")))];
    }
    result
}

fn failed(e: &CliError) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(told(e))])
}

/// The whole of an error in one line, with which children of a fork failed.
fn told(e: &CliError) -> String {
    match e {
        CliError::Api { body, .. } if !body.failures.is_empty() => {
            format!("{} ({})", body.error, body.failures.join("; "))
        }
        e => chain(e),
    }
}

fn to_value<T: Serialize>(value: T) -> Result<Value, CliError> {
    let failed = |e| CliError::caused(forkd_protocol::error::ErrorClass::Internal, "writing the answer", e);
    serde_json::to_value(value).map_err(failed)
}

fn block(value: &Value) -> ContentBlock {
    ContentBlock::text(serde_json::to_string_pretty(value).unwrap_or_default())
}

/// Cuts long texts of an object, and says so in it.
fn shorten(value: &mut Value) {
    let Value::Object(object) = value else { return };
    let mut cut = Vec::new();
    for (name, value) in object.iter_mut() {
        if let Value::String(text) = value
            && text.len() > LONGEST_TEXT
        {
            let whole = text.len();
            text.truncate(text.floor_char_boundary(LONGEST_TEXT));
            cut.push(format!("{name}: the first {} of {whole} bytes", text.len()));
        }
    }
    if !cut.is_empty() {
        object.insert("truncated".to_owned(), Value::Bool(true));
        object.insert("cut".to_owned(), cut.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_at_a_character_and_said_to_be() {
        let text = format!("a{}", "ä".repeat(LONGEST_TEXT));
        let result = one(Ok(json!({ "stdout": text, "short": "x", "truncated": false })));
        let value = result.structured_content.unwrap();
        assert_eq!(value["stdout"].as_str().unwrap().len(), LONGEST_TEXT - 1);
        assert_eq!((&value["short"], &value["truncated"]), (&json!("x"), &json!(true)));
        let whole = text.len();
        assert_eq!(value["cut"], json!([format!("stdout: the first {} of {whole} bytes", LONGEST_TEXT - 1)]));
    }

    #[test]
    fn lists_have_a_text_for_each_element_up_to_a_bound() {
        let result = many(Ok(vec![json!({ "a": 1 }), json!({ "a": 2 })]));
        assert_eq!(result.content.len(), 2);
        assert_eq!(result.structured_content.unwrap(), json!({ "result": [{ "a": 1 }, { "a": 2 }] }));
        let many = many(Ok(vec![json!({}); MOST_ELEMENTS + 3]));
        assert_eq!(many.content.len(), MOST_ELEMENTS + 1);
        assert_eq!(many.structured_content.unwrap()["result"].as_array().unwrap().len(), MOST_ELEMENTS);
    }

    #[test]
    fn a_failure_names_the_tool_and_the_children() {
        let body = forkd_protocol::rest::ErrorBody {
            error: "1 of 2 children failed".into(),
            code: "fork_failed".into(),
            failures: vec!["child 1: no memory".into()],
        };
        let result = named("spawn_sandboxes", one::<Value>(Err(CliError::Api { status: 503, body })));
        assert_eq!(result.is_error, Some(true));
        let text = serde_json::to_string(&result.content).unwrap();
        let wanted = "Error executing tool spawn_sandboxes: 1 of 2 children failed (child 1: no memory)";
        assert!(text.contains(wanted), "{text}");
    }
}
