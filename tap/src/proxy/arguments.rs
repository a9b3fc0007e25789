use dressage_wire::sampling::Sampling;
use dressage_wire::task::CaptureMode;
use lexopt::{Arg, Parser, ValueExt};
use secrecy::SecretString;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Where the endpoint's key is read from.
pub(super) const KEY_VARIABLE: &str = "OPENCODE_UPSTREAM_API_KEY";

pub(super) const HELP: &str = "\
Passes an agent's model calls on to an endpoint, and writes what was sampled to a file, one JSON line a call.

usage: dressage-tap proxy --upstream-url URL --trace FILE [options]

  --upstream-url URL       where the endpoint is, up to and with /v1
  --trace FILE             where calls are appended to
  --host ADDRESS           address to listen on [127.0.0.1]
  --port PORT              port to listen on; 0 takes a free one and prints it [7000]
  --top-logprobs N         alternatives asked for at each position [5]
  --max-tokens-cap N       tokens a call may ask for at most; 0 is no cap [0]
  --disable-thinking       have the chat template not think
  --model-override MODEL   ask for this model whatever the agent asks for
  --request-timeout S      seconds without a word from the endpoint after which a call fails [600]
  --sampling JSON          sampling parameters put on every call, such as '{\"temperature\": 1.0}'
  --capture HOW            `stream`, or `buffer` to ask for whole replies and replay them as streams [stream]
  --keep-alive-s S         seconds of silence after which a stream gets a comment; 0 sends none [30]
  --ca-file FILE           PEM file of further certificate authorities
  --upstream-api-key KEY   the endpoint's key; better put into the environment, where other processes do not see it
  --help, --version

The endpoint's key is read from OPENCODE_UPSTREAM_API_KEY. https_proxy, http_proxy and no_proxy are honoured.
It serves /v1/chat/completions, /v1/models and /healthz. SIGTERM and SIGINT end it: calls under way get 5 seconds.
";

/// What the command line asks for.
#[derive(Debug)]
pub(super) enum Command {
    Help,
    Version,
    Serve(Box<Arguments>),
}

/// How to serve.
#[derive(Debug)]
pub(super) struct Arguments {
    pub(super) upstream_url: String,
    pub(super) trace: PathBuf,
    pub(super) address: SocketAddr,
    pub(super) top_logprobs: u32,
    pub(super) max_tokens_cap: Option<u64>,
    pub(super) disable_thinking: bool,
    pub(super) model: Option<String>,
    pub(super) request_timeout: Duration,
    pub(super) sampling: Sampling,
    pub(super) capture: CaptureMode,
    pub(super) keep_alive: Option<Duration>,
    pub(super) ca_file: Option<PathBuf>,
    pub(super) key: Option<SecretString>,
    pub(super) key_in_arguments: bool,
}

