use crate::{Backend, BackendConfig, SandboxError};
use std::sync::Arc;

/// Isolated by bubblewrap on this machine.
mod local;

/// Not isolated: programs on this machine.
mod process;

/// Every backend. A row is all that the rest of Dressage knows of one.
#[must_use]
pub fn registry() -> &'static [BackendEntry] {
    &[
        BackendEntry {
            name: "local",
            summary: "bubblewrap on this machine: own namespaces, no network, read-only system",
            make: local::make,
            probe: local::probe,
        },
        BackendEntry {
            name: "process",
            summary: "no isolation: programs on this machine, for those without bubblewrap",
            make: process::make,
            probe: process::probe,
        },
    ]
}

/// The backend of that name.
///
/// # Errors
/// [`SandboxError::UnknownBackend`].
pub fn by_name(name: &str) -> Result<&'static BackendEntry, SandboxError> {
    registry()
        .iter()
        .find(|entry| entry.name == name)
        .ok_or_else(|| SandboxError::UnknownBackend { name: name.to_owned() })
}

/// A row of the table of backends.
pub struct BackendEntry {
    /// By which it is asked for.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// Makes the backend; fails with [`SandboxError::Unavailable`] where it cannot work on this machine.
    pub make: fn(&BackendConfig) -> Result<Arc<dyn Backend>, SandboxError>,
    /// Finds out what it can do on this machine. Slow (starts programs) and blocking.
    pub probe: fn(&BackendConfig) -> Report,
}

/// What a backend can do on this machine, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Why it does not work here; unset where it does.
    pub problem: Option<String>,
    /// What would help.
    pub hint: Option<String>,
    /// What was found, in order.
    pub facts: Vec<Fact>,
}

/// One thing found out about a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What.
    pub name: &'static str,
    /// How it is.
    pub value: String,
}

impl Report {
    pub(crate) fn fact(&mut self, name: &'static str, value: impl Into<String>) {
        self.facts.push(Fact { name, value: value.into() });
    }
}
