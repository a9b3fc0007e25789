//! `GET /docs`: the OpenAPI document as a page for people. Made here, without scripts and without anything of other hosts.

use super::openapi::Document;
use crate::http::App;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::sync::OnceLock;
use utoipa::OpenApi;

/// What the page may load: its own style sheet.
const POLICY: &str =
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const STYLE: &str = include_str!("reference.css");

/// The methods of OpenAPI that are used here.
const METHODS: &[&str] = &["get", "post", "put", "delete"];

/// `GET /docs`.
pub async fn page(State(_): State<App>) -> Response {
    static PAGE: OnceLock<String> = OnceLock::new();
    let page = PAGE.get_or_init(|| {
        // The document is plain data.
        render(&serde_json::to_value(Document::openapi()).unwrap_or_default())
    });
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
    ];
    (headers, page.as_str()).into_response()
}

/// `GET /docs/style.css`.
pub async fn style(State(_): State<App>) -> Response {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], STYLE).into_response()
}

fn render(document: &Value) -> String {
    let mut page = String::from(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Dressage: HTTP reference</title>\n\
         <link rel=\"stylesheet\" href=\"docs/style.css\">\n</head>\n<body>\n",
    );
    let info = |key| escape(text(document.pointer(&format!("/info/{key}"))));
    line(
        &mut page,
        &format!("<h1>{} {}</h1>", info("title"), info("version")),
    );
    line(&mut page, &format!("<p>{}</p>", info("description")));
    line(
        &mut page,
        "<p>For programs: <a href=\"openapi.json\">openapi.json</a>. Where the server asks for keys, send \
         <code>Authorization: Bearer KEY</code>, or put <code>/k/KEY</code> before the path.</p>",
    );
    let tags = document.get("tags").and_then(Value::as_array);
    let tags: Vec<&Value> = tags.into_iter().flatten().collect();
    line(&mut page, "<nav><ul>");
    for tag in &tags {
        let name = escape(text(tag.get("name")));
        line(&mut page, &format!("<li><a href=\"#{name}\">{name}</a></li>"));
    }
    line(&mut page, "<li><a href=\"#schemas\">schemas</a></li></ul></nav>");
    for tag in &tags {
        let name = text(tag.get("name"));
        let head = format!(
            "<section id=\"{0}\"><h2>{0}</h2><p>{1}</p>",
            escape(name),
            escape(text(tag.get("description")))
        );
        line(&mut page, &head);
        for (path, method, operation) in operations(document) {
            let is_of_tag = operation
                .pointer("/tags/0")
                .is_some_and(|found| text(Some(found)) == name);
            if is_of_tag {
                render_operation(&mut page, path, method, operation);
            }
        }
        line(&mut page, "</section>");
    }
    line(&mut page, "<section id=\"schemas\"><h2>schemas</h2>");
    for (name, schema) in table(document.pointer("/components/schemas")) {
        let name = escape(name);
        line(&mut page, &format!("<h3 id=\"schema-{name}\">{name}</h3>"));
        line(
            &mut page,
            &format!("<p>{}</p>", escape(text(schema.get("description")))),
        );
        render_fields(&mut page, schema);
    }
    line(&mut page, "</section>\n</body>\n</html>");
    page
}

fn operations(document: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    table(document.get("paths")).flat_map(|(path, item)| {
        METHODS
            .iter()
            .filter_map(move |method| Some((path.as_str(), *method, item.get(method)?)))
    })
}

fn render_operation(page: &mut String, path: &str, method: &str, operation: &Value) {
    let head = format!(
        "<article id=\"{}\"><h3><b>{}</b> <code>{}</code></h3>",
        escape(text(operation.get("operationId"))),
        method.to_uppercase(),
        escape(path)
    );
    line(page, &head);
    for key in ["summary", "description"] {
        if let Some(said) = operation.get(key) {
            line(page, &format!("<p>{}</p>", escape(text(Some(said)))));
        }
    }
    let parameters = operation.get("parameters").and_then(Value::as_array);
    if let Some(parameters) = parameters.filter(|parameters| !parameters.is_empty()) {
        line(
            page,
            "<h4>parameters</h4><table><tr><th>name</th><th>in</th><th>type</th><th>meaning</th></tr>",
        );
        for parameter in parameters {
            let cells = [
                code(text(parameter.get("name"))),
                escape(text(parameter.get("in"))),
                type_of(parameter.get("schema")),
                escape(text(parameter.get("description"))),
            ];
            render_row(page, &cells);
        }
        line(page, "</table>");
    }
    for (media, content) in table(operation.pointer("/requestBody/content")) {
        let said = format!(
            "<h4>body</h4><p>{} {}</p>",
            code(media),
            type_of(content.get("schema"))
        );
        line(page, &said);
        render_example(page, content.get("example"));
    }
    line(
        page,
        "<h4>answers</h4><table><tr><th>status</th><th>meaning</th><th>body</th></tr>",
    );
    for (status, answer) in table(operation.get("responses")) {
        let bodies: Vec<String> = table(answer.get("content"))
            .map(|(media, content)| match content.get("schema") {
                Some(schema) if schema.get("$ref").is_some() => type_of(Some(schema)),
                _ => code(media),
            })
            .collect();
        let cells = [
            escape(status),
            escape(text(answer.get("description"))),
            bodies.join(" "),
        ];
        render_row(page, &cells);
    }
    line(page, "</table></article>");
}

