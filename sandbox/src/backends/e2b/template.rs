use super::NAME;
use super::plane::{ControlPlane, WITHIN};
use crate::bake::{BakeError, BakeEvent, Baked, Baker, Hearing, Layer, Recipe, layers, plain};
use crate::remote::http::{Call, Content, HttpError, Retry, parse, percent_encoded};
use crate::remote::scripts::BAKED;
use crate::{BackendConfig, SandboxError};
use async_trait::async_trait;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What templates are made from where nothing is named: the image behind the provider's own template `base`.
const BASE: &str = "e2bdev/base";

/// The size of sandboxes where none is asked for. While it is built half of the memory holds an archive and what is unpacked of it.
const CPUS: u32 = 2;
const MEMORY_MB: u32 = 2048;

/// For an archive to be there, as the SDK waits.
const UPLOAD: Duration = Duration::from_secs(3600);

/// Between two looks at a build, as the SDK has them.
const LOOK: Duration = Duration::from_millis(200);

/// Lines that are asked for at once.
const LINES: usize = 100;

/// Answers with lines that are read when a build is over: 100 lines each.
const LAST_PAGES: usize = 500;

/// Makes all of it root's alone, whoever the provider made it for.
const CLOSE: &str = "chown -R 0:0 /opt/dressage && chmod -R u=rwX,go=rX /opt/dressage";

/// The provider's requests for a build, in order: a template, its files, the beginning, how it goes. By the contract that SDK
/// 2.63.0 speaks: the third version of the first, the second of the last two.
struct Templates {
    plane: ControlPlane,
    cache_dir: PathBuf,
    tap_binary: PathBuf,
}

pub(in crate::backends) fn baker(config: &BackendConfig) -> Result<Arc<dyn Baker>, SandboxError> {
    Ok(Arc::new(Templates {
        plane: super::plane(config)?,
        cache_dir: config.cache_dir.clone(),
        tap_binary: config.tap_binary.clone(),
    }))
}

#[derive(Deserialize)]
struct Requested {
    #[serde(rename = "templateID")]
    template: String,
    #[serde(rename = "buildID")]
    build: String,
}

/// Whether a file is there, or where it is to go. The address is signed: it is a secret for as long as it holds.
#[derive(Deserialize)]
struct FileState {
    present: bool,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    headers: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    status: String,
    #[serde(default)]
    log_entries: Option<Vec<Entry>>,
    #[serde(default)]
    reason: Option<Reason>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct Reason {
    #[serde(default)]
    message: String,
    #[serde(default)]
    step: Option<String>,
}

#[async_trait]
impl Baker for Templates {
    async fn bake(&self, recipe: &Recipe, heard: Hearing<'_>) -> Result<Baked, BakeError> {
        let layers = layers(&self.cache_dir, &self.tap_binary, recipe).await?;
        let body = json!({
            "name": recipe.name,
            "cpuCount": recipe.cpus.unwrap_or(CPUS),
            "memoryMB": recipe.memory_mb.unwrap_or(MEMORY_MB),
        });
        let answer = self
            .ask("request a template", Method::POST, "/v3/templates", Some(&body))
            .await?;
        let requested: Requested = parse(&answer).map_err(|error| failed("request a template", error))?;
        let template = percent_encoded(&requested.template);
        let mut sent_bytes = 0;
        for layer in &layers {
            sent_bytes += self.send(&template, layer, heard).await?;
        }
        let from = recipe.from.as_deref().unwrap_or(BASE);
        let build = format!(
            "/templates/{template}/builds/{}",
            percent_encoded(&requested.build)
        );
        let body = json!({ "fromImage": from, "force": false, "steps": steps(&layers) });
        let called = format!("build {} of template {}", requested.build, requested.template);
        // Before it is asked for: an answer that is not waited for may be that it was begun.
        heard(BakeEvent::Building {
            unattended: &format!("{called} goes on at E2B"),
        });
        self.ask(
            "start the build",
            Method::POST,
            &format!("/v2{build}"),
            Some(&body),
        )
        .await?;
        self.follow(&build, &called, from, &layers, heard).await?;
        Ok(Baked {
            image: recipe.name.clone(),
            template: Some(requested.template),
            build: Some(requested.build),
            sent_bytes,
        })
    }
}

impl Templates {
    async fn ask(
        &self,
        operation: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<bytes::Bytes, BakeError> {
        let body = body.map(|body| (body, None));
        // What a repetition would make twice is a request of a build that nobody begins.
        let answer = self.plane.call(method, path, body, Retry::Answered, WITHIN).await;
        answer
            .map(|answer| answer.body)
            .map_err(|error| failed(operation, error))
    }

    /// Uploads an archive, unless it is there, and says how much was sent.
    async fn send(&self, template: &str, layer: &Layer, heard: Hearing<'_>) -> Result<u64, BakeError> {
        let operation = format!("take {}", layer.what);
        let path = format!("/templates/{template}/files/{}", files_hash(layer));
        let answer = self.ask(&operation, Method::GET, &path, None).await?;
        let state: FileState = parse(&answer).map_err(|error| failed(&operation, error))?;
        let url = match state {
            FileState { present: true, .. } => {
                heard(BakeEvent::IsThere { what: &layer.what });
                return Ok(0);
            }
            FileState { url: Some(url), .. } => url,
            FileState { url: None, .. } => {
                let error = HttpError::Malformed("no address for a file that is not there".into());
                return Err(failed(&operation, error));
            }
        };
        heard(BakeEvent::Sending {
            what: &layer.what,
            bytes: layer.bytes,
        });
        // Without the key: it is another server's address.
        let mut headers = HeaderMap::new();
        for (name, value) in state.headers.unwrap_or_default() {
            let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) else {
                let error = HttpError::Malformed("a header that is none".into());
                return Err(failed(&operation, error));
            };
            headers.insert(name, value);
        }
        let call = Call {
            method: Method::PUT,
            url,
            headers,
            body: Content::File(layer.packed.archive.clone()),
        };
        self.plane
            .http
            .call(&call, Retry::Repeatable, UPLOAD, 1 << 20)
            .await
            .map_err(|error| failed(&operation, error))?;
        Ok(layer.bytes)
    }

