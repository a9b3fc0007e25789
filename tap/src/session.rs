use crate::budget::{Budgets, Meter, SpentBudget};
use crate::random::{self, NoRandomness};
use crate::sink::CallSink;
use crate::upstream::Upstream;
use dressage_wire::call::{Call, CallEnd};
use dressage_wire::capture::{AgentSigns, Ask, RequestRules};
use dressage_wire::ids::RolloutId;
use dressage_wire::probe::LogprobsKind;
use dressage_wire::sampling::Sampling;
use dressage_wire::task::CaptureMode;
use secrecy::{ExposeSecret, SecretString};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// What the calls of one rollout have in common.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The rollout, for logs.
    pub rollout: RolloutId,
    /// Where calls go.
    pub upstream: Arc<Upstream>,
    /// The task's sampling parameters; the endpoint's and the neutral set are put under them here.
    pub sampling: Sampling,
    /// How much the endpoint is asked to tell of what it samples.
    pub ask: Ask,
    /// Alternatives asked for, and kept, at each position.
    pub top_logprobs: u32,
    /// Whether the sink gets the entries of log-probabilities as they came. The call's completions hold no alternatives
    /// then.
    pub keep_entries: bool,
    /// Tokens that a call may ask for at most.
    pub max_tokens_cap: Option<u64>,
    /// Whether chat templates are asked not to think; the endpoint may say so too.
    pub disable_thinking: bool,
    /// How to ask the endpoint.
    pub capture: CaptureMode,
    /// When to stop.
    pub budgets: Budgets,
    /// How the agent's own calls are told from others.
    pub signs: AgentSigns,
    /// After this much silence of the endpoint, and then again and again, a stream gets a comment.
    pub keep_alive: Option<Duration>,
    /// Sizes that pass.
    pub limits: BodyLimits,
    /// Who may call.
    pub access: Access,
}

impl SessionConfig {
    /// A session of `rollout` with `upstream`, with defaults for the rest.
    #[must_use]
    pub fn new(rollout: RolloutId, upstream: Arc<Upstream>) -> Self {
        Self {
            rollout,
            sampling: Sampling::default(),
            ask: Ask::Tokens,
            top_logprobs: 0,
            keep_entries: false,
            max_tokens_cap: None,
            disable_thinking: false,
            capture: upstream.endpoint().capture,
            budgets: Budgets::default(),
            signs: AgentSigns::default(),
            keep_alive: Some(Duration::from_secs(15)),
            limits: BodyLimits::default(),
            access: Access::default(),
            upstream,
        }
    }
}

/// Sizes that pass. What is larger gets a clear error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyLimits {
    /// Of a request's body.
    pub request_bytes: usize,
    /// Of the request bodies of all calls under way.
    pub requests_bytes: usize,
    /// Of a reply that is not streamed.
    pub reply_bytes: usize,
    /// Of one event of a stream.
    pub event_bytes: usize,
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self {
            request_bytes: 64 << 20,
            requests_bytes: 256 << 20,
            reply_bytes: 64 << 20,
            event_bytes: 16 << 20,
        }
    }
}

/// Who may call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// Whoever has the session's token.
    #[default]
    Token,
    /// Whoever can connect: for a listener on loopback inside a sandbox.
    Anyone,
}

const BEFORE: u8 = 0;
const OPEN: u8 = 1;
const AFTER: u8 = 2;

/// The calls of one rollout: who may make them, what they may cost, and who takes them.
///
/// Calls pass between [`Session::open`] and [`Session::close`] only, which is the agent stage; at all other times they
/// get 401.
pub struct Session {
    pub(crate) config: SessionConfig,
    pub(crate) sink: Arc<dyn CallSink>,
    pub(crate) cancelled: CancellationToken,
    /// What is done to each request.
    pub(crate) rules: RequestRules,
    /// Whether nobody said how to sample.
    pub(crate) sampling_defaulted: bool,
    /// Whether the endpoint is known to tell log-probabilities as they are before temperature.
    pub(crate) logprobs_raw: bool,
    /// Which of the endpoint's servers its calls go to.
    pub(crate) affinity: u64,
    token: SecretString,
    stage: AtomicU8,
    next_index: AtomicU32,
    meter: Mutex<Meter>,
    spent: watch::Sender<Option<SpentBudget>>,
    calls: TaskTracker,
    /// Replies on their way. A reply is moved by the agent reading it; these are reached without that.
    replies: Mutex<Vec<Weak<dyn Abandon>>>,
    /// Bytes of the request bodies of calls under way.
    request_bytes: Arc<AtomicUsize>,
}

/// A reply on its way, as the session sees it.
pub(crate) trait Abandon: Send + Sync {
    /// Records what there is, and lets go of the endpoint.
    fn abandon(&self);
}

