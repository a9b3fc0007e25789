use super::environment::Environment;
use super::sessions::{Closed, Full, Session, Use};
use super::tool::{self, ToolError};
use crate::http::App;
use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;

/// How often a reply that is not there yet sends a blank: clients give up 60 s after the last byte.
const BLANK: Duration = Duration::from_secs(5);

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL: i64 = -32603;
const SERVER_ERROR: i64 = -32000;

/// What a request acts on.
#[derive(Clone)]
pub enum Place {
    /// The session that its parameters name, or an environment of its own.
    Anywhere,
    /// The environment of the socket that it came over.
    Socket(Arc<SocketPlace>),
}

/// The environment of a socket.
pub enum SocketPlace {
    /// Its own.
    Own(String, Environment),
    /// That of the session that it is attached to.
    Session(Arc<Session>),
}

impl SocketPlace {
    /// What requests act on.
    #[must_use]
    pub fn environment(&self) -> &Environment {
        match self {
            Self::Own(_, environment) => environment,
            Self::Session(session) => &session.environment,
        }
    }

    fn id(&self) -> &str {
        match self {
            Self::Own(id, _) => id,
            Self::Session(session) => &session.id,
        }
    }
}

/// A request that could not be done.
struct RpcError {
    code: i64,
    message: String,
    data: Value,
}

impl RpcError {
    fn new(code: i64, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            data: Value::Null,
        }
    }
}

impl From<Full> for RpcError {
    fn from(full: Full) -> Self {
        Self {
            code: SERVER_ERROR,
            message: full.message(),
            data: full.data(),
        }
    }
}

/// What stands under `error` of a socket `/mcp` for which there is no place.
pub fn full(full: Full) -> String {
    failure(&Value::Null, &full.into())
}

/// A request, read.
struct Request {
    id: Value,
    method: String,
    params: Map<String, Value>,
}

/// `POST /mcp`. Every answer is 200; one that takes time is kept alive with blanks before the JSON.
pub async fn post(app: App, body: Bytes) -> Response {
    let headers = [(header::CONTENT_TYPE, "application/json")];
    let request = match read(&body) {
        Ok(request) => request,
        Err(reply) => return (headers, reply).into_response(),
    };
    if request.method != "tools/call" {
        return (headers, answer(&app, request, Place::Anywhere).await).into_response();
    }
    let answer = Box::pin(async move { answer(&app, request, Place::Anywhere).await });
    let body = stream::unfold(Some(answer), |answer| async move {
        let mut answer = answer?;
        tokio::select! {
            biased;
            reply = &mut answer => Some((Ok::<_, std::convert::Infallible>(Bytes::from(reply)), None)),
            () = tokio::time::sleep(BLANK) => Some((Ok(Bytes::from_static(b" ")), Some(answer))),
        }
    });
    (headers, Body::from_stream(body)).into_response()
}

/// Answers a request that came as text.
pub async fn answer_text(app: &App, text: &[u8], place: Place) -> String {
    match read(text) {
        Ok(request) => answer(app, request, place).await,
        Err(reply) => reply,
    }
}

/// Answers a request that was parsed already.
pub async fn answer_value(app: &App, value: Value, place: Place) -> String {
    match check(value) {
        Ok(request) => answer(app, request, place).await,
        Err(error) => failure(&Value::Null, &error),
    }
}

fn read(text: &[u8]) -> Result<Request, String> {
    let parsed: Option<Value> = serde_json::from_slice(text).ok().filter(Value::is_object);
    let value = parsed.ok_or_else(|| failure(&Value::Null, &RpcError::new(PARSE_ERROR, "Parse error")))?;
    check(value).map_err(|error| failure(&Value::Null, &error))
}

fn check(value: Value) -> Result<Request, RpcError> {
    use super::problems::{Problem, report};
    let invalid = |problem: Problem| {
        RpcError::new(
            INVALID_REQUEST,
            format!("Invalid request: {}", report("JsonRpcRequest", &[problem])),
        )
    };
    let Value::Object(mut table) = value else {
        return Err(RpcError::new(
            INVALID_REQUEST,
            "Invalid request: it is not an object",
        ));
    };
    let whole = Value::Object(table.clone());
    match table.remove("jsonrpc") {
        Some(Value::String(version)) if version == "2.0" => {}
        Some(other) => {
            return Err(invalid(Problem::new(
                "literal_error",
                vec![json!("jsonrpc")],
                "Input should be '2.0'",
                &other,
            )));
        }
        None => return Err(invalid(Problem::missing(vec![json!("jsonrpc")], &whole))),
    }
    let method = match table.remove("method") {
        Some(Value::String(method)) => method,
        Some(other) => {
            return Err(invalid(Problem::new(
                "string_type",
                vec![json!("method")],
                "Input should be a valid string",
                &other,
            )));
        }
        None => return Err(invalid(Problem::missing(vec![json!("method")], &whole))),
    };
    let params = match table.remove("params") {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        Some(other) => {
            return Err(invalid(Problem::new(
                "dict_type",
                vec![json!("params")],
                "Input should be a valid dictionary",
                &other,
            )));
        }
    };
    let id = match table.remove("id") {
        None => Value::Null,
        Some(id @ (Value::Null | Value::String(_))) => id,
        Some(Value::Number(id)) if id.is_i64() || id.is_u64() => Value::Number(id),
        Some(other) => {
            return Err(invalid(Problem::new(
                "int_type",
                vec![json!("id")],
                "Input should be a valid integer",
                &other,
            )));
        }
    };
    if let Some((key, value)) = table.iter().next() {
        return Err(invalid(Problem::extra(vec![json!(key)], value)));
    }
    Ok(Request { id, method, params })
}