    /// What the provider says, for a terminal, and without the key.
    fn plain(&self, text: &str) -> String {
        plain(&self.plane.hide(text))
    }

    /// Waits for the end of a build, and tells its lines.
    async fn follow(
        &self,
        build: &str,
        called: &str,
        from: &str,
        layers: &[Layer],
        heard: Hearing<'_>,
    ) -> Result<(), BakeError> {
        let unwatched = |error: HttpError| BakeError::Unwatched {
            build: called.to_owned(),
            source: Box::new(error),
        };
        let (mut offset, mut last_pages) = (0, 0);
        loop {
            let path = format!("{build}/status?logsOffset={offset}&limit={LINES}");
            let answer = self
                .plane
                .call(Method::GET, &path, None, Retry::Repeatable, WITHIN)
                .await;
            let status: Status = answer.and_then(|answer| parse(&answer.body)).map_err(unwatched)?;
            let entries = status.log_entries.unwrap_or_default();
            for entry in &entries {
                heard(BakeEvent::Line(&self.plain(&entry.message)));
            }
            offset += entries.len();
            let is_ready = status.status == "ready";
            if !is_ready && status.status != "error" {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            last_pages += 1;
            if !entries.is_empty() && last_pages < LAST_PAGES {
                continue;
            }
            if is_ready {
                return Ok(());
            }
            let reason = status.reason.unwrap_or(Reason {
                message: "no reason was given".into(),
                step: None,
            });
            return Err(BakeError::Step {
                step: step_name(reason.step.as_deref(), from, layers),
                reason: self.plain(&reason.message),
            });
        }
    }
}

/// What a layer's archive is called at the provider: the same content is sent once.
fn files_hash(layer: &Layer) -> String {
    let hash = Sha256::digest(layer.packed.mark.as_bytes());
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn steps(layers: &[Layer]) -> Vec<Value> {
    let copy = |layer: &Layer| {
        let mark = &layer.packed.mark;
        json!({
            "type": "COPY", "args": [mark, format!("{BAKED}/{mark}"), "root", ""],
            "filesHash": files_hash(layer), "force": false,
        })
    };
    let close = json!({ "type": "RUN", "args": [CLOSE, "root"], "force": false });
    layers.iter().map(copy).chain([close]).collect()
}

/// A step for people: those before and after ours have names, ours are numbered from 1.
fn step_name(step: Option<&str>, from: &str, layers: &[Layer]) -> String {
    let Some(step) = step else {
        return "a step that was not named".into();
    };
    let number = step.parse::<usize>().ok();
    let layer = number.and_then(|number| layers.get(number.checked_sub(1)?));
    match (step, layer) {
        ("base" | "0", _) => format!("the base image {from}"),
        (_, Some(layer)) => format!("step {step} (COPY {} to {BAKED})", layer.what),
        (_, None) if number == Some(layers.len() + 1) => format!("step {step} (RUN {CLOSE})"),
        _ => format!("step {}", plain(step)),
    }
}

fn failed(operation: &str, error: HttpError) -> BakeError {
    let remedy = match error.status() {
        Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Some("check E2B_API_KEY"),
        Some(StatusCode::CONFLICT) => Some("the name may be another team's: `--name` takes another"),
        _ => None,
    };
    BakeError::Failed {
        backend: NAME,
        operation: operation.to_owned(),
        source: Box::new(error),
        remedy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::packed::Packed;

    #[test]
    fn a_step_is_told_by_what_it_does() {
        let layer = |what: &str| Layer {
            what: what.into(),
            packed: Packed {
                archive: PathBuf::new(),
                mark: what.into(),
                name: String::new(),
            },
            bytes: 1,
        };
        let layers = [layer("opencode 1"), layer("dressage-tap")];
        for (step, told) in [
            (Some("base"), "the base image debian"),
            (Some("1"), "step 1 (COPY opencode 1 to /opt/dressage)"),
            (Some("2"), "step 2 (COPY dressage-tap to /opt/dressage)"),
            (Some("finalize"), "step finalize"),
            (None, "a step that was not named"),
        ] {
            assert_eq!(step_name(step, "debian", &layers), told);
        }
        assert!(step_name(Some("3"), "debian", &layers).contains("chmod -R"));
    }
}