impl Session {
    /// A session that is not open yet.
    ///
    /// # Errors
    /// The system gave no random numbers.
    pub fn new(config: SessionConfig, sink: Arc<dyn CallSink>) -> Result<Arc<Self>, NoRandomness> {
        let endpoint = config.upstream.endpoint();
        let meter = Meter::new(config.budgets, endpoint.prices);
        let learned = config.upstream.learned();
        let sampling = config.sampling.over(&endpoint.sampling);
        let rules = RequestRules {
            ask: config.ask,
            top_logprobs: config.top_logprobs,
            keep_top_logprobs: if config.keep_entries {
                0
            } else {
                config.top_logprobs
            },
            keep_entries: config.keep_entries,
            max_tokens_cap: config.max_tokens_cap,
            sampling: if config.ask == Ask::Nothing {
                sampling.clone()
            } else {
                sampling.over(&Sampling::neutral())
            },
            model: endpoint.model.clone(),
            disable_thinking: config.disable_thinking || endpoint.disable_thinking,
            capture: match (config.capture, &learned) {
                (CaptureMode::Auto, Some(report)) => report.capture,
                (asked, _) => asked,
            },
            changes: Vec::new(),
        };
        Ok(Arc::new(Self {
            sink,
            cancelled: CancellationToken::new(),
            sampling_defaulted: config.ask != Ask::Nothing && sampling == Sampling::default(),
            rules,
            token: random_token()?,
            stage: AtomicU8::new(BEFORE),
            next_index: AtomicU32::new(0),
            meter: Mutex::new(meter),
            spent: watch::Sender::new(None),
            calls: TaskTracker::new(),
            replies: Mutex::new(Vec::new()),
            request_bytes: Arc::default(),
            logprobs_raw: learned.is_some_and(|report| report.logprobs == LogprobsKind::Raw),
            affinity: affinity(config.rollout),
            config,
        }))
    }

    /// What the agent takes for its API key: 256 random bits, worth something between `open` and `close` only.
    #[must_use]
    pub fn token(&self) -> SecretString {
        self.token.clone()
    }

    /// The agent stage begins. A closed session stays closed.
    pub fn open(&self) {
        // Losing this race means that the session is open already, or closed for good.
        let _ = self
            .stage
            .compare_exchange(BEFORE, OPEN, Ordering::AcqRel, Ordering::Acquire);
        lock(&self.meter).open();
    }

    /// The agent stage ends: calls in flight are cancelled and recorded as the agent's going away. Returns when every
    /// call has been handed to the sink.
    pub async fn close(&self) {
        self.stage.store(AFTER, Ordering::Release);
        self.cancelled.cancel();
        self.calls.close();
        let replies = std::mem::take(&mut *lock(&self.replies));
        for reply in replies.iter().filter_map(Weak::upgrade) {
            reply.abandon();
        }
        self.calls.wait().await;
    }

    /// Changes when a budget is spent: from then on calls are answered by the budget.
    #[must_use]
    pub fn budget_spent(&self) -> watch::Receiver<Option<SpentBudget>> {
        self.spent.subscribe()
    }

    /// What the session was made with.
    #[must_use]
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }

    pub(crate) fn is_open(&self) -> bool {
        self.stage.load(Ordering::Acquire) == OPEN
    }

    /// Whether `given` is the session's token. Takes as long for a wrong one as for the right one.
    pub(crate) fn is_token(&self, given: &[u8]) -> bool {
        let token = self.token.expose_secret().as_bytes();
        given.len() == token.len()
            && std::hint::black_box(token.iter().zip(given).fold(0, |bits, (a, b)| bits | (a ^ b))) == 0
    }

    /// Room for the body of a request, to be filled while it is read.
    pub(crate) fn room(&self) -> Room {
        Room {
            all: Arc::clone(&self.request_bytes),
            limit: self.config.limits.requests_bytes,
            held: 0,
        }
    }

    pub(crate) fn next_index(&self) -> u32 {
        self.next_index.fetch_add(1, Ordering::Relaxed)
    }

    /// Held by each call until the sink has it.
    pub(crate) fn call_token(&self) -> TaskTrackerToken {
        self.calls.token()
    }

    /// Has a reply abandoned when the session closes, or now if it has.
    pub(crate) fn watch_reply(&self, reply: &Arc<dyn Abandon>) {
        {
            let mut replies = lock(&self.replies);
            // Looked at under the lock: `close` takes the list after it has set the stage.
            if self.is_open() {
                replies.retain(|reply| reply.strong_count() > 0);
                replies.push(Arc::downgrade(reply));
                return;
            }
        }
        reply.abandon();
    }

    /// Takes a call out of the budgets.
    ///
    /// # Errors
    /// The budget that is spent; everybody who watches has been told.
    pub(crate) fn admit(&self) -> Result<(), SpentBudget> {
        let admitted = lock(&self.meter).admit();
        if let Err(spent) = admitted {
            self.spent
                .send_if_modified(|known| known.replace(spent).is_none());
        }
        admitted
    }

    pub(crate) fn finished(&self, call: Call) {
        // A budget's own answer costs nothing.
        if call.meta.end != CallEnd::Budget {
            lock(&self.meter).count(&call);
        }
        self.sink.finished(call);
    }
}

/// The part of a call in what the request bodies of a session may hold together.
pub(crate) struct Room {
    all: Arc<AtomicUsize>,
    limit: usize,
    held: usize,
}

impl Room {
    /// Takes so many bytes more; false where they are not to be had.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        self.held += bytes;
        self.all.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= self.limit
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.all.fetch_sub(self.held, Ordering::Relaxed);
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("rollout", &self.config.rollout)
            .field("open", &self.is_open())
            .finish_non_exhaustive()
    }
}

fn affinity(rollout: RolloutId) -> u64 {
    let mut hasher = DefaultHasher::new();
    rollout.hash(&mut hasher);
    hasher.finish()
}

fn random_token() -> Result<SecretString, NoRandomness> {
    let mut bits = [0u8; 32];
    random::fill(&mut bits)?;
    let mut text = String::with_capacity(68);
    // The prefix makes the token look like the key that agents expect.
    text.push_str("sk-");
    for byte in bits {
        text.push_str(&format!("{byte:02x}"));
    }
    Ok(text.into())
}

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
