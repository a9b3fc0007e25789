use super::Progress;
use crate::service::{CancelOnDrop, RolloutSpec, Service, ServiceError, View};
use dressage_store::ListFilter;
use dressage_wire::event::{Event, RolloutEvent};
use dressage_wire::ids::RolloutId;
use rmcp::ErrorData;
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use utoipa::PartialSchema;

/// Seconds that `get_rollout` may wait: clients give up a call after 60.
const WAIT_MAX_S: f64 = 50.0;

/// The tools there are.
pub fn all() -> Vec<Tool> {
    let spec = serde_json::to_value(RolloutSpec::schema()).unwrap_or_default();
    let id = json!({
        "type": "object", "additionalProperties": false, "required": ["id"],
        "properties": {"id": {"type": "string", "description": "id of a rollout"}},
    });
    let get = json!({
        "type": "object", "additionalProperties": false, "required": ["id"],
        "properties": {
            "id": {"type": "string", "description": "id of a rollout"},
            "wait_s": {
                "type": "number", "minimum": 0, "maximum": WAIT_MAX_S,
                "description": "wait so long for the rollout to end before answering",
            },
        },
    });
    let rollout = json!({
        "type": "object", "required": ["id", "state"],
        "properties": {
            "id": {"type": "string"},
            "state": {"type": "string", "enum": ["queued", "running", "finished", "interrupted"]},
            "stage": {"type": ["string", "null"]},
            "ended": {"type": ["string", "null"]},
            "reward": {"type": ["number", "null"]},
            "fault": {"type": ["object", "null"]},
            "totals": {"type": ["object", "null"]},
            "files": {"type": ["object", "null"], "description": "what the agent left in its working directory"},
            "verify": {"type": ["array", "null"], "description": "each verify command with its exit code and output"},
            "wall_ms": {"type": ["integer", "null"]},
        },
    });
    let submitted = json!({
        "type": "object", "required": ["rollouts"],
        "properties": {"rollouts": {"type": "array", "items": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}}},
    });
    let list = json!({
        "type": "object", "additionalProperties": false,
        "properties": {
            "state": {"type": "string", "enum": ["queued", "running", "finished", "interrupted"]},
            "task_id": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
            "cursor": {"type": "string", "description": "`next_cursor` of the page before"},
        },
    });
    let page = json!({
        "type": "object", "required": ["rollouts"],
        "properties": {"rollouts": {"type": "array", "items": {"type": "object"}}, "next_cursor": {"type": ["string", "null"]}},
    });
    let read_only = || ToolAnnotations::new().read_only(true);
    vec![
        tool(
            "run_rollout",
            "Run one rollout to its end: boot a sandbox, set it up, let a coding agent work in it, verify, reward. Tells its \
             progress; cancelling the call cancels the rollout.",
            spec.clone(),
            rollout.clone(),
        ),
        tool(
            "start_rollout",
            "Start rollouts (`n` of one task) and return their ids at once.",
            spec,
            submitted,
        ),
        tool(
            "get_rollout",
            "Where a rollout is, and what came of it.",
            get,
            rollout.clone(),
        )
        .with_annotations(read_only()),
        tool("list_rollouts", "List rollouts, the latest first.", list, page).with_annotations(read_only()),
        tool(
            "cancel_rollout",
            "Ask a rollout to stop; it is cleaned up and kept.",
            id,
            rollout,
        ),
    ]
}

fn tool(name: &'static str, description: &'static str, input: Value, output: Value) -> Tool {
    Tool::new(name, description, object(input)).with_raw_output_schema(Arc::new(object(output)))
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(table) => table,
        _ => JsonObject::new(),
    }
}

/// Uses a tool. What goes wrong with a rollout, or with what was asked for, is a result; an unknown tool is an error.
pub async fn call(
    service: &Service,
    name: &str,
    arguments: JsonObject,
    progress: Progress<'_>,
) -> Result<CallToolResult, ErrorData> {
    let done = match name {
        "run_rollout" => run(service, arguments, progress).await,
        "start_rollout" => start(service, arguments).await,
        "get_rollout" => get(service, &arguments).await,
        "list_rollouts" => list(service, &arguments).await,
        "cancel_rollout" => cancel(service, &arguments).await,
        other => {
            let other = crate::terminal::one_line(other, 80);
            return Err(ErrorData::invalid_params(
                format!("no tool is named `{other}`"),
                None,
            ));
        }
    };
    Ok(match done {
        Ok(value) => CallToolResult::structured(value),
        Err(error) => {
            // In text alone: clients hold structured content against the tool's output schema, which is that of success.
            let error = serde_json::to_string(&crate::http::ErrorBody::from(error)).unwrap_or_default();
            CallToolResult::error(vec![ContentBlock::text(error)])
        }
    })
}

async fn run(
    service: &Service,
    arguments: JsonObject,
    progress: Progress<'_>,
) -> Result<Value, ServiceError> {
    let specs = RolloutSpec::read(Value::Object(arguments))?;
    let count: u32 = specs.iter().map(RolloutSpec::samples).sum();
    if count != 1 {
        return Err(
            ServiceError::invalid("n", "is not 1").hint(Some("`start_rollout` starts several".into()))
        );
    }
    let submission = service.submit(&specs, None).await?;
    let Some(id) = submission.rollouts.first().map(|submitted| submitted.id) else {
        return Err(ServiceError::invalid("", "asks for no rollout"));
    };
    let abandoned = CancelOnDrop::new(service, id);
    let mut follow = service.follow(id, 0).await?;
    let (mut told, mut listens) = (0_u32, true);
    loop {
        let event = tokio::select! {
            biased;
            () = progress.cancelled() => break,
            event = follow.next() => event,
        };
        let Some(event) = event else { break };
        if let Some(message) = message(&event).filter(|_| listens) {
            told += 1;
            listens = progress.tell(f64::from(told), message).await;
        }
    }
    if progress.context.ct.is_cancelled() {
        drop(abandoned);
    } else {
        abandoned.disarm();
    }
    service.wait(id).await?;
    Ok(rollout(&service.get(id).await?))
}

