use crate::http::{App, JsonBody, Path};
use crate::service::{Page, RolloutSpec, ServiceError, Submitted, View};
use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use dressage_store::{Idempotency, ListFilter, ListOrder, ListSort, RolloutState};
use serde::Serialize;
use serde::de::{DeserializeOwned, IntoDeserializer};
use sha2::{Digest, Sha256};

/// The caller's word that makes a request that is sent twice count once.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Said of an answer that was given before.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Characters that such a word may have.
const IDEMPOTENCY_KEY_MAX: usize = 255;

/// The rollouts that were taken.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SubmittedRollouts {
    /// In the order of the specs and samples.
    pub rollouts: Vec<Submitted>,
}

/// Asks for rollouts: one spec, `n` of it, or `{"rollouts": [spec, ...]}`. Answers at once; they run when there is a place.
#[utoipa::path(
    post, path = "/api/v1/rollouts", tag = "rollouts", operation_id = "submit_rollouts",
    params(("Idempotency-Key" = Option<String>, Header, description = "makes a request that is sent twice count once, for 24 hours")),
    request_body(content = RolloutSpec, example = json!({"preset": "binary_search", "endpoint": "demo", "n": 4})),
    responses(
        (status = 202, description = "They were taken.", body = SubmittedRollouts),
        (status = 409, description = "The idempotency key was used with another body.", body = crate::http::ErrorBody),
        (status = 422, description = "A spec is wrong.", body = crate::http::ErrorBody),
        (status = 429, description = "So many wait already.", body = crate::http::ErrorBody),
        (status = 503, description = "The server is stopping.", body = crate::http::ErrorBody),
    )
)]
pub async fn submit(
    State(app): State<App>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, ServiceError> {
    let idempotency = match headers.get(IDEMPOTENCY_KEY) {
        None => None,
        Some(key) => Some(Idempotency {
            key: idempotency_key(key)?,
            fingerprint: Sha256::digest(&body.bytes).into(),
        }),
    };
    let specs = RolloutSpec::read(body.value)?;
    let submission = app.service.submit(&specs, idempotency).await?;
    let location = match submission.rollouts.as_slice() {
        [one] => HeaderValue::try_from(format!("/api/v1/rollouts/{}", one.id)).ok(),
        _ => None,
    };
    let rollouts = submission.rollouts;
    let mut response = (StatusCode::ACCEPTED, Json(SubmittedRollouts { rollouts })).into_response();
    if let Some(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    if submission.repeated {
        response
            .headers_mut()
            .insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

fn idempotency_key(value: &HeaderValue) -> Result<String, ServiceError> {
    match value.to_str() {
        Ok(key) if (1..=IDEMPOTENCY_KEY_MAX).contains(&key.len()) => Ok(key.to_owned()),
        _ => Err(ServiceError::invalid(
            "Idempotency-Key",
            format!("is not a text of 1 to {IDEMPOTENCY_KEY_MAX} ASCII characters"),
        )),
    }
}

/// The keys of a list's query.
const FILTERS: &[&str] = &[
    "state",
    "task_id",
    "agent",
    "endpoint",
    "backend",
    "model",
    "group",
    "ended",
    "fault_owner",
    "reward_min",
    "reward_max",
    "since",
    "search",
    "limit",
    "cursor",
    "sort",
    "order",
    "skip",
];

/// Lists rollouts, the latest first.
#[utoipa::path(
    get, path = "/api/v1/rollouts", tag = "rollouts", operation_id = "list_rollouts",
    params(
        ("state" = Option<String>, Query, description = "`queued`, `running`, `finished`, `interrupted`; several with commas"),
        ("task_id" = Option<String>, Query, description = "the caller's name of the task"),
        ("agent" = Option<String>, Query, description = "name of the agent"),
        ("endpoint" = Option<String>, Query, description = "name of the endpoint"),
        ("backend" = Option<String>, Query, description = "name of the sandbox backend"),
        ("model" = Option<String>, Query, description = "the model asked for"),
        ("group" = Option<String>, Query, description = "id of a group"),
        ("ended" = Option<String>, Query, description = "`completed`, `budget`, `timeout`, `agent_error`, `setup_error`, `cancelled`"),
        ("fault_owner" = Option<String>, Query, description = "`task`, `agent`, `sandbox`, `upstream`, `server`"),
        ("reward_min" = Option<f64>, Query, description = "reward at least this"),
        ("reward_max" = Option<f64>, Query, description = "reward at most this"),
        ("since" = Option<u64>, Query, description = "started at or after this, milliseconds since the Unix epoch"),
        ("search" = Option<String>, Query, description = "text in the title or the task's name"),
        ("limit" = Option<u32>, Query, description = "1 to 1000; default 50"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
        ("sort" = Option<String>, Query, description = "`created` (default); `reward`, `wall_ms`, `calls` and `completion_tokens` leave out what waits"),
        ("order" = Option<String>, Query, description = "`descending` (default) or `ascending`, where not sorted by `created`"),
        ("skip" = Option<u32>, Query, description = "`next_skip` of the page before, where not sorted by `created`"),
    ),
    responses(
        (status = 200, description = "A page.", body = Page),
        (status = 422, description = "A filter is wrong.", body = crate::http::ErrorBody),
    )
)]
pub async fn list(State(app): State<App>, RawQuery(query): RawQuery) -> Result<Json<Page>, ServiceError> {
    let filter = filter(query.as_deref().unwrap_or(""))?;
    app.service.list(filter).await.map(Json)
}

/// Reads a list's query: every key is known, every value is of its kind.
fn filter(query: &str) -> Result<ListFilter, ServiceError> {
    let mut filter = ListFilter::default();
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        let (key, value) = (&*key, value.into_owned());
        if value.is_empty() {
            continue;
        }
        match key {
            "state" => {
                filter.states = value
                    .split(',')
                    .map(|state| word::<RolloutState>(key, state))
                    .collect::<Result<_, _>>()?;
            }
            "task_id" => filter.task_id = Some(value),
            "agent" => filter.agent = Some(value),
            "endpoint" => filter.endpoint = Some(value),
            "backend" => filter.backend = Some(value),
            "model" => filter.model = Some(value),
            "search" => filter.search = Some(value),
            "group" => filter.group = Some(parsed(key, &value)?),
            "ended" => filter.ended = Some(word(key, &value)?),
            "fault_owner" => filter.fault_owner = Some(word(key, &value)?),
            "reward_min" => filter.reward_at_least = Some(finite(key, &value)?),
            "reward_max" => filter.reward_at_most = Some(finite(key, &value)?),
            "since" => filter.since_unix_ms = Some(parsed(key, &value)?),
            "limit" => match parsed::<u32>(key, &value)? {
                limit @ 1..=1000 => filter.limit = Some(limit),
                other => {
                    return Err(ServiceError::invalid(
                        key,
                        format!("{other} is not between 1 and 1000"),
                    ));
                }
            },
            "cursor" => filter.after = Some(parsed(key, &value)?),
            "sort" => filter.sort = word(key, &value)?,
            "order" => filter.order = word(key, &value)?,
            "skip" => filter.skip = parsed(key, &value)?,
            unknown => {
                let meant = crate::error::nearest(unknown, FILTERS.iter().copied());
                let hint = meant.map(|meant| format!("did you mean `{meant}`?"));
                let hint = hint.unwrap_or_else(|| format!("known are {}", FILTERS.join(", ")));
                return Err(ServiceError::invalid(unknown, "unknown filter").hint(Some(hint)));
            }
        }
    }
    let by_time = filter.sort == ListSort::Created;
    let misplaced = if by_time && filter.skip > 0 {
        Some("skip")
    } else if by_time && filter.order != ListOrder::Descending {
        Some("order")
    } else if !by_time && filter.after.is_some() {
        Some("cursor")
    } else {
        None
    };
    match misplaced {
        None => Ok(filter),
        Some(key) => Err(
            ServiceError::invalid(key, "does not go with this `sort`").hint(Some(
                "`cursor` goes with `created`, `skip` and `order` with all others".into(),
            )),
        ),
    }
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(key: &str, value: &str) -> Result<T, ServiceError> {
    value.parse().map_err(|error| {
        ServiceError::invalid(
            key,
            format!("`{}`: {error}", crate::terminal::one_line(value, 60)),
        )
    })
}

fn finite(key: &str, value: &str) -> Result<f64, ServiceError> {
    match parsed::<f64>(key, value)? {
        number if number.is_finite() => Ok(number),
        _ => Err(ServiceError::invalid(key, "is not a finite number")),
    }
}

/// A value that is one of some words.
fn word<T: DeserializeOwned>(key: &str, value: &str) -> Result<T, ServiceError> {
    T::deserialize(value.into_deserializer())
        .map_err(|error: serde::de::value::Error| ServiceError::invalid(key, error.to_string()))
}

/// A rollout: where it is, how it started, what came of it.
#[utoipa::path(
    get, path = "/api/v1/rollouts/{id}", tag = "rollouts", operation_id = "get_rollout",
    params(("id" = String, Path, description = "id of a rollout")),
    responses(
        (status = 200, description = "The rollout.", body = View),
        (status = 404, description = "There is none of that id.", body = crate::http::ErrorBody),
    )
)]
pub async fn get(State(app): State<App>, Path(id): Path<String>) -> Result<Json<View>, ServiceError> {
    let id = app.service.find(&id).await?;
    app.service.get(id).await.map(Json)
}

/// Asks a rollout to stop. It ends as cancelled, with everything cleaned up; one that is over stays as it is.
#[utoipa::path(
    post, path = "/api/v1/rollouts/{id}/cancel", tag = "rollouts", operation_id = "cancel_rollout",
    params(("id" = String, Path, description = "id of a rollout")),
    responses(
        (status = 202, description = "It was asked to stop.", body = View),
        (status = 200, description = "It was over already.", body = View),
        (status = 404, description = "There is none of that id.", body = crate::http::ErrorBody),
    )
)]
pub async fn cancel(State(app): State<App>, Path(id): Path<String>) -> Result<Response, ServiceError> {
    let id = app.service.find(&id).await?;
    let status = match app.service.cancel(id).await? {
        true => StatusCode::ACCEPTED,
        false => StatusCode::OK,
    };
    Ok((status, Json(app.service.get(id).await?)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_and_what_is_wrong_in_it_is_named() {
        let read = filter("state=queued,running&reward_min=0.5&limit=7&task_id=a%20b&agent=").unwrap();
        assert_eq!(read.states, [RolloutState::Queued, RolloutState::Running]);
        assert_eq!(
            (read.reward_at_least, read.limit, read.task_id.as_deref()),
            (Some(0.5), Some(7), Some("a b"))
        );
        assert_eq!(read.agent, None);
        for (query, key) in [
            ("state=done", "state"),
            ("reward_min=nan", "reward_min"),
            ("limit=0", "limit"),
            ("limit=-1", "limit"),
            ("cursor=x", "cursor"),
            ("stat=queued", "stat"),
            ("group=1", "group"),
            ("sort=size", "sort"),
            ("order=ascending", "order"),
            ("skip=1", "skip"),
            (
                "sort=reward&cursor=01a22b64-f8cf-7000-87a9-64ed1d00658f",
                "cursor",
            ),
        ] {
            assert_eq!(filter(query).unwrap_err().details[0].path, key, "{query}");
        }
    }
}