/// Arguments that make no sense.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArgumentError {
    #[error(transparent)]
    Parse(#[from] lexopt::Error),
    #[error("--{flag} is missing")]
    Missing { flag: &'static str },
    #[error("--{flag} cannot be {value:?}: {problem}")]
    Value {
        flag: &'static str,
        value: String,
        problem: String,
    },
    #[error("{KEY_VARIABLE} is not UTF-8")]
    Key,
}

pub(super) fn parse(
    arguments: Vec<OsString>,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Command, ArgumentError> {
    let mut parser = Parser::from_args(arguments);
    let (mut upstream_url, mut trace, mut key) = (None, None, None);
    let (mut host, mut port) = (IpAddr::from([127, 0, 0, 1]), 7000);
    let mut parsed = Arguments {
        upstream_url: String::new(),
        trace: PathBuf::new(),
        address: SocketAddr::new(host, port),
        top_logprobs: 5,
        max_tokens_cap: None,
        disable_thinking: false,
        model: None,
        request_timeout: Duration::from_secs(600),
        sampling: Sampling::default(),
        capture: CaptureMode::Stream,
        keep_alive: Some(Duration::from_secs(30)),
        ca_file: None,
        key: None,
        key_in_arguments: false,
    };
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("help") | Arg::Short('h') => return Ok(Command::Help),
            Arg::Long("version") | Arg::Short('V') => return Ok(Command::Version),
            Arg::Long("upstream-url") => upstream_url = Some(text(&mut parser)?),
            Arg::Long("upstream-api-key") => key = Some(text(&mut parser)?),
            Arg::Long("trace") => trace = Some(PathBuf::from(parser.value()?)),
            Arg::Long("host") => host = host_address(&text(&mut parser)?)?,
            Arg::Long("port") => port = parser.value()?.parse()?,
            Arg::Long("top-logprobs") => parsed.top_logprobs = top_logprobs(&text(&mut parser)?)?,
            Arg::Long("max-tokens-cap") => parsed.max_tokens_cap = cap(&text(&mut parser)?)?,
            Arg::Long("disable-thinking") => parsed.disable_thinking = true,
            Arg::Long("model-override") => {
                parsed.model = Some(text(&mut parser)?).filter(|name| !name.is_empty())
            }
            Arg::Long("request-timeout") => {
                let value = text(&mut parser)?;
                parsed.request_timeout = seconds("request-timeout", &value)?
                    .ok_or_else(|| bad("request-timeout", &value, "it must be more than 0"))?;
            }
            Arg::Long("sampling") => {
                let value = text(&mut parser)?;
                parsed.sampling = serde_json::from_str(&value)
                    .map_err(|error| bad("sampling", &value, error.to_string()))?;
            }
            Arg::Long("capture") => parsed.capture = capture(&text(&mut parser)?)?,
            Arg::Long("keep-alive-s") => parsed.keep_alive = seconds("keep-alive-s", &text(&mut parser)?)?,
            Arg::Long("ca-file") => parsed.ca_file = Some(PathBuf::from(parser.value()?)),
            other => return Err(other.unexpected().into()),
        }
    }
    parsed.upstream_url = upstream_url.ok_or(ArgumentError::Missing { flag: "upstream-url" })?;
    parsed.trace = trace.ok_or(ArgumentError::Missing { flag: "trace" })?;
    parsed.address = SocketAddr::new(host, port);
    parsed.key_in_arguments = key.is_some();
    let from_environment = match variable(KEY_VARIABLE) {
        Some(value) => Some(value.into_string().map_err(|_| ArgumentError::Key)?),
        None => None,
    };
    parsed.key = key
        .or(from_environment)
        .filter(|key| !key.is_empty())
        .map(SecretString::from);
    Ok(Command::Serve(Box::new(parsed)))
}

fn text(parser: &mut Parser) -> Result<String, lexopt::Error> {
    parser.value()?.string()
}

fn bad(flag: &'static str, value: &str, problem: impl Into<String>) -> ArgumentError {
    ArgumentError::Value {
        flag,
        value: value.to_owned(),
        problem: problem.into(),
    }
}

fn host_address(value: &str) -> Result<IpAddr, ArgumentError> {
    if value.eq_ignore_ascii_case("localhost") {
        return Ok(IpAddr::from([127, 0, 0, 1]));
    }
    value
        .parse()
        .map_err(|_| bad("host", value, "it is not an IP address"))
}

fn top_logprobs(value: &str) -> Result<u32, ArgumentError> {
    match value.parse() {
        Ok(number @ 0..=20) => Ok(number),
        _ => Err(bad(
            "top-logprobs",
            value,
            "it must be a whole number from 0 to 20",
        )),
    }
}

fn cap(value: &str) -> Result<Option<u64>, ArgumentError> {
    // OpenEnv means "no cap" by any number up to 0.
    match value.parse::<i64>() {
        Ok(number) => Ok(u64::try_from(number).ok().filter(|number| *number > 0)),
        Err(_) => Err(bad("max-tokens-cap", value, "it must be a whole number")),
    }
}

fn seconds(flag: &'static str, value: &str) -> Result<Option<Duration>, ArgumentError> {
    let duration = value
        .parse()
        .ok()
        .and_then(|seconds: f64| Duration::try_from_secs_f64(seconds).ok());
    // A thousand years are more than any clock bears to be moved by.
    match duration.filter(|duration| duration.as_secs() < 31_536_000_000) {
        Some(duration) if duration.is_zero() => Ok(None),
        Some(duration) => Ok(Some(duration)),
        None => Err(bad(flag, value, "it must be a number of seconds")),
    }
}

fn capture(value: &str) -> Result<CaptureMode, ArgumentError> {
    match value {
        "stream" => Ok(CaptureMode::Stream),
        "buffer" => Ok(CaptureMode::Buffer),
        _ => Err(bad("capture", value, "it must be `stream` or `buffer`")),
    }
}