/// The fields of an object; its forms, where it has several.
fn render_fields(page: &mut String, schema: &Value) {
    let parts = ["allOf", "oneOf", "anyOf"]
        .iter()
        .find_map(|key| schema.get(key)?.as_array());
    for part in parts.into_iter().flatten() {
        if part.get("properties").is_some() || part.get("allOf").is_some() {
            render_fields(page, part);
        } else {
            line(page, &format!("<p>{}</p>", type_of(Some(part))));
        }
    }
    let Some(Value::Object(properties)) = schema.get("properties") else {
        if parts.is_none() {
            line(page, &format!("<p>{}</p>", type_of(Some(schema))));
        }
        return;
    };
    let required = schema.get("required").and_then(Value::as_array);
    line(
        page,
        "<table><tr><th>field</th><th>type</th><th></th><th>meaning</th></tr>",
    );
    for (name, field) in properties {
        let is_required = required.is_some_and(|names| names.iter().any(|found| found == name));
        let mut meaning = escape(text(field.get("description")));
        if let Some(example) = field.get("example") {
            _ = write!(meaning, " Example: {}", code(&example.to_string()));
        }
        let cells = [
            code(name),
            type_of(Some(field)),
            (if is_required { "required" } else { "" }).to_owned(),
            meaning,
        ];
        render_row(page, &cells);
    }
    line(page, "</table>");
    render_example(page, schema.get("example"));
}

fn render_example(page: &mut String, example: Option<&Value>) {
    let Some(example) = example else { return };
    let shown = serde_json::to_string_pretty(example).unwrap_or_default();
    line(page, &format!("<pre>{}</pre>", escape(&shown)));
}

fn render_row(page: &mut String, cells: &[String]) {
    line(page, &format!("<tr><td>{}</td></tr>", cells.join("</td><td>")));
}

/// A schema in a word or two, with links to those that have names.
fn type_of(schema: Option<&Value>) -> String {
    let Some(schema) = schema else {
        return String::new();
    };
    if let Some(name) = schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|path| path.rsplit('/').next())
    {
        let name = escape(name);
        return format!("<a href=\"#schema-{name}\">{name}</a>");
    }
    for key in ["oneOf", "anyOf", "allOf"] {
        if let Some(Value::Array(forms)) = schema.get(key) {
            let forms: Vec<_> = forms.iter().map(|form| type_of(Some(form))).collect();
            return forms.join(" or ");
        }
    }
    if let Some(Value::Array(words)) = schema.get("enum") {
        let words: Vec<_> = words
            .iter()
            .map(|word| code(word.as_str().unwrap_or_default()))
            .collect();
        return words.join(" or ");
    }
    if let Some(items) = schema.get("items") {
        return format!("list of {}", type_of(Some(items)));
    }
    match schema.get("type") {
        Some(Value::Array(types)) => {
            let types: Vec<_> = types.iter().map(|found| text(Some(found))).collect();
            escape(&types.join(" or "))
        }
        found => escape(text(found)),
    }
}

fn table(value: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    value.and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

fn code(text: &str) -> String {
    format!("<code>{}</code>", escape(text))
}

fn line(page: &mut String, text: &str) {
    page.push_str(text);
    page.push('\n');
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_operation_and_schema_is_on_the_page_and_nothing_of_other_hosts() {
        let document = serde_json::to_value(Document::openapi()).unwrap();
        let page = render(&document);
        let mut count = 0;
        for (path, _, operation) in operations(&document) {
            let id = text(operation.get("operationId"));
            assert!(page.contains(&format!("<article id=\"{id}\">")), "{id} of {path}");
            count += 1;
        }
        assert!(count > 20, "{count}");
        for (name, _) in table(document.pointer("/components/schemas")) {
            assert!(page.contains(&format!("id=\"schema-{name}\"")), "{name}");
        }
        for foreign in ["http://", "https://", "<script", "src=", "//cdn"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
        // What is linked to is there.
        for link in page.split("href=\"#").skip(1) {
            let id = link.split('"').next().unwrap();
            assert!(page.contains(&format!("id=\"{id}\"")), "#{id}");
        }
    }

    #[test]
    fn text_of_the_document_is_no_markup() {
        let page = render(&json!({"info": {"title": "<script>alert('1')</script>"}}));
        assert!(!page.contains("<script>"), "{page}");
    }
}
