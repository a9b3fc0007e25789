use bytes::Bytes;
use dressage_tap::CallSink;
use dressage_wire::call::Call;
use dressage_wire::ids::CallId;
use std::sync::Mutex;
use tokio::sync::Notify;

/// Keeps the calls of a session, and finds fault with a sink's being used wrongly.
#[derive(Default)]
pub struct Kept {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    started: Vec<CallId>,
    dispatched: Vec<(CallId, Bytes)>,
    finished: Vec<Call>,
}

impl CallSink for Kept {
    fn started(&self, id: CallId) {
        self.state.lock().unwrap().started.push(id);
    }

    fn dispatched(&self, id: CallId, body: &Bytes) {
        self.state.lock().unwrap().dispatched.push((id, body.clone()));
    }

    fn finished(&self, call: Call) {
        let mut state = self.state.lock().unwrap();
        assert!(
            state.started.contains(&call.meta.id),
            "a call ended that never started"
        );
        assert!(
            state.finished.iter().all(|other| other.meta.id != call.meta.id),
            "a call ended twice"
        );
        state.finished.push(call);
        drop(state);
        self.changed.notify_waiters();
    }
}

impl Kept {
    /// All calls that have ended, when there are `count` of them.
    pub async fn ended(&self, count: usize) -> Vec<Call> {
        super::soon("the end of calls", async {
            loop {
                let changed = self.changed.notified();
                let ended = self.state.lock().unwrap().finished.clone();
                if ended.len() >= count {
                    assert_eq!(ended.len(), count, "more calls ended than were made");
                    return ended;
                }
                changed.await;
            }
        })
        .await
    }

    /// The only call, when it has ended.
    pub async fn only(&self) -> Call {
        self.ended(1).await.remove(0)
    }

    /// How many have ended by now.
    pub fn count(&self) -> usize {
        self.state.lock().unwrap().finished.len()
    }

    /// How many have started by now.
    pub fn started(&self) -> usize {
        self.state.lock().unwrap().started.len()
    }

    /// The bodies sent to the endpoint, over all calls.
    pub fn dispatched(&self) -> Vec<Bytes> {
        self.state
            .lock()
            .unwrap()
            .dispatched
            .iter()
            .map(|(_, body)| body.clone())
            .collect()
    }
}
