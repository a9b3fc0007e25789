use super::line;
use crate::gateway::Health;
use crate::session::lock;
use crate::sink::CallSink;
use bytes::Bytes;
use dressage_wire::call::Call;
use dressage_wire::ids::CallId;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The file that calls are appended to: a line each, whole or not at all, there before the agent sees the end of its
/// reply. A line that cannot be written is lost and said to be; the agent goes on.
pub(super) struct Trace {
    path: PathBuf,
    state: Mutex<State>,
}

struct State {
    file: File,
    /// Bodies of calls under way, as they were last sent to the endpoint.
    sent: HashMap<CallId, Bytes>,
    /// Entries of log-probabilities of the call that is about to finish.
    entries: Option<(CallId, Bytes)>,
    line: Vec<u8>,
    lost: u64,
    problem: Option<String>,
}

/// The file cannot be written to.
#[derive(Debug, thiserror::Error)]
#[error("trace {path} cannot be opened")]
pub(super) struct TraceError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// What is kept of a line's memory for the next one.
const LINE_BYTES_KEPT: usize = 1 << 20;

impl Trace {
    pub(super) fn open(path: &Path) -> Result<Self, TraceError> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.map_err(|source| TraceError {
            path: path.to_owned(),
            source,
        })?;
        let state = State {
            file,
            sent: HashMap::new(),
            entries: None,
            line: Vec::new(),
            lost: 0,
            problem: None,
        };
        Ok(Self {
            path: path.to_owned(),
            state: Mutex::new(state),
        })
    }

    pub(super) fn health(&self) -> Health {
        let state = lock(&self.state);
        match &state.problem {
            None => Health::Ok,
            Some(problem) => {
                Health::Degraded(format!("{} calls are not in the trace: {problem}", state.lost))
            }
        }
    }
}

impl CallSink for Trace {
    fn dispatched(&self, id: CallId, body: &Bytes) {
        lock(&self.state).sent.insert(id, body.clone());
    }

    fn entries(&self, id: CallId, entries: Bytes) {
        lock(&self.state).entries = Some((id, entries));
    }

    fn finished(&self, call: Call) {
        let state = &mut *lock(&self.state);
        let id = call.meta.id;
        let request = state.sent.remove(&id).unwrap_or_else(|| call.request.clone());
        let entries = state.entries.take_if(|(of, _)| *of == id);
        let entries = entries.map(|(_, entries)| entries).unwrap_or_default();
        line::write(&mut state.line, &call, &request, &entries);
        if let Err(error) = append(&mut state.file, &state.line) {
            state.lost += 1;
            let problem = error.to_string();
            if state.problem.as_ref() != Some(&problem) {
                let path = self.path.display();
                super::complain(&format!("a call is not in the trace {path}: {problem}"));
            }
            state.problem = Some(problem);
        }
        state.line.clear();
        state.line.shrink_to(LINE_BYTES_KEPT);
    }
}

/// Appends a line with one write, and takes back what was written of it where it was not written whole.
fn append(file: &mut File, line: &[u8]) -> io::Result<()> {
    let written = loop {
        match file.write(line) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            written => break written?,
        }
    };
    if written == line.len() {
        return Ok(());
    }
    let before = file.metadata()?.len().saturating_sub(written as u64);
    file.set_len(before)?;
    Err(io::Error::new(
        io::ErrorKind::StorageFull,
        "a line was not written whole",
    ))
}
