//! A shell command of a task: run, bounded, reported.

use crate::events::Events;
use dressage_sandbox::{Command, OutputSink, Sandbox, SandboxError};
use dressage_wire::event::{Event, OutputStream, Stage};
use dressage_wire::reward::CommandResult;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of each stream that a result keeps: the end.
const KEPT_BYTES: usize = 16 * 1024;

/// Bytes of a command's output that are told as events; results carry the end of the rest.
const TOLD_BYTES: usize = 64 * 1024;

/// One of a task's commands.
pub(crate) struct TaskCommand<'a> {
    pub(crate) stage: Stage,
    pub(crate) index: usize,
    /// The shell text, as the task has it.
    pub(crate) text: &'a str,
    /// How it is run.
    pub(crate) command: Command,
}

impl TaskCommand<'_> {
    /// Runs it to its end and tells of it, where it is to be told. An error means that the sandbox is gone; what else goes wrong is a result.
    pub(crate) async fn run(
        self,
        sandbox: &dyn Sandbox,
        events: Option<&Arc<Events>>,
    ) -> Result<CommandResult, SandboxError> {
        let Self {
            stage,
            index,
            text,
            command,
        } = self;
        let tell = |event| {
            if let Some(events) = events {
                events.tell(event);
            }
        };
        tell(Event::CommandStarted {
            stage,
            index,
            command: text.into(),
        });
        let output = Arc::new(Output::new(stage, index, events.cloned()));
        let exit = sandbox.exec(command, output.clone()).await;
        let mut result = output.result(text);
        match exit {
            Ok(exit) => {
                result.exit_code = exit.code;
                result.signal = exit.signal;
                result.timed_out = exit.timed_out;
                result.duration_ms = u64::try_from(exit.duration.as_millis()).unwrap_or(u64::MAX);
            }
            Err(error @ SandboxError::Gone { .. }) => return Err(error),
            Err(error) => {
                result.exit_code = -1;
                result.stderr = error.to_string();
            }
        }
        tell(Event::CommandEnded {
            stage,
            index,
            result: result.clone(),
        });
        Ok(result)
    }
}

/// The output of one command: both ends told and kept within bounds.
struct Output {
    stage: Stage,
    index: usize,
    events: Option<Arc<Events>>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    stdout: Tail<KEPT_BYTES>,
    stderr: Tail<KEPT_BYTES>,
    told: usize,
}

impl Output {
    fn new(stage: Stage, index: usize, events: Option<Arc<Events>>) -> Self {
        Self {
            stage,
            index,
            events,
            kept: Mutex::default(),
        }
    }

    fn result(&self, text: &str) -> CommandResult {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        CommandResult {
            command: text.into(),
            exit_code: 0,
            signal: None,
            timed_out: false,
            stdout: kept.stdout.text(),
            stderr: kept.stderr.text(),
            output_bytes: kept.stdout.total + kept.stderr.total,
            duration_ms: 0,
        }
    }
}

impl OutputSink for Output {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        let tell = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            match stream {
                OutputStream::Stdout => kept.stdout.push(bytes),
                OutputStream::Stderr => kept.stderr.push(bytes),
            }
            kept.told = kept.told.saturating_add(bytes.len());
            kept.told <= TOLD_BYTES
        };
        if let Some(events) = self.events.as_ref().filter(|_| tell) {
            let text = String::from_utf8_lossy(bytes).into_owned();
            events.tell(Event::CommandOutput {
                stage: self.stage,
                index: self.index,
                stream,
                text,
            });
        }
    }
}

/// The last `LIMIT` bytes of a stream.
#[derive(Default)]
pub(crate) struct Tail<const LIMIT: usize> {
    bytes: Vec<u8>,
    /// Bytes of the whole stream.
    pub(crate) total: u64,
}

impl<const LIMIT: usize> Tail<LIMIT> {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(bytes.len() as u64);
        let start = bytes.len().saturating_sub(LIMIT);
        self.bytes
            .extend_from_slice(bytes.get(start..).unwrap_or_default());
        // Cut back only when twice too long, so that each byte is moved once on average.
        if self.bytes.len() > 2 * LIMIT {
            self.bytes.drain(..self.bytes.len() - LIMIT);
        }
    }

    /// The tail as text; a character cut at its start is left out, other invalid UTF-8 replaced.
    pub(crate) fn text(&self) -> String {
        let start = self.bytes.len().saturating_sub(LIMIT);
        let mut tail = self.bytes.get(start..).unwrap_or_default();
        if self.total > tail.len() as u64 {
            let is_continuation = |byte: &&u8| (**byte & 0xc0) == 0x80;
            let cut = tail.iter().take(3).take_while(is_continuation).count();
            tail = tail.get(cut..).unwrap_or_default();
        }
        String::from_utf8_lossy(tail).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_keeps_the_end_and_counts_all() {
        let mut tail = Tail::<8>::default();
        for _ in 0..1000 {
            tail.push(b"0123456789");
        }
        tail.push(b"end");
        assert_eq!(tail.text(), "56789end");
        assert_eq!(tail.total, 10_003);
        assert!(tail.bytes.len() <= 16);
    }

    #[test]
    fn a_character_cut_at_the_start_of_a_tail_is_left_out() {
        let mut tail = Tail::<4>::default();
        tail.push("aé…".as_bytes());
        assert_eq!(tail.text(), "…");
        let mut whole = Tail::<8>::default();
        whole.push(b"\xffok");
        assert_eq!(whole.text(), "\u{fffd}ok");
    }
}
