//! Whether an endpoint is there, found out before the first sandbox is: an agent would retry a wrong URL or key for more
//! than a minute, in every rollout.
//!
//! It is asked for its models, on the very way that calls go (proxy, certificates, refused addresses, redirects): through
//! a session of the tap.

use crate::endpoints::shorthand;
use crate::error::Failure;
use crate::exit::Exit;
use crate::terminal::{Terminal, one_line};
use bytes::Bytes;
use dressage_tap::session::SessionConfig;
use dressage_tap::{CallSink, Endpoint, Session, Upstream};
use dressage_wire::call::Call;
use dressage_wire::ids::RolloutId;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use secrecy::ExposeSecret;
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// How long an endpoint may take to list its models.
const PATIENCE: Duration = Duration::from_secs(20);

/// More than any list of models.
const LIST_MAX_BYTES: usize = 16 << 20;

/// What an endpoint answered.
struct Answer {
    status: StatusCode,
    body: Bytes,
}

#[derive(Deserialize)]
struct ModelList {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
}

/// The OpenAI form of an error.
#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Deserialize)]
struct ErrorDetail {
    message: String,
    hint: Option<String>,
}

/// Asks an endpoint for its models. A server that lists none passes; a model that is not on the list is noted.
///
/// # Errors
/// Where it cannot be reached, refuses the key, or is no model server.
pub async fn endpoint(upstream: &Upstream, terminal: &Terminal) -> Result<(), Failure> {
    let endpoint = upstream.endpoint();
    let Answer { status, body } = ask(endpoint).await?;
    let detail = serde_json::from_slice::<ErrorBody>(&body).map(|body| body.error);
    let (said, hint) = match detail {
        Ok(ErrorDetail { message, hint }) => (Some(message), hint),
        Err(_) => (None, None),
    };
    let refused = |what: String| Failure::new(Exit::EndpointUnusable, what);
    let place = format!("endpoint `{}` at {}", endpoint.name, endpoint.base_url);
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let mut failure = refused(format!("{place} refuses the key"));
            failure.causes.extend(said.map(|said| one_line(&said, 500)));
            Err(failure.hint(key_hint(endpoint)))
        }
        status if status.is_server_error() => {
            let cause = said.unwrap_or_else(|| format!("it answered {status}"));
            Err(refused(format!("{place} cannot be used"))
                .cause(one_line(&cause, 1_000))
                .maybe_hint(hint.map(|hint| one_line(&hint, 500)))
                .hint("`--no-check` starts all the same"))
        }
        status if status.is_redirection() => Err(refused(format!("{place} cannot be used"))
            .cause(format!("it redirects ({status}), and redirects are not followed"))
            .hint("put the URL that it redirects to into the base URL")),
        status if status.is_success() => {
            let Ok(list) = serde_json::from_slice::<ModelList>(&body) else {
                return Err(refused(format!("{place} does not answer like a model server"))
                    .cause(format!(
                        "its list of models is {}",
                        one_line(&String::from_utf8_lossy(&body), 80)
                    ))
                    .hint("a base URL often ends in /v1; `--no-check` starts all the same"));
            };
            note_missing_model(endpoint, &list, terminal);
            Ok(())
        }
        // Some servers answer calls and list nothing.
        _ => Ok(()),
    }
}

fn key_hint(endpoint: &Endpoint) -> String {
    match (&endpoint.api_key, shorthand(&endpoint.name)) {
        (None, None) => "no key was sent; `--api-key-env VARIABLE` names the variable that holds one".into(),
        (_, Some(shorthand)) => format!("is {} right?", shorthand.key_variable),
        (Some(_), None) => "is the key in its variable right?".into(),
    }
}

fn note_missing_model(endpoint: &Endpoint, list: &ModelList, terminal: &Terminal) {
    let Some(model) = &endpoint.model else { return };
    // A router lists models without the provider that is named behind a colon.
    let bare = model.split(':').next().unwrap_or(model);
    if list.data.is_empty()
        || list
            .data
            .iter()
            .any(|listed| listed.id == *model || listed.id == bare)
    {
        return;
    }
    let mut listed: Vec<_> = list
        .data
        .iter()
        .take(5)
        .map(|model| one_line(&model.id, 80))
        .collect();
    if list.data.len() > listed.len() {
        listed.push("…".into());
    }
    terminal.note(format!(
        "note: endpoint `{}` does not list model `{model}`, but {}",
        endpoint.name,
        listed.join(", ")
    ));
}

async fn ask(endpoint: &Endpoint) -> Result<Answer, Failure> {
    // With a model the tap would answer itself.
    let mut endpoint = Endpoint {
        model: None,
        ..endpoint.clone()
    };
    endpoint.timeouts.header = endpoint.timeouts.header.min(PATIENCE);
    let failed =
        |error: &(dyn std::error::Error + 'static)| Failure::from_error(Exit::EndpointUnusable, error);
    let upstream = Upstream::new(endpoint).map_err(|error| failed(&error))?;
    let config = SessionConfig::new(RolloutId::new(), upstream);
    let session = Session::new(config, Arc::new(NoCalls)).map_err(|error| failed(&error))?;
    session.open();
    let (near, far) = tokio::io::duplex(64 << 10);
    let serving = tokio::spawn(session.clone().serve_connection(far));
    let exchange = async {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near))
            .await
            .map_err(|error| failed(&error))?;
        let connection = tokio::spawn(connection);
        let request = Request::get("/v1/models")
            .header("host", "localhost")
            .header(
                "authorization",
                format!("Bearer {}", session.token().expose_secret()),
            )
            .body(Empty::<Bytes>::new())
            .map_err(|error| failed(&error))?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| failed(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LIST_MAX_BYTES)
            .collect()
            .await
            .map_err(|error| {
                Failure::new(Exit::EndpointUnusable, "its list of models could not be read")
                    .cause(error.to_string())
            })?
            .to_bytes();
        connection.abort();
        Ok(Answer { status, body })
    };
    let answer = tokio::time::timeout(PATIENCE * 2, exchange)
        .await
        .unwrap_or_else(|_| {
            Err(Failure::new(
                Exit::EndpointUnusable,
                "the endpoint did not list its models in time",
            )
            .hint("`--no-check` starts all the same"))
        });
    session.close().await;
    serving.abort();
    answer
}

/// Nothing is called here.
struct NoCalls;

impl CallSink for NoCalls {
    fn finished(&self, _: Call) {}
}