/// What a client is told of an event: stages and calls.
fn message(event: &RolloutEvent) -> Option<String> {
    match &event.event {
        Event::Queued { position: 0 } => Some("queued".into()),
        Event::Queued { position } => Some(format!("queued behind {position}")),
        Event::StageStarted { stage } => Some(stage.name().to_owned()),
        Event::CallEnded { call } => Some(format!(
            "call {}: {} prompt and {} completion tokens",
            call.index + 1,
            call.prompt_tokens,
            call.completion_tokens
        )),
        Event::Reward { value: Some(value) } => Some(format!("reward {value}")),
        _ => None,
    }
}

async fn start(service: &Service, arguments: JsonObject) -> Result<Value, ServiceError> {
    let specs = RolloutSpec::read(Value::Object(arguments))?;
    let submission = service.submit(&specs, None).await?;
    Ok(json!({"rollouts": submission.rollouts}))
}

async fn get(service: &Service, arguments: &JsonObject) -> Result<Value, ServiceError> {
    let id = id(service, arguments, &["id", "wait_s"]).await?;
    let wait = match arguments.get("wait_s") {
        None | Some(Value::Null) => None,
        Some(wait) => match wait.as_f64() {
            Some(seconds) if (0.0..=WAIT_MAX_S).contains(&seconds) => Some(Duration::from_secs_f64(seconds)),
            _ => {
                return Err(ServiceError::invalid(
                    "wait_s",
                    format!("is not between 0 and {WAIT_MAX_S} seconds"),
                ));
            }
        },
    };
    if let Some(wait) = wait
        && let Ok(ended) = tokio::time::timeout(wait, service.wait(id)).await
    {
        ended?;
    }
    Ok(rollout(&service.get(id).await?))
}

async fn list(service: &Service, arguments: &JsonObject) -> Result<Value, ServiceError> {
    known(arguments, &["state", "task_id", "limit", "cursor"])?;
    let text = |key: &str| match arguments.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(ServiceError::invalid(key, "is not a string")),
    };
    let wrong = |key: &str, problem: String| ServiceError::invalid(key, problem);
    let state = match text("state")? {
        None => vec![],
        Some(state) => {
            vec![serde_json::from_value(json!(state)).map_err(|error| wrong("state", error.to_string()))?]
        }
    };
    let after = match text("cursor")? {
        None => None,
        Some(cursor) => Some(
            cursor
                .parse()
                .map_err(|_| wrong("cursor", "is no cursor".into()))?,
        ),
    };
    let limit = match arguments.get("limit") {
        None | Some(Value::Null) => 20,
        Some(limit) => match limit.as_u64() {
            Some(limit @ 1..=100) => u32::try_from(limit).unwrap_or(100),
            _ => return Err(wrong("limit", "is not between 1 and 100".into())),
        },
    };
    let filter = ListFilter {
        states: state,
        task_id: text("task_id")?,
        after,
        limit: Some(limit),
        ..ListFilter::default()
    };
    let page = service.list(filter).await?;
    Ok(json!(page))
}

async fn cancel(service: &Service, arguments: &JsonObject) -> Result<Value, ServiceError> {
    let id = id(service, arguments, &["id"]).await?;
    service.cancel(id).await?;
    Ok(rollout(&service.get(id).await?))
}

async fn id(service: &Service, arguments: &JsonObject, keys: &[&str]) -> Result<RolloutId, ServiceError> {
    known(arguments, keys)?;
    match arguments.get("id") {
        Some(Value::String(id)) => service.find(id).await,
        Some(_) => Err(ServiceError::invalid("id", "is not a string")),
        None => Err(ServiceError::invalid("id", "is missing")),
    }
}

fn known(arguments: &JsonObject, keys: &[&str]) -> Result<(), ServiceError> {
    match arguments.keys().find(|key| !keys.contains(&key.as_str())) {
        Some(unknown) => Err(ServiceError::invalid(unknown, "unknown argument")
            .hint(Some(format!("known are {}", keys.join(", "))))),
        None => Ok(()),
    }
}

/// A rollout as tools tell of it.
fn rollout(view: &View) -> Value {
    let row = &view.summary.row;
    let outcome = view.outcome.as_ref();
    json!({
        "id": row.id,
        "task_id": row.task_id,
        "state": row.state,
        "stage": view.summary.live.stage,
        "queue_position": view.summary.live.queue_position,
        "ended": row.ended,
        "reward": row.reward,
        "fault": outcome.and_then(|outcome| outcome.fault.as_ref()),
        "totals": outcome.map(|outcome| &outcome.totals),
        "verify": outcome.and_then(|outcome| outcome.reward.as_ref()).map(|reward| &reward.commands),
        "files": outcome.map(|outcome| &outcome.files),
        "agent": outcome.and_then(|outcome| outcome.agent.as_ref()),
        "warnings": outcome.map(|outcome| &outcome.warnings),
        "wall_ms": row.wall_ms,
    })
}
