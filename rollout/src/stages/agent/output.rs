use crate::agents::{Agent, LineReader};
use crate::command::Tail;
use crate::events::Events;
use dressage_sandbox::OutputSink;
use dressage_wire::event::{AgentEvent, Event, OutputStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of the agent's output that the outcome keeps: the end.
const LOG_BYTES: usize = 16 * 1024;

/// A longer line is not read for events; it still counts for the log.
const LINE_BYTES: usize = 4 << 20;

/// Events of an agent that are told; one that says more goes on unheard, and its calls are recorded all the same.
const TOLD_EVENTS: usize = 10_000;

/// Reads what an agent prints, line by line, and keeps the end of it.
pub(super) struct AgentOutput {
    events: Arc<Events>,
    read: Mutex<Read>,
}

/// What an agent said of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    /// Whether it said anything as an assistant.
    pub(super) spoke: bool,
    /// Whether it printed anything at all.
    pub(super) printed: bool,
    /// Its own id of the session.
    pub(super) session: Option<String>,
    /// The last error that it reported.
    pub(super) error: Option<String>,
    /// Whether that was the last it reported: some agents exit 0 all the same.
    pub(super) failed: bool,
    /// The end of what it wrote to both outputs.
    pub(super) log_tail: String,
}

struct Read {
    reader: LineReader,
    log: Tail<LOG_BYTES>,
    line: Vec<u8>,
    /// The rest of the line is not read.
    skipping: bool,
    said: Said,
    told: usize,
}

impl AgentOutput {
    pub(super) fn new(agent: &dyn Agent, events: Arc<Events>) -> Self {
        Self {
            events,
            read: Mutex::new(Read {
                reader: agent.reader(),
                log: Tail::default(),
                line: Vec::new(),
                skipping: false,
                said: Said::default(),
                told: 0,
            }),
        }
    }

    /// Reads a last line without an end, and says what was read in all, from the first turn on.
    pub(super) fn finish(&self) -> Said {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let line = std::mem::take(&mut read.line);
        self.take_line(&mut read, &line);
        let mut said = read.said.clone();
        said.printed = read.log.total > 0;
        said.log_tail = read.log.text();
        said
    }

    fn take_line(&self, read: &mut Read, line: &[u8]) {
        let mut events = Vec::new();
        (read.reader)(line, &mut events);
        for event in events {
            read.said.failed = matches!(event, AgentEvent::Error { .. });
            match &event {
                // Lines repeat the session; the first is the agent's own, others would be sub-agents'.
                AgentEvent::Session { .. } if read.said.session.is_some() => continue,
                AgentEvent::Session { id } => read.said.session = Some(id.clone()),
                AgentEvent::Text { text } => read.said.spoke |= !text.trim().is_empty(),
                AgentEvent::Error { message } => read.said.error = Some(message.clone()),
                AgentEvent::Tool { .. } | AgentEvent::StepEnded { .. } => {}
            }
            read.told += 1;
            if read.told <= TOLD_EVENTS {
                self.events.tell(Event::Agent { event });
            }
        }
    }
}

impl OutputSink for AgentOutput {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.log.push(bytes);
        if stream == OutputStream::Stderr {
            return;
        }
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let (part, ends) = part
                .strip_suffix(b"\n")
                .map_or((part, false), |part| (part, true));
            if read.line.len() + part.len() > LINE_BYTES {
                read.line.clear();
                read.skipping = true;
            }
            if !read.skipping {
                read.line.extend_from_slice(part);
            }
            if ends {
                let line = std::mem::take(&mut read.line);
                read.skipping = false;
                self.take_line(&mut read, &line);
            }
        }
    }
}
