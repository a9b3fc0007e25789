use crate::error::Failure;
use crate::exit::Exit;
use dressage_tap::Upstream;
use dressage_tap::probe::{ProbeError, probe};
use dressage_tap::upstream::Probing;
use dressage_wire::probe::{PROBE_VERSION, ProbeReport};
use sha2::{Digest, Sha256};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Servers are started anew with other options under the same URL: what was found out is believed for a day.
const BELIEVED: Duration = Duration::from_secs(24 * 3600);

/// What probes found out, a file for each URL and model, below the cache directory.
#[derive(Clone, Debug)]
pub struct Probes {
    folder: PathBuf,
}

impl Probes {
    /// Those of a cache directory.
    #[must_use]
    pub fn of(cache: &Path) -> Self {
        Self {
            folder: cache.join("probes"),
        }
    }

    /// What is known of an endpoint and its model, unless that is too old to be believed.
    #[must_use]
    pub fn read(&self, base_url: &str, model: &str) -> Option<ProbeReport> {
        let text = std::fs::read(self.path(base_url, model)).ok()?;
        let report: ProbeReport = serde_json::from_slice(&text).ok()?;
        let probed = UNIX_EPOCH + Duration::from_millis(report.probed_unix_ms);
        // A clock that was set back makes it look as if it came from the future.
        let age = SystemTime::now().duration_since(probed).ok()?;
        let same = report.version == PROBE_VERSION && report.base_url == base_url && report.model == model;
        (same && age < BELIEVED).then_some(report)
    }

    /// Keeps what was found out; a reader sees the old report or the new one.
    ///
    /// # Errors
    /// The cache directory cannot be written.
    pub fn write(&self, report: &ProbeReport) -> io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let mut text = serde_json::to_vec_pretty(report).map_err(io::Error::other)?;
        text.push(b'\n');
        let file = tempfile::NamedTempFile::new_in(&self.folder)?;
        std::fs::write(file.path(), &text)?;
        file.persist(self.path(&report.base_url, &report.model))?;
        Ok(())
    }

    fn path(&self, base_url: &str, model: &str) -> PathBuf {
        let digest = Sha256::digest(format!("{base_url}\n{model}"));
        let name: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(format!("{name}.json"))
    }

    /// Lets an endpoint know what was found out about it before, if anything was.
    pub fn recall(&self, upstream: &Upstream) {
        let model = upstream.endpoint().model.as_deref().unwrap_or_default();
        if let Some(report) = self.read(upstream.base_url(), model) {
            upstream.learn(report);
        }
    }

    /// Asks an endpoint what it returns, lets it know, and keeps that. Where it is being asked already, waits for that.
    ///
    /// # Errors
    /// It answers nothing.
    pub async fn ask(&self, upstream: &Arc<Upstream>) -> Result<Arc<ProbeReport>, Failure> {
        loop {
            if let Some(probing) = upstream.begin_probing() {
                return self.run(probing).await;
            }
            upstream.probed().await;
            if let Some(report) = upstream.learned() {
                return Ok(report);
            }
        }
    }

    /// The same for a probe that was begun.
    ///
    /// # Errors
    /// The endpoint answers nothing.
    pub async fn run(&self, probing: Probing) -> Result<Arc<ProbeReport>, Failure> {
        let upstream = probing.upstream();
        let report = probe(upstream.endpoint())
            .await
            .map_err(|error| failure(&error))?;
        if let Err(error) = self.write(&report) {
            tracing::warn!(%error, "what was found out about an endpoint was not kept");
        }
        upstream.learn(report.clone());
        Ok(Arc::new(report))
    }
}

fn failure(error: &ProbeError) -> Failure {
    let hint = match error {
        ProbeError::NoReply { hint, .. } => hint.clone(),
        ProbeError::Endpoint(_) | ProbeError::NoRandomness(_) => None,
    };
    Failure::from_error(Exit::EndpointUnusable, error).maybe_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dressage_wire::call::CaptureLevel;
    use dressage_wire::probe::{LogprobsKind, ProbedReply};
    use dressage_wire::task::CaptureMode;

    fn report(probed_unix_ms: u64) -> ProbeReport {
        let reply = ProbedReply {
            level: CaptureLevel::Tokens,
            flags: Vec::new(),
            error: None,
        };
        ProbeReport {
            version: PROBE_VERSION,
            base_url: "http://gpu-7:8000/v1".into(),
            model: "m".into(),
            answered_as: Some("m".into()),
            probed_unix_ms,
            whole: reply.clone(),
            stream: reply.clone(),
            whole_with_tools: reply.clone(),
            stream_with_tools: reply,
            tool_called: true,
            logprobs: LogprobsKind::Processed,
            changes: Vec::new(),
            context_length: Some(32_768),
            reasoning_member: None,
            capture: CaptureMode::Stream,
            notes: Vec::new(),
        }
    }

    fn now_unix_ms() -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        u64::try_from(now.as_millis()).unwrap()
    }

    #[test]
    fn a_report_is_found_again_for_its_url_and_model_only() {
        let folder = tempfile::tempdir().unwrap();
        let probes = Probes::of(folder.path());
        let report = report(now_unix_ms());
        probes.write(&report).unwrap();
        assert_eq!(probes.read("http://gpu-7:8000/v1", "m"), Some(report));
        assert_eq!(probes.read("http://gpu-7:8000/v1", "n"), None);
        assert_eq!(probes.read("http://gpu-8:8000/v1", "m"), None);
    }

    #[test]
    fn an_old_report_and_one_of_another_version_are_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let probes = Probes::of(folder.path());
        let now = now_unix_ms();
        let day = 24 * 3600 * 1000;
        for (report, believed) in [
            (report(now - day + 60_000), true),
            (report(now - day - 1), false),
            (report(now + day), false),
            (
                ProbeReport {
                    version: PROBE_VERSION + 1,
                    ..report(now)
                },
                false,
            ),
        ] {
            probes.write(&report).unwrap();
            let read = probes.read("http://gpu-7:8000/v1", "m");
            assert_eq!(read.is_some(), believed, "{report:?}");
        }
    }
}
