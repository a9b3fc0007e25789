//! `dressage-tap proxy`: the tap as a program of its own, which writes what it captures to a file, one line a call.
//!
//! For endpoints that only the sandbox can reach. Flags and the keys of a line are those of OpenEnv's `interception.py`
//! (June 2026), so it can stand in for it; what it adds are further keys. The agent could have written the file too:
//! whoever fetches it has to mark what it says accordingly.

/// Flags and environment variables.
mod arguments;

/// The file of calls.
mod trace;

/// One line of it.
mod line;

use self::arguments::{Arguments, Command};
use self::trace::Trace;
use crate::endpoint::{Endpoint, ProxyPolicy};
use crate::gateway::{AllowedHosts, Gateway};
use crate::session::{Access, Session, SessionConfig};
use crate::upstream::Upstream;
use dressage_wire::capture::AgentSigns;
use dressage_wire::ids::RolloutId;
use secrecy::SecretString;
use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long calls under way may go on when the program is told to end.
const DRAIN: Duration = Duration::from_secs(5);

/// Those of OpenCode, whose proxy this stands in for; anybody's calls are taken for an agent's.
const SIGNS: AgentSigns = AgentSigns {
    session_header: None,
    user_agent_starts_with: None,
    ..AgentSigns::OPENCODE
};

/// Runs until it is told to end: exit code 0 then, 1 if it cannot start, 2 if its arguments make no sense.
#[must_use]
pub fn main(arguments: Vec<OsString>) -> ExitCode {
    let arguments = match arguments::parse(arguments, |name| std::env::var_os(name)) {
        Ok(Command::Help) => {
            say(&mut std::io::stdout(), arguments::HELP.trim_end());
            return ExitCode::SUCCESS;
        }
        Ok(Command::Version) => {
            say(
                &mut std::io::stdout(),
                concat!("dressage-tap ", env!("CARGO_PKG_VERSION")),
            );
            return ExitCode::SUCCESS;
        }
        Ok(Command::Serve(arguments)) => arguments,
        Err(error) => {
            let help = "`dressage-tap proxy --help` lists the flags";
            complain(&format!("{error}\n{help}"));
            return ExitCode::from(2);
        }
    };
    // One thread: a call's bytes stay in one core's cache, and an agent makes few calls at once.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(serve(*arguments)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&crate::answer::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Writes a line. Nobody may be reading, which is no reason to end.
fn say(to: &mut dyn Write, line: &str) {
    let _ = writeln!(to, "{line}").and_then(|()| to.flush());
}

fn complain(message: &str) {
    say(&mut std::io::stderr(), &format!("dressage-tap proxy: {message}"));
}

async fn serve(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    // Before anything else, so that a signal during the start ends the program as well.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    if arguments.key_in_arguments {
        complain(&format!(
            "warning: a key in the arguments is visible to every process; put it into {}",
            arguments::KEY_VARIABLE
        ));
    }
    let trace = Arc::new(Trace::open(&arguments.trace)?);
    let session = session(&arguments, Arc::clone(&trace))?;
    let hosts = if arguments.address.ip().is_loopback() {
        AllowedHosts::Named(Vec::new())
    } else {
        AllowedHosts::Any
    };
    let gateway = Gateway::bind(arguments.address, hosts, move || trace.health())
        .await
        .map_err(|error| format!("{} cannot be listened on: {error}", arguments.address))?;
    gateway.admit(&session);
    session.open();
    say(
        &mut std::io::stdout(),
        &format!("listening on http://{}/v1", gateway.address()),
    );
    let stop = CancellationToken::new();
    let mut serving = std::pin::pin!(gateway.serve(stop.clone()));
    tokio::select! {
        () = serving.as_mut() => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    stop.cancel();
    let _ = tokio::time::timeout(DRAIN, serving).await;
    session.close().await;
    Ok(())
}

fn session(arguments: &Arguments, trace: Arc<Trace>) -> Result<Arc<Session>, Box<dyn Error>> {
    let mut endpoint = Endpoint::at("upstream", arguments.upstream_url.clone());
    endpoint.api_key = arguments.key.clone();
    endpoint.model = arguments.model.clone();
    endpoint.ca_file = arguments.ca_file.clone();
    endpoint.timeouts.header = arguments.request_timeout;
    endpoint.timeouts.idle = arguments.request_timeout;
    endpoint.proxy = proxy_policy();
    let upstream = Upstream::new(endpoint)?;
    let mut config = SessionConfig::new(RolloutId::new(), upstream);
    config.sampling = arguments.sampling.clone();
    config.top_logprobs = arguments.top_logprobs;
    // They go into the trace as they come, which is most of a line.
    config.keep_entries = true;
    config.max_tokens_cap = arguments.max_tokens_cap;
    config.disable_thinking = arguments.disable_thinking;
    config.capture = arguments.capture;
    config.keep_alive = arguments.keep_alive;
    config.signs = SIGNS;
    config.access = Access::Anyone;
    Ok(Session::new(config, trace)?)
}

fn proxy_policy() -> ProxyPolicy {
    let variable = |names: [&str; 2]| names.into_iter().find_map(|name| std::env::var(name).ok());
    ProxyPolicy::Variables {
        https_proxy: variable(["https_proxy", "HTTPS_PROXY"]).map(SecretString::from),
        // Not HTTP_PROXY: in a CGI program that is a header of the request.
        http_proxy: std::env::var("http_proxy").ok().map(SecretString::from),
        no_proxy: variable(["no_proxy", "NO_PROXY"]),
    }
}
