use crate::OutputSink;
use bytes::{Bytes, BytesMut};
use dressage_wire::control::{Done, Exited, Failure, Frame, Reply, WRITE_WINDOW_CHUNKS};
use dressage_wire::event::OutputStream;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Semaphore, oneshot};

type Outcome<T> = Option<oneshot::Sender<Result<T, Failure>>>;

/// A request under way.
pub(super) enum Route {
    /// A program.
    Program {
        sink: Arc<dyn OutputSink>,
        started: Outcome<()>,
        exited: Option<oneshot::Sender<Exited>>,
    },
    /// A file that is written.
    Write {
        window: Arc<Semaphore>,
        done: Outcome<Done>,
    },
    /// A file that is read.
    Read {
        limit: u64,
        buffer: BytesMut,
        done: Outcome<Bytes>,
    },
    /// Files that are listed: path and size, and whether there were more.
    List {
        limit: u64,
        files: Vec<(String, u64)>,
        done: Outcome<(Vec<(String, u64)>, bool)>,
    },
    /// A question with one answer.
    Simple { done: Outcome<Done> },
}

/// The requests under way, until the connection ends.
#[derive(Debug)]
pub(super) struct Routes(Mutex<State>);

enum State {
    Open(HashMap<u64, Route>),
    Closed(String),
}

impl Default for Routes {
    fn default() -> Self {
        Self(Mutex::new(State::Open(HashMap::new())))
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(routes) => write!(f, "Open({} requests)", routes.len()),
            Self::Closed(reason) => write!(f, "Closed({reason})"),
        }
    }
}

impl Routes {
    /// Adds a request; false once the connection has ended.
    pub(super) fn open(&self, id: u64, route: Route) -> bool {
        match &mut *self.state() {
            State::Open(routes) => {
                routes.insert(id, route);
                true
            }
            State::Closed(_) => false,
        }
    }

    /// Removes a request; whether it was there.
    pub(super) fn remove(&self, id: u64) -> bool {
        match &mut *self.state() {
            State::Open(routes) => routes.remove(&id).is_some(),
            State::Closed(_) => false,
        }
    }

    /// Ends all requests. Their callers see that theirs will never be answered. The first reason stays.
    pub(super) fn close(&self, reason: &str) {
        let mut state = self.state();
        if matches!(*state, State::Open(_)) {
            *state = State::Closed(reason.to_owned());
        }
    }

    pub(super) fn end_reason(&self) -> String {
        match &*self.state() {
            State::Open(_) => "it did not answer".to_owned(),
            State::Closed(reason) => reason.clone(),
        }
    }

    /// Gives an answer to the request it belongs to; an error says why the connection is of no further use.
    pub(super) fn answer(&self, Frame { id, body }: Frame<Reply>) -> Result<(), &'static str> {
        let mut state = self.state();
        let State::Open(routes) = &mut *state else {
            return Ok(());
        };
        // The caller may have gone, and then nobody wants the answer.
        let Some(route) = routes.get_mut(&id) else {
            return Ok(());
        };
        match apply(route, body)? {
            Progress::Open => {}
            Progress::Over => {
                routes.remove(&id);
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Progress {
    Open,
    Over,
}

const OUT_OF_PLACE: &str = "its init gave an answer that does not belong to the request";
const TOO_MUCH: &str = "its init sent more than was asked for";

fn apply(route: &mut Route, reply: Reply) -> Result<Progress, &'static str> {
    match (route, reply) {
        (Route::Program { sink, .. }, Reply::Stdout(bytes)) => sink.write(OutputStream::Stdout, &bytes),
        (Route::Program { sink, .. }, Reply::Stderr(bytes)) => sink.write(OutputStream::Stderr, &bytes),
        (Route::Program { started, .. }, Reply::Started) => finish(started, Ok(())),
        (Route::Program { started, .. }, Reply::Failed(failure)) => {
            finish(started, Err(failure));
            return Ok(Progress::Over);
        }
        (Route::Program { exited, .. }, Reply::Exited(exit)) => {
            if let Some(exited) = exited.take() {
                let _ = exited.send(exit);
            }
            return Ok(Progress::Over);
        }
        (Route::Write { window, .. }, Reply::Acknowledged) => {
            if window.available_permits() >= WRITE_WINDOW_CHUNKS {
                return Err(TOO_MUCH);
            }
            window.add_permits(1);
        }
        (Route::Read { limit, buffer, .. }, Reply::Content(bytes)) => {
            if buffer.len() as u64 + bytes.len() as u64 > *limit {
                return Err(TOO_MUCH);
            }
            buffer.extend_from_slice(&bytes);
        }
        (Route::Read { buffer, done, .. }, Reply::Done(_)) => {
            finish(done, Ok(std::mem::take(buffer).freeze()));
            return Ok(Progress::Over);
        }
        (Route::List { limit, files, .. }, Reply::Files(found)) => {
            if files.len() as u64 + found.len() as u64 > *limit {
                return Err(TOO_MUCH);
            }
            files.extend(found.into_iter().map(|file| (file.path, file.size_bytes)));
        }
        (Route::List { files, done, .. }, Reply::Done(outcome)) => {
            finish(done, Ok((std::mem::take(files), outcome.truncated)));
            return Ok(Progress::Over);
        }
        (Route::Write { done, .. } | Route::Simple { done }, Reply::Done(outcome)) => {
            finish(done, Ok(outcome));
            return Ok(Progress::Over);
        }
        (Route::Write { done, .. } | Route::Simple { done }, Reply::Failed(failure)) => {
            finish(done, Err(failure));
            return Ok(Progress::Over);
        }
        (Route::Read { done, .. }, Reply::Failed(failure)) => {
            finish(done, Err(failure));
            return Ok(Progress::Over);
        }
        (Route::List { done, .. }, Reply::Failed(failure)) => {
            finish(done, Err(failure));
            return Ok(Progress::Over);
        }
        _ => return Err(OUT_OF_PLACE),
    }
    Ok(Progress::Open)
}

fn finish<T>(outcome: &mut Outcome<T>, result: Result<T, Failure>) {
    if let Some(outcome) = outcome.take() {
        // The caller may have gone.
        let _ = outcome.send(result);
    }
}

#[cfg(test)]
mod tests;
