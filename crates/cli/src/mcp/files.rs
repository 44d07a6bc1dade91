//! Tools for files in sandboxes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Method, header};
use http_body_util::BodyExt;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::CallToolResult;
use rmcp::{tool, tool_router};
use serde_json::{Value, json};

use super::sandboxes::of;
use super::{Server, answer, arguments};
use crate::client::full;
use crate::error::CliError;
use crate::parse::percent;

/// Most bytes of a file that are read.
const MOST_BYTES: usize = answer::LONGEST_TEXT / 4 * 3;

#[tool_router(router = file_tools, vis = "pub(super)")]
impl Server {
    #[tool(
        description = "Read the beginning of a file in a sandbox, up to 48 KiB; what is no text comes as base64.",
        annotations(read_only_hint = true),
        output_schema = answer::object()
    )]
    async fn read_file(&self, Parameters(asked): Parameters<arguments::OfPath>) -> CallToolResult {
        answer::one(self.read(&asked).await)
    }

    #[tool(
        description = "Write a file in a sandbox.",
        annotations(destructive_hint = true, idempotent_hint = true),
        output_schema = answer::object()
    )]
    async fn write_file(&self, Parameters(asked): Parameters<arguments::WriteFile>) -> CallToolResult {
        answer::one(self.write(asked).await)
    }

    #[tool(
        description = "List a folder in a sandbox.",
        annotations(read_only_hint = true),
        output_schema = answer::list()
    )]
    async fn list_files(&self, Parameters(asked): Parameters<arguments::OfPath>) -> CallToolResult {
        answer::many(self.list(&asked).await)
    }
}

impl Server {
    async fn read(&self, asked: &arguments::OfPath) -> Result<Value, CliError> {
        let request = self.client.request(Method::GET, &file(&asked.sandbox_id, &asked.path));
        let mut body = self.client.send(request.body(crate::client::empty())).await?.into_body();
        let mut bytes = Vec::new();
        // No more is taken than is told: a file may have no end.
        while bytes.len() <= MOST_BYTES
            && let Some(frame) = body.frame().await
        {
            let frame = frame.map_err(|e| CliError::io("reading the file", std::io::Error::other(e)))?;
            bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        }
        let truncated = bytes.len() > MOST_BYTES;
        bytes.truncate(MOST_BYTES);
        let (content, base64) = text_of(&bytes, truncated);
        Ok(json!({ "path": asked.path, "content": content, "base64": base64, "truncated": truncated }))
    }

    async fn write(&self, asked: arguments::WriteFile) -> Result<Value, CliError> {
        let bytes = if asked.base64 {
            let decoded = STANDARD.decode(&asked.content);
            decoded.map_err(|e| CliError::usage(format!("the content is no base64: {e}")))?
        } else {
            asked.content.into_bytes()
        };
        let size = bytes.len();
        let request = self.client.request(Method::POST, &file(&asked.sandbox_id, &asked.path));
        let request = request.header(header::CONTENT_TYPE, "application/octet-stream").body(full(bytes));
        self.client.send(request).await?;
        Ok(json!({ "path": asked.path, "bytes": size }))
    }

    async fn list(&self, asked: &arguments::OfPath) -> Result<Vec<Value>, CliError> {
        let call = of(&asked.sandbox_id, "/agent/filesystem.Filesystem/ListDir");
        let mut found: Value = self.client.post(&call, &json!({ "path": asked.path, "depth": 1 })).await?;
        match found["entries"].take() {
            Value::Array(entries) => Ok(entries),
            _ => Ok(Vec::new()),
        }
    }
}

fn file(id: &str, path: &str) -> String {
    of(id, &format!("/agent/files?path={}", percent(path)))
}

/// Text, where it is; the last character of what was cut may be half of one.
fn text_of(bytes: &[u8], cut: bool) -> (String, bool) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), false),
        Err(e) if cut && e.error_len().is_none() => {
            (String::from_utf8_lossy(&bytes[..e.valid_up_to()]).into_owned(), false)
        }
        Err(_) => (STANDARD.encode(bytes), true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text_also_where_a_character_was_cut() {
        assert_eq!(text_of("aä".as_bytes(), false), ("aä".into(), false));
        assert_eq!(text_of(&"aä".as_bytes()[..2], true), ("a".into(), false));
        assert_eq!(text_of(&"aä".as_bytes()[..2], false), (STANDARD.encode([b'a', 0xc3]), true));
        assert_eq!(text_of(&[0xff, b'a'], true), (STANDARD.encode([0xff, b'a']), true));
    }
}