async fn answer(app: &App, request: Request, place: Place) -> String {
    let Request { id, method, params } = request;
    match dispatch(app, &method, params, place).await {
        Ok(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
        Err(error) => failure(&id, &error),
    }
}

fn failure(id: &Value, error: &RpcError) -> String {
    json!({
        "jsonrpc": "2.0",
        "id": id,
        "error": {"code": error.code, "message": error.message, "data": error.data},
    })
    .to_string()
}

async fn dispatch(
    app: &App,
    method: &str,
    params: Map<String, Value>,
    place: Place,
) -> Result<Box<RawValue>, RpcError> {
    match method {
        "tools/list" => {
            let _used = used(app, &params, &place)?;
            Ok(raw(&json!({"tools": [tool::listed_by_rpc()]})))
        }
        "tools/call" => call(app, params, place).await,
        "openenv/session/create" => match &place {
            Place::Socket(socket) => Ok(raw(&json!({"session_id": socket.id()}))),
            Place::Anywhere => Ok(raw(&json!({"session_id": app.openenv.sessions.create()?.id}))),
        },
        "openenv/session/close" => close(app, &params, &place),
        other => Err(RpcError::new(
            METHOD_NOT_FOUND,
            format!("Method not found: {other}"),
        )),
    }
}

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap_or_default()
}

/// The session that parameters name.
fn used(app: &App, params: &Map<String, Value>, place: &Place) -> Result<Option<Use>, RpcError> {
    match (params.get("session_id"), place) {
        (None | Some(Value::Null), _) => Ok(None),
        (Some(Value::String(id)), Place::Socket(socket)) if socket.id() == id => Ok(None),
        (Some(Value::String(id)), _) => {
            let unknown = || RpcError::new(INVALID_PARAMS, format!("Unknown session_id: {id}"));
            app.openenv.sessions.call(id).map(Some).ok_or_else(unknown)
        }
        (Some(other), _) => Err(RpcError::new(
            INVALID_PARAMS,
            format!("Unknown session_id: {other}"),
        )),
    }
}

async fn call(app: &App, params: Map<String, Value>, place: Place) -> Result<Box<RawValue>, RpcError> {
    let Some(Value::String(name)) = params.get("name").cloned() else {
        return Err(RpcError::new(INVALID_PARAMS, "Missing 'name' in params"));
    };
    let arguments = match params.get("arguments") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments.clone(),
        Some(_) => return Err(RpcError::new(INVALID_PARAMS, "'arguments' is not an object")),
    };
    let failed = |error: ToolError| RpcError::new(INTERNAL, error.message());
    match (used(app, &params, &place)?, place) {
        (Some(used), _) => {
            let session = used.session.clone();
            tokio::select! {
                biased;
                () = session.gone.cancelled() => Err(RpcError::new(INTERNAL, "Session task completed unexpectedly")),
                called = session.environment.call(app, &name, arguments) => called.map_err(failed),
            }
        }
        (None, Place::Socket(socket)) => socket
            .environment()
            .call(app, &name, arguments)
            .await
            .map_err(failed),
        (None, Place::Anywhere) => Environment::new()
            .call(app, &name, arguments)
            .await
            .map_err(failed),
    }
}

fn close(app: &App, params: &Map<String, Value>, place: &Place) -> Result<Box<RawValue>, RpcError> {
    let Some(Value::String(id)) = params.get("session_id") else {
        return Err(RpcError::new(
            INVALID_PARAMS,
            "Invalid params - 'session_id' is required",
        ));
    };
    if let Place::Socket(socket) = place
        && socket.id() == id
    {
        return Err(RpcError::new(
            INVALID_REQUEST,
            "Cannot close the session of this connection; close the connection",
        ));
    }
    match app.openenv.sessions.close(id) {
        Closed::Now => Ok(raw(&json!({"session_id": id, "closed": true}))),
        Closed::WithItsSocket => Ok(raw(&json!({"session_id": id, "closed": false, "closing": true}))),
        Closed::Unknown => Err(RpcError::new(INVALID_PARAMS, format!("Unknown session_id: {id}"))),
    }
}
