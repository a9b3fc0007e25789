use crate::support::Place;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

#[test]
fn pages_of_docs_are_what_the_program_says() {
    let place = Place::new();
    for page in ["configuration", "errors", "logging", "metrics"] {
        let made = place.run(&["docs", page]).expect(0).out;
        let path = root().join("docs").join(format!("{page}.md"));
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            written, made,
            "docs/{page}.md is stale: run `UPDATE_DOCS=1 cargo test -p dressage pages`"
        );
    }
}

/// Macros of the log, as they are written in this workspace.
const MACROS: &[&str] = &["trace!(", "debug!(", "info!(", "warn!(", "error!(", "span!("];

#[test]
fn every_field_that_is_logged_is_listed_and_every_listed_one_is_logged() {
    let page = Place::new().run(&["docs", "logging"]).expect(0).out;
    let listed: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    let mut logged = std::collections::BTreeMap::new();
    for package in ["wire", "tap", "sandbox", "rollout", "store", "server", "testkit"] {
        sources(&root().join(package).join("src"), &mut |path, text| {
            for field in fields(text) {
                logged.entry(field).or_insert_with(|| path.to_owned());
            }
        });
    }
    for (field, path) in &logged {
        assert!(
            listed.contains(&field.as_str()),
            "`{field}` of {} is not in docs/logging.md",
            path.display()
        );
    }
    for field in listed {
        assert!(
            logged.contains_key(field),
            "`{field}` of docs/logging.md is logged nowhere"
        );
    }
}

fn sources(folder: &Path, see: &mut dyn FnMut(&Path, &str)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, see);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            see(&path, &std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// Names of fields in the log macros of a source text.
fn fields(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for name in MACROS {
        for (at, _) in text.match_indices(&format!("tracing::{name}")) {
            let rest = &text[at + "tracing::".len() + name.len()..];
            found.extend(fields_of_call(rest));
        }
    }
    found
}

fn fields_of_call(call: &str) -> Vec<String> {
    let (mut depth, mut quoted, mut escaped) = (1, false, false);
    let mut arguments = vec![String::new()];
    for character in call.chars() {
        if quoted {
            quoted = escaped || character != '"';
            escaped = character == '\\' && !escaped;
        } else {
            match character {
                '"' => quoted = true,
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth -= 1,
                ',' if depth == 1 => arguments.push(String::new()),
                _ => {}
            }
        }
        if depth == 0 {
            break;
        }
        if !(character == ',' && depth == 1 && !quoted) {
            arguments.last_mut().unwrap().push(character);
        }
    }
    let mut names = Vec::new();
    for argument in arguments {
        let argument = argument.trim();
        if argument.starts_with('"') {
            continue;
        }
        let name = argument
            .split(" = ")
            .next()
            .unwrap()
            .trim_start_matches(['%', '?']);
        let plain = |character: char| character.is_ascii_lowercase() || matches!(character, '_' | '.');
        if !name.is_empty() && name.chars().all(plain) {
            names.push(name.to_owned());
        }
    }
    names
}

#[test]
fn fields_are_found_in_every_form() {
    let text = r#"tracing::warn!(rollout.id = %id, error = %chain(&error), ?state, "a, b = c"); tracing::debug!(%error, "x");"#;
    assert_eq!(fields(text), ["error", "rollout.id", "error", "state"]);
}
