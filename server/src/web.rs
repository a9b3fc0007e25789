//! `/web`: the page on which rollouts are asked for, watched and looked into. It is made of the files in `ui/page`, which
//! this program carries, and acts through REST alone. The files hold nothing of anybody's, so they are served without a
//! key; the page asks for one where REST wants it.

/// Its files.
mod assets;

use self::assets::{Assets, Encoded};
use crate::environment::names;
use crate::http::App;
use crate::workspace::Context;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

/// Where it is.
const PLACE: &str = "/web";

/// What the page may load and do: its own files, and requests to this server. Nothing may become markup or a script but what
/// is in its files.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
    base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'; frame-ancestors 'self'";

/// What is behind [`POLICY`] in a Space of Hugging Face, which shows it in a frame.
const FRAME_OF_SPACES: &str = " https://huggingface.co";

/// What stands in `index.html` for the folder of the other files.
const FOLDER_MARK: &str = "{{assets}}";

/// The line of `index.html` that is repeated for each module, with [`MODULE_MARK`] for its name.
const MODULE_MARK: &str = "{{module}}";

/// How long a file of a name that changes with its content may be kept: a year.
const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// Whether a path is one of the page's. They are the same for everybody.
#[must_use]
pub fn is_of_page(path: &str) -> bool {
    match path.strip_prefix(PLACE) {
        Some(rest) => rest.is_empty() || rest.starts_with('/'),
        None => path == "/",
    }
}

/// The routes; none where pages are not wanted.
pub fn router(context: &Context) -> Router<App> {
    let wanted = context.environment.get(names::ENABLE_WEB_INTERFACE);
    let wanted =
        wanted.is_none_or(|word| !matches!(word.to_ascii_lowercase().as_str(), "false" | "0" | "no"));
    if !wanted {
        return Router::new();
    }
    Router::new()
        .route("/", get(|| async { Redirect::temporary("web/") }))
        .route(PLACE, get(index))
        .route("/web/", get(index))
        .route("/web/assets/{version}/{*name}", get(asset))
        .route("/web/{*view}", get(index))
}

/// The page, at each of its addresses: which view it shows is its own matter.
async fn index(State(app): State<App>, uri: Uri, headers: HeaderMap) -> Response {
    let assets = Assets::now();
    let Some(template) = assets.get("index.html") else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let folder = folder(uri.path(), assets.version());
    let tag = format!("\"{}-{}\"", assets.version(), folder.len());
    let is_in_space = app.service.context().environment.get(names::SPACE_ID).is_some();
    let policy = format!("{POLICY}{}", if is_in_space { FRAME_OF_SPACES } else { "" });
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, policy),
        (header::CACHE_CONTROL, "no-cache".to_owned()),
        (header::ETAG, tag.clone()),
    ];
    if headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|given| given.as_bytes() == tag.as_bytes())
    {
        return (StatusCode::NOT_MODIFIED, fixed).into_response();
    }
    let modules = assets.modules(&["main.js".into(), view_file(uri.path())]);
    let text = fill(&String::from_utf8_lossy(template), &folder, &modules);
    let kind = [(header::CONTENT_TYPE, "text/html; charset=utf-8")];
    (fixed, kind, text).into_response()
}

/// The folder of the files, from an address of the page: relative, so that whatever a proxy, or a key, puts before the path
/// stays there.
fn folder(path: &str, version: &str) -> String {
    match path.strip_prefix("/web/") {
        None => format!("web/assets/{version}"),
        Some(view) => format!("{}assets/{version}", "../".repeat(view.matches('/').count())),
    }
}

/// The file of the view at an address of the page: what `main.js` will ask for.
fn view_file(path: &str) -> String {
    let view = path.strip_prefix("/web/").unwrap_or_default();
    let name = match view.split_once('/') {
        Some(("rollouts", rest)) if !rest.is_empty() => "rollout",
        Some((first, _)) => first,
        None if view.is_empty() => "rollouts",
        None => view,
    };
    format!("views/{name}.js")
}

