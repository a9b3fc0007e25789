use crate::endpoints::EndpointError;
use crate::error::Failure;
use dressage_rollout::SubmitError;
use dressage_store::StoreError;
use dressage_wire::task::TaskError;
use serde::Serialize;
use std::error::Error;

/// Why the service did not do what it was asked for; every surface says it in its own form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceError {
    /// What kind of failure it is.
    pub code: Code,
    /// What failed, on which object; lower case.
    pub message: String,
    /// What may help.
    pub hint: Option<String>,
    /// The places of the input that are wrong.
    pub details: Vec<Place>,
}

/// A place of the input that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Place {
    /// The key with those above it, such as `rollouts[2].task.agent.nam`.
    #[schema(example = "task.agent.nam")]
    pub path: String,
    /// What is wrong there.
    pub message: String,
}

macro_rules! codes {
    ($($variant:ident $name:literal $status:literal $meaning:literal,)+) => {
        /// What kind of failure it is: a stable word, with the status that HTTP surfaces answer with.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $(#[doc = $meaning] $variant,)+
        }

        impl Code {
            /// Every code, for documents.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The stable word.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The status of an HTTP reply.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ }
            }

            /// What it means, in a line.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)+ }
            }
        }
    };
}

codes! {
    InvalidJson "invalid_json" 400 "the body is not JSON",
    InvalidRequest "invalid_request" 422 "a key or value of the request is wrong; `details` says where",
    Unauthorized "unauthorized" 401 "an API key is missing or wrong",
    ForbiddenHost "forbidden_host" 403 "the Host header names a host that this server does not answer for",
    ForbiddenOrigin "forbidden_origin" 403 "a page of another origin sent the request",
    UnknownRoute "unknown_route" 404 "there is nothing at this path",
    UnknownRollout "unknown_rollout" 404 "no rollout has this id",
    UnknownCall "unknown_call" 404 "the rollout has no call of this index",
    UnknownEndpoint "unknown_endpoint" 404 "no endpoint has this name",
    UnknownSandbox "unknown_sandbox" 404 "no sandbox of this data directory has this id",
    UnknownTask "unknown_task" 404 "no task file of this name is offered",
    UnknownFile "unknown_file" 404 "the rollout has no file at this path",
    MethodNotAllowed "method_not_allowed" 405 "the path does not take this method; `Allow` says which it takes",
    BodyTooSlow "body_too_slow" 408 "the body arrived too slowly, and was not waited for",
    IdempotencyConflict "idempotency_conflict" 409 "the idempotency key was used with another body",
    NotHeld "not_held" 409 "the rollout's sandbox is not held",
    TooLarge "too_large" 413 "the body is larger than the server takes",
    UnsupportedMediaType "unsupported_media_type" 415 "the body is not of the media type that the route takes",
    EndpointUnusable "endpoint_unusable" 422 "the model endpoint is unknown, or lacks a URL, key or model",
    BackendUnusable "backend_unusable" 422 "the sandbox backend is unknown, not allowed, or cannot work on this machine",
    AgentUnusable "agent_unusable" 422 "the agent is unknown, or not installed",
    QueueFull "queue_full" 429 "so many rollouts wait already; `Retry-After` says when to try again",
    SandboxFailed "sandbox_failed" 502 "the held sandbox did not do what it was asked for",
    Draining "draining" 503 "the server is stopping and takes no more rollouts",
    StoreFailed "store_failed" 500 "the store could not be read or written",
}

impl ServiceError {
    /// A failure without more.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
            details: Vec::new(),
        }
    }

    /// The failure that an error and its chain of sources tell of.
    pub fn from_error(code: Code, error: &(dyn Error + 'static)) -> Self {
        Self::new(code, crate::workspace::chain(error))
    }

    /// Input that is wrong in one place.
    pub fn invalid(path: impl Into<String>, message: impl Into<String>) -> Self {
        let detail = Place {
            path: path.into(),
            message: message.into(),
        };
        let message = match detail.path.as_str() {
            "" => detail.message.clone(),
            path => format!("`{path}`: {}", detail.message),
        };
        Self {
            details: vec![detail],
            ..Self::new(Code::InvalidRequest, message)
        }
    }

    /// A task that is wrong, at `path` of the input.
    pub fn task(path: &str, error: &TaskError) -> Self {
        let place = match error {
            TaskError::UnknownKey { path: key, .. }
            | TaskError::WrongType { path: key, .. }
            | TaskError::BadValue { path: key, .. } => join(path, key),
            TaskError::NoInstruction | TaskError::InstructionTooLong { .. } => join(path, "instruction"),
            _ => path.to_owned(),
        };
        Self {
            details: vec![Place {
                path: place,
                message: error.to_string(),
            }],
            ..Self::new(Code::InvalidRequest, crate::workspace::chain(error)).hint(error.hint())
        }
    }

    /// What a command line would have been told.
    pub fn from_failure(code: Code, failure: &Failure) -> Self {
        let mut message = failure.what.clone();
        for cause in &failure.causes {
            message.push_str(&format!(": {cause}"));
        }
        Self::new(code, message).hint(failure.hints.first().cloned())
    }

    /// With something that may help.
    #[must_use]
    pub fn hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }

    /// With `path` put before the places of the input.
    #[must_use]
    pub fn under(mut self, path: &str) -> Self {
        for detail in &mut self.details {
            detail.path = join(path, &detail.path);
        }
        self
    }
}

/// A key below another.
fn join(above: &str, key: &str) -> String {
    match (above, key) {
        ("", key) => key.to_owned(),
        (above, "") => above.to_owned(),
        (above, key) => format!("{above}.{key}"),
    }
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        let code = match error {
            StoreError::NotFound { .. } => Code::UnknownRollout,
            StoreError::Ambiguous { .. } => Code::InvalidRequest,
            _ => Code::StoreFailed,
        };
        Self::from_error(code, &error).hint(error.hint())
    }
}

impl From<EndpointError> for ServiceError {
    fn from(error: EndpointError) -> Self {
        Self::from_error(Code::EndpointUnusable, &error).hint(error.hint())
    }
}

impl From<SubmitError> for ServiceError {
    fn from(error: SubmitError) -> Self {
        let code = match error {
            SubmitError::Closed => Code::Draining,
            SubmitError::Full { .. } => Code::QueueFull,
            SubmitError::Duplicate(_) => Code::InvalidRequest,
        };
        Self::from_error(code, &error)
    }
}
