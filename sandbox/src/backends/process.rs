use crate::{Backend, BackendConfig, Report, SandboxError};
use std::sync::Arc;

pub(super) fn make(_: &BackendConfig) -> Result<Arc<dyn Backend>, SandboxError> {
    Err(SandboxError::Unavailable { backend: "process", reason: "not built yet".into() })
}

pub(super) fn probe(_: &BackendConfig) -> Report {
    Report::default()
}
