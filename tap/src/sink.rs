use bytes::Bytes;
use dressage_wire::call::Call;
use dressage_wire::ids::CallId;

/// Takes the calls of a session.
///
/// For each call: `started` once, `dispatched` once for each attempt sent to the endpoint (none, one or a few), and
/// `finished` exactly once, whatever happened. All are called from the task that carries the call, so they must not
/// block and must not call back into the session.
pub trait CallSink: Send + Sync {
    /// An authenticated request has arrived whole and is a call now.
    fn started(&self, id: CallId) {
        let _ = id;
    }

    /// This body goes to the endpoint.
    fn dispatched(&self, id: CallId, body: &Bytes) {
        let _ = (id, body);
    }

    /// Tokens of a streamed reply have come: how many so far, and the endpoint's names for those since this was said last. Said
    /// twice a second at most, and not of the last ones.
    fn sampled(&self, id: CallId, tokens: usize, new: &[String]) {
        let _ = (id, tokens, new);
    }

    /// The entries of log-probabilities of the call's first choice as the endpoint wrote them, a JSON array. Called right
    /// before `finished`, where [`SessionConfig::keep_entries`](crate::SessionConfig::keep_entries) asks for them.
    fn entries(&self, id: CallId, entries: Bytes) {
        let _ = (id, entries);
    }

    /// The call is over. When the reply was whole, this happens before the agent sees the end of it.
    fn finished(&self, call: Call);
}
