/// An endpoint that follows a script, byte by byte.
pub mod endpoint;

/// An agent's connection.
pub mod agent;

/// A sink that keeps what it is given.
pub mod sink;

pub use agent::{Agent, Received};
pub use endpoint::{Act, FakeEndpoint, Script};
pub use sink::Kept;

use dressage_tap::{Endpoint, Session, SessionConfig, Upstream};
use dressage_wire::ids::RolloutId;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Longer than anything here takes, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A recorded request or response of a model server.
pub fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../fixtures/engines")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Waits for something that has to happen.
pub async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen"))
}

/// An open session with a fake endpoint, and a sink that keeps its calls.
pub struct Stage {
    pub endpoint: FakeEndpoint,
    pub session: Arc<Session>,
    pub calls: Arc<Kept>,
}

impl Stage {
    /// With defaults for everything but the endpoint's script.
    pub async fn new(script: impl Fn(usize, &endpoint::Asked) -> Script + Send + Sync + 'static) -> Self {
        Self::with(script, |_| {}, |_| {}).await
    }

    pub async fn with(
        script: impl Fn(usize, &endpoint::Asked) -> Script + Send + Sync + 'static,
        configure_endpoint: impl FnOnce(&mut Endpoint),
        configure_session: impl FnOnce(&mut SessionConfig),
    ) -> Self {
        let endpoint = FakeEndpoint::start(script).await;
        let mut settings = Endpoint::at("fake", endpoint.base_url());
        configure_endpoint(&mut settings);
        let (session, calls) = session(settings, configure_session);
        session.open();
        Self {
            endpoint,
            session,
            calls,
        }
    }

    /// A new connection of the session's agent.
    pub async fn agent(&self) -> Agent {
        Agent::connect(&self.session).await
    }
}

/// A session that is not open yet.
pub fn session(endpoint: Endpoint, configure: impl FnOnce(&mut SessionConfig)) -> (Arc<Session>, Arc<Kept>) {
    let upstream = Upstream::new(endpoint).unwrap();
    let mut config = SessionConfig::new(RolloutId::new(), upstream);
    config.top_logprobs = 5;
    config.keep_alive = None;
    configure(&mut config);
    let calls = Arc::new(Kept::default());
    (Session::new(config, calls.clone()).unwrap(), calls)
}

/// A minimal request of an agent.
pub fn ask(stream: bool) -> String {
    format!(r#"{{"model":"tiny","messages":[{{"role":"user","content":"hi"}}],"stream":{stream}}}"#)
}
