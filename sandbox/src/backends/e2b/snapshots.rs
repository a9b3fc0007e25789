use super::plane::ControlPlane;
use crate::remote::http::{HttpError, Retry, parse, percent_encoded};
use crate::remote::snapshot::Keeper;
use async_trait::async_trait;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;

/// For a snapshot to be made, and removed: a disk is written.
const WITHIN: Duration = Duration::from_secs(300);

/// Snapshots by the control plane: templates, which have no lifetime.
pub(super) struct Snapshots(pub(super) ControlPlane);

/// A snapshot as its creation answers it, and as it is listed.
#[derive(Deserialize)]
struct Kept {
    /// A name with the team before it and a tag after it, or a template's id.
    #[serde(rename = "snapshotID")]
    snapshot_id: String,
    #[serde(default)]
    names: Vec<String>,
}

impl Kept {
    fn is_called(&self, name: &str) -> bool {
        let bare = |text: &str| -> Option<String> {
            let untagged = text.split(':').next()?;
            untagged.rsplit('/').next().map(str::to_owned)
        };
        self.names
            .iter()
            .chain([&self.snapshot_id])
            .any(|text| bare(text).as_deref() == Some(name))
    }
}

impl Snapshots {
    async fn ask_for(&self, sandbox: &str, body: &Value) -> Result<Kept, HttpError> {
        let path = format!("/sandboxes/{}/snapshots", percent_encoded(sandbox));
        // What must not be done twice: the sandbox is paused meanwhile.
        let call = self
            .0
            .call(Method::POST, &path, Some((body, None)), Retry::Undone, WITHIN);
        parse(&call.await?.body)
    }
}

#[async_trait]
impl Keeper for Snapshots {
    async fn keep(&self, sandbox: &str, name: &str) -> Result<String, HttpError> {
        // Files alone: that is less, and what is made of them boots. Where that is refused (400: not for every team, 409: not by
        // every node) what is in memory is kept as well. Older deployments do not know of the difference, and keep both.
        let files = json!({ "name": name, "memory": false });
        let kept = match self.ask_for(sandbox, &files).await {
            Err(error)
                if matches!(
                    error.status(),
                    Some(StatusCode::BAD_REQUEST | StatusCode::CONFLICT)
                ) =>
            {
                self.ask_for(sandbox, &json!({ "name": name })).await?
            }
            kept => kept?,
        };
        Ok(kept.snapshot_id)
    }

    async fn find(&self, name: &str) -> Result<Vec<String>, HttpError> {
        // Not every deployment looks at the name.
        let list = format!("/snapshots?limit=100&name={}", percent_encoded(name));
        match self.0.pages::<Kept>(&list).await {
            Err(error) if is_no_route(&error) => Ok(Vec::new()),
            listed => Ok(listed?
                .into_iter()
                .filter(|kept| kept.is_called(name))
                .map(|kept| kept.snapshot_id)
                .collect()),
        }
    }

    async fn remove(&self, id: &str) -> Result<(), HttpError> {
        let path = format!("/templates/{}", percent_encoded(id));
        let removed = self
            .0
            .call(Method::DELETE, &path, None, Retry::Answered, WITHIN)
            .await;
        match removed {
            Err(error) if error.status() == Some(StatusCode::NOT_FOUND) => Ok(()),
            removed => removed.map(|_| ()),
        }
    }
}

/// Whether a deployment knows of no snapshots: then it has none.
fn is_no_route(error: &HttpError) -> bool {
    matches!(
        error.status(),
        Some(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_known_by_its_name_whatever_is_before_and_after_it() {
        let kept = |id: &str, names: &[&str]| Kept {
            snapshot_id: id.into(),
            names: names.iter().copied().map(str::to_owned).collect(),
        };
        for (id, names) in [
            ("team/ours:default", vec!["team/ours"]),
            ("abc123:default", vec!["team/ours:v2"]),
            ("ours", vec![]),
        ] {
            assert!(kept(id, &names).is_called("ours"), "{id}");
        }
        for (id, names) in [
            ("team/ours-too:default", vec!["team/ours-too"]),
            ("ours/other:ours", vec!["ours/other"]),
        ] {
            assert!(!kept(id, &names).is_called("ours"), "{id}");
        }
    }
}
