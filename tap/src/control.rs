use crate::session::lock;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

/// What [`CallLimits::per_minute`] is counted over.
const MINUTE: Duration = Duration::from_secs(60);

/// How hard an endpoint may be used. Unset is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallLimits {
    /// Calls at once.
    pub at_once: Option<u32>,
    /// Calls begun within any minute.
    pub per_minute: Option<u32>,
}

/// What holds for the calls of all rollouts to an endpoint, and can be changed while they run: whether new ones wait,
/// how many there may be, and which weights they are sent to.
///
/// Calls that wait do so in the order in which they came, and their agents are kept waiting by comments. The time that
/// they wait is no part of the time that a reply may take.
pub struct EndpointControl {
    limits: CallLimits,
    slots: Arc<Semaphore>,
    begun: tokio::sync::Mutex<VecDeque<Instant>>,
    state: watch::Sender<State>,
    policy_version: Mutex<Option<String>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    paused: bool,
    in_flight: usize,
    waiting: usize,
}

/// How an endpoint is used at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// New calls wait.
    pub paused: bool,
    /// Calls that the endpoint works on.
    pub in_flight: usize,
    /// Calls that wait to be sent.
    pub waiting: usize,
}

impl EndpointControl {
    /// Nothing is paused, and no version is known.
    #[must_use]
    pub fn new(limits: CallLimits) -> Arc<Self> {
        let slots = limits.at_once.map_or(Semaphore::MAX_PERMITS, |most| {
            usize::try_from(most).unwrap_or(Semaphore::MAX_PERMITS)
        });
        Arc::new(Self {
            limits,
            slots: Arc::new(Semaphore::new(slots.min(Semaphore::MAX_PERMITS))),
            begun: tokio::sync::Mutex::default(),
            state: watch::Sender::new(State::default()),
            policy_version: Mutex::default(),
        })
    }

    /// How hard it may be used.
    #[must_use]
    pub fn limits(&self) -> CallLimits {
        self.limits
    }

    /// New calls wait from now on; those in flight go on.
    pub fn pause(&self) {
        self.state.send_modify(|state| state.paused = true);
    }

    /// Calls that wait are sent.
    pub fn resume(&self) {
        self.state.send_modify(|state| state.paused = false);
    }

    /// Returns when no call is in flight. With [`EndpointControl::pause`] before it, weights can be changed then.
    pub async fn drained(&self) {
        let mut state = self.state.subscribe();
        // The sender is in `self`, so it cannot go away.
        let _ = state.wait_for(|state| state.in_flight == 0).await;
    }

    /// How it is used now.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let State {
            paused,
            in_flight,
            waiting,
        } = *self.state.borrow();
        Usage {
            paused,
            in_flight,
            waiting,
        }
    }

    /// Says which weights the endpoint serves from now on; put on calls when they are sent and when they end.
    pub fn set_policy_version(&self, version: Option<String>) {
        *lock(&self.policy_version) = version;
    }

    /// What [`EndpointControl::set_policy_version`] said last.
    #[must_use]
    pub fn policy_version(&self) -> Option<String> {
        lock(&self.policy_version).clone()
    }

    /// Waits until a call may be sent. It is in flight until the pass is dropped.
    pub(crate) async fn enter(self: &Arc<Self>) -> Pass {
        let _waiting = Waiting::new(self);
        let mut state = self.state.subscribe();
        // The semaphore is fair: whoever asks first is first.
        let slot = Arc::clone(&self.slots).acquire_owned().await.ok();
        // Held while waiting, which keeps the order.
        let mut rate = match self.limits.per_minute {
            Some(most) => Some((most.max(1) as usize, self.begun.lock().await)),
            None => None,
        };
        loop {
            let _ = state.wait_for(|state| !state.paused).await;
            if let Some((most, begun)) = &mut rate {
                wait_for_room(*most, begun).await;
            }
            // Whether it is paused is looked at and the call counted in one step, so that whoever has paused and sees
            // none in flight is right.
            let entered = self.state.send_if_modified(|state| {
                state.in_flight += usize::from(!state.paused);
                !state.paused
            });
            if entered {
                // Only now: a call that a pause met has not begun.
                if let Some((_, begun)) = &mut rate {
                    begun.push_back(Instant::now());
                }
                return Pass {
                    control: Arc::clone(self),
                    _slot: slot,
                };
            }
        }
    }
}

/// Returns when fewer than `most` calls have begun within a minute; forgets those before.
async fn wait_for_room(most: usize, begun: &mut VecDeque<Instant>) {
    loop {
        let now = Instant::now();
        while begun.front().is_some_and(|first| *first + MINUTE <= now) {
            begun.pop_front();
        }
        match begun.front() {
            Some(first) if begun.len() >= most => tokio::time::sleep_until(*first + MINUTE).await,
            _ => return,
        }
    }
}

impl fmt::Debug for EndpointControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointControl")
            .field("limits", &self.limits)
            .field("usage", &self.usage())
            .finish_non_exhaustive()
    }
}

/// A call in flight.
#[derive(Debug)]
pub(crate) struct Pass {
    control: Arc<EndpointControl>,
    _slot: Option<tokio::sync::OwnedSemaphorePermit>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.control
            .state
            .send_modify(|state| state.in_flight = state.in_flight.saturating_sub(1));
    }
}

/// Counts a call that waits, for as long as it does.
struct Waiting<'a>(&'a EndpointControl);

impl<'a> Waiting<'a> {
    fn new(control: &'a EndpointControl) -> Self {
        control.state.send_modify(|state| state.waiting += 1);
        Self(control)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0
            .state
            .send_modify(|state| state.waiting = state.waiting.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests;
