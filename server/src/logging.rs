//! The log: structured events on standard error. docs/logging.md is made from the table of fields below; a field that is
//! not in it is not logged.

use crate::cli::{Globals, LogFormat};
use crate::environment::{Environment, names};
use crate::terminal::Terminal;
use tracing_subscriber::filter::{EnvFilter, ParseError};

/// A field of log events.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub meaning: &'static str,
}

const fn field(name: &'static str, meaning: &'static str) -> Field {
    Field { name, meaning }
}

/// Every field.
pub const FIELDS: &[Field] = &[
    field("egress.end", "why a sandbox's way to its allowed hosts ended"),
    field("egress.host", "a host that a sandbox was refused the way to"),
    field("endpoint.base_url", "the URL of a model server"),
    field("endpoint.name", "an endpoint"),
    field("error", "what went wrong, with its causes"),
    field(
        "http.duration_ms",
        "milliseconds from the head of a request to the head of its reply",
    ),
    field(
        "http.method",
        "the method of a request; `other` where it is none of HTTP's own",
    ),
    field(
        "http.route",
        "the pattern of a request's route; never the path, which may hold a key",
    ),
    field("http.status", "the status of a reply"),
    field("path", "a file or folder of this machine"),
    field(
        "queue.rollouts",
        "how many rollouts of the queue were left for the next server, or taken over from a dead one",
    ),
    field("pull.done_mb", "megabytes of an image that have arrived"),
    field("pull.known_mb", "megabytes of an image that are known to come"),
    field("rollout.id", "a rollout"),
    field("sandbox.backend", "the backend of a sandbox"),
    field("sandbox.id", "a sandbox"),
    field("sandbox.image", "the image of sandboxes"),
    field("sandbox.name", "a container"),
    field(
        "sweep.rollouts",
        "how many rollouts of dead processes were marked as interrupted",
    ),
    field(
        "sweep.sandboxes",
        "how many sandboxes of dead processes were removed",
    ),
    field("trace.spans", "how many spans of traces were dropped or not sent"),
];

/// The filter of the environment is none.
#[derive(Debug, thiserror::Error)]
#[error("{} is not a log filter", names::LOG)]
pub struct LoggingError {
    /// What is wrong with it.
    #[source]
    source: ParseError,
}

/// Starts logging. Once in a process.
///
/// # Errors
/// Where DRESSAGE_LOG is no filter.
pub fn start(globals: &Globals, environment: &Environment, terminal: &Terminal) -> Result<(), LoggingError> {
    let by_options = match (globals.quiet, globals.verbose) {
        (true, _) => "error",
        (false, 0) => "warn",
        (false, 1) => "info",
        (false, 2) => "debug",
        (false, _) => "trace",
    };
    let directives = environment.get(names::LOG).unwrap_or(by_options);
    let filter = EnvFilter::builder()
        .parse(directives)
        .map_err(|source| LoggingError { source })?;
    let logger = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_writer(terminal.log_writer());
    match globals.log_format {
        LogFormat::Text => logger.init(),
        LogFormat::Json => logger.json().flatten_event(true).init(),
    }
    Ok(())
}
