use crate::SandboxError;
use crate::lease::LeaseError;
use crate::life::on_a_thread;
use dressage_wire::event::OutputStream;
use dressage_wire::ids::SandboxId;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Says what runs in a sandbox besides our own programs and itself, and what is in folders that are in memory: a line each, its kind
/// before it. Without starting a program, which would be one more. A guard of ours is called `exe`, as what starts
/// itself anew is; its command line, of which a shell's `read` leaves out the zeros, tells it from others.
pub(crate) const LEFT: &str = r#"
for folder in /proc/[0-9]*; do
  read -r name 2>/dev/null <"$folder/comm" || continue
  line=
  read -r line 2>/dev/null <"$folder/cmdline"
  case $name:$line in dressage-tap:* | exe:dressage-tapguard*) continue ;; esac
  [ "$folder" = "/proc/$$" ] || echo "runs $name"
done
for entry in /tmp/* /tmp/.[!.]* /var/tmp/* /var/tmp/.[!.]*; do
  if [ -e "$entry" ] || [ -L "$entry" ]; then echo "file $entry"; fi
done
"#;

/// The most that is kept of what that says.
const MAX_SAID_BYTES: usize = 64 << 10;

/// What is named of several things.
const NAMED: usize = 3;

/// The files of a sandbox as they were at one moment, kept by the backend that it was of
/// ([`Sandbox::snapshot`](crate::Sandbox::snapshot)), for others to begin with
/// ([`SandboxSpec::snapshot`](crate::SandboxSpec::snapshot)). Leased as sandboxes are. Removed in the background when the last
/// handle is dropped; [`Snapshot::remove`] waits for that.
#[derive(Clone)]
pub struct Snapshot(Arc<Kept>);

struct Kept {
    id: SandboxId,
    backend: &'static str,
    omits: Vec<String>,
    remove: Arc<dyn Fn() -> Result<(), LeaseError> + Send + Sync>,
}

impl Snapshot {
    /// A snapshot of `backend` that `remove` removes. That blocks, and may be called again after it succeeded.
    #[must_use]
    pub fn new(
        id: SandboxId,
        backend: &'static str,
        remove: impl Fn() -> Result<(), LeaseError> + Send + Sync + 'static,
    ) -> Self {
        Self::without(id, backend, Vec::new(), remove)
    }

    /// The same, which says what it is without.
    pub(crate) fn without(
        id: SandboxId,
        backend: &'static str,
        omits: Vec<String>,
        remove: impl Fn() -> Result<(), LeaseError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Kept {
            id,
            backend,
            omits,
            remove: Arc::new(remove),
        }))
    }

    /// By which its lease is known.
    #[must_use]
    pub fn id(&self) -> SandboxId {
        self.0.id
    }

    /// Files of the sandbox that it does not have, absolute: those in folders that are in memory.
    #[must_use]
    pub fn omits(&self) -> &[String] {
        &self.0.omits
    }

    /// Its id, for the backend that has it.
    pub(crate) fn id_in(&self, backend: &'static str) -> Result<SandboxId, SandboxError> {
        if self.0.backend == backend {
            Ok(self.0.id)
        } else {
            Err(SandboxError::Unsupported {
                backend,
                what: format!("a snapshot of backend `{}`", self.0.backend),
            })
        }
    }

    /// Removes it, whoever still has a handle. Idempotent.
    ///
    /// # Errors
    /// [`SandboxError::Left`] where something of it is left; the next sweep tries again.
    pub async fn remove(&self) -> Result<(), SandboxError> {
        let remove = Arc::clone(&self.0.remove);
        crate::backends::off_the_runtime("remove a snapshot", move || remove())
            .await?
            .map_err(|source| SandboxError::Left {
                id: self.0.id,
                source: Arc::new(source),
            })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let (id, remove) = (self.id, Arc::clone(&self.remove));
        on_a_thread(move || {
            if let Err(error) = remove() {
                tracing::warn!(
                    sandbox.id = %id,
                    error = &error as &dyn std::error::Error,
                    "a snapshot could not be removed; the next sweep tries again"
                );
            }
        });
    }
}

impl PartialEq for Snapshot {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({})", self.0.id)
    }
}

/// What [`LEFT`] says, as it comes.
#[derive(Default)]
pub(crate) struct Left(Mutex<Vec<u8>>);

impl crate::OutputSink for Left {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_SAID_BYTES.saturating_sub(said.len());
        if stream == OutputStream::Stdout {
            said.extend_from_slice(bytes.get(..room.min(bytes.len())).unwrap_or_default());
        }
    }
}

impl Left {
    /// As [`unkept`].
    pub(crate) fn unkept(&self, backend: &'static str) -> Result<Vec<String>, SandboxError> {
        unkept(&self.0.lock().unwrap_or_else(PoisonError::into_inner), backend)
    }
}

/// What a snapshot will not have, by what was said of it: names of files. Fails where programs run, which it would not have either.
pub(crate) fn unkept(said: &[u8], backend: &'static str) -> Result<Vec<String>, SandboxError> {
    let said = String::from_utf8_lossy(said.get(..said.len().min(MAX_SAID_BYTES)).unwrap_or_default());
    let of = |kind: &str| -> Vec<String> {
        said.lines()
            .filter_map(|line| line.strip_prefix(kind))
            .map(|name| name.escape_debug().take(100).collect())
            .collect()
    };
    match of("runs ").as_slice() {
        [] => Ok(of("file ")),
        programs => Err(SandboxError::Unsupported {
            backend,
            what: format!("a snapshot of programs that run: {}", named(programs)),
        }),
    }
}

/// A few of them, and how many there are besides.
fn named(names: &[String]) -> String {
    let first: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    match names.len().checked_sub(NAMED) {
        None | Some(0) => first.join(", "),
        Some(more) => format!("{} and {more} more", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OutputSink;
    use std::sync::mpsc;

    #[test]
    fn what_is_left_is_told_by_its_kind_and_only_a_few_are_named() {
        let left = Left::default();
        left.write(OutputStream::Stdout, b"runs sleep\nfile /tmp/a\nru");
        left.write(OutputStream::Stderr, b"runs nothing\n");
        left.write(OutputStream::Stdout, b"ns post\x1bgres\nfile /tmp/b\nno kind\n");
        let error = left.unkept("local").unwrap_err().to_string();
        let told = "a snapshot of programs that run: sleep, post\\u{1b}gres";
        assert!(error.ends_with(told), "{error}");
        let files = Left::default();
        files.write(OutputStream::Stdout, b"file /tmp/a\nfile /tmp/b\nno kind\n");
        assert_eq!(files.unkept("local").unwrap(), ["/tmp/a", "/tmp/b"]);
        let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
        assert_eq!(named(&names[..3]), "a, b, c");
        assert_eq!(named(&names), "a, b, c and 2 more");
    }

    #[test]
    fn it_is_removed_with_its_last_handle_and_belongs_to_one_backend() {
        let (removed, told) = mpsc::channel();
        let snapshot = Snapshot::new(SandboxId::new(), "local", move || {
            removed.send(()).unwrap();
            Ok(())
        });
        let other = snapshot.clone();
        assert_eq!(snapshot, other);
        assert_eq!(other.id_in("local").unwrap(), snapshot.id());
        let error = other.id_in("docker").unwrap_err().to_string();
        assert!(error.contains("a snapshot of backend `local`"), "{error}");
        drop(snapshot);
        assert!(told.try_recv().is_err());
        drop(other);
        told.recv().unwrap();
    }
}
