use super::environment::Environment;
use dressage_wire::ids::RolloutId;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// A session without a socket or a call that nobody used for so long makes place for another, once there is none left.
const IDLE_MAX: Duration = Duration::from_secs(30 * 60);

/// The sessions there are, with their capacity.
#[derive(Debug)]
pub struct Sessions {
    state: Mutex<State>,
    capacity: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Sockets that have an environment of their own.
    own: usize,
    sessions: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    session: Arc<Session>,
    attached: bool,
    /// To be destroyed when its socket goes.
    closing: bool,
    calls: usize,
    used: Instant,
}

/// A session made by `POST /mcp`.
#[derive(Debug)]
pub struct Session {
    /// Its id.
    pub id: String,
    /// What it acts on.
    pub environment: Environment,
    /// Cancelled when it is destroyed.
    pub gone: CancellationToken,
}

/// There is no place for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Sessions there are.
    pub active: usize,
    /// Sessions there can be.
    pub capacity: usize,
}

impl Full {
    /// In OpenEnv's words.
    #[must_use]
    pub fn message(&self) -> String {
        format!(
            "Server at capacity: {}/{} sessions active. Cannot accept new connections.",
            self.active, self.capacity
        )
    }

    /// What stands beside the message.
    #[must_use]
    pub fn data(&self) -> Value {
        json!({"active_sessions": self.active, "max_sessions": self.capacity})
    }
}

/// How a session was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// It is gone.
    Now,
    /// It goes with its socket.
    WithItsSocket,
    /// There was none.
    Unknown,
}

/// A place for a socket's own environment, or its hold on a session; given back when dropped.
#[derive(Debug)]
pub struct Place {
    sessions: Arc<Sessions>,
    session: Option<Arc<Session>>,
}

impl Place {
    /// The session that the socket is attached to.
    #[must_use]
    pub fn session(&self) -> Option<&Arc<Session>> {
        self.session.as_ref()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sessions.leave(self.session.as_deref());
    }
}

/// A call in a session; counted while it lives.
#[derive(Debug)]
pub struct Use {
    sessions: Arc<Sessions>,
    /// The session.
    pub session: Arc<Session>,
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(entry) = self.sessions.lock().sessions.get_mut(&self.session.id) {
            entry.calls = entry.calls.saturating_sub(1);
            entry.used = Instant::now();
        }
    }
}

impl Sessions {
    /// None yet.
    #[must_use]
    pub fn new(capacity: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            capacity,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are, and how many there can be.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.lock().active(), self.capacity)
    }

    /// Makes a session.
    ///
    /// # Errors
    /// There are as many as there can be.
    pub fn create(&self) -> Result<Arc<Session>, Full> {
        let mut state = self.lock();
        state.make_place(self.capacity)?;
        let session = Arc::new(Session {
            id: RolloutId::new().to_string(),
            environment: Environment::new(),
            gone: CancellationToken::new(),
        });
        state.sessions.insert(
            session.id.clone(),
            Entry {
                session: session.clone(),
                attached: false,
                closing: false,
                calls: 0,
                used: Instant::now(),
            },
        );
        Ok(session)
    }

    /// A place for a socket with an environment of its own.
    ///
    /// # Errors
    /// There are as many sessions as there can be.
    pub fn enter(self: &Arc<Self>) -> Result<Place, Full> {
        let mut state = self.lock();
        state.make_place(self.capacity)?;
        state.own += 1;
        Ok(Place {
            sessions: self.clone(),
            session: None,
        })
    }

    /// Attaches a socket to a session.
    ///
    /// # Errors
    /// In OpenEnv's words, why not.
    pub fn attach(self: &Arc<Self>, id: &str) -> Result<Place, String> {
        let mut state = self.lock();
        let Some(entry) = state.sessions.get_mut(id) else {
            return Err(format!("Unknown session_id: {id}"));
        };
        if entry.attached {
            return Err(format!("Session {id} already has an attached WebSocket"));
        }
        entry.attached = true;
        entry.used = Instant::now();
        Ok(Place {
            sessions: self.clone(),
            session: Some(entry.session.clone()),
        })
    }

    fn leave(&self, session: Option<&Session>) {
        let mut state = self.lock();
        let Some(session) = session else {
            state.own = state.own.saturating_sub(1);
            return;
        };
        let Some(entry) = state.sessions.get_mut(&session.id) else {
            return;
        };
        entry.attached = false;
        entry.used = Instant::now();
        if entry.closing {
            state.destroy(&session.id);
        }
    }

    /// A session, for a call in it.
    #[must_use]
    pub fn call(self: &Arc<Self>, id: &str) -> Option<Use> {
        let mut state = self.lock();
        let entry = state.sessions.get_mut(id)?;
        entry.calls += 1;
        entry.used = Instant::now();
        Some(Use {
            sessions: self.clone(),
            session: entry.session.clone(),
        })
    }

    /// Closes a session; calls in it end.
    #[must_use]
    pub fn close(&self, id: &str) -> Closed {
        let mut state = self.lock();
        match state.sessions.get_mut(id) {
            None => Closed::Unknown,
            Some(entry) if entry.attached => {
                entry.closing = true;
                Closed::WithItsSocket
            }
            Some(_) => {
                state.destroy(id);
                Closed::Now
            }
        }
    }
}

