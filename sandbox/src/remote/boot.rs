use super::http::{Content, HttpError};
use super::machine::{As, MachineError, Program, Said};
use super::packed::{Packed, pack};
use super::sandbox::{Inside, RemoteSandbox};
use super::scripts;
use crate::{BackendConfig, SandboxError, SandboxSpec};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use dressage_wire::relay::SECRET_VARIABLE;
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// For a relay to say that it listens.
const RELAY_READY: Duration = Duration::from_secs(30);

/// A relay that runs in it.
pub(super) struct Relay {
    /// For agents.
    pub(super) address: String,
    pub(super) secret: SecretString,
    process: String,
    /// Ended with the agent's programs.
    pub(super) over: CancellationToken,
}

impl RemoteSandbox {
    /// Waits until commands run, sees that home and the programs that are needed are there, brings what the spec wants
    /// inside, and starts the relay: before anything that is not ours runs.
    pub(super) async fn prepare(
        &mut self,
        spec: &SandboxSpec,
        config: &BackendConfig,
    ) -> Result<(), SandboxError> {
        let inside = &self.inside;
        if let Err(error) = inside.machine.ready().await {
            return Err(SandboxError::Create {
                step: "wait until it runs".into(),
                source: Some(std::io::Error::other(error.to_string())),
            });
        }
        inside
            .script("prepare", scripts::PREPARE, &[&inside.home], As::User)
            .await?;
        let mut sources: Vec<_> = spec.assets.iter().map(|asset| asset.host_path.clone()).collect();
        let has_leader = inside.machine.waits_for_what_is_left();
        if has_leader || spec.relay_port.is_some() {
            sources.push(config.tap_binary.clone());
        }
        let mut places = inside.bring(sources, config).await?;
        let tap = places.get(spec.assets.len()).cloned().unwrap_or_default();
        if has_leader {
            let _ = inside.leader.set(tap.clone());
        }
        if let Some(port) = spec.relay_port {
            self.relay = Some(self.inside.start_relay(&tap, port).await?);
        }
        places.truncate(spec.assets.len());
        let names = spec.assets.iter().map(|asset| asset.name.clone());
        self.assets = names.zip(places).collect();
        Ok(())
    }

    /// Ends the relay: nothing that comes now is to reach the host.
    pub(super) async fn end_relay(&self) -> Result<(), SandboxError> {
        let Some(relay) = self.relay.as_ref().filter(|relay| !relay.over.is_cancelled()) else {
            return Ok(());
        };
        relay.over.cancel();
        match self.inside.machine.kill(&relay.process).await {
            Err(error) if !error.is_not_found() => Err(self.inside.failed("end", "its relay", error).await),
            _ => Ok(()),
        }
    }
}

impl Inside {
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
        let there = self.script("look for", scripts::WHERE, &marks, As::Root).await?;
        let there = String::from_utf8_lossy(&there).into_owned();
        let mut places = Vec::new();
        for (packed, there) in packed.iter().zip(there.lines()) {
            let folder = if there.is_empty() {
                let folder = format!("{}/{}", scripts::PUT, packed.mark);
                // Under a name of its own: two assets may be the same.
                let archive = format!("/tmp/.dressage-archive-{}", self.number());
                let content = Content::File(packed.archive.clone());
                if let Err(error) = self.machine.upload(&archive, content).await {
                    return Err(self.failed("write", &archive, error).await);
                }
                let arguments = [archive.as_str(), &folder];
                self.script("unpack", scripts::UNPACK, &arguments, As::Root)
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

    /// Starts the relay as root, whose processes the agent's user can neither end nor look into where it is another, and waits
    /// until it listens on both sides.
    async fn start_relay(&self, program: &str, port: u16) -> Result<Relay, SandboxError> {
        let secret = new_secret().map_err(|source| SandboxError::Create {
            step: "make a secret for its relay".into(),
            source: Some(source),
        })?;
        let address = format!("127.0.0.1:{port}");
        let relay = Program {
            argv: [
                program,
                "relay",
                "--listen",
                &address,
                "--dialled",
                self.machine.carrier_address(),
            ]
            .map(str::to_owned)
            .into(),
            env: BTreeMap::from([(SECRET_VARIABLE.to_owned(), secret.expose_secret().to_owned())]),
            lifetime: None,
            who: As::Root,
        };
        let starting = async {
            let mut running = self.machine.start(&relay).await?;
            let mut complaint = Vec::new();
            loop {
                match running.next().await? {
                    // It says one thing, when it listens, and lives on when nobody hears it.
                    Said::Stdout(_) => return Ok(running.id().to_owned()),
                    Said::Stderr(bytes) => complaint.extend_from_slice(&bytes),
                    Said::Ended(ended) => {
                        let complaint = String::from_utf8_lossy(&complaint);
                        return Err(MachineError::Said {
                            code: format!("exit code {}", ended.code),
                            message: complaint.trim().chars().take(200).collect(),
                        });
                    }
                }
            }
        };
        let ready = tokio::time::timeout(RELAY_READY, starting).await;
        match ready.unwrap_or(Err(MachineError::Http(HttpError::TimedOut(RELAY_READY)))) {
            Ok(process) => Ok(Relay {
                address,
                secret,
                process,
                over: self.over.child_token(),
            }),
            Err(error) => Err(self.failed("start", "its relay", error).await),
        }
    }
}

/// 256 bits from the system, as text for a header.
pub(super) fn new_secret() -> std::io::Result<SecretString> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes).into())
}
