//! The document as a page: one file, without scripts, and without anything from elsewhere.

use serde_json::Value;

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem 1.5rem 4rem; }
h1, h2 { line-height: 1.2; } h2 { border-bottom: 1px solid var(--line); margin-top: 2.5rem; padding-bottom: .2rem; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .4rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } code { font: .9em ui-monospace, monospace; background: var(--soft); padding: .1em .3em; border-radius: .2em; }
.method { display: inline-block; font: bold .8em ui-monospace, monospace; width: 4.5em; }
.get { color: #1a7f37; } .post { color: #0969da; } .put { color: #9a6700; } .delete { color: #cf222e; } .patch { color: #8250df; }
table { border-collapse: collapse; margin: .6rem 0; width: 100%; } td, th { border-top: 1px solid var(--line); padding: .25rem .5rem; text-align: left; vertical-align: top; }
nav a { margin-right: .8em; } h4 { margin: .8rem 0 0; } .soft { opacity: .7; }
";
/// The methods, in the order in which they are shown.
const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

/// The whole page.
pub(super) fn render(document: &Value) -> String {
    let operations = operations(document);
    let mut tags: Vec<&str> = operations.iter().map(|o| o.tag).collect();
    tags.sort_unstable();
    tags.dedup();
    let mut html = String::from("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    html += "<meta name=\"viewport\" content=\"width=device-width\"><title>forkd: the API</title><style>";
    html += STYLE;
    html += "</style></head><body><h1>forkd: the API</h1>";
    html += &paragraphs(text(&document["info"]["description"]));
    html += "<p><a href=\"openapi.json\">openapi.json</a> is the same for programs.</p><nav>";
    for tag in tags.iter().chain(&["schemas"]) {
        html += &format!("<a href=\"#{0}\">{0}</a>", escape(tag));
    }
    html += "</nav>";
    for tag in tags {
        html += &format!("<h2 id=\"{0}\">{0}</h2>", escape(tag));
        operations.iter().filter(|o| o.tag == tag).for_each(|o| html += &o.render(document));
    }
    html += "<h2 id=\"schemas\">schemas</h2>";
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        html += &schema_section(name, schema);
    }
    html + "</body></html>\n"
}

/// One method of one path.
struct Operation<'a> {
    tag: &'a str,
    method: &'static str,
    path: &'a str,
    said: &'a Value,
}

fn operations(document: &Value) -> Vec<Operation<'_>> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for method in METHODS {
            if let Some(said) = item.get(method) {
                found.push(Operation { tag: text(&said["tags"][0]), method, path, said });
            }
        }
    }
    found
}

impl Operation<'_> {
    fn render(&self, document: &Value) -> String {
        let Self { method, path, said, .. } = self;
        let mut html = format!(
            "<details id=\"{}\"><summary><span class=\"method {method}\">{}</span> <code>{}</code> {}</summary>",
            escape(text(&said["operationId"])),
            method.to_uppercase(),
            escape(path),
            inline(text(&said["summary"])),
        );
        html += &paragraphs(text(&said["description"]));
        if let Some(scope) = said["x-forkd-scope"].as_str() {
            html += &format!("<p class=\"soft\">Needs a token of scope <code>{}</code>.</p>", escape(scope));
        }
        html += &table("Parameters", list(&said["parameters"]).map(parameter_row).collect());
        html += &table("Body", contents(&said["requestBody"]));
        let answers = said["responses"].as_object().into_iter().flatten();
        html += &table("Answers", answers.map(|row| answer_row(document, row)).collect());
        html + "</details>"
    }
}

fn parameter_row(parameter: &Value) -> Vec<String> {
    let required = if parameter["required"] == true { "" } else { " <span class=\"soft\">optional</span>" };
    vec![
        format!("<code>{}</code>{required}", escape(text(&parameter["name"]))),
        escape(text(&parameter["in"])),
        type_of(&parameter["schema"]),
        inline(text(&parameter["description"])),
    ]
}

fn contents(body: &Value) -> Vec<Vec<String>> {
    let kinds = body["content"].as_object().into_iter().flatten();
    kinds.map(|(kind, content)| vec![escape(kind), type_of(&content["schema"])]).collect()
}

fn answer_row(document: &Value, (status, answer): (&String, &Value)) -> Vec<String> {
    let shared = answer["$ref"].as_str().and_then(|target| document.pointer(target.strip_prefix('#')?));
    let answer = shared.unwrap_or(answer);
    let mut kinds: Vec<_> = contents(answer).into_iter().filter_map(|row| row.into_iter().nth(1)).collect();
    kinds.dedup();
    vec![format!("<code>{}</code>", escape(status)), inline(text(&answer["description"])), kinds.join(", ")]
}

