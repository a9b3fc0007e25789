use super::Control;
use crate::{Exit, Process, SandboxError};
use async_trait::async_trait;
use dressage_wire::control::Exited;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How much longer than its deadline the host waits for an exit: init keeps the deadline, and has to kill the tree.
const DEADLINE_GRACE: Duration = Duration::from_secs(20);

/// A program that init runs for us.
#[derive(Debug)]
pub(crate) struct ControlledProcess {
    control: Arc<Control>,
    request: u64,
    // Taken once it has answered.
    exited: Option<oneshot::Receiver<Exited>>,
    exit: Option<Exit>,
    begun: Instant,
    give_up: Option<tokio::time::Instant>,
}

impl ControlledProcess {
    pub(super) fn new(
        control: Arc<Control>,
        request: u64,
        exited: oneshot::Receiver<Exited>,
        begun: Instant,
        timeout_ms: Option<u64>,
    ) -> Self {
        let give_up = timeout_ms
            .and_then(|ms| Duration::from_millis(ms).checked_add(DEADLINE_GRACE))
            .and_then(|after| tokio::time::Instant::from_std(begun).checked_add(after));
        Self {
            control,
            request,
            exited: Some(exited),
            exit: None,
            begun,
            give_up,
        }
    }
}

#[async_trait]
impl Process for ControlledProcess {
    async fn wait(&mut self) -> Result<Exit, SandboxError> {
        if let Some(exit) = self.exit {
            return Ok(exit);
        }
        let Some(has_exited) = &mut self.exited else {
            return Err(self.control.gone());
        };
        let exited = tokio::select! {
            biased;
            exited = has_exited => exited,
            () = until(self.give_up) => {
                self.control.close("it did not end a program whose deadline has passed");
                return Err(self.control.gone());
            }
        };
        self.exited = None;
        let exited = exited.map_err(|_| self.control.gone())?;
        let exit = Exit {
            code: exited.code,
            signal: exited.signal,
            timed_out: exited.timed_out,
            duration: self.begun.elapsed(),
        };
        self.exit = Some(exit);
        Ok(exit)
    }

    async fn kill(&mut self) -> Result<(), SandboxError> {
        if self.exit.is_none() {
            self.control.kill(self.request)?;
            self.wait().await?;
        }
        Ok(())
    }
}

async fn until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
