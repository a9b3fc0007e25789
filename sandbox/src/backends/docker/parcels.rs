use super::container::{Container, Content, OURS};
use super::engine::said;
use crate::SandboxError;
use crate::backends::off_the_runtime;
use crate::launch::READY_TIMEOUT;
use crate::remote::packed::{Packed, pack};
use crate::remote::scripts;
use bollard::container::LogOutput;
use bollard::exec::StartExecResults;
use bollard::models::ExecConfig;
use futures_util::StreamExt;
use std::io;

/// What is on this machine, packed for an engine that does not see it. In a container each is in a folder of its own, called by
/// its mark, which the image may have brought along.
pub(super) struct Parcels {
    /// `dressage-tap`.
    pub(super) tap: Packed,
    /// The assets of the spec, in their order.
    pub(super) assets: Vec<Packed>,
}

impl Container {
    /// Packs what is to be sent, once.
    pub(super) async fn pack(&self) -> Result<&Parcels, SandboxError> {
        let packing = || async {
            let (cache, tap) = (self.cache_dir.clone(), self.tap_binary.clone());
            let assets: Vec<_> = self
                .spec
                .assets
                .iter()
                .map(|asset| asset.host_path.clone())
                .collect();
            let packing = move || -> io::Result<Parcels> {
                let assets = assets.iter().map(|asset| pack(&cache, asset));
                Ok(Parcels {
                    tap: pack(&cache, &tap)?,
                    assets: assets.collect::<io::Result<_>>()?,
                })
            };
            off_the_runtime("pack what goes into it", packing)
                .await?
                .map_err(|source| SandboxError::Create {
                    step: "pack what goes into it".into(),
                    source: Some(source),
                })
        };
        self.parcels.get_or_try_init(packing).await
    }

    /// Sends one.
    pub(super) async fn send(&self, packed: &Packed) -> Result<(), SandboxError> {
        let file = tokio::fs::File::open(&packed.archive).await;
        let file = file.map_err(|source| SandboxError::Create {
            step: "send what goes into it".into(),
            source: Some(source),
        })?;
        self.upload(OURS, Content::File(file)).await
    }

    /// Sends the assets of the spec, but for those that the image has: into a container that runs, since what is root's alone in it
    /// can only be told by root in it.
    pub(super) async fn send_assets(&self) -> Result<(), SandboxError> {
        let Some(parcels) = self.parcels.get().filter(|parcels| !parcels.assets.is_empty()) else {
            return Ok(());
        };
        let marks: Vec<&str> = parcels.assets.iter().map(|packed| packed.mark.as_str()).collect();
        let looked = tokio::time::timeout(READY_TIMEOUT, self.look_for(&marks)).await;
        let found = match looked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(found) => found,
            Err(error) => {
                // An image without a shell, say.
                tracing::debug!(
                    sandbox.id = %self.spec.id,
                    error = &error as &dyn std::error::Error,
                    "what an image has could not be looked for"
                );
                String::new()
            }
        };
        for packed in &parcels.assets {
            let folder = format!("{OURS}/{}", packed.mark);
            if !found.lines().any(|line| line == folder) {
                self.send(packed).await?;
            }
        }
        Ok(())
    }

    /// The folders of marks that are there, and can be trusted.
    async fn look_for(&self, marks: &[&str]) -> io::Result<String> {
        let refused = |error| io::Error::other(said(&error));
        let client = self.engine.client().await.map_err(io::Error::other)?;
        let script = ["/bin/sh", "-c", scripts::WHERE, "dressage"];
        let exec = ExecConfig {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            user: Some("0:0".to_owned()),
            cmd: Some(
                script
                    .iter()
                    .chain(marks)
                    .map(|word| (*word).to_owned())
                    .collect(),
            ),
            ..ExecConfig::default()
        };
        let created = client.create_exec(&self.name, exec).await.map_err(refused)?;
        let started = client.start_exec(&created.id, None).await.map_err(refused)?;
        let StartExecResults::Attached { mut output, .. } = started else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let mut told = Vec::new();
        while let Some(said) = output.next().await {
            if let LogOutput::StdOut { message } = said.map_err(refused)? {
                told.extend_from_slice(&message);
            }
        }
        Ok(String::from_utf8_lossy(&told).into_owned())
    }
}
