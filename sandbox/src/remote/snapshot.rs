use super::http::HttpError;
use super::machine::As;
use super::provider::{Unremoved, named};
use super::sandbox::RemoteSandbox;
use crate::SandboxError;
use crate::backends::{block_on, off_the_runtime};
use crate::lease::{HeldLease, Lease, LeaseError};
use crate::snapshot::{Snapshot, unkept};
use async_trait::async_trait;
use dressage_wire::ids::SandboxId;
use http::StatusCode;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Says which processes there are: the number of each and when it began, with a blank before and after.
pub(super) const RUNNING: &str = r#"
for folder in /proc/[0-9]*; do
  read -r line 2>/dev/null <"$folder/stat" || continue
  set -- ${line##*") "}
  printf ' %s:%s ' "${folder#/proc/}" "${20}"
done
"#;

/// Says what runs besides what that said, and what is in folders for temporary files where these are in memory: a line each, its
/// kind before it: `KNOWN`. What has no command line is the kernel's, or has ended. What is about to end is waited for: programs of
/// ours do when what they are for does, and E2B's envd takes a second or two to end what forwards a port that is closed.
const LEFT: &str = r#"
known=$1; round=0
while :; do
  left=
  for folder in /proc/[0-9]*; do
    [ "$folder" != "/proc/$$" ] && read -r name 2>/dev/null <"$folder/comm" && read -r line 2>/dev/null <"$folder/stat" || continue
    set -- ${line##*") "}
    case $known in *" ${folder#/proc/}:${20} "*) continue ;; esac
    line=
    read -r line 2>/dev/null <"$folder/cmdline"
    [ -z "$line" ] || left="$left
runs $name"
  done
  [ -n "$left" ] && [ "$round" -lt 50 ] || break
  round=$((round + 1)); sleep 0.1
done
printf '%s\n' "$left"
for place in /tmp /var/tmp; do
  [ "$(stat -f -c %T -- "$place" 2>/dev/null)" = tmpfs ] || continue
  for entry in "$place"/* "$place"/.[!.]*; do
    [ "${entry##*/}" = .dressage ] && continue
    if [ -e "$entry" ] || [ -L "$entry" ]; then echo "file $entry"; fi
  done
done
"#;

/// What keeps files of sandboxes at a provider. Some of its calls are made on threads that end: it leaves no connection to later
/// ones.
#[async_trait]
pub(crate) trait Keeper: Send + Sync {
    /// Keeps the files of a sandbox under a name that nothing else has, and says what they are called: a template, for who makes
    /// sandboxes. Programs may be kept with them.
    async fn keep(&self, sandbox: &str, name: &str) -> Result<String, HttpError>;

    /// What is called so of that which is kept under a name.
    async fn find(&self, name: &str) -> Result<Vec<String>, HttpError>;

    /// Removes what is called so; what is not there is removed.
    async fn remove(&self, id: &str) -> Result<(), HttpError>;
}

/// What a snapshot is called at a provider: found by it, if the answer to its making was lost.
fn name_of(snapshot: SandboxId) -> String {
    format!("dressage-snapshot-{snapshot}")
}

/// Removes what the lease of a snapshot names at the provider, not the lease.
pub(super) async fn remove(keeper: &dyn Keeper, lease: &Lease) -> Result<(), Unremoved> {
    let name = name_of(lease.sandbox);
    for id in named(lease, keeper.find(&name)).await? {
        keeper.remove(&id).await?;
    }
    Ok(())
}

/// What is kept, under its lease.
struct Kept {
    keeper: Arc<dyn Keeper>,
    backend: &'static str,
    lease: HeldLease,
    removed: Mutex<bool>,
}

impl Kept {
    /// Removes it, once. Blocks.
    fn remove(&self) -> Result<(), LeaseError> {
        let mut removed = self.removed.lock().unwrap_or_else(PoisonError::into_inner);
        if *removed {
            return Ok(());
        }
        let lease = self.lease.lease();
        let done = block_on(remove(&*self.keeper, &lease));
        done.unwrap_or_else(|error| Err(error.into()))
            .map_err(|source| LeaseError::AtProvider {
                sandbox: lease.sandbox,
                backend: self.backend.into(),
                source,
            })?;
        self.forget(&mut removed)
    }

    /// Nothing was made.
    fn refused(&self) -> Result<(), LeaseError> {
        self.forget(&mut self.removed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn forget(&self, removed: &mut bool) -> Result<(), LeaseError> {
        self.lease.clear()?;
        *removed = true;
        Ok(())
    }
}

impl RemoteSandbox {
    /// As [`crate::Sandbox::snapshot`]. The provider may keep what is in memory as well: of ours nothing runs meanwhile that would go on
    /// in others, or know what is this sandbox's alone. The relay is started anew when it is dialled.
    pub(super) async fn keep(
        &self,
        keeper: Arc<dyn Keeper>,
        labels: &BTreeMap<String, String>,
    ) -> Result<Snapshot, SandboxError> {
        let inside = &self.inside;
        self.pause_relay().await?;
        let said = inside
            .script("look for", LEFT, &[&self.running], As::Root)
            .await?;
        let omits = unkept(&said, inside.backend)?;
        let id = SandboxId::new();
        let (of, labels, backend) = (Arc::clone(&self.end.lease), labels.clone(), inside.backend);
        let kept = off_the_runtime("lease a snapshot", move || {
            let place = of.lease().remote.map(|remote| remote.place).unwrap_or_default();
            HeldLease::intend_snapshot(of.owner(), backend, id, labels, &place)
        })
        .await?
        .map_err(|source| SandboxError::Lease { id, source })?;
        let kept = Arc::new(Kept {
            keeper: Arc::clone(&keeper),
            backend,
            lease: kept,
            removed: Mutex::new(false),
        });
        let held = Arc::clone(&kept);
        match keeper.keep(&self.end.provider_id, &name_of(id)).await {
            Ok(template) => {
                off_the_runtime("lease a snapshot", move || held.lease.complete(&template))
                    .await?
                    .map_err(|source| SandboxError::Lease { id, source })?;
                Ok(Snapshot::without(id, backend, omits, move || kept.remove()))
            }
            Err(error) => {
                let may_be_there = error.may_have_happened();
                // The first error is told, whatever becomes of the cleaning; a lease that stays is for a sweep.
                let _ = off_the_runtime("remove a snapshot", move || match may_be_there {
                    true => held.remove(),
                    false => held.refused(),
                })
                .await;
                Err(self.not_kept(error).await)
            }
        }
    }

    /// What a refusal means: some deployments keep nothing, and some keys may not.
    async fn not_kept(&self, error: HttpError) -> SandboxError {
        let is_refusal = matches!(
            error.status(),
            Some(
                StatusCode::BAD_REQUEST
                    | StatusCode::FORBIDDEN
                    | StatusCode::NOT_FOUND
                    | StatusCode::METHOD_NOT_ALLOWED
                    | StatusCode::NOT_IMPLEMENTED
            )
        );
        match self.inside.machine.lives().await {
            Some(false) => self.inside.gone(error.to_string()),
            _ if is_refusal => SandboxError::Unsupported {
                backend: self.inside.backend,
                what: format!("a snapshot: its provider refuses: {error}"),
            },
            _ => self.inside.failed("keep", "its files", error.into()).await,
        }
    }
}
