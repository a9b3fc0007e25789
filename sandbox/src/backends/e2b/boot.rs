use super::envd::{As, EnvdError, Said};
use super::sandbox::E2bSandbox;
use crate::remote::http::{Content, HttpError};
use crate::remote::packed::{Packed, pack};
use crate::remote::scripts;
use crate::{BackendConfig, SandboxError, SandboxSpec};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dressage_wire::relay::SECRET_VARIABLE;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Where a relay waits for the host to dial it.
pub(super) const CARRIER_PORT: u16 = 7001;

/// For a relay to say that it listens.
const RELAY_READY: Duration = Duration::from_secs(30);

/// A relay that runs in it.
pub(super) struct Relay {
    /// For agents.
    pub(super) address: String,
    pub(super) secret: SecretString,
    pid: u64,
    /// Ended with the agent's programs.
    pub(super) over: CancellationToken,
}

impl E2bSandbox {
    /// Waits until commands run, sees that home and the programs that are needed are there, brings what the spec wants
    /// inside, and starts the relay: before anything that is not ours runs.
    pub(super) async fn prepare(
        &mut self,
        spec: &SandboxSpec,
        config: &BackendConfig,
    ) -> Result<(), SandboxError> {
        let look = "mkdir -p /home/user && command -v bash env grep find stat sed tar gzip >/dev/null";
        self.inside.script("prepare", look, &[], As::User).await?;
        let mut sources: Vec<_> = spec.assets.iter().map(|asset| asset.host_path.clone()).collect();
        if spec.relay_port.is_some() {
            sources.push(config.tap_binary.clone());
        }
        let mut places = self.bring(sources, config).await?;
        if let Some(port) = spec.relay_port {
            let program = places.pop().unwrap_or_default();
            self.relay = Some(self.start_relay(&program, port).await?);
        }
        let names = spec.assets.iter().map(|asset| asset.name.clone());
        self.assets = names.zip(places).collect();
        Ok(())
    }

    /// Puts trees and files of this machine inside, but for those that are there, and says where each is.
    async fn bring(
        &self,
        sources: Vec<PathBuf>,
        config: &BackendConfig,
    ) -> Result<Vec<String>, SandboxError> {
        if sources.is_empty() {
            return Ok(Vec::new());
        }
        let failed = |source| SandboxError::Create {
            step: "pack what goes into it".into(),
            source: Some(source),
        };
        let cache = config.cache_dir.clone();
        let packing =
            tokio::task::spawn_blocking(move || sources.iter().map(|source| pack(&cache, source)).collect());
        let packed: std::io::Result<Vec<Packed>> = packing
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)));
        let packed = packed.map_err(failed)?;
        let marks: Vec<&str> = packed.iter().map(|packed| packed.mark.as_str()).collect();
        let there = self
            .inside
            .script("look for", scripts::WHERE, &marks, As::Root)
            .await?;
        let there = String::from_utf8_lossy(&there).into_owned();
        let mut places = Vec::new();
        for (packed, there) in packed.iter().zip(there.lines()) {
            let folder = if there.is_empty() {
                let folder = format!("{}/{}", scripts::PUT, packed.mark);
                // Under a name of its own: two assets may be the same.
                let archive = format!("/tmp/.dressage-archive-{}", self.inside.number());
                let content = Content::File(packed.archive.clone());
                if let Err(error) = self.inside.envd.upload(&archive, content).await {
                    return Err(self.inside.failed("write", &archive, error).await);
                }
                let arguments = [archive.as_str(), &folder];
                self.inside
                    .script("unpack", scripts::UNPACK, &arguments, As::Root)
                    .await?;
                folder
            } else {
                there.to_owned()
            };
            places.push(if packed.name.is_empty() {
                folder
            } else {
                format!("{folder}/{}", packed.name)
            });
        }
        Ok(places)
    }

    /// Starts the relay as root, whose processes the agent's user can neither end nor look into, and waits until it listens
    /// on both sides.
    async fn start_relay(&self, program: &str, port: u16) -> Result<Relay, SandboxError> {
        let secret = new_secret().map_err(|source| SandboxError::Create {
            step: "make a secret for its relay".into(),
            source: Some(source),
        })?;
        let address = format!("127.0.0.1:{port}");
        let carriers = format!("0.0.0.0:{CARRIER_PORT}");
        let body = json!({
            "process": {
                "cmd": program,
                "args": ["relay", "--listen", address, "--dialled", carriers],
                "envs": { SECRET_VARIABLE: secret.expose_secret() },
            },
            "stdin": false,
        });
        let starting = async {
            let envd = &self.inside.envd;
            let mut stream = envd
                .stream("process.Process/Start", &body, None, As::Root)
                .await?;
            let (mut started, mut complaint) = (0, Vec::new());
            loop {
                match stream.next().await? {
                    Said::Started(pid) => started = pid,
                    // It says one thing, when it listens, and lives on when nobody hears it.
                    Said::Stdout(_) => return Ok(started),
                    Said::Stderr(bytes) => complaint.extend_from_slice(&bytes),
                    Said::Ended { status, .. } => {
                        let complaint = String::from_utf8_lossy(&complaint);
                        return Err(EnvdError::Said {
                            code: status,
                            message: complaint.trim().chars().take(200).collect(),
                        });
                    }
                }
            }
        };
        let ready = tokio::time::timeout(RELAY_READY, starting).await;
        match ready.unwrap_or(Err(EnvdError::Http(HttpError::TimedOut(RELAY_READY)))) {
            Ok(pid) => Ok(Relay {
                address,
                secret,
                pid,
                over: self.inside.over.child_token(),
            }),
            Err(error) => Err(self.inside.failed("start", "its relay", error).await),
        }
    }

    /// Ends the relay: nothing that comes now is to reach the host.
    pub(super) async fn end_relay(&self) -> Result<(), SandboxError> {
        let Some(relay) = self.relay.as_ref().filter(|relay| !relay.over.is_cancelled()) else {
            return Ok(());
        };
        relay.over.cancel();
        let body = json!({ "process": { "pid": relay.pid }, "signal": "SIGNAL_SIGKILL" });
        match self.inside.envd.unary("process.Process/SendSignal", &body).await {
            Err(error) if !error.is("not_found") => Err(self.inside.failed("end", "its relay", error).await),
            _ => Ok(()),
        }
    }
}

/// 256 bits from the system, as text for a header.
fn new_secret() -> std::io::Result<SecretString> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes).into())
}