/// Puts in what is known only here: the folder, and a line for each module, so that all that the view needs are asked for at once.
fn fill(template: &str, folder: &str, modules: &[&str]) -> String {
    let mut text = String::with_capacity(template.len() * 2);
    for line in template.lines() {
        let names: &[&str] = if line.contains(MODULE_MARK) {
            modules
        } else {
            &[""]
        };
        for name in names {
            text.push_str(&line.replace(FOLDER_MARK, folder).replace(MODULE_MARK, name));
            text.push('\n');
        }
    }
    text
}

/// A file. Its address changes with the content of any of them, so that what imports and what is imported fit each other.
async fn asset(Path((version, name)): Path<(String, String)>, headers: HeaderMap) -> Response {
    let assets = Assets::now();
    // Files that are read from disk change while the page is shown.
    if version != assets.version() && !assets.may_change() {
        return StatusCode::NOT_FOUND.into_response();
    }
    let takes_gzip = headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| coding.trim() == "gzip" || coding.trim().starts_with("gzip;q=1"));
    let Some(Encoded { bytes, is_gzip, tag }) = assets.encoded(&name, takes_gzip) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let cache = if assets.may_change() { "no-cache" } else { FOR_EVER };
    let fixed = [
        (header::CACHE_CONTROL, cache.to_owned()),
        (header::ETAG, tag.clone()),
        (header::VARY, "accept-encoding".to_owned()),
        (header::CONTENT_TYPE, kind(&name).to_owned()),
    ];
    if headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|given| given.as_bytes() == tag.as_bytes())
    {
        return (StatusCode::NOT_MODIFIED, fixed).into_response();
    }
    let mut response = (fixed, bytes).into_response();
    if is_gzip {
        response
            .headers_mut()
            .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// The media type of a file by its name.
fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.') {
        Some((_, "js")) => "text/javascript; charset=utf-8",
        Some((_, "css")) => "text/css; charset=utf-8",
        Some((_, "svg")) => "image/svg+xml",
        Some((_, "html")) => "text/html; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_page_are_told_from_others() {
        for path in ["/", "/web", "/web/", "/web/rollouts/1/tokens"] {
            assert!(is_of_page(path), "{path}");
        }
        for path in ["/website", "/api/v1/web", "/we", "/docs", "//web"] {
            assert!(!is_of_page(path), "{path}");
        }
    }

    #[test]
    fn files_are_found_from_every_address() {
        for (path, expected) in [
            ("/web", "web/assets/v"),
            ("/web/", "assets/v"),
            ("/web/rollouts", "assets/v"),
            ("/web/rollouts/1", "../assets/v"),
            ("/web/rollouts/1/tokens", "../../assets/v"),
        ] {
            assert_eq!(folder(path, "v"), expected, "{path}");
        }
    }

    #[test]
    fn what_a_view_needs_is_named_in_the_page() {
        for (path, expected) in [
            ("/web", "views/rollouts.js"),
            ("/web/", "views/rollouts.js"),
            ("/web/rollouts/", "views/rollouts.js"),
            ("/web/rollouts/1/tokens", "views/rollout.js"),
            ("/web/board", "views/board.js"),
            ("/web/groups/1", "views/groups.js"),
        ] {
            assert_eq!(view_file(path), expected, "{path}");
        }
        let assets = Assets::now();
        let board = assets.modules(&["main.js".into(), view_file("/web/board")]);
        for name in ["main.js", "views/board.js", "rollout/model.js", "marks.js"] {
            assert!(board.contains(&name), "{name}: {board:?}");
        }
        assert!(
            !board.contains(&"views/run.js") && !board.contains(&"rollout/tokens.js"),
            "{board:?}"
        );
        assert_eq!(assets.modules(&["views/none.js".into()]), Vec::<&str>::new());
    }

    #[test]
    fn a_line_of_the_template_is_repeated_for_each_module() {
        let filled = fill(
            "a {{assets}}\n<{{assets}}/{{module}}>\nb",
            "f",
            &["x.js", "y/z.js"],
        );
        assert_eq!(filled, "a f\n<f/x.js>\n<f/y/z.js>\nb\n");
    }
}
