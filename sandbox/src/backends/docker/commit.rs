use super::NAME;
use super::container::Container;
use super::engine::status;
use super::holdings::{Holdings, SNAPSHOTS};
use crate::SandboxError;
use crate::backends::off_the_runtime;
use crate::lease::HeldLease;
use crate::life::Belongings;
use bollard::models::ContainerConfig;
use bollard::query_parameters::CommitContainerOptionsBuilder;
use dressage_wire::ids::SandboxId;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Container {
    /// Has the engine make an image of the files as they are, which nothing changes meanwhile: then nothing need be paused.
    pub(super) async fn commit(
        &self,
        id: SandboxId,
        labels: BTreeMap<String, String>,
    ) -> Result<Arc<dyn Belongings>, SandboxError> {
        if self.image.has_volumes {
            return Err(SandboxError::Unsupported {
                backend: NAME,
                what: format!(
                    "a snapshot of image `{}`, which has its files in volumes in part",
                    self.image.name
                ),
            });
        }
        let (owner, engine) = (Arc::clone(&self.owner), self.engine.clone());
        let holdings = off_the_runtime("lease a snapshot", move || {
            HeldLease::intend_snapshot(&owner, NAME, id, labels, &engine.place())
                .map(|lease| Arc::new(Holdings::new(&engine, lease)))
        })
        .await?
        .map_err(|source| SandboxError::Lease { id, source })?;
        let options = CommitContainerOptionsBuilder::new()
            .container(&self.name)
            .repo(SNAPSHOTS)
            .tag(&id.to_string())
            .pause(false)
            .build();
        // Over those of the container.
        let config = ContainerConfig {
            labels: Some(holdings.labels().into_iter().collect()),
            ..ContainerConfig::default()
        };
        let client = self.engine.client().await?;
        holdings.asking();
        let image = match client.commit_container(options, config).await {
            Ok(image) => image.id,
            Err(error) => {
                if status(&error).is_some() {
                    holdings.refused();
                }
                return Err(self.engine.failed("keep its files as an image", error));
            }
        };
        let held = Arc::clone(&holdings);
        off_the_runtime("lease a snapshot", move || held.made(&image))
            .await?
            .map_err(|source| SandboxError::Lease { id, source })?;
        Ok(holdings)
    }
}
