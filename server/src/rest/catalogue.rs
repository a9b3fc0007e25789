use super::records::TRAINING_SCHEMA_VERSION;
use crate::endpoints::{self, Choice, Chosen};
use crate::http::App;
use axum::Json;
use axum::extract::State;
use dressage_rollout::LiveState;
use dressage_rollout::presets::PRESETS;
use dressage_wire::export::Shape;
use serde_json::{Map, Value, json};

/// What this server is, and which versions of stored and exported forms it writes.
#[utoipa::path(
    get, path = "/api/v1/version", tag = "operating", operation_id = "get_version",
    responses((status = 200, description = "Name and versions.", body = Object, example = json!({
        "name": "dressage", "version": "0.1.0", "api": "v1",
        "schemas": {"native": 2, "trl": 1, "verl": 1, "chat": 1, "atif": 1, "training": 1},
    })))
)]
pub async fn version() -> Json<Value> {
    let mut schemas: Map<String, Value> = Shape::ALL
        .into_iter()
        .map(|shape| (shape.name().to_owned(), shape.schema_version().into()))
        .collect();
    schemas.insert("training".into(), TRAINING_SCHEMA_VERSION.into());
    Json(json!({
        "name": env!("CARGO_PKG_NAME"),
        "version": env!("CARGO_PKG_VERSION"),
        "api": "v1",
        "schemas": schemas,
    }))
}

/// The endpoints that have a name, and whether they can be used.
#[utoipa::path(
    get, path = "/api/v1/endpoints", tag = "catalogue", operation_id = "list_endpoints",
    responses((status = 200, description = "The endpoints, with what each lacks.", body = Object, example = json!({
        "endpoints": [
            {"name": "vllm", "usable": true, "base_url": "http://127.0.0.1:8000/v1", "model": "Qwen/Qwen3.5-4B", "has_key": false, "capture": "auto"},
            {"name": "openai", "usable": false, "base_url": null, "model": null, "problem": "endpoint `openai` has no API key",
             "hint": "set OPENAI_API_KEY"},
        ],
        "default": "vllm",
        "client_base_url": "any",
    })))
)]
pub async fn endpoints(State(app): State<App>) -> Json<Value> {
    let context = app.service.context();
    let listed = endpoints::known_names(&context.config).into_iter().map(|name| {
        let choice = Choice {
            name: Some(&name),
            ..Choice::default()
        };
        match endpoints::resolve(choice, &context.config, &context.environment) {
            Ok(Chosen::Demo) => json!({"name": name, "usable": true, "base_url": null, "model": null}),
            Ok(Chosen::Server(endpoint)) => json!({
                "name": name, "usable": true, "base_url": endpoint.base_url, "model": endpoint.model,
                "has_key": endpoint.api_key.is_some(), "capture": endpoint.capture,
            }),
            Err(error) => json!({
                "name": name, "usable": false, "base_url": null, "model": null,
                "problem": error.to_string(), "hint": error.hint(),
            }),
        }
    });
    Json(json!({
        "endpoints": listed.collect::<Vec<_>>(),
        "default": context.config.defaults.endpoint,
        "client_base_url": app.service.config().client_base_url,
    }))
}

/// The agents, and whether they are installed.
#[utoipa::path(
    get, path = "/api/v1/agents", tag = "catalogue", operation_id = "list_agents",
    responses((status = 200, description = "The agents.", body = Object, example = json!({
        "agents": [{
            "name": "opencode", "version": "1.18.33", "installed": true, "problem": null, "dialect": "chat_completions",
            "honours": ["agent.version", "agent.system_prompt", "turns"],
        }],
    })))
)]
pub async fn agents(State(app): State<App>) -> Json<Value> {
    let context = app.service.context();
    let agents = context.agents();
    let listed = agents.iter().map(|agent| {
        let installed = agent.installed(&context.paths.cache, None);
        json!({
            "name": agent.name(),
            "version": agent.pinned_version(),
            "dialect": agent.dialect(),
            "honours": agent.honours().iter().map(|wish| wish.key()).collect::<Vec<_>>(),
            "installed": installed.is_ok(),
            "problem": installed.err().map(|error| error.to_string()),
        })
    });
    Json(json!({"agents": listed.collect::<Vec<_>>()}))
}

/// The sandbox backends.
#[utoipa::path(
    get, path = "/api/v1/backends", tag = "catalogue", operation_id = "list_backends",
    responses((status = 200, description = "The backends.", body = Object, example = json!({
        "backends": [{"name": "local", "summary": "bubblewrap on this machine: own namespaces, no network, read-only system"}],
        "default": "local",
    })))
)]
pub async fn backends(State(app): State<App>) -> Json<Value> {
    let listed = dressage_sandbox::registry()
        .iter()
        .map(|entry| json!({"name": entry.name, "summary": entry.summary}));
    Json(json!({"backends": listed.collect::<Vec<_>>(), "default": app.service.config().backend}))
}

/// The ready-made tasks.
#[utoipa::path(
    get, path = "/api/v1/presets", tag = "catalogue", operation_id = "list_presets",
    responses((status = 200, description = "The presets, each with its task.", body = Object, example = json!({
        "presets": [{"name": "hello", "title": "A file that says hello", "task": {"instruction": "Write hello.txt.", "verify": ["test -f hello.txt"]}}],
    })))
)]
pub async fn presets() -> Json<Value> {
    let listed = PRESETS
        .iter()
        .map(|preset| json!({"name": preset.name, "title": preset.title, "task": preset.task()}));
    Json(json!({"presets": listed.collect::<Vec<_>>()}))
}

/// What waits and runs, and the limits.
#[utoipa::path(
    get, path = "/api/v1/queue", tag = "catalogue", operation_id = "get_queue",
    responses((status = 200, description = "Counts and limits.", body = Object, example = json!({
        "waiting": 12, "held": 1, "running": 4,
        "limits": {"running": 4, "waiting": 10000, "backends": {"local": 4}, "endpoints": {}},
        "openenv_sessions": {"active": 2, "max": 8},
    })))
)]
pub async fn queue(State(app): State<App>) -> Json<Value> {
    let live = app.service.live().borrow().clone();
    let count = |wanted: fn(LiveState) -> bool| live.iter().filter(|rollout| wanted(rollout.state)).count();
    let limits = &app.service.config().limits;
    Json(json!({
        "waiting": count(|state| state == LiveState::Queued),
        "held": count(|state| state == LiveState::Held),
        "running": count(|state| !matches!(state, LiveState::Queued | LiveState::Held)),
        "limits": {
            "running": limits.concurrency,
            "waiting": limits.waiting,
            "backends": limits.backends,
            "endpoints": limits.endpoints,
        },
        "openenv_sessions": {"active": app.openenv.sessions.counts().0, "max": app.openenv.sessions.counts().1},
    }))
}