fn schema_section(name: &str, schema: &Value) -> String {
    let mut html = format!("<details id=\"schema-{0}\"><summary><code>{0}</code></summary>", escape(name));
    html += &paragraphs(text(&schema["description"]));
    let mut rows = property_rows(schema);
    list(&schema["allOf"]).for_each(|part| match part["$ref"].as_str() {
        Some(_) => {
            rows.push(vec!["<span class=\"soft\">all of</span>".to_owned(), type_of(part), String::new()])
        }
        None => rows.extend(property_rows(part)),
    });
    if rows.is_empty() {
        html += &format!("<p>{}</p>", type_of(schema));
    }
    html + &table("", rows) + "</details>"
}

fn property_rows(schema: &Value) -> Vec<Vec<String>> {
    let required: Vec<&str> = list(&schema["required"]).map(text).collect();
    let properties = schema["properties"].as_object().into_iter().flatten();
    let row = |(name, property): (&String, &Value)| {
        let optional =
            if required.contains(&name.as_str()) { "" } else { " <span class=\"soft\">optional</span>" };
        vec![
            format!("<code>{}</code>{optional}", escape(name)),
            type_of(property),
            inline(text(&property["description"])),
        ]
    };
    properties.map(row).collect()
}

/// A schema in a few words, with links to those that have names.
fn type_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|target| target.rsplit('/').next()) {
        return format!("<a href=\"#schema-{0}\">{0}</a>", escape(name));
    }
    for several in ["oneOf", "anyOf", "allOf"] {
        if schema[several].is_array() {
            let all: Vec<_> = list(&schema[several]).map(type_of).filter(|t| !t.is_empty()).collect();
            return all.join(" or ");
        }
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        kinds => list(kinds).map(text).collect(),
    };
    let mut words = kinds.join(" or ");
    if schema["items"].is_object() {
        words = format!("list of {}", type_of(&schema["items"]));
    }
    for (key, word) in [
        ("minimum", "at least"),
        ("maximum", "at most"),
        ("maxLength", "at most, characters:"),
        ("pattern", "as"),
    ] {
        if let Some(bound) = schema.get(key) {
            let bound = bound.as_str().map_or_else(|| bound.to_string(), str::to_owned);
            words += &format!(", {word} <code>{}</code>", escape(&bound));
        }
    }
    let values: Vec<_> = list(&schema["enum"]).map(|v| format!("<code>{}</code>", escape(text(v)))).collect();
    if values.is_empty() { words } else { values.join(", ") }
}

fn table(title: &str, rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let heading = if title.is_empty() { String::new() } else { format!("<h4>{title}</h4>") };
    let rows = rows.iter().map(|cells| {
        let cells: String = cells.iter().map(|cell| format!("<td>{cell}</td>")).collect();
        format!("<tr>{cells}</tr>")
    });
    format!("{heading}<table>{}</table>", rows.collect::<String>())
}

fn paragraphs(said: &str) -> String {
    said.split("\n\n").filter(|p| !p.trim().is_empty()).map(|p| format!("<p>{}</p>", inline(p))).collect()
}

/// Text with what stands between backticks as code.
fn inline(said: &str) -> String {
    let parts = escape(said);
    let mut code = false;
    let mut html = String::new();
    for part in parts.split('`') {
        html += &if code { format!("<code>{part}</code>") } else { part.to_owned() };
        code = !code;
    }
    html
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn escape(said: &str) -> String {
    said.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_is_text_and_not_markup() {
        assert_eq!(inline("a < b & `c>` d"), "a &lt; b &amp; <code>c&gt;</code> d");
        let schema = json!({ "type": ["string", "null"], "pattern": "<x>" });
        assert_eq!(type_of(&schema), "string or null, as <code>&lt;x&gt;</code>");
    }

    #[test]
    fn every_operation_and_every_schema_has_its_place() {
        let document = crate::openapi();
        let page = render(&document);
        for operation in operations(&document) {
            let id = text(&operation.said["operationId"]);
            assert!(page.contains(&format!("<details id=\"{id}\">")), "{id}");
        }
        for link in page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(page.contains(&format!("id=\"{link}\"")), "{link} leads nowhere");
        }
        for outside in ["<script", "http://", "https://", " src="] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