impl State {
    fn active(&self) -> usize {
        self.own + self.sessions.len()
    }

    fn destroy(&mut self, id: &str) {
        if let Some(entry) = self.sessions.remove(id) {
            entry.session.gone.cancel();
        }
    }

    /// Sees to it that there is a place: sessions that were left behind go, once they are in the way.
    fn make_place(&mut self, capacity: usize) -> Result<(), Full> {
        if self.active() >= capacity {
            let is_left =
                |entry: &Entry| !entry.attached && entry.calls == 0 && entry.used.elapsed() > IDLE_MAX;
            let left: Vec<_> = self
                .sessions
                .iter()
                .filter(|(_, entry)| is_left(entry))
                .map(|(id, _)| id.clone())
                .collect();
            left.iter().for_each(|id| self.destroy(id));
        }
        if self.active() >= capacity {
            return Err(Full {
                active: self.active(),
                capacity,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Create,
        Enter,
        Attach(usize),
        DropPlace(usize),
        Close(usize),
        Call(usize),
        EndCall(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let index = 0..6usize;
        proptest::collection::vec(
            prop_oneof![
                Just(Step::Create),
                Just(Step::Enter),
                index.clone().prop_map(Step::Attach),
                index.clone().prop_map(Step::DropPlace),
                index.clone().prop_map(Step::Close),
                index.clone().prop_map(Step::Call),
                index.prop_map(Step::EndCall),
            ],
            0..80,
        )
    }

    proptest! {
        /// Against a plain model: a list of sessions with two flags, and a count of sockets.
        #[test]
        fn sessions_keep_to_their_capacity_and_end_when_they_are_to(steps in steps()) {
            const CAPACITY: usize = 3;
            let sessions = Sessions::new(CAPACITY);
            let (mut known, mut places, mut calls) = (Vec::<(Arc<Session>, bool, bool)>::new(), Vec::new(), Vec::new());
            let mut own = 0;
            for step in steps {
                let alive = |known: &[(Arc<Session>, bool, bool)]| known.iter().filter(|(session, ..)| !session.gone.is_cancelled()).count();
                let active = own + alive(&known);
                match step {
                    Step::Create => match sessions.create() {
                        Ok(session) => { prop_assert!(active < CAPACITY); known.push((session, false, false)); }
                        Err(full) => prop_assert_eq!(full, Full { active: CAPACITY, capacity: CAPACITY }),
                    },
                    Step::Enter => match sessions.enter() {
                        Ok(place) => { prop_assert!(active < CAPACITY); own += 1; places.push((place, None)); }
                        Err(_) => prop_assert_eq!(active, CAPACITY),
                    },
                    Step::Attach(index) => if let Some((session, attached, _)) = known.get_mut(index) {
                        let gone = session.gone.is_cancelled();
                        match sessions.attach(&session.id) {
                            Ok(place) => { prop_assert!(!gone && !*attached); *attached = true; places.push((place, Some(index))); }
                            Err(_) => prop_assert!(gone || *attached),
                        }
                    },
                    Step::DropPlace(index) => if index < places.len() {
                        let (place, of) = places.remove(index);
                        drop(place);
                        match of {
                            None => own -= 1,
                            Some(index) => {
                                known[index].1 = false;
                                prop_assert_eq!(known[index].0.gone.is_cancelled(), known[index].2);
                            }
                        }
                    },
                    Step::Close(index) => if let Some((session, attached, closing)) = known.get_mut(index) {
                        let gone = session.gone.is_cancelled();
                        let closed = sessions.close(&session.id);
                        prop_assert_eq!(closed, match (gone, *attached) {
                            (true, _) => Closed::Unknown,
                            (false, true) => Closed::WithItsSocket,
                            (false, false) => Closed::Now,
                        });
                        *closing |= !gone;
                        prop_assert_eq!(session.gone.is_cancelled(), gone || !*attached);
                    },
                    Step::Call(index) => if let Some((session, ..)) = known.get(index) {
                        let call = sessions.call(&session.id);
                        prop_assert_eq!(call.is_some(), !session.gone.is_cancelled());
                        calls.extend(call);
                    },
                    Step::EndCall(index) => if index < calls.len() { drop(calls.remove(index)); },
                }
                prop_assert_eq!(sessions.counts(), (own + alive(&known), CAPACITY));
            }
        }
    }
}
